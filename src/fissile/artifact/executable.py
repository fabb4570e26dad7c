"""A compiled model as a callable over arrays.

Calls may come from several threads: they take turns on one model. Results are arrays that nobody
else holds. Anything with `__dlpack__` or a numpy array goes in; wrong names, shapes or element
types are refused with what was expected.

A call finds Python itself evicted from the caches by the call before, so every line that it
executes costs ten times what a loop over it would show: the common path is kept short.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fissile.artifact.manifest import FILE, REBUILD, Manifest, Tensor
from fissile.artifact.write import replacing
from fissile.errors import InputError, ToolchainError, located, shown
from fissile.ir.types import TensorType

_ALIGNMENT = 64


class Executable:
    """Made by `compile` and `load`. `selection` is what the solver chose, or its summary once
    loaded; `stages` is what `compile` saw of its stages, None once loaded."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        threads: int | None = None,
        selection: Any = None,
        temporary: bool = False,
    ):
        """`temporary`: the folder goes away with this object. Raises ToolchainError."""
        self.folder, self.manifest = folder, manifest
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self.stages: Any = None
        self.selection = selection if selection is not None else manifest.facts.get("selection")
        self._lock = threading.Lock()
        if temporary:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._library = _Library(folder / manifest.library, manifest.prefix)
        self._library.check(manifest.inputs, manifest.outputs)
        self._model = self._library.create(folder / "weights.bin", threads or 0)
        weakref.finalize(self, self._library.destroy, self._model)
        self._expected_types = [(t.dtype, t.shape) for t in self.inputs]
        self._places = [_Place(t) for t in self.outputs]
        self._read = (ctypes.c_void_p * max(1, len(self.inputs)))()
        self._written = (ctypes.c_void_p * max(1, len(self.outputs)))()

    @property
    def threads(self) -> int:
        return self._library.threads(self._model)

    def __repr__(self) -> str:
        ends = [", ".join(map(repr, ts)) for ts in (self.inputs, self.outputs)]
        return f"<Executable {shown(self.manifest.name)} ({ends[0]}) -> ({ends[1]})>"

    def __call__(self, *arrays: Any) -> Any:
        """Inputs in model order. One output gives an array, several a tuple."""
        results = self._call(arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Outputs by name."""
        results = self._call(self._ordered(feeds))
        return {t.name: a for t, a in zip(self.outputs, results, strict=True)}

    def profile(self, *arrays: Any) -> list[float]:
        """Microseconds of every step of one call, in the order of `model.cpp`."""
        times = (ctypes.c_double * self._library.step_count())()
        self._call(arrays, times)
        return list(times)

    def save(self, folder: str | Path) -> Path:
        """Copy the artifact to `folder`, which may not lie inside it. Raises ToolchainError as
        `write` does."""
        target = Path(folder)
        if target.exists() and target.resolve() == self.folder.resolve():
            return target
        with replacing(target) as part:
            try:
                shutil.copytree(self.folder, part, dirs_exist_ok=True)
            except shutil.Error as error:  # a list of faults: the first says enough
                raise OSError(*_first_fault(error)) from None
        return target

    def _ordered(self, feeds: Mapping[str, Any]) -> list[Any]:
        if not isinstance(feeds, Mapping):
            given = type(feeds).__name__
            raise InputError(f"run takes arrays by input name, not {given}. {self._expected()}")
        names = [t.name for t in self.inputs]
        for name in feeds:
            if name not in names:
                raise InputError(f"no input is called {shown(str(name))}. {self._expected()}")
        for t in self.inputs:
            if t.name not in feeds:
                raise InputError(f"input {shown(t.name)} is missing. {self._expected()}")
        return [feeds[name] for name in names]

    def _expected(self) -> str:
        listed = ", ".join(f"{shown(t.name)} {t.type}" for t in self.inputs[:20])
        more = f" and {len(self.inputs) - 20} more" if len(self.inputs) > 20 else ""
        return f"The model has {len(self.inputs)} inputs: {listed}{more}."

    def _call(self, arrays: Sequence[Any], times: Any = None) -> list[np.ndarray]:
        if len(arrays) != len(self.inputs):
            raise InputError(f"{len(arrays)} arrays given. {self._expected()}")
        with self._lock:
            kept = self._point_at(arrays)
            outputs: list[np.ndarray] = []
            for i, place in enumerate(self._places):
                array, self._written[i] = place.array()
                outputs.append(array)
            self._library.run(self._model, self._read, self._written, times)
        del kept
        return outputs

    def _point_at(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Set the pointers of the inputs; what was made for them must live as long as the call."""
        kept: list[np.ndarray] = []
        for i, array in enumerate(arrays):
            dtype, shape = self._expected_types[i]
            if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape:
                try:  # refuses what is not dense, not writable, or empty
                    self._read[i] = _address(_from_buffer(array))
                    continue
                except (TypeError, ValueError, BufferError):
                    pass
            kept.append(_checked(array, self.inputs[i]))
            self._read[i] = kept[-1].ctypes.data
        return kept


_address = ctypes.addressof
_from_buffer: Any = ctypes.c_char.from_buffer  # arrays are buffers, which their types do not say


def _checked(array: Any, tensor: Tensor) -> np.ndarray:
    """A dense row-major array of the tensor's type. Raises InputError naming the input."""
    name, expected = shown(tensor.name), tensor.type
    if not isinstance(array, np.ndarray | np.generic):
        if not hasattr(array, "__dlpack__"):
            raise InputError(
                f"input {name}: expected an array {expected}, got {type(array).__name__}"
            )
        array = _imported(array, tensor)
    array = np.asarray(array)
    if array.dtype != tensor.dtype:
        wanted = tensor.dtype.name
        raise InputError(
            f"input {name}: expected {expected}, got {array.dtype}{list(array.shape)}. "
            f"Convert it with .astype({wanted!r})."
        )
    if array.shape != expected.shape:
        raise InputError(
            f"input {name}: expected {expected}, got {TensorType(array.shape, expected.dtype)}. "
            "Give an array of that shape, or compile the model for yours (shapes=..., --shape)."
        )
    return np.ascontiguousarray(array)


def _imported(array: Any, tensor: Tensor) -> np.ndarray:
    """Through DLPack: foreign code, which may fail as it likes. Raises InputError."""
    try:
        return np.from_dlpack(array)
    except Exception as error:
        raise InputError(
            f"input {shown(tensor.name)}: expected an array {tensor.type}, but "
            f"{type(array).__name__}.__dlpack__ failed: {type(error).__name__} {shown(str(error))}"
        ) from error


class _Place:
    """Memory for one result, aligned to a cache line. It is used again when no array that was given
    out still refers to it; two blocks, for loops that keep the result before."""

    def __init__(self, tensor: Tensor):
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.size_bytes = tensor.type.size_bytes
        self.blocks: list[tuple[np.ndarray, int, int]] = []
        # without a global lock the count of references says nothing
        self.kept = 2 if getattr(sys, "_is_gil_enabled", lambda: True)() else 0

    def array(self) -> tuple[np.ndarray, int]:
        """An array that nobody else holds, and its address."""
        for block, offset, address in self.blocks:
            if sys.getrefcount(block) == _UNUSED:
                return np.ndarray(self.shape, self.dtype, block, offset), address
        block = np.empty(self.size_bytes + _ALIGNMENT, np.uint8)
        start = block.ctypes.data
        offset = -start % _ALIGNMENT
        if self.kept:
            self.blocks = [*self.blocks[1 - self.kept :], (block, offset, start + offset)]
        return np.ndarray(self.shape, self.dtype, block, offset), start + offset


def _references() -> int:
    """What `sys.getrefcount` says in `_Place.array` of a block that only its place holds."""
    for block, _, _ in [(np.empty(1, np.uint8), 0, 0)]:
        return sys.getrefcount(block)
    return 0


_UNUSED = _references()


def _first_fault(error: shutil.Error) -> tuple[int, str]:
    reason = str(error.args[0][0][2]) if error.args and error.args[0] else str(error)
    return (28 if "Errno 28" in reason else 5), reason


class _Library:
    """The C functions of an artifact (see its model.h)."""

    def __init__(self, path: Path, prefix: str):
        try:
            library = _opened(path.resolve())
            self._functions = {
                name: _typed(getattr(library, f"{prefix}_{name}"), *kinds)
                for name, kinds in _SIGNATURES.items()
            }
        except (OSError, AttributeError) as error:
            raise ToolchainError(f"cannot load {located(path)}: {error}. {REBUILD}") from None
        self._path = path
        self.step_count, self.threads = self._functions["step_count"], self._functions["threads"]
        self.destroy = self._functions["destroy"]

    def check(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Raises ToolchainError where the library reads and writes other tensors than these."""
        for end, tensors in (("input", inputs), ("output", outputs)):
            count = self._functions[f"{end}_count"]()
            found = self._functions[f"{end}s"]()[:count]
            if list(map(_row, found)) != list(map(_expected_row, tensors)):
                raise ToolchainError(
                    f"{located(self._path)} has other {end}s than its {FILE} says. {REBUILD}"
                )

    def create(self, weights: Path, threads: int) -> int:
        model = self._functions["create"](str(weights).encode("utf-8", "surrogateescape"), threads)
        if not model:
            raise ToolchainError(self._functions["error"]().decode("utf-8", "replace"))
        return model

    def run(self, model: int, inputs: Any, outputs: Any, times: Any) -> None:
        if times is None:
            self._functions["run"](model, inputs, outputs)
        else:
            self._functions["profile"](model, inputs, outputs, times)


def _opened(path: Path) -> ctypes.CDLL:
    """The library of exactly this file. The dynamic linker knows libraries by their path: a name of
    its own keeps it from handing out the library that an earlier artifact had at the same place."""
    if not path.is_file():
        raise OSError("no such file")
    with tempfile.TemporaryDirectory(prefix="fissile-") as folder:
        link = Path(folder) / path.name
        link.symlink_to(path)
        return ctypes.CDLL(str(link))


class _TensorRow(ctypes.Structure):
    """fissile_tensor of model.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("size_bytes", ctypes.c_int64),
    ]


def _row(row: Any) -> tuple[Any, ...]:
    return row.name, row.dtype, tuple(row.shape[: row.rank]), row.size_bytes


def _expected_row(tensor: Tensor) -> tuple[Any, ...]:
    name = tensor.name.encode("utf-8", "surrogatepass").partition(b"\0")[0]  # a C string
    return name, tensor.type.dtype.name.encode(), tensor.shape, tensor.type.size_bytes


_POINTER = ctypes.c_void_p
_ROWS = ctypes.POINTER(_TensorRow)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create": (_POINTER, ctypes.c_char_p, ctypes.c_int),
    "destroy": (None, _POINTER),
    "error": (ctypes.c_char_p,),
    "threads": (ctypes.c_int, _POINTER),
    "step_count": (ctypes.c_int,),
    "input_count": (ctypes.c_int,),
    "output_count": (ctypes.c_int,),
    "inputs": (_ROWS,),
    "outputs": (_ROWS,),
    "run": (ctypes.c_int, _POINTER, _POINTER, _POINTER),
    "profile": (ctypes.c_int, _POINTER, _POINTER, _POINTER, _POINTER),
}


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function

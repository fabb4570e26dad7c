"""Compiles one kernel and runs it: how a test asks whether the text computes what its region says.

Arrays come and go in logical order; tokens lie in memory in their layouts. Guard bands stand around
every buffer, constants are packed as the kernel asks, and several partitions of the tiles must give
the same bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value, walk
from fissile.ir.layout import Layout, Token, row_major
from fissile.ir.types import TensorType
from fissile.kernels.candidate import Candidate, Kernel, parameter_value
from fissile.kernels.region import Region
from fissile.targets.cpu.emit import RUNTIME, entry, kernel_includes, runtime_files
from fissile.targets.cpu.libraries import links
from fissile.targets.cpu.packing import pack

FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fwrapv", "-Wno-psabi", "-fPIC", "-Wall", "-Werror=uninitialized",
)  # fmt: skip
GUARD = 256  # bytes on each side of a buffer
_MARK = 0xA5
_FOLDER = tempfile.TemporaryDirectory(prefix="fissile-kernels-")


def region_of(*outputs: Value) -> Region:
    """Everything that computes these values."""
    nodes = walk(v.node for v in outputs)
    return Region(tuple(n for n in nodes if n.prim not in ("input", "constant")), outputs)


def candidate_of(
    outputs: Sequence[Value],
    layouts: dict[Value, Layout] | None = None,
    impl: str = "test",
    **params: object,
) -> Candidate:
    """A candidate over all that computes `outputs`; row-major where `layouts` says nothing."""
    region, layouts = region_of(*outputs), layouts or {}

    def token(v: Value) -> Token:
        return Token(v, layouts.get(v, row_major(v.rank)))

    needs, gives = tuple(map(token, region.tensors)), tuple(map(token, region.outputs))
    return Candidate(region, impl, tuple(params.items()), needs, gives)


def expected(
    candidate: Candidate, inputs: Sequence[np.ndarray], reference: bool = True
) -> list[np.ndarray]:
    """The oracle: the region evaluated by numpy, floats in float64."""
    values = candidate.region.tensors
    names = tuple(f"i{k}" for k in range(len(values)))
    outs = candidate.region.outputs
    graph = Graph(values, outs, names, tuple(f"o{k}" for k in range(len(outs))))
    return evaluate(graph, inputs, reference)


@cache
def _headers(flags: tuple[str, ...]) -> Path:
    """One header with all of the runtime's, compiled once: most of a small kernel's time."""
    folder = Path(_FOLDER.name) / hashlib.sha256(repr(flags).encode()).hexdigest()[:12]
    folder.mkdir()
    header = folder / "kernels.h"
    header.write_text(kernel_includes(runtime_files(), ""))
    _compiler(*flags, "-x", "c++-header", str(header), "-o", f"{header}.gch")
    return header


def _compiler(*arguments: str) -> None:
    command = ["g++", *FLAGS, "-I", str(RUNTIME), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def compiled(kernel: Kernel, flags: Sequence[str] = ()) -> ctypes._CFuncPtr:  # pyright: ignore
    """entry(pointers, scratch, begin, end); equal texts are compiled once."""
    body = kernel.source + entry(kernel, 'extern "C" void')
    text = f"namespace fissile {{\n{body}}}\n"
    name = Path(_FOLDER.name) / hashlib.sha256(f"{text}{flags}".encode()).hexdigest()[:20]
    library = name.with_suffix(".so")
    if not library.exists():
        source = name.with_suffix(".cpp")
        source.write_text(text)
        header = _headers(tuple(flags))
        called = links(kernel.libraries)
        _compiler(
            *flags, "-shared", "-include", str(header), str(source), "-o", str(library), *called
        )
    return getattr(ctypes.CDLL(str(library)), f"{kernel.name}_entry")


class Guarded:
    """Bytes with guard bands around them, 64-byte aligned."""

    def __init__(self, size_bytes: int):
        self.size_bytes = size_bytes
        self.raw = np.full(size_bytes + 2 * GUARD + 64, _MARK, np.uint8)
        self.start = GUARD + -(self.raw.ctypes.data + GUARD) % 64

    @property
    def bytes(self) -> np.ndarray:
        return self.raw[self.start : self.start + self.size_bytes]

    @property
    def address(self) -> int:
        return self.raw.ctypes.data + self.start

    def check(self, name: str) -> None:
        outside = [self.raw[: self.start], self.raw[self.start + self.size_bytes :]]
        assert all((part == _MARK).all() for part in outside), f"{name}: written out of bounds"


def guarded(array: np.ndarray) -> Guarded:
    buffer = Guarded(array.nbytes)
    buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer


def to_memory(array: np.ndarray, layout: Layout) -> np.ndarray:
    """As it lies in memory; what fills up last blocks is marked by NaN or the largest number."""
    for axis, size in layout.tile:
        extra = [(0, -n % size if a == axis else 0) for a, n in enumerate(array.shape)]
        rest = np.nan if array.dtype.kind == "f" else 99
        array = np.pad(array, extra, constant_values=rest) if any(e for _, e in extra) else array
    split, order = _split(array.shape, layout)
    return np.ascontiguousarray(np.transpose(array.reshape(split), order))


def from_memory(data: np.ndarray, type: TensorType, layout: Layout) -> np.ndarray:
    blocks = dict(layout.tile)
    padded = tuple(-(-n // blocks.get(a, 1)) * blocks.get(a, 1) for a, n in enumerate(type.shape))
    split, order = _split(padded, layout)
    stored = data.view(type.dtype.numpy).reshape([split[k] for k in order])
    whole = np.transpose(stored, np.argsort(order)).reshape(padded)
    return whole[tuple(slice(n) for n in type.shape)]


def _split(shape: Sequence[int], layout: Layout) -> tuple[list[int], list[int]]:
    """The shape with every tiled axis as two, and the order of these axes in memory."""
    blocks, split, outer, inner = dict(layout.tile), [], {}, {}
    for a, n in enumerate(shape):
        outer[a] = len(split)
        split.append(n // blocks.get(a, 1))
        if a in blocks:
            inner[a] = len(split)
            split.append(blocks[a])
    return split, [*(outer[a] for a in layout.order), *(inner[a] for a, _ in layout.tile)]


def partitions(tiles: int) -> Iterator[list[tuple[int, int]]]:
    """All at once, one by one from the last, and in three uneven parts."""
    yield [(0, tiles)]
    if 1 < tiles <= 64:
        yield [(t, t + 1) for t in reversed(range(tiles))]
    if tiles > 2:
        yield [(tiles // 3, tiles - 1), (0, tiles // 3), (tiles - 1, tiles)]


def equal_parts(tiles: int, pieces: int) -> list[tuple[int, int]]:
    return [(p * tiles // pieces, (p + 1) * tiles // pieces) for p in range(pieces)]


def run_kernel(
    candidate: Candidate,
    kernel: Kernel,
    inputs: Sequence[np.ndarray],
    pieces: int | None = None,
    flags: Sequence[str] = (),
) -> list[np.ndarray]:
    """The given tokens, in logical order. `inputs` follow candidate.needs. The tiles run in
    `pieces` equal parts; without that, several partitions are compared. `flags` go to the
    compiler."""
    function = compiled(kernel, flags)
    first: list[np.ndarray] | None = None
    for parts in (
        partitions(kernel.tiles) if pieces is None else [equal_parts(kernel.tiles, pieces)]
    ):
        results = _run(function, candidate, kernel, inputs, parts)
        if first is not None:
            for a, b in zip(first, results, strict=True):
                assert a.tobytes() == b.tobytes(), f"partition {parts[:4]} gives other bits"
        first = first or results
    assert first is not None
    return first


def _run(
    function: ctypes._CFuncPtr,  # pyright: ignore
    candidate: Candidate,
    kernel: Kernel,
    inputs: Sequence[np.ndarray],
    parts: Sequence[tuple[int, int]],
) -> list[np.ndarray]:
    buffers = [buffer_of(candidate, kernel, p, inputs) for p in kernel.params]
    scratch = Guarded(kernel.scratch_bytes)
    pointers = (ctypes.c_void_p * len(buffers))(*(b.address for b in buffers))
    closing = [(kernel.tiles, kernel.tiles + 1)] if kernel.closes else []
    for begin, end in (*parts, *closing):
        function(
            pointers, ctypes.c_void_p(scratch.address), ctypes.c_long(begin), ctypes.c_long(end)
        )
    scratch.check("scratch")
    for p, b in zip(kernel.params, buffers, strict=True):
        b.check(p.name)
    gives = {p.index: b for p, b in zip(kernel.params, buffers, strict=True) if p.role == "give"}
    return [
        from_memory(gives[i].bytes, t.value.type, t.layout) for i, t in enumerate(candidate.gives)
    ]


def buffer_of(candidate: Candidate, kernel: Kernel, param, inputs: Sequence[np.ndarray]) -> Guarded:
    """What one parameter of a kernel points to."""
    if param.role == "need":
        token = candidate.needs[param.index]
        return guarded(
            to_memory(inputs[param.index].astype(token.value.type.dtype.numpy), token.layout)
        )
    if param.role == "constant":
        value = parameter_value(candidate, param)
        return guarded(value.array if param.packing is None else pack(value.array, param.packing))
    if param.role == "work":
        return Guarded(param.elements * 4)
    return Guarded(candidate.gives[param.index].size_bytes)

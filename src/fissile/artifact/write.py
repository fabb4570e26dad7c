"""Write an artifact: all of it or nothing.

Everything is written into a folder beside the target, which takes the target's name when it is
complete. A folder that is no artifact is never replaced; an artifact only by a complete one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from fissile.artifact import manifest as manifests
from fissile.artifact.manifest import Manifest, Tensor
from fissile.errors import FissileError, ToolchainError, located
from fissile.ir.graph import Graph
from fissile.ir.text import text
from fissile.kernels.candidate import Packing
from fissile.plan.plan import Plan

Pack = Callable[[np.ndarray, Packing | None], np.ndarray]
# Weights are written in large pieces: of small ones Linux keeps a new file in small pages, and a
# program that maps it is 5 % slower until they have left memory (measured: MiniLM, EfficientViT).
CHUNK_BYTES = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Built(Protocol):
    @property
    def library(self) -> str: ...
    @property
    def machine(self) -> dict[str, Any]: ...


def write(
    folder: Path,
    graph: Graph,
    plan: Plan,
    files: Mapping[str, str],
    pack: Pack,
    build: Callable[[Path], Built],
    facts: Mapping[str, Any] | None = None,
    prefix: str = "model",
    check: Callable[[Path], None] | None = None,
) -> Path:
    """The folder, complete. `files` is what the target emitted, `build` compiles a folder, `facts`
    (JSON) goes into the manifest, `check` looks at the whole before it takes its name and may
    refuse it. Raises ToolchainError: disk full, folder in use, compiler failure."""
    with replacing(folder) as part:
        for name, content in files.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        write_weights(part / "weights.bin", plan, pack)
        (part / "graph.txt").write_text(text(graph), encoding="utf-8")
        built = build(part)
        names = sorted(str(p.relative_to(part)) for p in part.rglob("*") if p.is_file())
        manifest = Manifest(
            graph.name, prefix, built.library,
            _tensors(graph.input_names, graph.inputs), _tensors(graph.output_names, graph.outputs),
            dict(built.machine), _memory(plan), dict(facts or {}),
            {name: manifests.digest(part / name) for name in names},
        )  # fmt: skip
        (part / manifests.FILE).write_text(manifest.dump(), encoding="utf-8")
        if check:
            check(part)
    return folder


def _tensors(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(n, v.type) for n, v in zip(names, values, strict=True))


def _memory(plan: Plan) -> dict[str, int]:
    return {
        "arena_bytes": plan.arena_bytes,
        "arena_bound_bytes": plan.arena_bound_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "weights_bytes": plan.weights_bytes,
        "opened_bytes": plan.opened_bytes,
    }


def write_weights(path: Path, plan: Plan, pack: Pack) -> None:
    """Packed constants at their offsets, one at a time. Raises FissileError where a packer's size
    is off."""
    with path.open("wb", buffering=0) as file:
        write_pieces(file, _packed(plan, pack))


def _packed(plan: Plan, pack: Pack) -> Iterator[memoryview]:
    """The bytes of a file of weights, in order."""
    end = 0
    for w in plan.weights:
        data = np.ascontiguousarray(pack(w.value.array, w.packing))
        if data.nbytes != w.size_bytes:
            raise FissileError(
                f"{w.packing} of {w.value.type} gives {data.nbytes} B, "
                f"the kernel expects {w.size_bytes}"
            )
        yield memoryview(bytes(w.offset - end))
        if data.nbytes:
            yield data.view(np.uint8).reshape(-1).data
        end = w.offset + w.size_bytes


def write_pieces(file: IO[bytes], parts: Iterable[memoryview]) -> None:
    """Write bytes one after another, in whole pieces that begin at multiples of their size."""
    piece = bytearray()
    for part in parts:
        while part.nbytes:
            taken = part[: CHUNK_BYTES - len(piece)]
            piece += taken
            part = part[taken.nbytes :]
            if len(piece) == CHUNK_BYTES:
                _write_all(file, piece)
                piece = bytearray()
    _write_all(file, piece)


def _write_all(file: IO[bytes], piece: bytearray) -> None:
    """A file without a buffer may take a part, before it says why not all."""
    left = memoryview(piece)
    while left.nbytes:
        left = left[file.write(left) :]


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its name if the body ends well and goes away if
    not.

    Raises ToolchainError where `folder` is something else than an artifact, and for faults of the
    disk.
    """
    check_target(folder)
    part: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(
            tempfile.mkdtemp(prefix=f".{folder.name[:80]}.", suffix=".part", dir=folder.parent)
        )
        part.chmod(0o755)
        yield part
        _swap(part, folder)
    except OSError as error:
        raise disk_fault(error, folder) from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def check_target(folder: Path) -> None:
    """Raises ToolchainError where writing to `folder` would destroy what is no artifact, or where
    no folder can take its place."""
    try:
        fault = _fault_of_target(folder)
    except OSError as error:
        raise disk_fault(error, folder) from None
    if fault:
        raise ToolchainError(f"{located(folder)} {fault}. Choose another place.")


def _fault_of_target(folder: Path) -> str | None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return "exists and is no folder"
    if folder.is_dir() and any(folder.iterdir()) and not manifests.is_artifact(folder):
        return "holds something else than a compiled model"
    place = folder.resolve()
    if place.is_dir() and _is_in_use(place):
        return "is the current folder, holds it, or is a mounted disk, and cannot be replaced"
    if any(map(manifests.is_artifact, place.parents)):
        return "lies inside a compiled model"
    return None


def _is_in_use(place: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # the current folder is gone
        if Path.cwd().is_relative_to(place):
            return True
    return os.path.ismount(place)


def _swap(part: Path, folder: Path) -> None:
    """Rename `part` to `folder`; an artifact that was there goes away, or comes back on a fault."""
    if not folder.exists():
        os.rename(part, folder)
        return
    aside = part.with_name(part.name + ".old")
    os.rename(folder, aside)
    try:
        os.rename(part, folder)
    except OSError:
        os.rename(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def disk_fault(error: OSError, folder: Path) -> ToolchainError:
    """What a user is told about a fault of the disk."""
    if error.errno in _FULL:
        return ToolchainError(
            f"the disk is full: {located(folder)} was not written. "
            "Free some space or choose another place."
        )
    place = located(error.filename or folder)
    reason = error.strerror or error
    return ToolchainError(f"cannot write {located(folder)}: {reason} ({place})")

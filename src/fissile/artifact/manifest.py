"""manifest.json: what an artifact holds, and the checks that a folder is one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fissile.errors import ToolchainError, located, shown
from fissile.ir.types import BY_NAME, TensorType

FORMAT = 1
FILE = "manifest.json"
REBUILD = "Compile the model again."


@dataclass(frozen=True)
class Tensor:
    """An input or an output of a compiled model."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self):
        """The numpy element type."""
        return self.type.dtype.numpy

    def __repr__(self) -> str:
        return f"{self.name!r}: {self.type}"


@dataclass(frozen=True)
class Manifest:
    """`files` are SHA-256 digests by path; `facts` is what the compiler reports about itself."""

    name: str
    prefix: str
    library: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    machine: dict[str, Any]
    memory: dict[str, int]
    facts: dict[str, Any]
    files: dict[str, str]

    def dump(self) -> str:
        data = {
            "format": FORMAT,
            **{k: v for k, v in vars(self).items() if k not in ("inputs", "outputs")},
            "inputs": [_row(t) for t in self.inputs],
            "outputs": [_row(t) for t in self.outputs],
        }
        return json.dumps(data, indent=1) + "\n"


def _row(t: Tensor) -> dict[str, Any]:
    return {"name": t.name, "dtype": t.type.dtype.name, "shape": list(t.shape)}


def read(folder: Path) -> Manifest:
    """Raises ToolchainError where the folder is no artifact, a damaged one, or one of another
    version."""
    path = folder / FILE
    if not path.is_file():
        what = (
            "does not exist" if not folder.exists() else f"is no compiled model: it has no {FILE}"
        )
        raise ToolchainError(f"{located(folder)} {what}")
    try:
        data = _record(json.loads(path.read_text()), "it")
        found = _count(_field(data, "format"), "format")
        if found != FORMAT:
            raise ToolchainError(
                f"{located(folder)} has format {found}, this version reads {FORMAT}. " + REBUILD
            )
        return _parsed(data)
    except RecursionError:
        reason = "nested too deeply"
    except _Damage as damage:
        reason = str(damage)
    except (OSError, ValueError) as error:
        reason = f"{type(error).__name__} {error}"
    raise ToolchainError(f"{located(path)} is damaged: {reason}. {REBUILD}")


# ---------------------------------------------------------------- from JSON, every type checked


class _Damage(Exception):
    """Which field is not what it should be."""


def _parsed(data: Mapping[str, Any]) -> Manifest:
    known = {f.name for f in fields(Manifest)} | {"format"}
    if unknown := sorted(set(data) - known):
        raise _Damage(f"{shown(unknown[0])} is unknown")
    manifest = Manifest(
        _text(_field(data, "name"), "name"),
        _text(_field(data, "prefix"), "prefix"),
        _text(_field(data, "library"), "library"),
        _tensors(_field(data, "inputs"), "inputs"),
        _tensors(_field(data, "outputs"), "outputs"),
        _machine(_field(data, "machine")),
        _each(_record(_field(data, "memory"), "memory"), "memory", _count),
        _facts(_field(data, "facts")),
        _each(_record(_field(data, "files"), "files"), "files", _text),
    )
    if not (manifest.prefix.isidentifier() and manifest.prefix.isascii()):
        raise _Damage(f"prefix is {shown(manifest.prefix)}, which is no C identifier")
    if manifest.library not in manifest.files:
        raise _Damage("library is none of files")
    return manifest


def _field(data: Mapping[str, Any], name: str, where: str = "") -> Any:
    if name not in data:
        raise _Damage(f"{where}{name} is missing")
    return data[name]


def _is(value: Any, kind: type, where: str, wanted: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _Damage(f"{where} is {shown(json.dumps(value))}, not {wanted}")
    return value


def _text(value: Any, where: str) -> str:
    return _is(value, str, where, "text")


def _record(value: Any, where: str) -> dict[str, Any]:
    return _is(value, dict, where, "an object")


def _rows(value: Any, where: str) -> list[Any]:
    return _is(value, list, where, "a list")


def _count(value: Any, where: str) -> int:
    if _is(value, int, where, "a whole number") < 0:
        raise _Damage(f"{where} is {value}, which is negative")
    return value


def _each(record: dict[str, Any], where: str, read: Callable[[Any, str], Any]) -> dict[str, Any]:
    return {key: read(value, f"{where}: {shown(key)}") for key, value in record.items()}


def _tensors(value: Any, where: str) -> tuple[Tensor, ...]:
    rows = _rows(value, where)
    return tuple(_tensor(_record(row, f"{where}[{i}]"), f"{where}[{i}]")
                 for i, row in enumerate(rows))  # fmt: skip


def _tensor(row: Mapping[str, Any], where: str) -> Tensor:
    name, dtype, extents = (_field(row, key, f"{where}.") for key in ("name", "dtype", "shape"))
    dtype = _text(dtype, f"{where}.dtype")
    if dtype not in BY_NAME:
        raise _Damage(f"{where}.dtype is {shown(dtype)}, which is no element type")
    extents = _rows(extents, f"{where}.shape")
    shape = tuple(_count(extent, f"{where}.shape") for extent in extents)
    return Tensor(_text(name, f"{where}.name"), TensorType(shape, BY_NAME[dtype]))


def _machine(value: Any) -> dict[str, Any]:
    machine = _record(value, "machine")
    _text(machine.get("architecture", ""), "machine.architecture")
    for flag in _rows(machine.get("instructions", []), "machine.instructions"):
        _text(flag, "machine.instructions")
    for row in _rows(machine.get("libraries", []), "machine.libraries"):
        library = _record(row, "machine.libraries")
        _text(library.get("name"), "machine.libraries: name")
    return machine


def _facts(value: Any) -> dict[str, Any]:
    """What `inspect` reads; the rest may be anything."""
    facts = _record(value, "facts")
    where = "facts.selection"
    selection = _record(facts.get("selection", {}), where)
    for choice in _rows(selection.get("choices", []), f"{where}.choices"):
        if choice is None:
            continue
        second = _record(choice, f"{where}.choices").get("runner_up")
        if second is not None:
            row = _record(second, f"{where}.choices: runner_up")
            for key, kind in (("impl", str), ("us", int | float), ("source", str)):
                if not isinstance(row.get(key), kind):
                    raise _Damage(f"{where}.choices: runner_up has no {key}")
    return facts


def is_artifact(folder: Path) -> bool:
    """Whether the folder was written by this compiler, in any version."""
    try:
        data = json.loads((folder / FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "format" in data and "library" in data


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raises ToolchainError at the first file that is missing or changed."""
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ToolchainError(f"{located(folder)}: {located(name)} is missing. {REBUILD}")
        if digest(path) != expected:
            raise ToolchainError(
                f"{located(folder)}: {located(name)} is not the file that was built. {REBUILD}"
            )

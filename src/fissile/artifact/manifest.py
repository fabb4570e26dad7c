"""manifest.json: what an artifact holds, and the checks that a folder is one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fissile.errors import ToolchainError
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


def _tensor(row: Mapping[str, Any]) -> Tensor:
    return Tensor(row["name"], TensorType(tuple(map(int, row["shape"])), BY_NAME[row["dtype"]]))


def read(folder: Path) -> Manifest:
    """Raises ToolchainError where the folder is no artifact or one of another version."""
    path = folder / FILE
    if not path.is_file():
        what = (
            "does not exist" if not folder.exists() else f"is no compiled model: it has no {FILE}"
        )
        raise ToolchainError(f"{folder} {what}")
    try:
        data = json.loads(path.read_text())
        found = data.pop("format")
        if found != FORMAT:
            raise ToolchainError(
                f"{folder} has format {found}, this version reads {FORMAT}. {REBUILD}"
            )
        for end in ("inputs", "outputs"):
            data[end] = tuple(map(_tensor, data[end]))
        return Manifest(**data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolchainError(
            f"{path} is damaged: {type(error).__name__} {error}. {REBUILD}"
        ) from None


def is_artifact(folder: Path) -> bool:
    """Whether the folder was written by this compiler, in any version."""
    try:
        data = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
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
            raise ToolchainError(f"{folder}: {name} is missing. {REBUILD}")
        if digest(path) != expected:
            raise ToolchainError(f"{folder}: {name} is not the file that was built. {REBUILD}")

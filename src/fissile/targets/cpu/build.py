"""Compile an emitted folder into its library."""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fissile.errors import ToolchainError
from fissile.targets.cpu.host import cpu_model, missing_flags
from fissile.targets.cpu.libraries import links, rows
from fissile.targets.cpu.toolchain import Toolchain, find

LIBRARY = "libmodel.so"


@dataclass(frozen=True)
class Built:
    """The library's name in the folder, and the machine it was built for."""

    library: str
    machine: dict[str, object]


def build(
    folder: Path,
    toolchain: Toolchain | None = None,
    jobs: int | None = None,
    libraries: Collection[str] = (),
) -> Built:
    """Compile every .cpp of the folder, the longest first. `libraries` are what kernels call.
    Raises ToolchainError."""
    toolchain = toolchain or find()
    paths = list(folder.rglob("*.cpp"))
    paths.sort(key=lambda p: (-p.stat().st_size, str(p)))
    toolchain.compile(paths, folder / LIBRARY, (f"-I{folder}",), jobs, links(libraries))
    called = {"libraries": rows(libraries)} if libraries else {}
    return Built(LIBRARY, machine(toolchain) | called)


def machine(toolchain: Toolchain) -> dict[str, object]:
    """What a library depends on, for the manifest."""
    return {
        "architecture": platform.machine(),
        "processor": cpu_model(),
        "instructions": list(toolchain.isa()),
        "compiler": toolchain.version,
        "flags": list(toolchain.flags),
    }


def check_machine(built_for: dict[str, object]) -> None:
    """Raises ToolchainError where this processor cannot execute the library."""
    here, there = platform.machine(), str(built_for.get("architecture", platform.machine()))
    instructions = built_for.get("instructions", ())
    missing = (
        missing_flags([str(f) for f in instructions]) if isinstance(instructions, list) else []
    )
    if here != there:
        raise ToolchainError(
            f"built for {there}, this machine is {here}: rebuild it here from the model"
        )
    if missing:
        raise ToolchainError(
            f"built for {built_for.get('processor')}, this processor lacks {', '.join(missing)}: "
            "rebuild it here from the model"
        )

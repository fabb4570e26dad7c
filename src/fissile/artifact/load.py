"""Load an artifact: check that it is whole and fits this processor, then open it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fissile.artifact.executable import Executable
from fissile.artifact.manifest import check_files, read
from fissile.errors import ToolchainError, located
from fissile.targets.cpu.build import check_machine
from fissile.targets.cpu.host import checked_threads
from fissile.targets.cpu.libraries import opened


def load(
    folder: str | Path,
    threads: int | None = None,
    verify: bool = True,
    selection: Any = None,
    temporary: bool = False,
) -> Executable:
    """The model of an artifact. `threads` None: one per processor; `verify`: compare the files'
    hashes.

    Raises TypeError or ValueError for what is no number of threads; ToolchainError where a file is
    missing or changed, the library was built for another processor, holds other tensors than the
    manifest, or calls a library that is not here.
    """
    folder, threads = Path(folder), checked_threads(threads)
    manifest = read(folder)
    if verify:
        check_files(folder, manifest)
    try:
        check_machine(manifest.machine)
    except ToolchainError as error:
        raise ToolchainError(f"{located(folder)} was {error}") from None
    try:
        opened(manifest.machine.get("libraries", ()))
    except ToolchainError as error:
        raise ToolchainError(f"{located(folder)} needs a library: {error}") from None
    return Executable(folder, manifest, threads, selection, temporary)

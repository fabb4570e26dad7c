"""Libraries whose functions kernels may call: OpenBLAS, oneDNN.

    found(name) -> Found | None        links(names) -> words for the linker        opened(rows)

Nothing here is needed: a library that is not on the machine offers no candidates, and an artifact
whose kernels call none depends on none. What an artifact does call stands in its manifest; `opened`
finds it again where the artifact is loaded, wherever it lies there.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fissile.errors import ToolchainError, shown

_SYSTEM = ("/usr/local/lib", "/usr/local/lib64", "/usr/lib64", "/usr/lib")
_OPENS = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])"


@dataclass(frozen=True)
class Library:
    """`function` is what kernels call; `places` are files that may be it; `remedy` says how to get
    it."""

    name: str
    title: str
    package: str
    remedy: str
    function: str
    places: Callable[[], Iterator[Path]]


@dataclass(frozen=True)
class Found:
    """A library that this process can open."""

    name: str
    path: Path
    version: str

    @property
    def row(self) -> dict[str, str]:
        """For the manifest."""
        library = LIBRARIES[self.name]
        return {"name": self.name, "package": library.package, "version": self.version,
                "file": self.path.name}  # fmt: skip


def _openblas() -> Iterator[Path]:
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is not None and spec.origin:
        yield from sorted((Path(spec.origin).parent / "lib").glob("libscipy_openblas*.*"))


def _onednn() -> Iterator[Path]:
    roots = [os.environ.get("DNNLROOT", ""), sys.prefix]
    folders = [f"{root}/{lib}" for root in roots if root for lib in ("lib", "lib64")]
    folders += [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    for folder in map(Path, (*folders, *_SYSTEM)):
        yield from sorted((*folder.glob("libdnnl.so"), *folder.glob("libdnnl.so.3")))
    yield from sorted(Path("/usr/lib").glob("*-linux-gnu/libdnnl.so*"))


LIBRARIES = {
    x.name: x
    for x in (
        Library("openblas", "OpenBLAS", "scipy-openblas32", "pip install 'fissile[blas]'",
                "scipy_cblas_sgemm", _openblas),
        Library("onednn", "oneDNN", "onednn", "install oneDNN 3, or set DNNLROOT to its folder",
                "dnnl_sgemm", _onednn),
    )
}  # fmt: skip


@cache
def found(name: str) -> Found | None:
    """The library on this machine, if it is there and can be opened."""
    library = LIBRARIES[name]
    for path in library.places():
        if _opens(path, library.function):
            return Found(name, path, _version(library.package))
    return None


def _opens(path: Path, function: str) -> bool:
    """Tried in a process of its own: opening starts threads, and may fail for want of others."""
    command = [sys.executable, "-c", _OPENS, str(path), function]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _version(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "unknown"


def rows(names: Collection[str]) -> list[dict[str, str]]:
    """What a manifest says of the libraries that kernels call."""
    return [_here(name).row for name in sorted(names)]


def links(names: Collection[str]) -> list[str]:
    """What the linker is told, after the objects. Raises ToolchainError."""
    paths = [_here(name).path for name in sorted(names)]
    return [word for path in paths for word in (str(path), f"-Wl,-rpath,{path.parent}")]


def _here(name: str) -> Found:
    if (there := found(name)) is None:
        raise ToolchainError(_missing(name))
    return there


def _missing(name: str) -> str:
    library = LIBRARIES[name]
    return f"{library.title} (package {library.package}) is not on this machine: {library.remedy}"


def opened(rows: Sequence[Mapping[str, Any]]) -> list[ctypes.CDLL]:
    """Open what an artifact calls, before it: the dynamic linker then takes these for it. Raises
    ToolchainError that names the package."""
    for row in rows:
        if row.get("name") not in LIBRARIES:
            raise ToolchainError(f"this version knows no library {shown(str(row.get('name')))}")
    return [ctypes.CDLL(str(_here(str(row["name"])).path)) for row in rows]

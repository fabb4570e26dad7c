"""What a machine offers to the compiler: compiler, processor, calibration, store, optional
packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

from fissile.cost.store import home
from fissile.errors import ToolchainError
from fissile.targets.cpu.calibrate import calibrate
from fissile.targets.cpu.host import cpu_model, usable_threads
from fissile.targets.cpu.libraries import LIBRARIES, found
from fissile.targets.cpu.toolchain import find

EXTRAS = ("onnxruntime", "openvino", "torch", "ziglang")
STORE = "times.sqlite"


def examine() -> dict[str, Any]:
    """Facts by topic. `compiler.fault` and `home.fault` are None where all is well."""
    return {
        "fissile": {"version": importlib.metadata.version("fissile")},
        "processor": {"name": cpu_model(), "threads": usable_threads()},
        "compiler": _compiler(),
        "home": _home(),
        "libraries": {name: _library(name) for name in LIBRARIES},
        "extras": {name: _version(name) for name in EXTRAS},
    }


def _library(name: str) -> str | None:
    """What kernels may call: its version and place."""
    there = found(name)
    return f"{there.version} ({there.path})" if there else None


def _compiler() -> dict[str, Any]:
    """The tool chain, proved by compiling and running the calibration."""
    facts: dict[str, Any] = {"command": None, "version": None, "instructions": [], "fault": None}
    try:
        toolchain = find()
        facts |= {"command": " ".join(toolchain.command), "version": toolchain.version}
        facts["instructions"] = list(toolchain.isa())
        found = calibrate(toolchain)
    except ToolchainError as error:
        return facts | {"fault": str(error)}
    return facts | {
        "peak_gflops": found.peak_gflops,
        "gb_per_s": {str(r.working_set_bytes): r.gb_per_s for r in found.rates},
        "launch_us": found.launch_us,
        "cache_bytes": [found.l1_bytes, found.l2_bytes, found.l3_bytes],
    }


def _home() -> dict[str, Any]:
    """Where measured times are kept, and whether that place can be written."""
    folder, store = home(), home() / STORE
    facts: dict[str, Any] = {"folder": str(folder), "store": str(store), "fault": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        facts["fault"] = f"{folder} cannot be written: {error.strerror}. Set FISSILE_HOME."
    return facts | {"store_bytes": _size(store)}


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _version(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "unknown"

"""Calibrate this processor: compile and run `bench/calibrate.cpp`, a few seconds once per
machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from fissile.cost.calibrate import Calibration, Rate, calibration
from fissile.errors import ToolchainError
from fissile.targets.cpu.emit import RUNTIME
from fissile.targets.cpu.toolchain import Toolchain

PROGRAM = Path(__file__).parent / "bench" / "calibrate.cpp"
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}  # where the system does not say
_LIMIT_S = 120


def calibrate(toolchain: Toolchain, threads: int = 1) -> Calibration:
    """The kept calibration of this machine, else a new one. Raises ToolchainError."""
    return calibration(toolchain.identity, threads, lambda: _measured(toolchain, threads))


def _measured(toolchain: Toolchain, threads: int) -> Calibration:
    with tempfile.TemporaryDirectory(prefix="fissile-calibrate-") as folder:
        program = toolchain.program(PROGRAM, Path(folder) / "calibrate", [f"-I{RUNTIME}"])
        try:
            result = subprocess.run(
                [str(program), str(threads)], capture_output=True, text=True, timeout=_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"the calibration does not run: {error}") from None
    if result.returncode:
        raise ToolchainError(f"the calibration failed with status {result.returncode}")
    return _parsed(result.stdout, toolchain.identity, threads)


def _parsed(output: str, where: str, threads: int) -> Calibration:
    rows = [line.split() for line in output.splitlines()]
    number = {row[0]: float(row[1]) for row in rows if len(row) == 2}
    rates = tuple(Rate(int(r[1]), float(r[2])) for r in rows if r[0] == "rate")
    sizes = [cache_bytes(level) for level in (1, 2, 3)]
    return Calibration(where, threads, number["gflops"], rates, number["launch"], *sizes)


def cache_bytes(level: int) -> int:
    """Size of the data cache of this level that one processor sees."""
    name = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE", 3: "SC_LEVEL3_CACHE_SIZE"}[level]
    for entry in sorted(_CACHES.glob("index*")):
        try:
            kind, at = (entry / "type").read_text().strip(), int((entry / "level").read_text())
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if at == level and kind in ("Data", "Unified") and size.endswith("K"):
            return int(size[:-1]) << 10
    try:
        return os.sysconf(name) or _USUAL[level]
    except (ValueError, OSError):
        return _USUAL[level]

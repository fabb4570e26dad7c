"""Calibrate this processor: compile and run `bench/calibrate.cpp`, a few seconds once per
machine."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from fissile.cost.calibrate import Calibration, Rate, calibration
from fissile.errors import ToolchainError
from fissile.targets.cpu.emit import RUNTIME
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.toolchain import Toolchain

PROGRAM = Path(__file__).parent / "bench" / "calibrate.cpp"
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
    m = this_machine()
    sizes = (m.l1_bytes, m.l2_bytes, m.l3_bytes)
    return Calibration(where, threads, number["gflops"], rates, number["launch"], *sizes)

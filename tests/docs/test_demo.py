"""`make demo` prints what was chosen and both latencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_demo():
    command = [sys.executable, str(DEMO), "mobilenetv2_100", "--tune", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for word in ("candidates", "gap", "largest error", "fissile", "ONNX Runtime"):
        assert word in done.stdout

"""Measure the kernels of the case studies and write the table: minutes on a quiet machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "benchmarks")]

from fissile.compile import offer  # noqa: E402
from fissile.doctor import examine  # noqa: E402
from fissile.kernels.candidate import Kernel  # noqa: E402
from fissile.targets.cpu.harness import BATCH, CpuBench  # noqa: E402
from fissile.targets.cpu.toolchain import find  # noqa: E402
from rewrite.korch_cases import CASES, TABLE, case, words  # noqa: E402


def main() -> None:
    us: dict[str, dict[str, float]] = {}
    for name in CASES:
        cpu, woven = offer(case(name), 1)
        distinct = {c.key: c for c in woven.candidates if not c.is_alias}
        lowered = {key: cpu.kernel(c) for key, c in distinct.items()}
        kernels = [(key, k) for key, k in lowered.items() if isinstance(k, Kernel)]
        bench, found = CpuBench(find(), 1), {}
        for i in range(0, len(kernels), BATCH):
            found |= bench.time(kernels[i : i + BATCH])
            print(f"{name}: {min(i + BATCH, len(kernels))} of {len(kernels)}", file=sys.stderr)
        us[name] = {
            words(distinct[key]): round(t.us, 3) for key, t in found.items() if t.us is not None
        }
    at = examine()["processor"]["name"]
    TABLE.write_text(json.dumps({"measured on": at, "us": us}, indent=0) + "\n")


if __name__ == "__main__":
    main()

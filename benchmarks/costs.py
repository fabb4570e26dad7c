"""The sum of the chosen kernels' costs against the latency of the program, measured side by side.

A store keeps what was measured once; a machine of two threads that share a core may be a fifth
slower an hour later, and then their quotient says so and nothing of the sum. Here a round measures
the program alone, then each of its kernels as tuning does, then the program again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fissile.bench import interleaved
from fissile.compile import offer
from fissile.ir.graph import Graph
from fissile.kernels.candidate import Kernel
from fissile.peers import Call
from fissile.targets.cpu.harness import CpuBench
from fissile.targets.cpu.toolchain import find

ROUNDS = 5
ALONE_S = 1.0  # of calls, before the kernels and after them


@dataclass(frozen=True)
class Round:
    """Microseconds: of the program before and after its kernels, and of their sum."""

    before_us: float
    costs_us: float
    after_us: float

    @property
    def share(self) -> float:
        return 2 * self.costs_us / (self.before_us + self.after_us)


def rounds(
    graph: Graph, keys: Iterable[str], call: Call, threads: int, accuracy: str
) -> list[Round]:
    """Of a plan whose candidates have these keys. Raises ValueError where one cannot be timed."""
    count = Counter(keys)
    cpu, woven = offer(graph, threads, accuracy)
    found = {c.key: c for c in woven.candidates if c.key in count}
    lowered = {key: cpu.kernel(c) for key, c in found.items()}
    kernels = [(key, k) for key, k in lowered.items() if isinstance(k, Kernel)]
    bench, measured = CpuBench(find(), threads, jobs=1), []
    for _ in range(ROUNDS):
        before = _alone(call)
        us = {key: t.us for key, t in bench.time(kernels).items() if t.us}
        if missing := count.keys() - us.keys():
            raise ValueError(f"{len(missing)} of {len(count)} chosen kernels have no time")
        measured.append(Round(before, sum(n * us[k] for k, n in count.items()), _alone(call)))
    return measured


def _alone(call: Call) -> float:
    return interleaved({"fissile": call}, ALONE_S)["fissile"].median_us

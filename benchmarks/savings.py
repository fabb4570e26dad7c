"""What algorithms that save multiplications gain where a plan chose them.

For every chosen kernel that executes fewer multiplications than its region's definition, as
Winograd's convolution and Strassen's product do: the fastest of the direct kernels of the same
region, that need and give the same layouts. All of them are visited in turn by one process, which
leaves the caches to each as it does to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernels import how_of, is_anchor, title_of

from fissile.compile import offer
from fissile.cost.model import flops
from fissile.ir.graph import Graph
from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.harness import BATCH, CpuBench
from fissile.targets.cpu.implementations import BY_NAME
from fissile.targets.cpu.target import Cpu
from fissile.targets.cpu.toolchain import find

ROUNDS = 2  # of visits; the least counts


@dataclass(frozen=True)
class Rivalry:
    """A chosen candidate, how often it stands in the plan, and the direct ones."""

    chosen: Candidate
    count: int
    direct: tuple[Candidate, ...]


@dataclass(frozen=True)
class Row:
    """us: of one kernel; direct_us: of the fastest direct one, 0 where there is none; flops: of the
    definition."""

    algorithm: str
    title: str
    region: str
    how: str
    direct: str
    count: int
    saving: float
    flops: float
    us: float
    direct_us: float


def rivalries(offered: Iterable[Candidate], keys: Iterable[str]) -> list[Rivalry]:
    """Of the offered candidates with these keys, those that save multiplications."""
    count, found = Counter(keys), dict[str, Rivalry]()
    candidates = [c for c in offered if any(map(is_anchor, c.region.nodes))]
    for c in candidates:
        if c.key in count and c.key not in found and c.saving > 1:
            direct = (d for d in candidates if _is_direct(d) and _does_the_same(c, d))
            found[c.key] = Rivalry(c, count[c.key], tuple(direct))
    return list(found.values())


def _is_direct(c: Candidate) -> bool:
    """Of ours, and none of those that are offered beside others."""
    return not c.is_alias and not BY_NAME[c.computed_by].rival


def _does_the_same(a: Candidate, b: Candidate) -> bool:
    return a.region.members == b.region.members and a.needs == b.needs and a.gives == b.gives


def rows(graph: Graph, keys: Iterable[str], threads: int, accuracy: str) -> Iterator[Row]:
    """The table of a plan whose candidates have these keys, compiled with this accuracy."""
    cpu, woven = offer(graph, threads, accuracy)
    found = rivalries(woven.candidates, keys)
    bench = CpuBench(find(), threads, jobs=1)
    for group in _groups(found):
        us = _measured(cpu, bench, group)
        yield from (_row(r, us) for r in group if r.chosen.key in us)


def _groups(found: Sequence[Rivalry]) -> Iterator[list[Rivalry]]:
    """As many as one process visits."""
    group: list[Rivalry] = []
    for r in found:
        if group and sum(1 + len(g.direct) for g in (*group, r)) > BATCH:
            yield group
            group = []
        group.append(r)
    if group:
        yield group


def _measured(cpu: Cpu, bench: CpuBench, group: Sequence[Rivalry]) -> dict[str, float]:
    """Microseconds by key."""
    candidates = {c.key: c for r in group for c in (r.chosen, *r.direct)}
    lowered = {key: cpu.kernel(c) for key, c in candidates.items()}
    kernels = [(key, k) for key, k in lowered.items() if isinstance(k, Kernel)]
    rounds = [bench.time(kernels) for _ in range(ROUNDS)]
    us = {key: [t.us for r in rounds if (t := r[key]).us] for key, _ in kernels}
    return {key: min(some) for key, some in us.items() if some}


def _row(r: Rivalry, us: dict[str, float]) -> Row:
    c = r.chosen
    anchor = next(n for n in c.region.nodes if is_anchor(n))
    direct_us, direct = min(
        ((us[d.key], how_of(d)) for d in r.direct if d.key in us), default=(0.0, "-")
    )
    return Row(
        algorithm=c.computed_by, title=title_of(anchor),
        region=" ".join(n.prim for n in c.region.nodes), how=how_of(c), direct=direct,
        count=r.count, saving=c.saving, flops=flops(anchor), us=us[c.key], direct_us=direct_us,
    )  # fmt: skip

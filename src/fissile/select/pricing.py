"""Which candidates stand in the program, and which of the others are worth a measurement.

Candidates that compute the same region from the same tokens into the same tokens are *rivals*. One
that costs more than another and uses no less of any limited resource is no column, and its reduced
cost follows from the other's:

    d_k = d_best + c_k - c_best.

With all others as they are priced, a candidate enters the choice once it costs less than c_k - d_k.
What its measurement may gain is the expectation of how far below it comes to lie, by the model's
distribution (`Cost.gain_us`), summed over the candidates that share the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fissile.cost.model import Cost
from fissile.ir.graph import Graph
from fissile.kernels.candidate import Candidate
from fissile.select.memory import Asked, Memory, solved
from fissile.select.solve import Selected
from fissile.select.tokens import Computation, problem, with_derived

Share = Callable[[Candidate], float]

BEATEN = 1.5  # times the best rival: slower than that, nobody asks how slow exactly


@dataclass(frozen=True)
class Solved:
    """`chosen` and `reduced` are by candidate; the costs are those it was solved with."""

    chosen: tuple[int, ...]
    reduced: tuple[float | None, ...]
    costs: tuple[Cost, ...]
    selected: Selected


@dataclass(frozen=True)
class Wanted:
    """Candidates to measure, the first `chosen` because they were chosen, the others for `gains`
    (us), which fall."""

    candidates: tuple[Candidate, ...]
    chosen: int
    gains: tuple[float, ...]

    def above(self, us: float) -> tuple[float, ...]:
        """The gains that are larger; all while nothing has been reached (`us` infinite)."""
        return tuple(g for g in self.gains if g > us or us == math.inf)


class Market:
    """The candidates of one graph by rivalry."""

    def __init__(
        self, graph: Graph | Computation, candidates: Sequence[Candidate], once: bool = False,
        limits: Sequence[Share] = (), memory: Memory | None = None,
    ):  # fmt: skip
        """`once`: no primitive is executed twice. `limits`: of each limited resource, a candidate's
        share of what a plan may use. `memory`: of solutions."""
        self.graph, self.candidates, self.once, self.limits = graph, candidates, once, limits
        self.memory = memory
        self.uses = [tuple(share(c) for share in limits) for c in candidates]
        groups: dict[object, list[int]] = {}
        for k, c in enumerate(candidates):
            tokens = (frozenset(c.needs), frozenset(c.gives), c.region.members)
            groups.setdefault(tokens, []).append(k)
        self.groups = list(groups.values())

    def without(self, keys: Collection[str]) -> Market:
        """The same without some kernels."""
        left = [c for c in self.candidates if c.key not in keys or c.is_alias]
        return Market(self.graph, left, self.once, self.limits, self.memory)

    def solve(
        self, costs: Sequence[Cost], gap: float, limit_s: float,
        start: Sequence[Candidate] = (), measured_only: bool = False,
    ) -> Solved:  # fmt: skip
        """The cheapest set. `start`: a set known before. `measured_only`: nothing that only the
        model knows, but aliases."""
        best = list(self._columns(costs, measured_only))
        columns = [k for k, _ in best]
        program = problem(
            self.graph,
            [self.candidates[k] for k in columns],
            [costs[k].us for k in columns],
            [self.uses[k] for k in columns],
            len(self.limits),
        )
        known = with_derived(program, self._start(start, best), len(columns))
        selected = solved(program, Asked(gap, limit_s, self.once), known, self.memory)
        reduced: list[float | None] = [None] * len(self.candidates)
        for (k, rivals), d in zip(best, selected.reduced, strict=False):
            if d is not None:
                for j in rivals:
                    reduced[j] = max(d, 0.0) + costs[j].us - costs[k].us
        kernels = [i for i in selected.chosen if i < len(columns)]  # others are derivations
        chosen = tuple(columns[i] for i in kernels)
        return Solved(chosen, tuple(reduced), tuple(costs), selected)

    def _columns(
        self, costs: Sequence[Cost], measured_only: bool
    ) -> Iterator[tuple[int, list[int]]]:
        """(column, the candidates that it stands for)."""
        for group in self.groups:
            columns: dict[int, list[int]] = {}
            for k in sorted(group, key=lambda k: (costs[k].us, k)):
                if measured_only and not self._is_known(k, costs):
                    continue
                better = (b for b in columns if self._is_thrifty(b, k))
                columns.setdefault(next(better, k), []).append(k)
            yield from columns.items()

    def _is_thrifty(self, b: int, k: int) -> bool:
        return all(x <= y for x, y in zip(self.uses[b], self.uses[k], strict=True))

    def _is_known(self, k: int, costs: Sequence[Cost]) -> bool:
        return costs[k].source == "measured" or self.candidates[k].is_alias

    def _start(
        self, start: Sequence[Candidate], best: Sequence[tuple[int, Sequence[int]]]
    ) -> list[int]:
        """The columns that stand for the candidates of a set; empty where one has none."""
        place = {self.candidates[k]: i for i, (_, rivals) in enumerate(best) for k in rivals}
        return [place[c] for c in start] if all(c in place for c in start) else []

    def wanted(self, solved: Solved, measured: Collection[str]) -> Wanted:
        """Candidates to measure, one for each kernel not in `measured`, the most promising first:
        what was chosen, then the others by what they may gain."""
        gains: dict[str, float] = {}
        first: dict[str, Candidate] = {}
        chosen: dict[str, float] = {}
        for k, c in enumerate(self.candidates):
            d = solved.reduced[k]
            if d is None or c.is_alias or c.key in measured:
                continue
            gain = solved.costs[k].gain_us(solved.costs[k].us - d)
            if gain > 0:
                gains[c.key] = gains.get(c.key, 0.0) + gain
                first.setdefault(c.key, c)
        for k in solved.chosen:
            c = self.candidates[k]
            if not c.is_alias and c.key not in measured:
                chosen[c.key] = chosen.get(c.key, 0.0) + solved.costs[k].us
                first.setdefault(c.key, c)
                gains.pop(c.key, None)
        order = [sorted(some, key=lambda key: -some[key]) for some in (chosen, gains)]
        return Wanted(
            tuple(first[key] for keys in order for key in keys), len(chosen),
            tuple(gains[key] for key in order[1]),
        )  # fmt: skip

    def beaten(
        self, measured: Mapping[str, float], wanted: Sequence[Candidate]
    ) -> dict[str, float]:
        """Microseconds above which a kernel has lost against its measured rivals wherever it could
        stand, by key."""
        asked = {c.key for c in wanted}
        limits: dict[str, float] = {}
        unbeaten: set[str] = set()
        for group in self.groups:
            keys = {self.candidates[k].key for k in group}
            known = [measured[key] for key in keys if key in measured]
            for key in keys & asked:
                if known:
                    limits[key] = max(limits.get(key, 0.0), BEATEN * min(known))
                else:
                    unbeaten.add(key)
        return {key: us for key, us in limits.items() if key not in unbeaten}

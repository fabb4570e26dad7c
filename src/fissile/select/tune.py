"""Tune: price, solve, measure what the solution asks for, and again.    (design, sections 8 and 9)

As in column generation: candidates cost what was measured, or what the model says; the program
chooses; what it chose without a measurement is measured, and with it what should gain most
(`pricing`). The incumbent is the best set of measured candidates. In the first step an unmeasured
candidate costs what the model expects, and measuring goes on while the expected gains PAY. In the
next ones it costs what it would if it were better than its sort by OPTIMISM standard deviations:
that finds kernels that gain only together. Such a step ends when the choice is measured throughout
or could gain no more than ENOUGH, tuning with the last step or the budget. Anytime: every round is
stored, and leaves a plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fissile.cost.measure import Bench, measure
from fissile.cost.model import Cost, Model, prices
from fissile.cost.store import Store, Timing
from fissile.ir.graph import Graph
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.select.pricing import Market, Share, Solved
from fissile.select.rivals import Priced, runners_up
from fissile.select.tokens import Computation

ROUND = 32  # kernels measured between two solutions, at least
SHARE = 2.0  # seconds of measuring for a second of solving, at least
KERNEL_S, LEAST_S = 0.08, 0.03  # what a measurement takes, until it is known, and at least
OPTIMISM = (0.0, 1.0)  # standard deviations of the model, one after another
CAUTION = 0.5  # the same, in the end
WORTH = 1e-4  # of the incumbent: what a measurement should gain
PAYS = 5e-3  # the same of all measurements together; rivals' gains are counted though one wins
ENOUGH = 4e-3  # of the incumbent: less is not worth a measurement
QUICK_GAP, INCUMBENT_GAP, FINAL_GAP = 3e-3, 1e-3, 1e-4
QUICK_S, INCUMBENT_S, FINAL_S = 10.0, 5.0, 20.0
LEAST_SOLVING_S = 2.0
UNTUNED_GAP, UNTUNED_S = 1e-3, 25.0  # for the one solution without a budget


class Lowers(Protocol):
    def kernel(self, candidate: Candidate) -> Kernel | No: ...


class Point(NamedTuple):
    """How far tuning had come: `us` is the cost of the best set of measured candidates."""

    seconds: float
    us: float
    measured: int


@dataclass(frozen=True)
class Selection:
    """The chosen candidates with their costs. `gap` is what the solver proved on these costs;
    `rivals` are the cheapest others that compute the same from the same; `curve` has a point for
    every round."""

    chosen: tuple[Candidate, ...]
    costs: tuple[Cost, ...]
    us: float
    gap: float
    bound_us: float
    status: str
    seconds: float
    columns: int
    rows: int
    measured: int
    rounds: int
    faults: Mapping[str, str]  # kernels that did not compile or crashed, by key
    rivals: tuple[Priced | None, ...]
    curve: tuple[Point, ...] = ()


Progress = Callable[[str, float, float], None]  # what is happening, share done, seconds left


def _silent(what: str, share: float, left: float) -> None:
    pass


def tune(
    graph: Graph | Computation, candidates: Sequence[Candidate], target: Lowers, model: Model,
    bench: Bench | None, store: Store | None, budget_s: float, progress: Progress | None = None,
    once: bool = False, limits: Sequence[Share] = (), measured: Callable[[], None] | None = None,
) -> Selection:  # fmt: skip
    """The cheapest plan for `budget_s` seconds of measuring and solving; 0 works from the model and
    from what the store knows. `once`: no primitive is executed twice. `limits`: for each limited
    resource, a candidate's share of what the plan may use. `measured` is called when nothing is
    measured any more, so that the machine need not be quiet. Raises ValueError where no candidate
    set gives the outputs."""
    market = Market(graph, tuple(candidates), once, tuple(limits), store)
    tuning = _Tuning(market, target, model, bench, store, budget_s, progress)
    tuning.run()
    if measured:
        measured()
    return tuning.final()


class _Tuning:
    def __init__(
        self, market: Market, target: Lowers, model: Model,
        bench: Bench | None, store: Store | None, budget_s: float, progress: Progress | None,
    ):  # fmt: skip
        self.market, self.target, self.model = market, target, model
        self.bench, self.store = bench, store
        self.begin, self.budget_s = time.monotonic(), budget_s
        self.progress = progress or _silent
        self.measured: dict[str, float] = {}
        self.faults: dict[str, str] = {}
        self.unmeasured: set[str] = set()  # asked for, but the machine did not allow it
        self.incumbent: tuple[Candidate, ...] = ()
        self.us = math.inf  # of the incumbent
        self.curve: list[Point] = []
        self.seconds = 0.0  # spent on measuring this many:
        self.timed = 0
        self._enter(store.get({c.key for c in market.candidates}) if store else {})

    @property
    def left_s(self) -> float:
        return self.begin + self.budget_s - time.monotonic()

    def run(self) -> None:
        """Measure what pays."""
        chosen: Sequence[Candidate] = ()
        self._improve()
        steps = list(OPTIMISM)
        while self.bench is not None and steps and self.left_s > 0:
            start = time.thread_time()  # whoever else computes now
            limit_s = min(QUICK_S, max(self.left_s, LEAST_SOLVING_S))
            solved = self._solve(-steps[0], QUICK_GAP, limit_s, chosen or self.incumbent)
            chosen = [self.market.candidates[k] for k in solved.chosen]
            solving_s = time.thread_time() - start
            wanted = self.market.wanted(solved, self.measured.keys() | self.unmeasured)
            gains = wanted.above(WORTH * self.us)
            is_near = solved.selected.objective >= self.us * (1 - ENOUGH)
            pays = not steps[0] and sum(gains) >= PAYS * self.us
            if (not wanted.chosen or is_near) and not pays:
                steps.pop(0)
                continue
            size = max(ROUND, int(SHARE * solving_s / self._kernel_s()))
            size = max(wanted.chosen, min(size, wanted.chosen + len(gains)))
            if not self._measure(wanted.candidates, size):
                break
            self._learn_from_others()
            self._improve()

    def _learn_from_others(self) -> None:
        """What other processes have measured meanwhile."""
        assert self.store is not None
        unknown = {c.key for c in self.market.candidates} - self.measured.keys()
        self._enter(self.store.get(unknown))

    def _solve(
        self, deviations: float, gap: float, limit_s: float, start: Sequence[Candidate],
        measured_only: bool = False,
    ) -> Solved:  # fmt: skip
        costs = prices(self.market.candidates, self.model, self.measured, deviations)
        return self.market.solve(costs, gap, limit_s, start, measured_only)

    def _improve(self) -> None:
        """The best set of measured candidates, if there is one: a point of the curve."""
        if self.measured:
            start = self.incumbent
            solved = self._solve(0.0, INCUMBENT_GAP, INCUMBENT_S, start, measured_only=True)
            if solved.selected.status != "infeasible":
                self.incumbent = tuple(self.market.candidates[k] for k in solved.chosen)
                self.us = solved.selected.objective
        self.curve.append(Point(time.monotonic() - self.begin, self.us, len(self.measured)))

    def final(self) -> Selection:
        """Solve once more, with some distrust of what nobody measured."""
        self.progress("solving", 1.0, 0.0)
        gap, limit_s = (FINAL_GAP, FINAL_S) if self.budget_s else (UNTUNED_GAP, UNTUNED_S)
        solved = self._solve(CAUTION, gap, limit_s, self.incumbent)
        end = solved.selected
        if end.status == "infeasible":
            raise ValueError("no set of candidates gives the outputs")
        return Selection(
            tuple(self.market.candidates[k] for k in solved.chosen),
            tuple(solved.costs[k] for k in solved.chosen),
            end.objective, end.gap, end.bound, end.status, end.seconds, end.columns, end.rows,
            len(self.measured), len(self.curve) - 1, self.faults,
            runners_up(self.market.candidates, solved.costs, solved.chosen), tuple(self.curve),
        )  # fmt: skip

    def _kernel_s(self) -> float:
        return max(self.seconds / self.timed, LEAST_S) if self.timed else KERNEL_S

    def _measure(self, wanted: Sequence[Candidate], size: int) -> bool:
        """Measure the first `size`; False where the budget allowed none."""
        assert self.bench is not None and self.store is not None
        now = wanted[:size]
        kernels = [(c.key, k) for c in now if (k := self.target.kernel(c))]
        before, start = self._known, time.monotonic()

        def show(done: int, total: int, seconds: float) -> None:
            count, more = before + done, len(wanted) - len(now)
            left = min(seconds + more * self._kernel_s(), self.left_s)
            what = f"measuring kernel {count} of about {before + total + more}"
            self.progress(what, count / (before + total + more), max(left, 0.0))

        limits = self.market.beaten(self.measured, now)
        self._enter(measure(kernels, self.bench, self.store, self.left_s, show, limits))
        count = self._known - before
        self.seconds, self.timed = self.seconds + time.monotonic() - start, self.timed + count
        return count > 0

    @property
    def _known(self) -> int:
        return len(self.measured) + len(self.faults) + len(self.unmeasured)

    def _enter(self, timings: Mapping[str, Timing]) -> None:
        """Take in measurements; what does not compile or crashes is no candidate any more."""
        failed = {key for key, t in timings.items() if t.us is None and t.fault}
        self.unmeasured |= {key for key, t in timings.items() if t.us is None and not t.fault}
        self.faults.update({key: timings[key].fault for key in failed})
        self.measured.update({k: t.us for k, t in timings.items() if t.us is not None})
        if failed:
            self.market = self.market.without(failed)
        distinct = {c.key: c for c in self.market.candidates if c.key in self.measured}
        self.model.learn((c, self.measured[k]) for k, c in distinct.items())

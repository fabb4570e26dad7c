"""Tune: price, solve, measure what the solution asks for, and again.    (design, sections 8 and 9)

As in column generation: candidates cost what was measured, or what the model says; the program
chooses; what it chose without a measurement is measured, and with it the candidates of lowest
reduced cost, which are the next that it would choose. It ends when the choice is measured
throughout, or the budget is spent. Anytime: the last round's choice is a plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fissile.cost.measure import Bench, measure
from fissile.cost.model import Cost, Model, prices
from fissile.cost.store import Store, Timing
from fissile.ir.graph import Graph
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.select.rivals import Priced, runners_up
from fissile.select.solve import Selected, select
from fissile.select.tokens import problem

ROUND = 48  # kernels measured between two solutions
NEAR = 0.25  # reduced cost, as a share of the candidate's cost, that is worth a measurement
UNKNOWN = 1.1  # distrust of what nobody measured, once the budget is spent
QUICK_GAP, FINAL_GAP = 2e-3, 1e-4
QUICK_S, FINAL_S = 20.0, 120.0
UNTUNED_S = 30.0  # for the one solution without a budget


class Lowers(Protocol):
    def kernel(self, candidate: Candidate) -> Kernel | No: ...


@dataclass(frozen=True)
class Selection:
    """The chosen candidates with their costs. `gap` is what the solver proved on these costs;
    `rivals` are the cheapest others that compute the same from the same."""

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


Share = Callable[[Candidate], float]
Progress = Callable[[str, float, float], None]  # what is happening, share done, seconds left


def _silent(what: str, share: float, left: float) -> None:
    pass


def tune(
    graph: Graph, candidates: Sequence[Candidate], target: Lowers, model: Model,
    bench: Bench | None, store: Store | None, budget_s: float, progress: Progress | None = None,
    once: bool = False, limits: Sequence[Share] = (),
) -> Selection:  # fmt: skip
    """The cheapest plan for `budget_s` seconds of measuring and solving; 0 works from the model and
    from what the store knows. `once`: no primitive is executed twice. `limits`: for each limited
    resource, a candidate's share of what the plan may use. Raises ValueError where no candidate set
    gives the outputs."""
    tuning = _Tuning(graph, candidates, target, model, bench, store, budget_s, progress)
    tuning.once, tuning.limits = once, tuple(limits)
    return tuning.run()


class _Tuning:
    def __init__(
        self, graph: Graph, candidates: Sequence[Candidate], target: Lowers, model: Model,
        bench: Bench | None, store: Store | None, budget_s: float, progress: Progress | None,
    ):  # fmt: skip
        self.graph, self.candidates, self.target = graph, list(candidates), target
        self.model, self.bench, self.store = model, bench, store
        self.deadline, self.budget_s = time.monotonic() + budget_s, budget_s
        self.progress = progress or _silent
        self.measured: dict[str, float] = {}
        self.faults: dict[str, str] = {}
        self.rounds = 0
        self.once = False
        self.limits: tuple[Share, ...] = ()
        self._enter(store.get({c.key for c in self.candidates}) if store else {})

    def run(self) -> Selection:
        chosen: list[Candidate] = []
        while self.bench is not None and time.monotonic() < self.deadline:
            solved = self._solve(QUICK_GAP, QUICK_S, chosen, 1.0)
            chosen = [self.candidates[k] for k in solved.chosen]
            wanted = self._wanted(solved)
            if not wanted or not self._measure(wanted):
                break
            self.rounds += 1
        return self._final(chosen)

    def _final(self, chosen: Sequence[Candidate]) -> Selection:
        self.progress("solving", 1.0, 0.0)
        limit_s = FINAL_S if self.budget_s else UNTUNED_S
        solved = self._solve(FINAL_GAP, limit_s, chosen, UNKNOWN)
        if solved.status == "infeasible":
            raise ValueError("no set of candidates gives the outputs")
        costs = prices(self.candidates, self.model, self.measured)
        return Selection(
            tuple(self.candidates[k] for k in solved.chosen),
            tuple(costs[k] for k in solved.chosen),
            solved.objective, solved.gap, solved.bound, solved.status, solved.seconds,
            solved.columns, solved.rows, len(self.measured), self.rounds, self.faults,
            runners_up(self.candidates, costs, solved.chosen),
        )  # fmt: skip

    def _solve(
        self, gap: float, limit_s: float, before: Sequence[Candidate], distrust: float
    ) -> Selected:
        costs = prices(self.candidates, self.model, self.measured)
        if distrust != 1.0:
            costs = [replace(c, us=c.us * distrust) if c.source == "model" else c for c in costs]
        uses = [tuple(share(c) for share in self.limits) for c in self.candidates]
        us = [c.us for c in costs]
        program = problem(self.graph, self.candidates, us, uses, len(self.limits))
        numbers = {c: k for k, c in enumerate(self.candidates)}
        start = [numbers[c] for c in before if c in numbers]
        return select(program, time_limit=limit_s, gap=gap, start=start, once=self.once)

    def _wanted(self, solved: Selected) -> list[Candidate]:
        """Unmeasured kernels of the solution, then those of low reduced cost; one for each key."""
        costs = prices(self.candidates, self.model, self.measured)
        near = [
            (d / costs[k].us, k) for k, d in enumerate(solved.reduced)
            if d is not None and costs[k].source == "model" and d < NEAR * costs[k].us
        ]  # fmt: skip
        order = [*solved.chosen, *(k for _, k in sorted(near))]
        wanted: dict[str, Candidate] = {}
        for k in order:
            c = self.candidates[k]
            if not c.is_alias and c.key not in self.measured:
                wanted.setdefault(c.key, c)
        if not any(self.candidates[k].key in wanted for k in solved.chosen):
            return []
        return list(wanted.values())[: max(ROUND, len(solved.chosen))]

    def _measure(self, wanted: Sequence[Candidate]) -> bool:
        """Measure some; False where the budget allowed none."""
        assert self.bench is not None and self.store is not None
        kernels = [(c.key, k) for c in wanted if (k := self.target.kernel(c))]
        left = self.deadline - time.monotonic()

        def show(done: int, total: int, seconds: float) -> None:
            share = 1 - max(0.0, self.deadline - time.monotonic()) / max(self.budget_s, 1e-9)
            self.progress(f"measuring kernel {done} of {total}", share, min(seconds, left))

        before = len(self.measured)
        self._enter(measure(kernels, self.bench, self.store, left, show))
        return len(self.measured) > before

    def _enter(self, timings: Mapping[str, Timing]) -> None:
        """Take in measurements; what does not compile or crashes is no candidate any more."""
        failed = {key for key, t in timings.items() if t.us is None}
        self.faults.update({key: timings[key].fault for key in failed})
        self.candidates = [c for c in self.candidates if c.key not in failed or c.is_alias]
        self.measured.update({k: t.us for k, t in timings.items() if t.us is not None})
        distinct = {c.key: c for c in self.candidates if c.key in self.measured}
        self.model.learn((c, self.measured[k]) for k, c in distinct.items())

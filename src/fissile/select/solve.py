"""Select: reduce, relax with cuts, fix by reduced costs, then branch and cut on what is left.

Invariant: `chosen` runs in its order and gives the outputs, `bound` is proven, and

    gap = (objective - bound) / objective.

Columns are dropped only when no solution that uses them costs less than goal = (1 - gap asked)
times the incumbent, so min(goal, bound of the rest) bounds the whole.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fissile.select.clock import Clock
from fissile.select.cuts import founded_rows, is_solution, keeps_within, prune
from fissile.select.highs import Model
from fissile.select.incumbent import cheap_solution
from fissile.select.once import least_once
from fissile.select.program import ALL_ROWS, Problem, Row, check, rows, uses
from fissile.select.reduce import Reduced, reduce, restrict
from fissile.select.relax import Relaxation, cost_of, relax, survivors

PROVEN = 1e-6  # relative: what a linear program solved in floating point can promise
SIZES = (800, 2400, 7200)
WORTHWHILE = 0.8  # of the columns left: else the next stage would repeat this one
FOUNDED_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class Selected:
    """`chosen` are column indices in an order that runs; costs are in the unit of the columns.

    status: optimal (gap at most 1e-6), within_gap (as asked), time_limit, infeasible.
    `reduced[k]` is the reduced cost of column k in the first relaxation, None where presolve had
    dropped the column; it prices what to measure next.
    """

    chosen: tuple[int, ...]
    objective: float
    bound: float
    gap: float
    seconds: float
    status: str
    columns: int
    rows: int
    rounds: int
    reduced: tuple[float | None, ...] = ()


@dataclass(slots=True)
class _Search:
    """What is known so far about one problem; indices are those of the problem as given."""

    problem: Problem
    gap: float
    families: frozenset[str]
    clock: Clock
    best: tuple[int, ...]
    bound: float = 0.0
    columns: int = 0
    rows: int = 0
    rounds: int = 0
    reduced: tuple[float | None, ...] = ()

    @property
    def cost(self) -> float:
        return cost_of(self.problem, self.best)

    @property
    def goal(self) -> float:
        return self.cost * (1 - self.gap)

    def best_within(self, rest: Reduced) -> list[int] | None:
        """The incumbent by the indices of `rest`, if all of it is there and still runs."""
        place = {k: i for i, k in enumerate(rest.origin)}
        if not all(k in place for k in self.best):
            return None
        known = [place[k] for k in self.best]
        return known if is_solution(rest.problem, known) else None

    def offer(self, chosen: Sequence[int]) -> None:
        if cost_of(self.problem, chosen) < self.cost:
            self.best = tuple(chosen)

    def prove(self, bound: float) -> None:
        self.bound = max(self.bound, bound)

    def note_first(self, rest: Reduced, relaxed: Relaxation) -> None:
        """Bound, size and reduced costs of the first relaxation, which has dropped nothing."""
        self.prove(relaxed.bound)
        self.columns = len(rest.problem.columns)
        spread: list[float | None] = [None] * len(self.problem.columns)
        for k, d in zip(rest.origin, relaxed.reduced, strict=False):
            spread[k] = d
        self.reduced = tuple(spread)


def select(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    start: Sequence[int] = (),
    families: frozenset[str] = ALL_ROWS,
    presolve: bool = True,
    once: bool = False,
) -> Selected:
    """The cheapest solution, or the best within `time_limit` seconds of work, with a proven bound.

    `start` is a solution known before; `families` and `presolve` serve the ablation: without
    presolve the rows go to HiGHS as they are. So does `once`: no primitive is executed twice.
    """
    begin, clock = time.monotonic(), Clock(time_limit)
    check(problem)
    if once:
        return _select_once(problem, time_limit, gap)
    whole = Reduced(problem, tuple(range(len(problem.columns))))
    rest = reduce(problem) if presolve else whole
    first = _first_solution(problem, rest, start)
    if first is None and problem.limits:
        first = _thriftiest(problem, time_limit)
    if first is None:
        never = float("inf")
        return Selected((), never, never, 0.0, time.monotonic() - begin, "infeasible", 0, 0, 0)
    search = _Search(problem, gap, families, clock, first)
    bound = _explore(search, rest, (), float("inf")) if presolve else _branch(search, rest, ())
    search.prove(min(bound, search.goal))
    return _report(search, time.monotonic() - begin)


def _select_once(problem: Problem, time_limit: float, gap: float) -> Selected:
    begin = time.monotonic()
    chosen, bound, columns, count = least_once(problem, time_limit, gap)
    seconds = time.monotonic() - begin
    if not chosen and problem.outputs:
        never = float("inf")
        return Selected((), never, bound, 0.0, seconds, "infeasible", columns, count, 0)
    objective = cost_of(problem, chosen)
    bound = min(bound, objective)
    apart = (objective - bound) / objective if objective else 0.0
    status = reached(apart, gap)
    none = (None,) * len(problem.columns)
    return Selected(
        tuple(chosen), objective, bound, apart, seconds, status, columns, count, 1, none
    )


def reached(gap: float, asked: float) -> str:
    """The status of a solution that is proven to be this near to the optimum."""
    within = "within_gap" if gap <= asked + 1e-9 else "time_limit"
    return "optimal" if gap <= PROVEN else within


def _first_solution(
    problem: Problem, rest: Reduced, start: Sequence[int]
) -> tuple[int, ...] | None:
    if start and is_solution(problem, start):
        return tuple(prune(problem, start))
    found = cheap_solution(rest.problem)
    return None if found is None else tuple(rest.origin[k] for k in found)


def _thriftiest(problem: Problem, time_limit: float) -> tuple[int, ...] | None:
    """The solution that uses least of all limited resources together, if that is little enough."""
    columns = tuple(replace(c, cost=sum(c.uses[: problem.limits])) for c in problem.columns)
    found = select(replace(problem, columns=columns, limits=0), time_limit=time_limit).chosen
    return found if found and keeps_within(problem, found) else None


def _explore(
    search: _Search, rest: Reduced, cuts: Sequence[Row], cap: float, depth: int = 0
) -> float:
    """Find the best solution of `rest` that costs less than `cap`; return a proven bound.

    Every solution of `rest` costs at least what is returned, or is no better than the incumbent.
    The relaxation fixes columns against a ceiling just above its bound, as if a solution that cheap
    were known; if none is, the ceiling itself is proven and a higher one is tried.
    """
    problem = rest.problem
    start = search.best_within(rest) or cheap_solution(problem)
    if start is None:
        return _branch(search, rest, cuts) if problem.limits else cap
    search.offer([rest.origin[k] for k in start])
    relaxed = relax(problem, search.families, start, min(cap, search.goal), search.clock, cuts)
    search.offer([rest.origin[k] for k in relaxed.chosen])
    search.rounds += relaxed.rounds
    if depth == 0:
        search.note_first(rest, relaxed)
    lower = relaxed.bound
    for ceiling in _ceilings(relaxed):
        top = min(cap, search.goal)
        if lower >= top or search.clock.is_late:
            break
        ceiling = min(top, ceiling)
        if ceiling <= lower * (1 + PROVEN):  # nothing is cheaper, and hundreds are as cheap
            continue
        keep = survivors(problem, relaxed, ceiling)
        if len(keep) > WORTHWHILE * len(problem.columns):
            return max(lower, _branch(search, rest, relaxed.cuts))
        below = _explore(search, *_keep(rest, keep, relaxed.cuts), ceiling, depth + 1)
        lower = max(lower, min(ceiling, below))
        if below < min(ceiling, search.goal):  # out of time below
            break
    return lower


def _ceilings(relaxed: Relaxation) -> list[float]:
    """Costs under which about SIZES columns survive: small programs first."""
    rising = sorted(relaxed.reduced)
    some = [relaxed.bound + max(rising[n], 0.0) for n in SIZES if n < len(rising)]
    return [*some, float("inf")]


def _keep(rest: Reduced, keep: Sequence[int], cuts: Sequence[Row]) -> tuple[Reduced, list[Row]]:
    """Restrict to `keep` and presolve again; carry the cuts over by index."""
    old = rest.origin
    rest = restrict(rest, keep, rest.problem.columns)
    again = reduce(rest.problem)
    rest = Reduced(again.problem, tuple(rest.origin[k] for k in again.origin))
    place = {k: i for i, k in enumerate(rest.origin)}
    carried: list[Row] = []
    for row in cuts:
        minus = None if row.minus is None else place.get(old[row.minus])
        if row.minus is None or minus is not None:
            plus = tuple(place[old[k]] for k in row.plus if old[k] in place)
            carried.append(Row(row.family, row.at, plus, minus, row.least))
    return rest, carried


def _branch(search: _Search, rest: Reduced, cuts: Sequence[Row]) -> float:
    """HiGHS on the rest, with rows `founded` until its answer can start; a proven bound."""
    problem = rest.problem
    if not problem.columns and not problem.free.issuperset(problem.outputs):
        return float("inf")  # HiGHS would call it unsolved
    scale = 1000.0 / (search.cost or 1000.0)
    model = Model([column.cost * scale for column in problem.columns], integral=True)
    search.rows = max(search.rows, model.add([*rows(problem, search.families), *cuts]))
    model.add_limits(uses(problem))
    search.columns = max(search.columns, len(problem.columns))
    bound = 0.0
    for serial in range(FOUNDED_ROUNDS):
        start = search.best_within(rest) or []
        answer = model.solve_program(search.clock.left_s, start, search.gap)
        search.rounds += 1
        if answer.is_infeasible:
            return float("inf")
        bound = max(bound, answer.bound / scale)
        if answer.values is None:
            break
        chosen = [k for k, x in enumerate(answer.values) if x > 0.5]
        if is_solution(problem, chosen):
            search.offer([rest.origin[k] for k in prune(problem, chosen)])
        founded = list(founded_rows(problem, chosen, serial))
        if not founded or bound >= search.goal or search.clock.is_late:
            break
        model.add(founded)
    return bound


def _report(search: _Search, seconds: float) -> Selected:
    chosen = prune(search.problem, search.best)
    objective = cost_of(search.problem, chosen)
    bound = min(search.bound, objective)
    gap = (objective - bound) / objective if objective else 0.0
    return Selected(
        tuple(chosen), objective, bound, gap, seconds, reached(gap, search.gap),
        search.columns, search.rows, search.rounds, search.reduced,
    )  # fmt: skip

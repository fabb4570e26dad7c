"""The linear relaxation, tightened by cuts until it stops rising: a lower bound and reduced costs.

Rows `sum >= 1` stand in it from the start, the many rows `needs` only once a point violates them.
After each round the point steers the incumbent.  A column whose reduced cost exceeds what is left
between the bound and the goal cannot be part of a solution below the goal (reduced-cost fixing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fissile.select.clock import Clock
from fissile.select.highs import Model
from fissile.select.incumbent import cheap_solution
from fissile.select.odd import violated_triples
from fissile.select.program import NeedsRows, Problem, Row, landmark_rows, uses
from fissile.select.separate import (
    Growth,
    Support,
    violated,
    violated_founded,
    violated_landmarks,
)

ROUNDS = 60
CUTS = ("landmark", "founded", "odd")
STALL = 3  # rounds that close less than
WORTH = 0.01  # of what is left between bound and aim, nor
WORTH_OF_BOUND = 2e-5  # of the bound: the incumbent may be poor, and what is left too large


@dataclass(frozen=True, slots=True)
class Relaxation:
    """`bound` is proven; `values` and `reduced` are of the last round; `cuts` are tight there."""

    bound: float
    values: tuple[float, ...]
    reduced: tuple[float, ...]
    cuts: tuple[Row, ...]
    chosen: tuple[int, ...]
    rounds: int


def cost_of(problem: Problem, chosen: Sequence[int]) -> float:
    return sum(problem.columns[k].cost for k in chosen)


def relax(
    problem: Problem,
    families: frozenset[str],
    start: Sequence[int],
    goal: float,
    clock: Clock,
    carried: Sequence[Row] = (),
) -> Relaxation:
    """Rounds: solve, steer the incumbent, separate.  `goal` is a bound that is high enough."""
    best = tuple(start)
    scale = 1000.0 / (cost_of(problem, best) or 1000.0)
    model = Model([column.cost * scale for column in problem.columns], integral=False)
    pool = [*landmark_rows(problem, families), *carried]
    model.add(pool)
    model.add_limits(uses(problem))
    needs = NeedsRows(problem, families)
    growth = Growth(problem)
    result = Relaxation(0.0, (), (), (), best, 0)
    stall = 0
    for serial in range(ROUNDS):
        solved = model.solve_relaxation(clock.left_s)
        if solved is None:
            break
        values, reduced, objective = solved[0].tolist(), solved[1].tolist(), solved[2] / scale
        best = better(problem, best, values)
        aim = min(goal, cost_of(problem, best))
        worth = min(WORTH * (aim - result.bound), WORTH_OF_BOUND * result.bound)
        stall = 0 if objective - result.bound > worth else stall + 1
        bound = max(objective, result.bound)
        unscaled = tuple(d / scale for d in reduced)
        result = Relaxation(bound, tuple(values), unscaled, (), best, serial + 1)
        if bound >= aim * (1 - 1e-9) or stall >= STALL:
            break
        fresh = separate(growth, needs, pool, values, serial)
        if not model.add(fresh):
            break
        pool.extend(row for row in fresh if row.family in CUTS)
    return finish(result, pool)


def separate(
    growth: Growth, needs: NeedsRows, pool: Sequence[Row], values: list[float], serial: int
) -> list[Row]:
    """Violated rows of the program and of growth; dearer kinds only when nothing else is left."""
    support = Support(growth, values)
    fresh = violated((row for k in support.columns for row in needs.of(k)), values)
    fresh += violated_landmarks(growth, support, serial)
    fresh = fresh or list(violated_triples(pool, values, serial))
    return fresh or list(violated_founded(growth, support, serial))


def better(problem: Problem, best: tuple[int, ...], values: Sequence[float]) -> tuple[int, ...]:
    """The cheaper of `best` and a solution among its columns and those of the fractional point."""
    among = sorted({k for k, x in enumerate(values) if x > 1e-6}.union(best))
    weights = [problem.columns[k].cost * (1.001 - min(values[k], 1.0)) for k in among]
    found = cheap_solution(
        replace(problem, columns=tuple(problem.columns[k] for k in among)), weights
    )
    found = best if found is None else tuple(among[i] for i in found)
    return found if cost_of(problem, found) < cost_of(problem, best) else best


def finish(result: Relaxation, pool: Sequence[Row]) -> Relaxation:
    """Keep the cuts that are tight at the last point."""
    if not result.values:
        return result
    x = result.values
    tight = [
        row
        for row in pool
        if row.family in CUTS
        and sum(x[k] for k in row.plus) < 1e-6 + (row.least if row.minus is None else x[row.minus])
    ]
    return Relaxation(result.bound, x, result.reduced, tuple(tight), result.chosen, result.rounds)


def survivors(problem: Problem, relaxation: Relaxation, goal: float) -> list[int]:
    """The columns that a solution cheaper than `goal` may use."""
    if not relaxation.reduced:
        return list(range(len(problem.columns)))
    room = goal - relaxation.bound + 1e-7 * goal
    return [k for k, d in enumerate(relaxation.reduced) if d <= room]

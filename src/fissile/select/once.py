"""The program without recomputation: every primitive stands in at most one chosen column.

    sum_{k contains p} x_k <= 1        for every primitive p

It serves the ablation. The rows of `program` hold for every solution that runs, so for these too;
of the presolve only what keeps them: k gives way to b where b costs no more, gives at least as
much, uses no more of what is limited, needs no more and executes nothing that k does not.
"""

from __future__ import annotations

from itertools import zip_longest

from fissile.select.clock import Clock
from fissile.select.cuts import executable_order, founded_rows, is_solution
from fissile.select.highs import Model
from fissile.select.program import ALL_ROWS, Column, Problem, rows, uses
from fissile.select.reduce import Reduced, drop_useless, restrict

ROUNDS = 100


def least_once(
    problem: Problem, time_limit: float, gap: float
) -> tuple[list[int], float, int, int]:
    """(columns in an order that runs, proven bound, columns, rows) of the cheapest solution found
    that executes nothing twice; no columns where `time_limit` seconds were not enough."""
    clock = Clock(time_limit)
    rest = _without_rivals(drop_useless(Reduced(problem, tuple(range(len(problem.columns))))))
    small = rest.problem
    scale = 1000.0 / (max(c.cost for c in small.columns) or 1000.0) if small.columns else 1.0
    model = Model([c.cost * scale for c in small.columns], integral=True)
    count = model.add(rows(small, ALL_ROWS))
    count += model.add_at_most_one(_holders(small))
    model.add_limits(uses(small))
    best: list[int] = []
    bound = 0.0
    for serial in range(ROUNDS):
        answer = model.solve_program(clock.left_s, (), gap)
        bound = max(bound, answer.bound / scale)
        if answer.values is None:
            break
        chosen = [k for k, x in enumerate(answer.values) if x > 0.5]
        if is_solution(small, chosen):
            best = executable_order(small, chosen)
            break
        model.add(founded_rows(small, chosen, serial))
    return [rest.origin[k] for k in best], bound, len(small.columns), count


def _holders(problem: Problem) -> list[list[int]]:
    holders: dict[int, list[int]] = {}
    for k, column in enumerate(problem.columns):
        for p in column.region:
            holders.setdefault(p, []).append(k)
    return [ks for ks in holders.values() if len(ks) > 1]


def _without_rivals(reduced: Reduced) -> Reduced:
    """One column for one, among those that give the same."""
    columns = reduced.problem.columns
    same: dict[frozenset[int], list[int]] = {}
    for k in sorted(range(len(columns)), key=lambda k: (columns[k].cost, k)):
        rivals = same.setdefault(columns[k].gives, [])
        if not any(_replaces(columns[b], columns[k]) for b in rivals):
            rivals.append(k)
    return restrict(reduced, sorted(k for ks in same.values() for k in ks), columns)


def _replaces(b: Column, k: Column) -> bool:
    return (
        b.needs <= k.needs
        and b.region <= k.region
        and all(x <= y for x, y in zip_longest(b.uses, k.uses, fillvalue=0.0))
    )

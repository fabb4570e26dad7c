"""A first solution, so that there is always an answer: dynamic programming over tokens.

For each token keep the cheapest set of columns found so far that derives it:

    plan(t) = the cheapest over columns k that give t of  {k} united with plan(n) for all n k needs

Sets of several needs overlap, so the sum over a set is exact but its choice is greedy: an upper
bound.  Weights other than the costs steer the choice, for example towards a fractional solution.
Where resources are limited they are paid for, at rising prices, until a solution keeps within.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.select.cuts import is_solution, keeps_within, prune
from fissile.select.landmarks import bits, derivation_order
from fissile.select.program import Problem, unlimited

PASSES = 6
PRICES = (0.0, 0.1, 0.3, 1.0, 3.0, 100.0, 1e6)  # of all that may be used, in solutions


def cheap_solution(problem: Problem, weights: Sequence[float] | None = None) -> list[int] | None:
    """An executable order of columns that gives the outputs; None if none is found, which proves
    that none is where nothing is limited."""
    weights = [column.cost for column in problem.columns] if weights is None else weights
    first: list[int] | None = None
    for price in PRICES if problem.limits else (0.0,):
        unit = price * sum(weights[k] for k in first or ())
        paid = [
            w + unit * sum(c.uses[: problem.limits])
            for w, c in zip(weights, problem.columns, strict=True)
        ]
        found = _cheapest(problem, paid)
        if found is None or keeps_within(problem, found):
            return found
        first = first or found
    return None


def _cheapest(problem: Problem, weights: Sequence[float]) -> list[int] | None:
    """The same, whatever it uses."""
    plans: list[int | None] = [None] * len(problem.value_of)
    spent = [float("inf")] * len(plans)
    for token in problem.free:
        plans[token], spent[token] = 0, 0.0
    order = derivation_order(problem.columns, problem.free)
    for _ in range(PASSES):
        if not _improve(problem, weights, order, plans, spent):
            break
    chosen = 0
    for token in problem.outputs:
        plan = plans[token]
        if plan is None:
            return None
        chosen |= plan
    # a plan may be stale when what it rests on improved later; it still runs
    result = list(bits(chosen))
    free = unlimited(problem)
    return prune(free, result) if is_solution(free, result) else None


def _improve(
    problem: Problem,
    weights: Sequence[float],
    order: Sequence[int],
    plans: list[int | None],
    spent: list[float],
) -> bool:
    improved = False
    for k in order:
        column = problem.columns[k]
        plan, cost = _union(sorted(column.needs), weights, plans, spent)
        if not plan >> k & 1:
            plan, cost = plan | 1 << k, cost + weights[k]
        for token in column.gives:
            if cost < spent[token] - 1e-12:
                plans[token], spent[token] = plan, cost
                improved = True
    return improved


def _union(
    needs: Sequence[int],
    weights: Sequence[float],
    plans: Sequence[int | None],
    spent: Sequence[float],
) -> tuple[int, float]:
    """The plans of all needs together, and their weight; shared columns count once."""
    union, cost = 0, 0.0
    for token in sorted(needs, key=lambda token: -spent[token]):
        plan = plans[token]
        assert plan is not None, "a column stands in the order only after what it needs"
        if not union:
            union, cost = plan, spent[token]
        elif extra := plan & ~union:
            union |= extra
            cost += sum(weights[k] for k in bits(extra))
    return union, cost

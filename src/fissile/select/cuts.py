"""Can the chosen columns start?  Simulation, and the rows `founded` when they cannot.

The rows of the program accept two kernels that wait for each other.  Let A be what the chosen
columns make available from the free tokens, and let U be what the stuck ones give outside A.
Whatever runs a stuck column k must first derive a token of U from outside of U, so

    x_k <= sum_{j gives a token of U, needs none of U} x_j        for every stuck k

holds in every solution whenever k needs a token of U (else k's missing token is given by nobody and
its row `needs` is violated).  No chosen column stands on the right: one that needs nothing of U and
gives some of U has every need in A or given by nobody.  So each round cuts off what it saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fissile.select.landmarks import derivation_order
from fissile.select.program import Problem, Row

TOLERANCE = 1e-6  # of rows, in HiGHS


def executable_order(problem: Problem, chosen: Sequence[int]) -> list[int]:
    """The part of `chosen` that can run from the free tokens, in an order that runs."""
    return derivation_order(problem.columns, problem.free, sorted(chosen))


def available(problem: Problem, order: Sequence[int]) -> set[int]:
    """The tokens that are there after `order` has run."""
    there = set(problem.free)
    for k in order:
        there |= problem.columns[k].gives
    return there


def is_solution(problem: Problem, chosen: Sequence[int]) -> bool:
    """A part of `chosen` gives every output in some order; all of it keeps within the limits."""
    if not keeps_within(problem, chosen):
        return False
    return available(problem, executable_order(problem, chosen)).issuperset(problem.outputs)


def keeps_within(problem: Problem, chosen: Sequence[int]) -> bool:
    """Does `chosen` use no more of each limited resource than there is?"""
    used = [problem.columns[k].uses for k in chosen if problem.columns[k].uses]
    return all(sum(u[r] for u in used) <= 1 + TOLERANCE for r in range(problem.limits))


def founded_rows(problem: Problem, chosen: Sequence[int], serial: int = 0) -> Iterator[Row]:
    """The rows that cut off `chosen`; none when all of it can run."""
    order = executable_order(problem, chosen)
    stuck = sorted(set(chosen).difference(order))
    there = available(problem, order)
    unfounded = {t for k in stuck for t in problem.columns[k].gives} - there
    if not unfounded:
        return
    plus = tuple(
        j
        for j, column in enumerate(problem.columns)
        if not column.gives.isdisjoint(unfounded) and column.needs.isdisjoint(unfounded)
    )
    for k in stuck:
        if not problem.columns[k].needs.isdisjoint(unfounded):
            yield Row("founded", (serial, k), plus, k)


def prune(problem: Problem, chosen: Sequence[int]) -> list[int]:
    """Drop columns, dearest first, until none of the rest is removable.

    Only columns whose every token is given twice or wanted by nobody are tried.  That suffices: if
    k is removable and alone gives a token that j needs, j runs after k and is removable itself.
    """
    columns, kept = problem.columns, executable_order(problem, chosen)
    while True:
        given = Counter(t for k in kept for t in columns[k].gives)
        wanted = {t for k in kept for t in columns[k].needs}.union(problem.outputs) - problem.free
        spare = [k for k in kept if all(given[t] > 1 or t not in wanted for t in columns[k].gives)]
        for k in sorted(spare, key=lambda k: (-columns[k].cost, -k)):
            without = executable_order(problem, [j for j in kept if j != k])
            if available(problem, without).issuperset(problem.outputs):
                kept = without
                break
        else:
            return kept

"""The optimum by exhaustion: shortest path over sets of available tokens.

Written from the meaning of a solution alone; it shares no code and no row with the program.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from fissile.select import Problem


def cheapest(problem: Problem) -> float | None:
    """The least cost of a run that makes every output available; None if there is none."""
    start, wanted = frozenset(problem.free), set(problem.outputs)
    best = {start: 0.0}
    queue: list[tuple[float, int, frozenset[int]]] = [(0.0, 0, start)]
    pushed = 0
    while queue:
        spent, _, there = heapq.heappop(queue)
        if spent > best[there]:
            continue
        if wanted <= there:
            return spent
        for column in problem.columns:
            if column.needs <= there and not column.gives <= there:
                after, cost = there | column.gives, spent + column.cost
                if cost < best.get(after, float("inf")):
                    best[after] = cost
                    pushed += 1
                    heapq.heappush(queue, (cost, pushed, after))
    return None


def assert_runs(problem: Problem, chosen: Sequence[int]) -> float:
    """`chosen` runs in its order and gives the outputs; its cost."""
    there = set(problem.free)
    for k in chosen:
        assert problem.columns[k].needs <= there, f"column {k} runs before its needs are there"
        there |= problem.columns[k].gives
    assert there.issuperset(problem.outputs)
    return sum(problem.columns[k].cost for k in chosen)

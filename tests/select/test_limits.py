"""Rows that bound what a solution uses: the chosen kernels are the cheapest that keep within."""

from __future__ import annotations

import heapq
import operator
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from select_networks import random_hypergraph, random_problem
from select_oracle import assert_runs

from fissile.select import ALL_ROWS, Column, MalformedProblem, Problem, select
from fissile.select.clock import Clock
from fissile.select.reduce import Reduced
from fissile.select.solve import _branch, _Search


def used(column: Column, resource: int = 0) -> float:
    return column.uses[resource] if column.uses else 0.0


def with_uses(problem: Problem, seed: int, doubled: bool = True, limits: int = 1) -> Problem:
    """Noise for some kernels, which get cheaper for it; the silent ones stay where `doubled`."""
    rng = random.Random(seed)
    columns = list(problem.columns)
    for column in problem.columns:
        if not column.is_adapter and rng.random() < 0.5:
            loud = replace(
                column,
                cost=column.cost * rng.uniform(0.2, 0.9),
                uses=tuple(rng.uniform(0.05, 1.2) for _ in range(limits)),
            )
            columns.append(loud)
            if not doubled:
                columns.remove(column)
    return replace(problem, columns=tuple(columns), limits=limits)


def cheapest_within(problem: Problem) -> float | None:
    """By exhaustion over (tokens that are there, what is used): shares nothing with the program."""
    nothing = (0.0,) * (1 + problem.limits)  # time, then the resources
    start, wanted = frozenset(problem.free), set(problem.outputs)
    best: dict[frozenset[int], list[tuple[float, ...]]] = {start: [nothing]}
    queue = [(nothing, 0, start)]
    pushed = 0
    while queue:
        spent, _, there = heapq.heappop(queue)
        if wanted <= there:
            return spent[0]
        for column in problem.columns:
            if not column.needs <= there or column.gives <= there:
                continue
            more = (column.cost, *(used(column, r) for r in range(problem.limits)))
            after, label = there | column.gives, tuple(map(sum, zip(spent, more, strict=True)))
            known = best.setdefault(after, [])
            over = any(use > 1 for use in label[1:])
            if over or any(all(map(operator.le, old, label)) for old in known):
                continue
            known.append(label)
            pushed += 1
            heapq.heappush(queue, (label, pushed, after))
    return None


def assert_optimal(problem: Problem, **options) -> None:
    expected = cheapest_within(problem)
    selected = select(problem, **options)
    if expected is None:
        assert selected.status == "infeasible"
        return
    assert selected.status == "optimal"
    assert assert_runs(problem, selected.chosen) == pytest.approx(selected.objective)
    for r in range(problem.limits):
        assert sum(used(problem.columns[k], r) for k in selected.chosen) <= 1 + 1e-6
    assert selected.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert selected.bound <= selected.objective + 1e-9


@pytest.mark.parametrize("block", range(6))
def test_layered_graphs_equal_exhaustion(block):
    for seed in range(15 * block, 15 * (block + 1)):
        assert_optimal(with_uses(random_problem(seed, primitives=5), seed))


@pytest.mark.parametrize("block", range(6))
def test_hypergraphs_equal_exhaustion(block):
    for seed in range(25 * block, 25 * (block + 1)):
        assert_optimal(with_uses(random_hypergraph(seed), seed))


@pytest.mark.parametrize("block", range(4))
def test_two_limits_equal_exhaustion(block):
    for seed in range(25 * block, 25 * (block + 1)):
        assert_optimal(with_uses(random_hypergraph(seed), seed, limits=2))
        assert_optimal(with_uses(random_problem(seed, primitives=4), seed, limits=2))


def test_without_silent_kernels():
    for seed in range(100):
        assert_optimal(with_uses(random_hypergraph(seed), seed, doubled=False))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_presolve_keeps_the_optimum(seed):
    assert_optimal(with_uses(random_hypergraph(seed), seed), presolve=False)


def test_no_columns_are_no_solution_at_any_cost():
    """What reduced costs leave of a program may be nothing at all."""
    problem = with_uses(next(p for p in map(random_problem, range(99)) if p.outputs), 0)
    search = _Search(problem, 0.0, ALL_ROWS, Clock(60.0), tuple(select(problem).chosen))
    nothing = Reduced(replace(problem, columns=()), ())
    assert _branch(search, nothing, ()) == float("inf")


def test_noise_counts_only_where_it_is_limited():
    dearer = 0
    for seed in range(60):
        problem = with_uses(random_hypergraph(seed), seed)
        loud, silent = (
            replace(problem, limits=0),
            replace(problem, columns=tuple(replace(c, uses=()) for c in problem.columns)),
        )
        assert select(loud).objective == pytest.approx(select(silent).objective)
        dearer += select(problem).objective > 1.01 * select(loud).objective
    assert dearer >= 8, "the row hardly ever decides: these tests say nothing"


def test_an_adapter_has_no_noise():
    problem = next(
        p for p in map(random_problem, range(99)) if any(c.is_adapter for c in p.columns)
    )
    columns = tuple(replace(c, uses=(0.1,)) for c in problem.columns)
    with pytest.raises(MalformedProblem, match="adapter"):
        select(replace(problem, columns=columns, limits=1))


def test_repeated_blocks_vie_for_a_resource():
    """Twelve equal blocks, of which three may be fast: the best by arithmetic."""
    none, some = (0.0,), (0.3,)
    columns = [
        Column(cost, frozenset({b}), frozenset({b}), frozenset({b + 1}), use)
        for b in range(12)
        for cost, use in ((4.0 + b / 100, none), (1.0, some), (3.5, (0.05,)))
    ]
    edges = tuple((b, b + 1, b + 1) for b in range(11))
    problem = Problem(
        tuple(columns), (12,), frozenset({0}), tuple(range(13)), (None, *range(12)), edges,
        frozenset(range(12)), 1,
    )  # fmt: skip
    # 3 x 0.3 leaves room for 2 x 0.05, 2 x 0.3 for 8, 0.3 or nothing for all: 39.5 and 42
    expected = 3 * 1.0 + 2 * 3.5 + sum(4.0 + b / 100 for b in range(7))
    fewer = 2 * 1.0 + 8 * 3.5 + sum(4.0 + b / 100 for b in range(2))
    assert select(problem).objective == pytest.approx(min(expected, fewer))

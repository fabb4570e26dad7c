"""No cut removes a solution that matters: each holds in every solution without idle columns."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from select_networks import random_hypergraph, random_problem

from fissile.select import ALL_ROWS, KORCH, SECTION_9, Problem
from fissile.select.cuts import available, executable_order, founded_rows, is_solution, prune
from fissile.select.landmarks import find_landmarks
from fissile.select.odd import violated_triples
from fissile.select.program import Row, landmark_rows, required, rows
from fissile.select.reduce import reduce
from fissile.select.separate import Growth, Support, violated_founded, violated_landmarks


def runs(problem: Problem, chosen: tuple[int, ...]) -> bool:
    """All of `chosen` runs and the outputs are given; written apart from the code under test."""
    there, left = set(problem.free), set(chosen)
    while ready := {k for k in left if problem.columns[k].needs <= there}:
        left -= ready
        there.update(*(problem.columns[k].gives for k in ready))
    return not left and there.issuperset(problem.outputs)


def whole_solutions(problem: Problem) -> list[frozenset[int]]:
    """Every set that runs and from which nothing can be removed."""
    found: list[frozenset[int]] = []
    for size in range(len(problem.columns) + 1):
        for chosen in combinations(range(len(problem.columns)), size):
            if not any(smaller <= set(chosen) for smaller in found) and runs(problem, chosen):
                found.append(frozenset(chosen))
    return found


def holds(row: Row, chosen: frozenset[int]) -> bool:
    least = row.least if row.minus is None else int(row.minus in chosen)
    return sum(k in chosen for k in row.plus) >= least


def small(seed: int) -> Problem:
    return random_hypergraph(seed, tokens=7, columns=12)


@pytest.mark.parametrize("seed", range(40))
def test_cuts_hold_in_every_whole_solution(seed):
    problem, rng = small(seed), random.Random(seed)
    solutions = whole_solutions(problem)
    if not solutions:
        return
    growth, pool = Growth(problem), list(landmark_rows(problem, ALL_ROWS))
    made = list(pool)
    for serial in range(12):
        point = [rng.choice((0.0, 0.3, 0.5, 0.7, 1.0)) for _ in problem.columns]
        support = Support(growth, point)
        made += violated_landmarks(growth, support, serial)
        made += violated_founded(growth, support, serial)
        made += violated_triples(made, point, serial)
    assert all(holds(row, chosen) for row in made for chosen in solutions)


@pytest.mark.parametrize("families", [SECTION_9, ALL_ROWS], ids=["section 9", "all"])
def test_some_optimal_solution_satisfies_every_row(families):
    for seed in range(60):
        for problem in (small(seed), reduce(small(seed)).problem):
            solutions = whole_solutions(problem)
            if not solutions:
                continue
            cost = {s: sum(problem.columns[k].cost for k in s) for s in solutions}
            best = [s for s in solutions if cost[s] <= min(cost.values()) + 1e-9]
            made = list(rows(problem, families))
            assert any(all(holds(row, s) for row in made) for s in best)


def test_three_pairs_of_three_give_the_odd_cut():
    thrice = [Row("cover", (p,), tuple(k for k in range(3) if k != p)) for p in range(3)]
    (cut,) = violated_triples(thrice, [0.5, 0.5, 0.5], 0)
    assert sorted(cut.plus) == [0, 1, 2] and cut.least == 2


def test_founded_rows_cut_off_what_cannot_start():
    """Every set that satisfies the rows `needs` and does not run breaks the rows it is given."""
    seen = 0
    for seed in range(400):
        problem, rng = small(seed), random.Random(seed)
        chosen = [k for k in range(len(problem.columns)) if rng.random() < 0.5]
        needs = [row for row in rows(problem, KORCH) if row.family == "needs"]
        if not all(holds(row, frozenset(chosen)) for row in needs):
            continue
        made = list(founded_rows(problem, chosen))
        there = set(problem.free).union(*(problem.columns[k].gives for k in chosen))
        starts = there == available(problem, executable_order(problem, chosen))
        assert bool(made) == (not starts)
        assert not any(holds(row, frozenset(chosen)) for row in made)
        seen += bool(made)
    assert seen > 5


def test_landmarks_equal_their_definition():
    """An event is a landmark when the token cannot be derived without the columns that do it."""
    for seed in range(60):
        problem = random_hypergraph(seed)
        marks = [sum(1 << p for p in column.region) for column in problem.columns]
        known = find_landmarks(problem.columns, problem.free, len(problem.value_of), marks)
        for p in range(5):
            without = [k for k, mark in enumerate(marks) if not mark >> p & 1]
            there = set(problem.free)
            for _ in without:
                for k in without:
                    if problem.columns[k].needs <= there:
                        there |= problem.columns[k].gives
            for token, mask in enumerate(known.of_token):
                assert (mask >> p & 1 == 1) == (token not in there)


def test_every_live_primitive_of_a_plain_graph_is_required():
    for seed in range(60):
        problem = random_problem(seed)
        if is_solution(problem, range(len(problem.columns))):
            assert required(problem) >= problem.live


def test_prune_leaves_nothing_removable():
    for seed in range(100):
        problem = small(seed)
        everything = range(len(problem.columns))
        if not is_solution(problem, everything):
            continue
        kept = prune(problem, everything)
        assert runs(problem, tuple(kept))
        assert not any(is_solution(problem, [j for j in kept if j != k]) for k in kept)

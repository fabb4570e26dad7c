"""The chosen kernels are the cheapest: equal to exhaustion, with every choice of rows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from select_networks import network, random_hypergraph, random_problem
from select_oracle import assert_runs, cheapest

from fissile.select import (
    ALL_ROWS,
    KORCH,
    SECTION_9,
    Column,
    MalformedProblem,
    Problem,
    select,
)

FAMILIES = {
    "Korch's rows": KORCH,
    "+ cover": KORCH | {"cover"},
    "+ edges": KORCH | {"cover", "edges"},
    "section 9": SECTION_9,
    "+ layouts": SECTION_9 | {"layouts"},
    "+ first": SECTION_9 | {"first"},
    "all": ALL_ROWS,
}


def assert_optimal(problem: Problem, **options) -> None:
    expected = cheapest(problem)
    selected = select(problem, **options)
    if expected is None:
        assert selected.status == "infeasible"
        return
    assert selected.status == "optimal"
    assert assert_runs(problem, selected.chosen) == pytest.approx(selected.objective)
    assert selected.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert selected.bound <= selected.objective


@pytest.mark.parametrize("block", range(10))
def test_layered_graphs_equal_exhaustion(block):
    for seed in range(40 * block, 40 * (block + 1)):
        assert_optimal(random_problem(seed))


@pytest.mark.parametrize("block", range(10))
def test_hypergraphs_equal_exhaustion(block):
    for seed in range(40 * block, 40 * (block + 1)):
        assert_optimal(random_hypergraph(seed))


@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_of_rows_changes_the_optimum(name):
    for seed in range(1000, 1025):
        assert_optimal(random_problem(seed), families=FAMILIES[name], presolve=False)
        assert_optimal(random_hypergraph(seed), families=FAMILIES[name], presolve=False)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(sorted(FAMILIES)))
def test_presolve_keeps_the_optimum(seed, name):
    assert_optimal(random_problem(seed, primitives=5), families=FAMILIES[name])


def kernel(cost: float, region: set[int], needs: set[int], gives: set[int]) -> Column:
    return Column(cost, frozenset(region), frozenset(needs), frozenset(gives))


def mutual_wait() -> Problem:
    """Edges a -> c and b -> d; {a, d} and {b, c} are convex, and each waits for the other."""
    x, a, b, c, d = range(5)
    return Problem(
        columns=(
            kernel(1, {a, d}, {x, b}, {a, d}),
            kernel(1, {b, c}, {x, a}, {b, c}),
            *(kernel(5, {p}, {n}, {p}) for p, n in ((a, x), (b, x), (c, a), (d, b))),
        ),
        outputs=(c, d),
        free=frozenset([x]),
        value_of=(x, a, b, c, d),
        producer=(None, a, b, c, d),
        edges=((a, c, a), (b, d, b)),
        live=frozenset([a, b, c, d]),
    )


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("presolve", [True, False])
def test_kernels_that_wait_for_each_other_do_not_start(name, presolve):
    selected = select(mutual_wait(), families=FAMILIES[name], presolve=presolve)
    assert selected.objective == 7  # one of the four alone breaks the wait: 5 + 1 + 1
    assert selected.status == "optimal"
    assert_runs(mutual_wait(), selected.chosen)


def test_adapters_that_feed_each_other_give_nothing():
    """Two layouts of one value; only a dear kernel gives either, the adapters are nearly free."""
    problem = Problem(
        columns=(
            kernel(9, {0}, {0}, {1}),
            kernel(0.1, set(), {1}, {2}),
            kernel(0.1, set(), {2}, {1}),
            kernel(1, {1}, {2}, {3}),
        ),
        outputs=(3,),
        free=frozenset([0]),
        value_of=(0, 1, 1, 2),
        producer=(None, 0, 1),
        edges=((0, 1, 1),),
        live=frozenset([0, 1]),
    )
    selected = select(problem)
    assert selected.chosen == (0, 1, 3)
    assert selected.objective == pytest.approx(10.1)


def test_a_chain_of_adapters_is_allowed_where_it_is_cheaper():
    """Three layouts; a -> b -> c costs 2, a -> c costs 9, and b is wanted as well."""
    problem = Problem(
        columns=(
            kernel(1, {0}, {0}, {1}),
            kernel(1, set(), {1}, {2}),
            kernel(1, set(), {2}, {3}),
            kernel(9, set(), {1}, {3}),
        ),
        outputs=(2, 3),
        free=frozenset([0]),
        value_of=(0, 1, 1, 1),
        producer=(None, 0),
        edges=(),
        live=frozenset([0]),
    )
    for presolve in (True, False):
        assert select(problem, presolve=presolve).objective == pytest.approx(3)


def test_recomputation_is_chosen_where_it_pays():
    """A cheap p feeds two dear readers; fused twice costs less than stored once."""
    problem = Problem(
        columns=(
            kernel(4, {0}, {0}, {1}),
            kernel(3, {1}, {1}, {2}),
            kernel(3, {2}, {1}, {3}),
            kernel(3.5, {0, 1}, {0}, {2}),
            kernel(3.5, {0, 2}, {0}, {3}),
        ),
        outputs=(2, 3),
        free=frozenset([0]),
        value_of=(0, 1, 2, 3),
        producer=(None, 0, 1, 2),
        edges=((0, 1, 1), (0, 2, 1)),
        live=frozenset([0, 1, 2]),
    )
    assert set(select(problem).chosen) == {3, 4}


def test_outputs_that_nothing_gives_are_reported():
    problem = replace(mutual_wait(), columns=mutual_wait().columns[:2])
    assert select(problem).status == "infeasible"


@pytest.mark.parametrize("cost", [-1.0, float("inf"), float("nan")])
def test_a_cost_that_is_no_cost_is_refused(cost):
    problem = mutual_wait()
    columns = (replace(problem.columns[0], cost=cost), *problem.columns[1:])
    with pytest.raises(MalformedProblem, match="column 0 costs"):
        select(replace(problem, columns=columns))


def test_no_time_still_gives_an_answer_with_an_honest_gap():
    problem = network("csp", 2)
    selected = select(problem, time_limit=0.0)
    assert assert_runs(problem, selected.chosen) == pytest.approx(selected.objective)
    assert selected.gap == pytest.approx(1 - selected.bound / selected.objective)
    assert selected.gap > 0 and selected.status == "time_limit"


@pytest.mark.parametrize("kind", ["csp", "attention", "style"])
def test_small_networks_are_proven_and_agree_with_the_plain_program(kind):
    problem = network(kind, 1, limit=4)
    fast, plain = select(problem), select(problem, presolve=False, families=SECTION_9)
    assert fast.status == plain.status == "optimal"
    assert fast.objective == pytest.approx(plain.objective, rel=1e-6)
    assert_runs(problem, fast.chosen)


def test_equal_input_gives_equal_output():
    problem = network("mixed", 2)
    first, second = select(problem), select(problem)
    assert first.chosen == second.chosen and first.bound == second.bound


def test_nothing_chosen_can_be_removed():
    for seed in range(2000, 2040):
        problem = random_hypergraph(seed)
        chosen = select(problem).chosen
        for k in chosen:
            fewer = [problem.columns[j] for j in chosen if j != k]
            assert cheapest(replace(problem, columns=tuple(fewer))) is None


def test_a_known_solution_is_never_lost():
    problem = network("style", 1)
    best = select(problem)
    assert select(problem, time_limit=0.0, start=best.chosen).objective == best.objective


def test_the_solver_is_silent():
    """Standard output belongs to `--json`; the banner is C++, so a fresh process is asked."""
    code = (
        "from fissile.select.highs import Model; "
        "Model([1.0], integral=False).solve_relaxation(1.0); "
        "Model([1.0], integral=True).solve_program(1.0, [0], 0.0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""

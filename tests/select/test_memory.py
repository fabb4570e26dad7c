"""A remembered solution is that of the same program, and is believed only where it still holds."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from select_networks import random_hypergraph, random_problem
from select_oracle import assert_runs

from fissile.select import memory
from fissile.select.memory import Asked, solved
from fissile.select.relax import cost_of
from fissile.select.solve import select

EXACT = Asked(0.0, 60.0, once=False)


class Kept:
    """A memory that counts."""

    def __init__(self):
        self.texts: dict[str, str] = {}
        self.recalled = 0

    def recall(self, digest):
        self.recalled += digest in self.texts
        return self.texts.get(digest)

    def remember(self, digest, text):
        self.texts[digest] = text


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch):
    monkeypatch.setattr(memory, "LEAST_S", 0.0)


@pytest.fixture
def unsolvable(monkeypatch):
    """From now on nothing is solved."""

    def forbid():
        def fail(*_, **__):
            raise AssertionError("solved again")

        monkeypatch.setattr(memory, "select", fail)

    return forbid


def solvable(make):
    problems = (make(seed) for seed in range(99))
    return next(p for p in problems if p.outputs and select(p).status == "optimal")


@pytest.mark.parametrize("make", [random_problem, random_hypergraph])
def test_the_same_program_is_solved_once(make, unsolvable):
    kept, problem = Kept(), solvable(make)
    first = solved(problem, EXACT, (), kept)
    unsolvable()
    again = solved(problem, EXACT, (), kept)
    assert again.chosen == first.chosen
    assert (again.objective, again.bound, again.status) == (
        first.objective, first.bound, first.status,
    )  # fmt: skip
    for a, b in zip(again.reduced, first.reduced, strict=True):
        assert a == b or a == pytest.approx(b, rel=1e-5)


def test_every_part_of_a_program_counts():
    kept, problem = Kept(), solvable(random_problem)
    solved(problem, EXACT, (), kept)
    one, *rest = problem.columns
    others = [
        replace(problem, columns=(replace(one, cost=one.cost + 1e-9), *rest)),
        replace(problem, columns=(*problem.columns, one)),
        replace(problem, outputs=problem.outputs[:-1]),
        replace(problem, edges=problem.edges[1:]),
    ]
    for other in others:
        solved(other, EXACT, (), kept)
    solved(problem, replace(EXACT, once=True), (), kept)
    assert kept.recalled == 0


def test_an_answer_serves_where_it_is_near_enough(unsolvable):
    kept, problem = Kept(), solvable(random_problem)
    solved(problem, EXACT, (), kept)
    ((digest, text),) = kept.texts.items()
    facts = json.loads(text)
    kept.texts[digest] = json.dumps(facts | {"bound": 0.9 * cost_of(problem, facts["chosen"])})
    unsolvable()
    again = solved(problem, Asked(0.2, 1.0, once=False), (), kept)
    assert (again.gap, again.status) == (pytest.approx(0.1), "within_gap")
    with pytest.raises(AssertionError, match="solved again"):
        solved(problem, Asked(0.05, 1.0, once=False), (), kept)


def test_what_ended_by_its_limit_is_not_remembered(monkeypatch):
    """It depends on the machine that hour, and would stay."""
    kept, problem = Kept(), solvable(random_problem)
    late = replace(select(problem), bound=0.0, gap=1.0, status="time_limit")
    monkeypatch.setattr(memory, "select", lambda *_, **__: late)
    assert solved(problem, EXACT, (), kept) == late and not kept.texts


@pytest.mark.parametrize(
    "lie",
    [
        {"chosen": []}, {"chosen": [10**6]}, {"chosen": [-1]}, {"chosen": ["x"]}, {"chosen": None},
        {"chosen": [math.inf]}, {"bound": 1e9}, {"bound": -1.0}, {"bound": math.nan},
        {"bound": "x"}, {"bound": 10**400}, {"bound": 0.0}, {"reduced": [1.0]},
        {"reduced": ["x"]}, {"seconds": "x"}, {"seconds": -1}, {"columns": {}}, {"rows": "3"},
    ],
)  # fmt: skip
def test_what_does_not_hold_is_not_believed(lie):
    kept, problem = Kept(), solvable(random_problem)
    right = solved(problem, EXACT, (), kept)
    ((digest, text),) = kept.texts.items()
    deep = "[" * 100_000
    for wrong in (json.dumps(json.loads(text) | lie), "{", "[]", "1", "{}", text[:40], deep):
        kept.texts[digest] = wrong
        again = solved(problem, EXACT, (), kept)
        assert again.objective == pytest.approx(right.objective)
        assert (again.status, again.gap) == ("optimal", pytest.approx(0.0, abs=1e-6))
        assert kept.texts[digest] != wrong, "it was solved again"


def test_an_order_that_does_not_run_is_not_believed():
    kept, problem = Kept(), solvable(random_hypergraph)
    right = solved(problem, EXACT, (), kept)
    ((digest, text),) = kept.texts.items()
    backwards = json.dumps(json.loads(text) | {"chosen": right.chosen[::-1]})
    kept.texts[digest] = backwards
    assert len(right.chosen) > 1
    assert_runs(problem, solved(problem, EXACT, (), kept).chosen)


DIGEST = """
import sys
sys.path.insert(0, {path!r})
from networks import network
from fissile.cost.calibrate import Calibration, Rate
from fissile.cost.model import Model, prices
from fissile.compile import implement
from fissile.kernels.identify import identify
from fissile.onnx.load import load
from fissile.select import memory
from fissile.select.pricing import Market
from fissile.targets.cpu.machine import Machine
from fissile.targets.cpu.target import Cpu
rates = (Rate(1 << 20, 100.0), Rate(1 << 30, 20.0))
here = Calibration("here", 1, 100.0, rates, 0.1, 1 << 15, 1 << 20, 1 << 25)
graph = load(network("mobilenetv2_100"))
cpu = Cpu(graph, Machine(), threads=1)
candidates = implement(graph, cpu, identify(graph, cpu.limits, cpu.admissible))
memory.solved = lambda problem, asked, start, kept: sys.exit(memory._digest(problem, False))
from fissile.select import pricing
pricing.solved = memory.solved
Market(graph, candidates).solve(prices(candidates, Model(here), {{}}, 0.0), 1e-3, 1.0)
"""


def test_the_digest_is_the_same_in_every_process():
    script = DIGEST.format(path=str(Path(__file__).parents[2] / "benchmarks"))
    said = {_said(script, PYTHONHASHSEED=seed) for seed in "12"}
    assert len(said) == 1
    assert len(said.pop().strip()) == 64


def _said(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stderr

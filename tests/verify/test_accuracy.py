"""What a plan may spend on errors: answers with a closed form, and whole compilations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fissile
from fissile import accuracy, verify
from fissile.accuracy import ATTEMPTS, allowance, answers
from fissile.ir import prims as p
from fissile.ir.graph import Graph, placeholder
from fissile.ir.types import of
from fissile.onnx.save import save
from fissile.select import limits
from fissile.targets.cpu.machine import this_machine
from fissile.verify import WrongAnswer


def weights(*shape: int, seed: int = 0) -> Any:
    size = np.sqrt(np.prod(shape[1:]))
    return p.constant((np.random.default_rng(seed).standard_normal(shape) / size).astype("f4"))


def two_paths() -> Graph:
    """A loud convolution and one whose result counts a hundredth."""
    x = placeholder(of((1, 16, 24, 24)))
    padded = p.pad(x, [0, 0, 1, 1], [0, 0, 1, 1], "constant", 0.0)
    a = p.conv(padded, weights(16, 16, 3, 3), (1, 1), (1, 1))
    b = p.conv(padded, weights(16, 16, 3, 3, seed=1), (1, 1), (1, 1))
    return Graph((x,), (a + b * 0.01,), ("x",), ("y",))


def convolutions(graph: Graph) -> list[Any]:
    return [n for n in graph.primitives if n.prim == "conv"]


def chosen(graph: Graph, *errors: float) -> list[Any]:
    """Stands for candidates over the convolutions, one each, with these errors."""
    return [
        SimpleNamespace(error=e, region=SimpleNamespace(nodes=(n,)))
        for n, e in zip(convolutions(graph), errors, strict=True)
    ]


def inputs() -> list[np.ndarray]:
    return [np.random.default_rng(3).standard_normal((1, 16, 24, 24)).astype("f4")]


def test_answers_are_those_of_a_sum():
    """The largest of 9216 normal numbers is about 4 times their rms, as the scale is."""
    graph = two_paths()
    loud, soft = convolutions(graph)
    found = answers(graph, inputs(), {loud: 1e-6, soft: 1e-6})
    assert found[loud] == pytest.approx(1.0, rel=0.3)
    assert found[soft] == pytest.approx(0.01, rel=0.3)


def test_noise_is_measured_in_what_is_allowed():
    """Twice as wrong as allowed: the same plan would use 2^2 / margin of the next allowance."""
    graph = two_paths()
    plan = chosen(graph, 2e-6, 1e-6)
    wrong = WrongAnswer("", 2e-5, 1e-5, inputs())
    noise = allowance(graph, plan, wrong, 1)
    assert noise is not None
    loud, soft = (noise(c) for c in plan)
    assert soft == pytest.approx((0.01 / 2) ** 2 * 4 / accuracy.MARGIN, rel=0.5)
    assert loud == accuracy.TOO_MUCH
    (half, _) = chosen(graph, 5e-7, 0.0)
    assert noise(half) == pytest.approx(4 / accuracy.MARGIN / 16, rel=0.1)
    (exact, _) = chosen(graph, 0.0, 0.0)
    assert noise(exact) == 0.0


def test_the_last_plan_is_exact():
    graph = two_paths()
    plan = chosen(graph, 2e-6, 1e-6)
    for attempt, error in ((ATTEMPTS - 1, 2e-5), (1, float("inf")), (1, float("nan"))):
        noise = allowance(graph, plan, WrongAnswer("", error, 1e-5, inputs()), attempt)
        assert noise is not None and all(noise(c) > 1 for c in plan)


def test_before_it_stands_what_the_default_accuracy_offers():
    """A plan of half precision that stays wrong does not cost the kernels of the default."""
    graph = two_paths()
    half, ordinary = chosen(graph, 10 * accuracy.ORDINARY, 0.5 * accuracy.ORDINARY)
    for attempt, error in ((ATTEMPTS - 1, 2e-5), (1, float("inf"))):
        noise = allowance(graph, [half, ordinary], WrongAnswer("", error, 1e-5, inputs()), attempt)
        assert noise is not None and noise(half) > 1 and noise(ordinary) == 0.0
    wrong = WrongAnswer("", 2e-5, 1e-5, inputs())
    noise = allowance(graph, [half, ordinary], wrong, ATTEMPTS)
    assert noise is not None and noise(half) > 1 and noise(ordinary) > 1


@pytest.mark.parametrize("answer", [0.0, float("nan"), float("inf")])
def test_an_output_that_shows_no_noise_is_no_number_to_divide_by(answer, monkeypatch):
    graph = two_paths()
    plan = chosen(graph, 2e-6, 1e-6)
    monkeypatch.setattr(
        accuracy, "answers", lambda g, i, errors, home: dict.fromkeys(errors, answer)
    )
    noise = allowance(graph, plan, WrongAnswer("", 2e-5, 1e-5, inputs()), 1)
    assert noise is not None and [noise(c) for c in plan] == [accuracy.TOO_MUCH] * 2


def test_a_plan_without_errors_of_its_own_stays_wrong():
    graph = two_paths()
    plan = chosen(graph, 0.0, 0.0)
    assert allowance(graph, plan, WrongAnswer("", 2e-5, 1e-5, inputs()), 1) is None
    assert allowance(graph, chosen(graph, 1e-6, 0), WrongAnswer("", 1, 0, []), ATTEMPTS + 1) is None


# ---------------------------------------------------------------- whole compilations


@pytest.fixture(autouse=True)
def only_errors_are_limited(monkeypatch):
    """The weights of F(4, 3) take four times those of the model, which is nothing but weights."""
    monkeypatch.setattr(limits, "OPENED", 10.0)


def deep() -> Graph:
    x = placeholder(of((1, 32, 28, 28)))
    y = x
    for i in range(4):
        y = p.pad(y, [0, 0, 1, 1], [0, 0, 1, 1], "constant", 0.0)
        y = p.conv(y, weights(32, 32, 3, 3, seed=i), (1, 1), (1, 1))
    return Graph((x,), (y,), ("x",), ("y",))


def compiled(accuracy: str = "default", **options: Any) -> tuple[list[float], Any]:
    """(errors of the chosen candidates that have some, the report of the verification)."""
    exe = fissile.compile(save(deep()), tune=0, threads=1, accuracy=accuracy, **options)
    return [c.error for c in exe.selection.chosen if c.error], exe.stages.values.get("verify")


@pytest.fixture
def policy(monkeypatch):
    """Allows this error of the output's scale and no multiple of the yardstick."""

    def allow(error: float) -> None:
        monkeypatch.setitem(verify.POLICY, "default", (1e-9, error))

    return allow


def test_exact_adds_no_error():
    assert not compiled("exact")[0]
    assert compiled("default")[0]


def test_a_wrong_plan_is_followed_by_a_quieter_one(policy):
    loud, report = compiled()
    assert len(loud) == 4
    policy(0.8 * report.error)
    fewer, better = compiled()
    assert better.error <= 0.8 * report.error
    assert sum(e * e for e in fewer) < 0.7 * sum(e * e for e in loud)


def test_what_no_plan_reaches_is_an_error(policy):
    policy(1e-12)
    with pytest.raises(WrongAnswer, match=r"allowed 1\.0e-12"):
        compiled()


def test_fast_may_round_to_sixteen_bits():
    """Where the processor multiplies pairs; the report still says how far off it is."""
    x = placeholder(of((256, 256)))
    y = p.contract(p.maximum(p.contract(x, weights(256, 256), "mk,kn->mn"), 0.0),
                   weights(256, 256, seed=1), "mk,kn->mn")  # fmt: skip
    model = save(Graph((x,), (y,), ("x",), ("y",)))
    exe = fissile.compile(model, tune=0, threads=1, accuracy="fast")
    rounded = [c for c in exe.selection.chosen if c.impl == "fixed"]
    report = exe.stages.values["verify"]
    if not this_machine().pairs:
        assert not rounded
        return
    assert len(rounded) == 2 and 2e-5 < report.error < 1e-3
    ordinary = fissile.compile(model, tune=0, threads=1)
    assert not any(c.impl == "fixed" for c in ordinary.selection.chosen)

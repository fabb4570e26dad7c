"""Several spellings as one choice: never dearer than any of them, and right when it is run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rewrite.random_graphs import random_graph

import fissile
from fissile.compile import offer
from fissile.cost.model import Cost
from fissile.ir import prims as p
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.layout import Token, row_major
from fissile.ir.types import F32, of
from fissile.kernels.candidate import Candidate
from fissile.onnx.load import load
from fissile.plan.order import arrange
from fissile.rewrite.rules import RULES
from fissile.select.cuts import is_solution
from fissile.select.highs import Model
from fissile.select.pricing import Market
from fissile.select.program import rows
from fissile.select.solve import select
from fissile.select.spellings import rewritten
from fissile.select.tokens import Computation, Member, problem, with_derived
from fissile.select.weave import Woven

GAP = 1e-3
rng = np.random.default_rng(0)


def price(c: Candidate) -> Cost:
    """Any price, the same for equal kernels."""
    if c.is_alias:
        return Cost(1e-3, "model")
    digest = hashlib.sha256(c.key.encode()).digest()
    return Cost(1.0 + int.from_bytes(digest[:4], "little") / 2**32 * 9.0, "measured")


def objective(woven: Woven) -> tuple[float, list[Candidate]]:
    market = Market(woven.computation, woven.candidates)
    solved = market.solve([price(c) for c in woven.candidates], GAP, 20.0)
    return solved.selected.objective, [woven.candidates[k] for k in solved.chosen]


def alone(graph: Graph) -> float:
    return objective(offer(graph, 1, without=("rewrites",))[1])[0]


SEEDS = [s for s in range(700, 740) if len(random_graph(s)[0].primitives) < 14][:12]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_spellings_together_cost_no_more_than_any(seed):
    graph, _ = random_graph(seed)
    _, woven = offer(graph, 1)
    cost, chosen = objective(woven)
    for spelling in rewritten(graph, RULES.values()).spellings:
        assert cost <= alone(spelling.graph) * (1 + 2 * GAP)
    given = {t for c in chosen for t in c.gives}
    for c in chosen:
        for t in c.needs:
            assert t in given or t.value in woven.graph.inputs
    arrange(woven.graph, chosen)  # there is an order in which they run


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_of_derivations_keep_the_optimum(seed):
    """They add rows that every set of kernels satisfies."""
    graph, _ = random_graph(seed)
    _, woven = offer(graph, 1)
    plain = replace(woven, computation=replace(woven.computation, members={}))
    (with_them, _), (without, _) = objective(woven), objective(plain)
    assert with_them == pytest.approx(without, rel=2 * GAP)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_known_set_of_kernels_is_a_start(seed):
    """With the derivations that it makes it gives all outputs."""
    _, woven = offer(random_graph(seed)[0], 1)
    prices = [price(c).us for c in woven.candidates]
    whole = problem(woven.computation, woven.candidates, prices)
    _, chosen = objective(woven)
    kernels = [woven.candidates.index(c) for c in chosen]
    known = with_derived(whole, kernels, len(woven.candidates))
    assert is_solution(whole, known) and set(kernels) <= set(known)


def test_columns_of_derivations_tighten_the_relaxation():
    """q = neg(exp(w)), cheap, or as if it were tanh(sqrt(x)), dear. Half of exp and neg alone, half
    of both as one kernel, and so half of w, is what the relaxation takes without them, as not every
    solution needs exp."""
    x = placeholder(of((4,), F32))
    w, u = p.tanh(x), p.sqrt(x)
    v, other = p.exp(w), p.tanh(u)
    q = p.neg(v)

    def kernel(needs: Value, gives: Value, *values: Value) -> Any:
        tokens = [(Token(w, row_major(1)),) for w in (needs, gives)]
        nodes = tuple(w.node for w in values)
        region = SimpleNamespace(nodes=nodes)
        return SimpleNamespace(needs=tokens[0], gives=tokens[1], region=region, is_adapter=False)

    kernels = [
        kernel(x, w, w), kernel(w, v, v), kernel(v, q, q), kernel(w, q, v, q),
        kernel(x, u, u), kernel(u, q, other),
    ]  # fmt: skip
    numbers = {w.node: 0, u.node: 1, v.node: 2, q.node: 3, other.node: 3}
    edges = ((0, 2, w), (2, 3, v), (1, 3, u))
    members = {
        w.node: Member(0, "tanh", ()), u.node: Member(1, "sqrt", ()),
        v.node: Member(2, "exp", ((0, w),)), q.node: Member(3, "neg", ((2, v),)),
        other.node: Member(3, "tanh", ((1, u),)),
    }  # fmt: skip
    bounds: list[float] = []
    for known in ({}, members):
        what = Computation((x,), (q,), numbers, edges, known)
        asked = problem(what, kernels, [10.0, 1.0, 1.0, 2.0, 100.0, 1.0])
        model = Model([c.cost for c in asked.columns], integral=False)
        model.add([*rows(asked)])
        found = model.solve_relaxation(10.0)
        assert found is not None
        bounds.append(found[2])
        assert select(asked).objective == pytest.approx(12.0)
    assert bounds[0] < 8.0 and bounds[1] == pytest.approx(12.0)


def weights(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def decode_head() -> onnx.ModelProto:
    """A linear map of tokens, a bilinear resize, a concatenation, a 1x1 convolution: as in
    Segformer's decode head."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Transpose", ["c"], ["d"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["d", "shape"], ["e"]),
        helper.make_node("Resize", ["e", "", "scales"], ["f"], mode="linear"),
        helper.make_node("Concat", ["f", "z"], ["g"], axis=1),
        helper.make_node("Conv", ["g", "v", "bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    constants = {
        "w": weights(8, 32), "b": weights(32), "shape": np.array([1, 32, 4, 4]),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "v": weights(16, 40, 1, 1), "bias": weights(16),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8]),
         helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 8, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("without", [(), ("joint",), ("rewrites",), ("program",)])
def test_what_is_compiled_is_right(without, tmp_path):
    model = decode_head()
    exe = fissile.compile(
        model, threads=1, tune=0, store=tmp_path / "times.sqlite", without=without
    )
    graph = load(model)
    feeds = [weights(*v.shape) for v in graph.inputs]
    got = exe(*feeds)
    (want,) = evaluate(graph, feeds, reference=True)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    rewrites = exe.manifest.facts["selection"]["rewrites"]
    assert bool(rewrites["count"]) == (without != ("rewrites",))


def test_rewriting_is_found_in_the_head():
    """The 1x1 convolution comes before the resize and composes with the linear map."""
    cheapest = rewritten(load(decode_head()), RULES.values()).cheapest
    products = [n for n in cheapest.graph.primitives if n.prim in ("contract", "conv")]
    elements = sum(n.value.type.numel for n in products)
    assert len(products) == 4 and elements < 4 * 16 * 64

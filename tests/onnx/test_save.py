"""Saved primitive graphs: valid ONNX, equal results, names kept, paddings folded back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import assert_near, checked, model_of, node, random_feeds, runtime

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import constant, contract, conv, exp, maximum, neg, pad, window
from fissile.ir.types import of
from fissile.onnx.load import load
from fissile.onnx.save import save


def graph_of(inputs, outputs) -> Graph:
    names = tuple(f"in {i}" for i in range(len(inputs)))
    return Graph(
        tuple(inputs), tuple(outputs), names, tuple(f"out {i}" for i in range(len(outputs)))
    )


def round_trip(graph: Graph, tolerance=1e-5):
    """The saved model, after it has given the evaluator's results."""
    feeds = random_feeds(graph)
    model = checked(save(graph))
    wanted = evaluate(graph, list(feeds.values()), reference=True)
    for got, want in zip(runtime(model, feeds), wanted, strict=True):
        assert_near(got, want, tolerance)
    again = load(model)
    for got, want in zip(evaluate(again, list(feeds.values()), True), wanted, strict=True):
        assert_near(got, want, 1e-6)
    return model


def ops(model) -> list[str]:
    return [n.op_type for n in model.graph.node]


SPECS = [
    "mk,kn->mn", "mk,nk->mn", "km,kn->nm", "abk,kn->abn", "bmk,bkn->bmn", "bmk,bnk->bnm",
    "abcd,ec->abed", "ec,abcd->abed", "hmk,bhkn->bhmn", "nchw,cmij->nmijhw", "k,k->", "k,kn->n",
    "mk,k->m", "m,n->mn", "abkl,lkn->anb", "bm,bn->bmn", "bk,bk->b", "mkx,kn->mn", "ab,ab->ab",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("fixed", [False, True])
def test_contractions(spec, fixed):
    left, right = spec.partition("->")[0].split(",")
    extent = dict(zip("abcdehijklmnwx", itertools.cycle((2, 3, 4, 5)), strict=False))
    a = placeholder(of([extent[c] for c in left]))
    shape = [extent[c] for c in right]
    b = constant(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    b = b if fixed else placeholder(of(shape))
    model = round_trip(graph_of([a] if fixed else [a, b], [contract(a, b, spec)]))
    assert "Einsum" not in ops(model) or spec == "mkx,kn->mn"


def test_plain_products_are_one_matmul():
    for spec in ("mk,kn->mn", "abk,kn->abn", "bmk,bkn->bmn", "ec,abcd->abed", "abcd,ec->abed"):
        left, right = spec.partition("->")[0].split(",")
        a, b = (placeholder(of([3] * len(labels))) for labels in (left, right))
        assert ops(save(graph_of([a, b], [contract(a, b, spec)]))) == ["MatMul"]


def test_padding_folds_into_its_windows_only_where_it_means_the_same():
    x, w = placeholder(of([1, 2, 6, 6])), constant(np.ones((2, 2, 3, 3), np.float32))
    lo = hi = (0, 0, 1, 1)

    def ops_of(*outputs: Value) -> list[str]:
        return ops(round_trip(graph_of([x], outputs)))

    zero, low = pad(x, lo, hi), pad(x, lo, hi, value=-np.inf)
    assert ops_of(conv(zero, w, (1, 1), (1, 1))) == ["Conv"]
    assert ops_of(window("window_max", low, (3, 3), (2, 2))) == ["MaxPool"]
    assert ops_of(window("window_sum", zero, (3, 3), (2, 2))) == ["AveragePool", "Mul"]
    assert ops_of(window("window_max", zero, (3, 3), (2, 2))) == ["Pad", "MaxPool"]
    assert ops_of(window("window_sum", zero, (1, 1), (2, 2))) == ["Pad", "AveragePool", "Mul"]
    assert ops_of(conv(pad(x, lo, hi, "edge"), w, (1, 1), (1, 1))) == ["Pad", "Conv"]
    assert ops_of(conv(pad(x, lo, hi, value=1.0), w, (1, 1), (1, 1))) == ["Pad", "Conv"]
    assert ops_of(conv(zero, w, (1, 1), (1, 1)), neg(zero)) == ["Pad", "Conv", "Neg"]
    assert ops_of(conv(zero, w, (1, 1), (1, 1)), zero) == ["Pad", "Conv"]
    square = pad(x, (0, 0, 1, 0), (0, 0, 1, 0))
    assert ops_of(conv(square, w, (2, 1), (1, 2))) == ["Conv"]


def test_outputs_that_are_inputs_constants_or_equal():
    x = placeholder(of([2]))
    y, c = exp(x), constant(np.array([1, 2], np.float32))
    model = round_trip(graph_of([x], [y, x, y, c]))
    assert [o.name for o in model.graph.output] == ["out 0", "out 1", "out 2", "out 3"]
    same = Graph((x,), (x,), ("x",), ("x",))
    assert ops(save(same)) == []


def test_names_are_kept_and_never_collide():
    x, y = placeholder(of([2])), placeholder(of([2]))
    z = maximum(exp(x) + 1.0, y)
    graph = Graph((x, y), (z, neg(z)), ("v1", "c0"), ("t\n0 'é", "v2"))
    model = checked(save(graph))
    assert [i.name for i in model.graph.input] == ["v1", "c0"]
    feeds = {"v1": np.zeros(2, np.float32), "c0": np.ones(2, np.float32)}
    np.testing.assert_array_equal(runtime(model, feeds)[1], [-2, -2])


def test_saved_nodes_are_named_after_the_models_nodes():
    model = model_of([node("Softmax", "x", "y", "attention/soft")], {"x": (2, 3)}, ["y"])
    names = [n.name for n in save(load(model)).graph.node]
    assert names[0] == "attention/soft/ReduceMax" and len(set(names)) == 5


LAYERS = ["Relu", "Sigmoid", "Erf", "Softmax", "Conv", "Pool", "Norm", "Flip", "Scale", "Linear"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=8), st.integers(0, 2**31))
def test_random_networks(layers, seed):
    """Maps of [1, 4, 8, 8] through random layers; also ONNX Runtime on the model itself."""
    rng = np.random.default_rng(seed)
    nodes, constants, at = [], {}, "x"
    for i, layer in enumerate(layers):
        w = f"w{i}"
        made = {
            "Conv": (node("Conv", f"{at} {w}", f"v{i}", pads=[1] * 4), (4, 4, 3, 3)),
            "Pool": (node("AveragePool", at, f"v{i}", kernel_shape=[3, 3], pads=[1] * 4), None),
            "Norm": (node("InstanceNormalization", f"{at} {w} {w}", f"v{i}"), (4,)),
            "Flip": (node("Transpose", at, f"v{i}", perm=[0, 1, 3, 2]), None),
            "Scale": (node("Mul", f"{at} {w}", f"v{i}"), (4, 1, 1)),
            "Linear": (node("MatMul", f"{at} {w}", f"v{i}"), (8, 8)),
        }.get(layer, (node(layer, at, f"v{i}"), None))
        nodes.append(made[0])
        if made[1]:
            constants[w] = (rng.standard_normal(made[1]) / np.sqrt(made[1][-1] * 3)).astype("f4")
        at = f"v{i}"
    model = model_of(nodes, {"x": (1, 4, 8, 8)}, [at], constants)
    graph = load(model)
    saved = round_trip(graph, 1e-4)
    feeds = random_feeds(graph)
    assert_near(runtime(saved, feeds)[0], runtime(model, feeds)[0], 1e-4)

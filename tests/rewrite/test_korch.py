"""What Korch's figures show of rewriting (ASPLOS 2024): that it is found, and that it is right."""

from __future__ import annotations

import numpy as np

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import (
    constant,
    contract,
    exp,
    reduce_max,
    reduce_sum,
    reshape,
    transpose,
)
from fissile.ir.types import F32, of
from fissile.rewrite.rules import RULES
from fissile.rewrite.saturate import Saturation, saturate
from fissile.select.spellings import OURS, cheapest, prices, spelled


def graph(*outputs: Value) -> Graph:
    inputs = tuple(n.value for n in Graph((), outputs, (), ()).nodes if n.prim == "input")
    names = tuple(f"x{i}" for i in range(len(inputs)))
    return Graph(inputs, outputs, names, tuple(f"y{i}" for i in range(len(outputs))))


def without(found: Saturation, *prims: str) -> Graph:
    """The cheapest spelling that has none of these primitives, if there is one."""
    price = prices(found.classes, OURS)
    dear = {n: us + 1e9 * (n.prim in prims) for n, us in price.items()}
    return spelled(found.classes, cheapest(found.classes, dear).nodes, "other", 0.0).graph


def agree(a: Graph, b: Graph) -> None:
    feeds = [np.random.default_rng(i).standard_normal(v.shape) for i, v in enumerate(a.inputs)]
    for x, y in zip(evaluate(a, feeds, True), evaluate(b, feeds, True), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def prims(g: Graph) -> list[str]:
    return [n.prim for n in g.primitives]


def attention(x: Value, v: Value) -> Value:
    e = exp(x - reduce_max(x, -1))
    return contract(e / reduce_sum(e, -1), v, "hqk,hkd->hqd")


def test_figure_2_the_sum_of_softmax_joins_the_following_product():
    """The division moves behind the product; then its divisor is one more column of it."""
    g = graph(attention(placeholder(of((4, 32, 48))), placeholder(of((4, 48, 16)))))
    found = saturate(g, RULES.values())
    assert found.fired["(x / d) w = (x w) / d"] and found.fired["x w, sum(x) = parts of x [w 1]"]
    other = without(found, "reduce_sum")
    assert "reduce_sum" not in prims(other) and prims(other).count("contract") == 1
    (product,) = (n for n in other.primitives if n.prim == "contract")
    assert sorted(product.inputs[1].shape + product.inputs[0].shape) == [4, 4, 17, 32, 48, 48]
    agree(g, other)


def test_figure_9_a_sum_beside_a_product_is_one_padded_product():
    x, w = placeholder(of((64, 48))), placeholder(of((48, 15)))
    g = graph(contract(x, w, "nk,km->nm"), reduce_sum(x, 1))
    found = saturate(g, RULES.values())
    other = without(found, "reduce_sum")
    assert sorted(set(prims(other))) == ["contract", "pad", "slice"]
    agree(g, other)


def test_figure_8_reshape_transpose_reshape_are_seen_through():
    """Heads are split and joined between linear maps: the maps compose."""
    rng = np.random.default_rng(0)
    x = placeholder(of((1, 20, 12)))
    w, v = (constant(rng.standard_normal((12, 12)), F32) for _ in range(2))
    heads = transpose(reshape(contract(x, w, "abk,kc->abc"), (1, 20, 3, 4)), (0, 2, 1, 3))
    back = reshape(transpose(heads, (0, 2, 1, 3)), (1, 20, 12))
    g = graph(contract(back, v, "abk,kc->abc"))
    other = without(saturate(g, RULES.values()))
    assert prims(other) == ["contract"]
    agree(g, other)


def test_linear_attention_contracts_keys_with_values_first():
    """(q k^T) v of n queries is n^2 d; q (k^T v) is n d^2."""
    q, k, v = (placeholder(of((2, 256, 16))) for _ in range(3))
    scores = contract(q, k, "hqd,hkd->hqk")
    g = graph(contract(scores, v, "hqk,hke->hqe"))
    other = without(saturate(g, RULES.values()))
    shapes = [n.value.shape for n in other.primitives]
    assert (2, 256, 256) not in shapes and len(shapes) == 2
    agree(g, other)

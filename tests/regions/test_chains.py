"""Chains of stages: which sets they are, on graphs small enough to write down; promises on
random ones."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.types import of
from fissile.kernels import convex
from fissile.kernels.chains import chains
from fissile.kernels.identify import Limits, identify

from . import brute

SHAPE = (1, 8, 12, 12)


@pytest.fixture(autouse=True)
def extra_primitives(monkeypatch):
    for name, primitive in brute.EXTRA.items():
        monkeypatch.setitem(p.PRIMS, name, primitive)


def weight(*shape: int) -> Value:
    return p.constant(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + len(shape))


def pointwise(x: Value, m: int) -> Value:
    return p.conv(x, weight(m, x.shape[1], 1, 1), (1, 1), (1, 1)) + weight(m, 1, 1)


def depthwise(x: Value) -> Value:
    wide = p.pad(x, (0, 0, 1, 1), (0, 0, 1, 1))
    return p.conv(wide, weight(x.shape[1], 1, 3, 3), (1, 1), (1, 1), x.shape[1])


def relu6(x: Value) -> Value:
    return p.clip(x, 0.0, 6.0)


def layer_norm(x: Value) -> Value:
    centred = x - p.reduce_mean(x, -1)
    variance = p.reduce_mean(centred * centred, -1)
    return centred * p.rsqrt(variance + 1e-5) * weight(x.shape[-1]) + weight(x.shape[-1])


def softmax(x: Value) -> Value:
    e = p.exp(x - p.reduce_max(x, -1))
    return e / p.reduce_sum(e, -1)


def matmul(x: Value, m: int) -> Value:
    return p.contract(x, weight(x.shape[-1], m), "abk,kn->abn") + weight(m)


def found(graph: Graph, most: int = 3) -> set[str]:
    """The primitives of each chain, in order."""
    order = convex.order_of(graph)
    return {" ".join(n.prim for n in order.members(m)) for m in chains(graph, order, most)}


def test_an_inverted_residual_between_two_others() -> None:
    x = placeholder(of(SHAPE))
    y = pointwise(relu6(depthwise(relu6(pointwise(x, 16)))), 8) + x
    graph = brute.graph_of([x], [relu6(pointwise(y, 16))])
    first, middle, last = "conv add clip", "pad conv clip", "conv add add"
    assert found(graph) == {
        f"{first} {middle}",
        f"{first} {middle} {last}",
        f"{middle} {last}",
        f"{middle} {last} {first}",
        f"{last} {first}",
    }
    assert found(graph, 2) == {f"{first} {middle}", f"{middle} {last}", f"{last} {first}"}
    assert found(graph, 1) == set()


def test_normalisations_are_one_stage_each() -> None:
    x = placeholder(of((1, 12, 16)))
    graph = brute.graph_of([x], [softmax(matmul(layer_norm(x), 24))])
    norm = "reduce_mean sub mul reduce_mean add rsqrt mul mul add"
    soft = "reduce_max sub exp reduce_sum div"
    assert found(graph) == {
        f"{norm} contract add",
        f"{norm} contract add {soft}",
        f"contract add {soft}",
    }


def test_a_sum_that_waits_for_another_anchor_is_no_part_of_a_tail() -> None:
    """x + f(x): the addition hangs on f, so it ends f's stage and not x's."""
    x = placeholder(of(SHAPE))
    a = pointwise(x, 8)
    graph = brute.graph_of([x], [relu6(a + pointwise(relu6(pointwise(a, 16)), 8))])
    assert found(graph, 2) == {"conv add conv add clip", "conv add clip conv add add clip"}


def test_moves_at_the_end_are_left_out_as_well() -> None:
    x = placeholder(of((1, 12, 16)))
    heads = p.transpose(p.reshape(matmul(layer_norm(x), 16), (1, 12, 4, 4)), (0, 2, 1, 3))
    graph = brute.graph_of([x], [heads, p.exp(heads)])
    norm = "reduce_mean sub mul reduce_mean add rsqrt mul mul add"
    assert found(graph) == {f"{norm} contract add", f"{norm} contract add reshape transpose"}


def test_products_of_two_computed_operands_end_no_chain() -> None:
    x = placeholder(of((1, 12, 16)))
    y = matmul(x, 16)
    graph = brute.graph_of([x], [p.contract(y, p.exp(x), "abk,ack->abc")])
    assert found(graph) == set()


@pytest.mark.parametrize("seed", range(40))
def test_chains_are_convex_and_linked(seed: int) -> None:
    graph = brute.random_graph(seed, size=12)
    order = convex.order_of(graph)
    masks = chains(graph, order, 3)
    assert len(masks) == len(set(masks))
    for mask in masks:
        assert convex.is_convex(order, mask)
        assert brute.is_linked(frozenset(order.members(mask)))


def test_the_chains_of_a_deep_network_are_few() -> None:
    """A few for each anchor, however deep."""
    x = y = placeholder(of(SHAPE))
    for _ in range(40):
        y = pointwise(relu6(depthwise(relu6(pointwise(y, 16)))), 8) + y
    graph = brute.graph_of([x], [y])
    assert len(found_masks := chains(graph, convex.order_of(graph), 3)) <= 2 * 3 * 40
    regions = identify(graph, Limits(contractions=1, stages=3))
    assert len(regions) - len(identify(graph, Limits(contractions=1))) <= 2 * len(found_masks)

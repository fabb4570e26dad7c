"""Identification finds every region that the definitions allow, each once, and nothing else."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest

from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import (
    PRIMS,
    concat,
    constant,
    contract,
    elementwise,
    exp,
    reduce_max,
    reduce_mean,
    reduce_sum,
    tanh,
)  # fmt: skip
from fissile.ir.types import F32, TensorType
from fissile.kernels import convex
from fissile.kernels.identify import Limits, classes, grow, identify, weighty
from fissile.kernels.region import Region

from . import brute

rsqrt = elementwise("rsqrt")
EVERYTHING = Limits(primitives=99, nodes=99, contractions=99, siblings=99, level=10**9)


@pytest.fixture(autouse=True)
def extra_primitives(monkeypatch):
    for name, primitive in brute.EXTRA.items():
        monkeypatch.setitem(PRIMS, name, primitive)


def sets(regions: tuple[Region, ...]) -> set[frozenset]:
    return {region.members for region in regions}


def linked_convex(graph: Graph) -> set[frozenset]:
    above = brute.paths(graph)
    return {
        s for s in brute.subsets(graph.primitives)
        if (len(s) == 1 or not any(map(brute.is_opaque, s)))
        and brute.is_linked(s) and brute.is_convex(s, above)
    }  # fmt: skip


def full(rows: int = 16, columns: int = 32) -> Value:
    return placeholder(TensorType((rows, columns), F32))


def weight(*shape: int) -> Value:
    return constant(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def softmax(x: Value) -> Value:
    e = exp(x - reduce_max(x, -1))
    return e / reduce_sum(e, -1)


def layer_norm(x: Value) -> Value:
    centred = x - reduce_mean(x, -1)
    variance = reduce_mean(centred * centred, -1)
    return centred * rsqrt(variance + 1e-5) * weight(x.shape[-1]) + weight(1, x.shape[-1])


# ---------------------------------------------------------------- which sets


@pytest.mark.parametrize("seed", range(150))
def test_equals_all_subsets_that_are_convex_and_linked(seed):
    graph = brute.random_graph(seed)
    assert sets(identify(graph, EVERYTHING)) == linked_convex(graph)


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_linked_differences_of_execution_states(seed):
    graph = brute.random_graph(1000 + seed, size=9)
    differences = {s for s in brute.differences(graph) if brute.is_linked(s)}
    alone = {s for s in differences if len(s) == 1 or not any(map(brute.is_opaque, s))}
    assert sets(identify(graph, EVERYTHING)) == alone


@pytest.mark.parametrize("seed", range(60))
def test_limits_leave_out_what_exceeds_them_and_nothing_else(seed):
    graph = brute.random_graph(2000 + seed)
    heavy = weighty(graph.primitives)
    limits = Limits(primitives=3, nodes=5, contractions=1)
    allowed = {
        s for s in linked_convex(graph)
        if len(s) == 1
        or (len(s & heavy) <= 3 and len(s) <= 5 and brute.count(s, "contract", "conv") <= 1)
    }  # fmt: skip
    assert sets(identify(graph, limits)) == allowed


@pytest.mark.parametrize("seed", range(60))
def test_a_monotone_predicate_leaves_out_what_it_refuses_and_nothing_else(seed):
    graph = brute.random_graph(3000 + seed)
    foes = list(combinations(graph.primitives, 2))[seed % 3 :: 5]
    asked: list[frozenset] = []

    def admissible(nodes):
        asked.append(frozenset(nodes))
        return not any(a in nodes and b in nodes for a, b in foes)

    found = sets(identify(graph, EVERYTHING, admissible))
    every = linked_convex(graph)
    assert found == {s for s in every if not any(a in s and b in s for a, b in foes)}
    assert len(asked) == len(set(asked)) and set(asked) <= every


@pytest.mark.parametrize("seed", range(30))
def test_theorem_1_and_the_masks_agree_on_convexity(seed):
    graph = brute.random_graph(4000 + seed, size=8)
    order = convex.order_of(graph)
    masks = {m for m in range(1, 1 << len(order.nodes)) if convex.is_convex(order, m)}
    assert {frozenset(order.members(m)) for m in masks} == brute.differences(graph)


def branches(joined: bool) -> Graph:
    x = full()
    ends = []
    for k in range(3):
        y = x * float(k + 2)
        for _ in range(4):
            y = tanh(y)
        ends.append(y)
    return brute.graph_of([x], [concat(ends, 0)] if joined else ends)


def test_three_branches_of_five_have_261_sets_with_one_sink():
    # 3 * 15 runs inside one branch, and 6 ** 3 choices of how much of each ends in the concat
    graph = branches(joined=True)
    users = {n: {u for v in n.outputs for u in graph.users.get(v, ())} for n in graph.primitives}
    one_sink = {
        s for s in sets(identify(graph, EVERYTHING)) if sum(not users[n] & s for n in s) == 1
    }
    assert len(one_sink) == 45 + 216 == 261


def test_three_branches_of_five_have_461_linked_and_4311_convex_sets():
    # linked: as above, and the beginnings of two or of three branches, siblings of one input
    graph = branches(joined=True)
    assert len(sets(identify(graph, EVERYTHING))) == 45 + 216 + 3 * 5**2 + 5**3
    assert len(brute.differences(graph)) == 16**3 - 1 + 216
    assert len(sets(identify(branches(joined=False), EVERYTHING))) == 45 + 3 * 5**2 + 5**3


def test_a_chain_has_its_runs():
    x = y = full()
    for _ in range(20):
        y = tanh(y)
    assert len(identify(brute.graph_of([x], [y]), Limits(primitives=6))) == sum(range(15, 21))


def test_siblings_of_one_input_form_regions_though_no_edge_joins_them():
    x = placeholder(TensorType((32, 32), F32))
    q, k, v = (contract(x, weight(32, 32) * float(i), "ab,bc->ac") for i in range(2, 5))
    graph = brute.graph_of([x], [q, k, v])
    found = sets(identify(graph))
    assert {q.node, k.node} in found and {k.node, v.node} in found
    assert {q.node, k.node, v.node} not in found
    assert {q.node, k.node, v.node} in sets(identify(graph, Limits(contractions=3)))


def test_sharing_a_constant_alone_links_nothing():
    x, y, w = full(), full(), weight(16, 32)
    graph = brute.graph_of([x, y], [x * w, y * w])
    assert len(identify(graph)) == 2


def test_too_many_readers_link_no_siblings():
    x = full()
    graph = brute.graph_of([x], [x * float(i + 2) for i in range(5)])
    assert len(identify(graph, Limits(siblings=5))) == 2**5 - 1
    assert len(identify(graph, Limits(siblings=4))) == 5


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("build, size, weighs", [(layer_norm, 9, 5), (softmax, 5, 3)])
def test_a_whole_row_kernel_fits(build, size, weighs):
    x = full(196, 384)
    y = build(x)
    graph = brute.graph_of([x], [y])
    assert len(graph.primitives) == size and len(weighty(graph.primitives)) == weighs
    assert any(len(r.nodes) == size and r.outputs == (y,) for r in identify(graph))


def test_scalar_maths_is_capped_too():
    s = t = placeholder(TensorType((1,), F32))
    for _ in range(30):
        s = tanh(s)
    regions = identify(brute.graph_of([t], [s]), Limits(nodes=14))
    assert max(len(r.nodes) for r in regions) == 14


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("seed", range(60))
def test_every_output_set_is_sinks_and_any_other_escaping_values(seed):
    graph = brute.random_graph(5000 + seed, size=8)
    regions = identify(graph, Limits(every_output_set=True))
    for members in sets(regions):
        inner, every = brute.escaping(members, graph)
        choices = [
            every - set(held) for k in range(len(inner) + 1) for held in combinations(inner, k)
        ]
        given = [r.outputs for r in regions if r.members == members]
        assert sorted(map(key, given)) == sorted(map(key, filter(None, choices)))


def key(values) -> list[tuple[int, int]]:
    return sorted((v.node.serial, v.index) for v in values)


@pytest.mark.parametrize("seed", range(60))
def test_smallest_and_largest_choice_of_outputs(seed):
    graph = brute.random_graph(6000 + seed, size=8)
    regions = identify(graph)
    for members in sets(regions):
        inner, every = brute.escaping(members, graph)
        given = [r.outputs for r in regions if r.members == members]
        assert set(map(frozenset, given)) == {frozenset(every - inner) or frozenset(every),
                                              frozenset(every)}  # fmt: skip
        assert len(given) == len(set(given))


def test_single_primitives_always_appear():
    x = full()
    graph = brute.graph_of([x], [softmax(x)])
    regions = identify(graph, Limits(primitives=0, nodes=1, contractions=0), lambda nodes: False)
    assert [r.nodes for r in regions] == [(n,) for n in graph.primitives]


# ---------------------------------------------------------------- the whole


def stack(blocks: int) -> Graph:
    x = y = full(64, 96)
    for _ in range(blocks):
        y = softmax(layer_norm(y)) + y
    return brute.graph_of([x], [y])


def positions(graph: Graph) -> list[tuple]:
    at = {n: i for i, n in enumerate(graph.primitives)}
    return [
        (tuple(at[n] for n in r.nodes), tuple((at[v.node], v.index) for v in r.outputs))
        for r in identify(graph)
    ]


def test_equal_graphs_give_equal_regions_in_equal_order():
    first, second = positions(stack(3)), positions(stack(3))
    assert first == second and len(first) == len(set(first))


def test_repeated_blocks_share_their_classes():
    small, large = classes(identify(stack(4))), classes(identify(stack(12)))
    assert set(small) == set(large)
    assert sum(map(len, large.values())) == len(identify(stack(12)))


def test_a_signature_tells_structures_apart():
    x, y = full(), full()
    one, other = exp(x + y), exp(x + x)
    whole = [Region((v.node.inputs[0].node, v.node), (v,)) for v in (one, other)]
    assert whole[0].signature != whole[1].signature
    assert Region(whole[0].nodes, (one, one.node.inputs[0])).signature != whole[0].signature
    scaled = [Region((v.node,), (v,)) for v in (x * 2.0, x * 3.0, y * 2.0)]
    assert scaled[0].signature != scaled[1].signature and scaled[0].signature == scaled[2].signature


def test_ten_thousand_deep():
    x = y = full()
    for _ in range(10_000):
        y = tanh(y)
    regions = identify(brute.graph_of([x], [y]))
    assert len(regions) == 8 * 10_000 - sum(range(8))
    assert len(classes(regions)) == 8


def test_a_very_wide_graph_ends_and_says_what_it_dropped():
    x = full()
    graph = brute.graph_of([x], [concat([x * float(i + 2) for i in range(32)], 0)])
    order, limits = convex.order_of(graph), Limits(level=500)
    begin = time.perf_counter()
    grown = grow(graph, order, limits)
    assert time.perf_counter() - begin < 20
    assert grown.dropped > 0 and len(set(grown.masks)) == len(grown.masks)
    assert all(convex.is_convex(order, mask) for mask in grown.masks)
    assert grow(graph, order, Limits(primitives=2)).dropped == 0


def test_growth_ends_where_branches_meet() -> None:
    """Sets that hold a concat and any choice of its 60 branches are too many to list."""
    x = placeholder(TensorType((16, 16), F32))
    joined = concat([tanh(x * float(i + 1)) for i in range(60)], 0)
    graph = Graph((x,), (joined,), ("x",), ("y",))
    order = convex.order_of(graph)
    growth = grow(graph, order)
    assert growth.dropped > 0
    assert 20_000 < len(growth.masks) < 80_000
    assert {1 << i for i in range(len(order.nodes))} <= set(growth.masks)

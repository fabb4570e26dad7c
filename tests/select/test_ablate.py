"""The worse choices: what they promise holds, and what they give still runs."""

from __future__ import annotations

import heapq

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from select_networks import random_hypergraph, random_problem
from select_oracle import assert_runs

import fissile
from fissile.compile import implement
from fissile.kernels.identify import identify
from fissile.onnx.load import load
from fissile.select import Problem, select
from fissile.select.ablate import PARTS, ablated, greedy
from fissile.targets.cpu.target import Cpu


def cheapest_once(problem: Problem) -> float | None:
    """By exhaustion over (tokens that are there, primitives that were executed)."""
    start = (frozenset(problem.free), frozenset[int]())
    best = {start: 0.0}
    queue = [(0.0, 0, start)]
    pushed = 0
    while queue:
        spent, _, state = heapq.heappop(queue)
        there, done = state
        if spent > best[state]:
            continue
        if there.issuperset(problem.outputs):
            return spent
        for c in problem.columns:
            if c.needs <= there and not c.gives <= there and not c.region & done:
                after, cost = (there | c.gives, done | c.region), spent + c.cost
                if cost < best.get(after, float("inf")):
                    best[after], pushed = cost, pushed + 1
                    heapq.heappush(queue, (cost, pushed, after))
    return None


@pytest.mark.parametrize("block", range(6))
def test_once_equals_exhaustion(block):
    differs = 0
    for seed in range(20 * block, 20 * (block + 1)):
        for problem in (random_problem(seed), random_hypergraph(seed)):
            expected, found = cheapest_once(problem), select(problem, once=True)
            if expected is None:
                assert found.status == "infeasible"
                continue
            assert found.status == "optimal"
            assert assert_runs(problem, found.chosen) == pytest.approx(found.objective)
            assert found.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
            executed = [p for k in found.chosen for p in problem.columns[k].region]
            assert len(executed) == len(set(executed))
            differs += expected > select(problem).objective * (1 + 1e-6)
    assert differs, "recomputation never paid: these problems prove nothing"


# ---------------------------------------------------------------- on a network


@pytest.fixture(scope="module")
def model():
    """Two branches of convolutions over one value, pools, a residual and a softmax."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        data = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return onnx.numpy_helper.from_array(data, name)

    weights = [weight("a", 16, 8, 3, 3), weight("b", 16, 8, 1, 1), weight("c", 16, 16, 3, 3)]
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Conv", ["s", "a"], ["p"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["s", "b"], ["r"]),
        helper.make_node("Add", ["q", "r"], ["t"]),
        helper.make_node("MaxPool", ["t"], ["u"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["u", "c"], ["v"], pads=[1, 1, 1, 1]),
        helper.make_node("Tanh", ["v"], ["w"]),
        helper.make_node("Add", ["u", "w"], ["z"]),
        helper.make_node("GlobalAveragePool", ["z"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])
    graph = helper.make_graph(nodes, "branches", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.fixture(scope="module")
def candidates(model):
    graph = load(model)
    cpu = Cpu(graph, threads=1)
    return graph, cpu, implement(graph, cpu, identify(graph, cpu.limits, cpu.admissible))


def test_greedy_is_a_partition_without_circles(candidates):
    graph, cpu, found = candidates
    groups = greedy(graph, found, cpu.last_resorts)
    members = [n for group in groups for n in group]
    assert sorted(map(id, members)) == sorted(map(id, graph.primitives))
    assert len(groups) < len(graph.primitives), "it fused nothing"
    of = {n: i for i, group in enumerate(groups) for n in group}
    before = {i: {of[v.node] for n in g for v in n.inputs if v.node in of} - {i}
              for i, g in enumerate(groups)}  # fmt: skip
    done: set[int] = set()
    while ready := {i for i in before if i not in done and before[i] <= done}:
        done |= ready
    assert len(done) == len(groups), "groups wait for each other"


def test_what_is_left_to_choose_from(candidates):
    graph, cpu, found = candidates
    alone = ablated(graph, found, ("fusion",), cpu.last_resorts)
    assert alone and all(len(c.region.nodes) <= 1 for c in alone)
    assert ablated(graph, found, (), cpu.last_resorts) == found


@pytest.mark.parametrize(("gone", "left"), [("channels-first", -1), ("channels-last", 0)])
def test_one_layout(candidates, gone, left):
    graph, cpu, _ = candidates
    borders = {*graph.inputs, *graph.outputs}
    fixed = Cpu(graph, threads=1, without=(gone,))
    assert any(len(options) == 2 for options in cpu.layouts.values())
    for region in identify(graph, fixed.limits, fixed.admissible):
        for c in fixed.implementations(region):
            for t in (*c.needs, *c.gives):
                assert t.value in borders or t.layout == cpu.layouts[t.value][left]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_left_out(model, part):
    exe = fissile.compile(model, threads=1, tune=0, without=(part,))
    chosen = exe.selection.chosen
    if part in ("program", "recomputation"):
        executed = [n for c in chosen for n in c.region.nodes]
        assert len(executed) == len(set(executed)) or part == "program"
    if part == "fusion":
        assert all(len(c.region.nodes) <= 1 for c in chosen)
    assert exe.stages.values["verify"].error < 1e-4


def test_an_implementation_can_be_left_out(model):
    exe = fissile.compile(model, threads=1, tune=0, verify=False, without=("conv",))
    assert "conv" not in {c.impl for c in exe.selection.chosen}


def test_names_that_do_not_exist(model):
    with pytest.raises(ValueError, match=r"program, recomputation.*conv.*not 'abacus'"):
        fissile.compile(model, without=("abacus",))
    with pytest.raises(ValueError, match="no layout left"):
        fissile.compile(model, without=("channels-first", "channels-last"))

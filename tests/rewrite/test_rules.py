"""Every rule on its example: random shapes and values, in float64, against the plain evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Node, Value
from fissile.ir.types import F32, I32, DType
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, No, Rule
from fissile.rewrite.rules import RULES

SEEDS = range(12)


def graph_of(value: Value) -> Graph:
    probe = Graph((), (value,), (), ("y",))
    inputs = tuple(n.value for n in probe.nodes if n.prim == "input")
    return Graph(inputs, (value,), tuple(f"x{i}" for i in range(len(inputs))), ("y",))


def found(rule: Rule, graph: Graph) -> list[tuple[Node, Value]]:
    """What one rule says of a graph: (node, a value that equals it)."""
    classes = Classes(graph)
    nodes = [n for n in classes.nodes if n.prim in rule.prims]
    return [
        (node, value)
        for node in nodes
        for value in rule.look(classes, node)
        if not isinstance(value, No)
    ]


def inputs_for(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-9, 10, v.shape).astype(v.type.dtype.numpy) if v.type.dtype.is_integer
        else rng.standard_normal(v.shape)
        for v in graph.inputs
    ]  # fmt: skip


def check(rule: Rule, dtype: DType) -> int:
    fired = 0
    for seed in SEEDS:
        graph = graph_of(rule.example(Draw(seed, dtype)))
        for node, value in found(rule, graph):
            assert value.type == node.value.type
            both = Graph(graph.inputs, (node.value, value), graph.input_names, ("old", "new"))
            old, new = evaluate(both, inputs_for(graph, seed), reference=True)
            scale = max(np.abs(np.nan_to_num(old)).max(initial=0), 1.0)
            np.testing.assert_allclose(new, old, atol=1e-12 * scale, rtol=1e-12)
            fired += 1
    return fired


@pytest.mark.parametrize("name", RULES)
def test_equation_holds(name: str) -> None:
    assert check(RULES[name], F32) >= 3, "the example shows the rule too rarely"


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if r.integers])
def test_equation_holds_for_integers(name: str) -> None:
    assert check(RULES[name], I32) >= 3

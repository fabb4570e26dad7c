"""Spellings: the cheapest against brute force; constants that grow, or overflow."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from rewrite.random_graphs import random_graph

from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import concat, constant, contract, make
from fissile.ir.types import F32, of
from fissile.rewrite.rules import RULES
from fissile.rewrite.saturate import Saturation, saturate
from fissile.select.spellings import (
    OURS,
    USUAL,
    as_given,
    best,
    cheapest,
    constant_bytes,
    prices,
    rewritten,
)


def graph(*outputs: Value) -> Graph:
    inputs = tuple(n.value for n in Graph((), outputs, (), ()).nodes if n.prim == "input")
    names = tuple(f"x{i}" for i in range(len(inputs)))
    return Graph(inputs, outputs, names, tuple(f"y{i}" for i in range(len(outputs))))


def weights(*shape: int, seed: int = 0) -> Value:
    return constant(np.random.default_rng(seed).standard_normal(shape), F32)


MOST = 4000


def by_force(found: Saturation) -> float | None:
    """The least sum of prices of one member for each class that is needed."""
    c = found.classes
    price = prices(c, OURS)
    given: dict[Value, list] = {}
    for n in price:
        for v in n.outputs:
            given.setdefault(c.find(v), []).append(n)
    several = [v for v, ns in given.items() if len(ns) > 1]
    if np.prod([len(given[v]) for v in several], dtype=float) > MOST:
        return None
    least = np.inf
    for picked in product(*(given[v] for v in several)):
        choice = {v: ns[0] for v, ns in given.items()} | dict(zip(several, picked, strict=True))
        least = min(least, _cost(c, choice, price))
    return least


def _cost(c, choice, price) -> float:
    """Infinite where members wait for each other."""
    done, total, state = set(), 0.0, {}
    stack = [(c.find(v), False) for v in c.outputs if not c.is_fixed(v)]
    while stack:
        v, expanded = stack.pop()
        if expanded:
            state[v] = "done"
            continue
        if v not in choice or state.get(v) == "done":
            continue
        if state.get(v) == "open":
            return np.inf
        state[v] = "open"
        n = choice[v]
        total += 0.0 if n in done else price[n]
        done.add(n)
        stack.append((v, True))
        stack += [(c.find(i), False) for i in n.inputs if not c.is_fixed(i)]
    return total


def test_the_cheapest_is_the_cheapest():
    tried = 0
    for seed in range(400, 520):
        g, _ = random_graph(seed)
        found = saturate(g, RULES.values(), nodes=400)
        want = by_force(found)
        if want is None or not want:
            continue
        price = prices(found.classes, OURS)
        got = sum(price[n] for n in cheapest(found.classes, price).nodes)
        assert got == pytest.approx(want, rel=1.01 * USUAL.gap), seed
        tried += 1
    assert tried > 40


def test_a_graph_that_nothing_rewrites_is_itself():
    x = placeholder(of((2, 3)))
    g = graph(make("tanh", [x])[0])
    (only,) = rewritten(g, RULES.values()).spellings
    assert only.graph.outputs == g.outputs


def test_nothing_is_rounded_differently_where_exactness_is_asked():
    x = placeholder(of((4, 8)))
    g = graph(contract(contract(x, weights(8, 8), "ab,bc->ac"), weights(8, 8, seed=1), "ab,bc->ac"))
    assert len(rewritten(g, RULES.values()).cheapest.graph.primitives) == 1
    exact = rewritten(g, RULES.values(), exact=True)
    assert all(len(s.graph.primitives) == 2 for s in exact.spellings)


def test_constants_do_not_outgrow_the_model():
    """A product of two vectors is a large matrix: cheaper to multiply with, if it came for free."""
    x = placeholder(of((1, 4096)))
    thin = contract(x, weights(4096, 2), "ab,bc->ac")
    g = graph(contract(thin, weights(2, 4096, seed=1), "ab,bc->ac"))
    found = saturate(g, RULES.values())
    assert constant_bytes(best(found, OURS).graph) <= 2 * constant_bytes(g)


def test_constants_that_overflow_are_not_made():
    x = placeholder(of((3, 4)))
    w = constant(np.full((4, 4), 1e20), F32)
    v = constant(np.full((4, 4), 1e-20), F32)
    y = contract(contract(x, w, "ab,bc->ac"), w, "ab,bc->ac")
    g = graph(contract(y, v, "ab,bc->ac"))
    found = saturate(g, RULES.values())
    for n in best(found, OURS).graph.nodes:
        if n.prim == "constant":
            assert np.isfinite(n.value.array).all()


def test_provenance_comes_along():
    x = placeholder(of((2, 6)))
    y = contract(contract(x, weights(6, 6), "ab,bc->ac"), weights(6, 6, seed=1), "ab,bc->ac")
    g = graph(y)
    names = {n: (f"node{i}",) for i, n in enumerate(g.primitives)}
    g = Graph(g.inputs, g.outputs, g.input_names, g.output_names, names)
    spelling = rewritten(g, RULES.values()).cheapest
    assert [spelling.graph.provenance[n] for n in spelling.graph.primitives] == [("node1",)]


def test_as_given_names_every_value():
    x = placeholder(of((2, 6)))
    g = graph(concat([x * 2.0, x], 1))
    assert set(as_given(g).classes) == {x, *(v for n in g.primitives for v in n.outputs)}

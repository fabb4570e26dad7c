"""Classes: congruence, constants, order of adding, text."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import add, constant, contract, exp, mul, neg, reshape, transpose
from fissile.ir.text import constants
from fissile.ir.types import F32, of
from fissile.rewrite.classes import Classes, rounded
from fissile.rewrite.rules import RULES
from fissile.rewrite.saturate import saturate
from fissile.rewrite.text import parse, text


def graph(*outputs: Value) -> Graph:
    nodes = Graph((), outputs, (), ()).nodes
    inputs = tuple(n.value for n in nodes if n.prim == "input")
    names = tuple(f"x{i}" for i in range(len(inputs)))
    return Graph(inputs, outputs, names, tuple(f"y{i}" for i in range(len(outputs))))


def x(*shape: int) -> Value:
    return placeholder(of(shape or (2, 3)))


def test_what_reads_equals_is_equal():
    a, b = x(), x()
    f, g = exp(neg(a)), exp(neg(b))
    c = Classes(graph(f, g))
    assert not c.same(f, g)
    c.join(a, b)
    c.repair()
    assert c.same(f, g) and c.same(neg(a), neg(b))
    assert len(c.members(f)) == 1


def test_equality_climbs_a_deep_chain():
    a, b = x(), x()
    f, g = a, b
    for _ in range(3000):
        f, g = neg(f), neg(g)
    c = Classes(graph(f, g))
    c.join(a, b)
    c.repair()
    assert c.same(f, g)


def test_members_read_representatives_only():
    a, b, d = x(), x(), x()
    c = Classes(graph(add(a, b), mul(b, d), neg(d)))
    c.join(a, b)
    c.join(b, d)
    c.repair()
    for node in c.nodes:
        assert all(c.find(v) is v for v in node.inputs)


def test_no_member_reads_its_own_class():
    a = x()
    y = neg(a)
    c = Classes(graph(y))
    c.join(y, a)
    c.repair()
    assert [n.prim for n in c.members(a)] == ["input"]


def test_different_types_are_never_equal():
    a = x(2, 3)
    c = Classes(graph(a, reshape(a, (3, 2))))
    with pytest.raises(ValueError, match="cannot equal"):
        c.join(a, reshape(a, (3, 2)))


def test_contractions_are_equal_whatever_their_letters():
    a, b = x(2, 3), x(3, 4)
    y, z = contract(a, b, "mk,kn->mn"), contract(a, b, "ab,bc->ac")
    assert y is not z
    c = Classes(graph(y, z))
    assert c.same(y, z)


def test_constants_are_told_apart_by_their_numbers():
    a = x(3)
    half, product = constant([0.5, 1.0, 2.0], F32), mul(constant([0.25, 0.5, 1.0], F32), 2.0)
    c = Classes(graph(a * half, a * product))
    assert c.is_fixed(product) and c.same(half, product)
    assert c.same(a * half, a * product)


def test_constants_are_rounded_once():
    third, three = constant([1 / 3], F32), constant([3.0], F32)
    value = mul(mul(third, three), constant([1e8], F32))
    c = Classes(graph(x(1) * value))
    exact = float(np.float32(1 / 3)) * 3 * 1e8
    assert float(rounded(c, value).array[0]) == float(np.float32(exact))


def test_constants_that_overflow_are_refused():
    huge = mul(constant([3e38], F32), constant([2.0], F32))
    c = Classes(graph(x(1) * huge))
    with pytest.raises(OverflowError, match="6e"):
        rounded(c, huge)


def test_saturation_is_deterministic():
    def once() -> list[str]:
        a = x(2, 3, 4)
        w = [constant(np.random.default_rng(i).standard_normal((4, 4)), F32) for i in range(3)]
        y = transpose(contract(contract(a, w[0], "abk,kc->abc"), w[1], "abk,kc->abc"), (0, 2, 1))
        found = saturate(graph(y + contract(a, w[2], "abk,kc->acb")), RULES.values())
        return [n.prim for n in found.classes.nodes] + [str(found.fired)]

    assert once() == once()


def test_budgets_end_it():
    a = x(2, 3, 4)
    for i in range(6):
        w = constant(np.random.default_rng(i).standard_normal((4, 4)), F32)
        a = transpose(contract(a, w, "abk,kc->abc"), (0, 2, 1)) if i % 2 else a * 2.0 + 1.0
        a = reshape(a, (2, 3, 4))
    whole = saturate(graph(a), RULES.values())
    assert whole.ended == "saturated"
    assert saturate(graph(a), RULES.values(), nodes=20).ended == "nodes"
    assert saturate(graph(a), RULES.values(), seconds=0.0).ended == "time"


@pytest.mark.parametrize("saturated", [False, True])
def test_text_and_back(saturated):
    a = x(2, 3)
    w = constant(np.random.default_rng(0).standard_normal((3, 7)), F32)
    v = constant(np.random.default_rng(1).standard_normal((7, 3)), F32)
    g = graph(contract(contract(a * 2.0, w, "ab,bc->ac"), v, "ab,bc->ac") + 1.0, neg(neg(a)))
    c = saturate(g, RULES.values() if saturated else ()).classes
    source = text(c)
    every = Graph(
        g.inputs,
        tuple(n.outputs[0] for n in c.nodes),
        g.input_names,
        tuple(map(str, range(len(c.nodes)))),
    )
    again = parse(source, constants(every))
    assert set(again.nodes) == set(c.nodes)
    groups = {frozenset(c.members(v)) for v in c.values}
    assert groups == {frozenset(again.members(v)) for v in again.values if again.members(v)}
    assert all(c.same(a, b) for a, b in zip(c.outputs, again.outputs, strict=True))

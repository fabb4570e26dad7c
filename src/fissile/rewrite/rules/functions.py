"""Functions that a model writes out are recognised, and cheaper ones of the same values take the
place of dear ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from fissile.ir.graph import Node, Value
from fissile.ir.prims import (
    div,
    exp,
    log,
    make,
    mish,
    mul,
    neg,
    reciprocal,
    sigmoid,
    softplus,
    tanh,
)
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, rule
from fissile.rewrite.rules.elementary import is_number
from fissile.rewrite.rules.linear import fixed_operand


def _logistic(d: Draw) -> Value:
    x = d.value(4)
    return d.any((reciprocal(exp(neg(x)) + 1.0), div(1.0, 1.0 + exp(neg(x)))))


@rule(
    "1 / (1 + exp(-x)) = sigmoid(x)",
    "div",
    "reciprocal",
    example=_logistic,
    source="definition",
    always=True,
)
def logistic(c: Classes, node: Node) -> Found:
    if node.prim == "div" and not is_number(c, node.inputs[0], 1.0):
        return
    for x in _one_more(c, node.inputs[-1]):
        for e in c.members(x, "exp"):
            for minus in c.members(e.inputs[0], "neg"):
                yield sigmoid(minus.inputs[0])


def _one_more(c: Classes, v: Value) -> Iterator[Value]:
    """x of x + 1."""
    for node in c.members(v, "add"):
        found = fixed_operand(c, node)
        if found is not None and is_number(c, found[1], 1.0):
            yield found[0]


@rule(
    "x / (1 + exp(-x)) = x sigmoid(x)",
    "div",
    example=lambda d: (x := d.value(4)) / (exp(neg(x)) + 1.0),
    source="definition",
    always=True,
)
def weighted(c: Classes, node: Node) -> Found:
    x, y = node.inputs
    for e in _one_more(c, y):
        for power_ in c.members(e, "exp"):
            for minus in c.members(power_.inputs[0], "neg"):
                if x.shape == y.shape:
                    yield mul(x, sigmoid(minus.inputs[0]))


@rule(
    "log(1 + exp(x)) = softplus(x)",
    "log",
    example=lambda d: log(exp(d.value(4)) + 1.0),
    source="definition",
    always=True,
)
def soft(c: Classes, node: Node) -> Found:
    for x in _one_more(c, node.inputs[0]):
        for e in c.members(x, "exp"):
            yield softplus(e.inputs[0])


@rule(
    "x tanh(softplus(x)) = mish(x)",
    "mul",
    example=lambda d: (x := d.value(4)) * tanh(softplus(x)),
    source="Misra, Mish (2019)",
    always=True,
)
def weighted_mish(c: Classes, node: Node) -> Found:
    """One exponential for an exponential, a logarithm and a tanh."""
    for x, t in (node.inputs, node.inputs[::-1]):
        for outer in c.members(t, "tanh"):
            for inner in c.members(outer.inputs[0], "softplus"):
                if c.same(inner.inputs[0], x):
                    yield mish(x)


@rule(
    "exp(x) exp(y) = exp(x + y)",
    "mul",
    example=lambda d: exp(d.value(3)) * exp(d.value(3)),
    source="definition",
)
def one_exponential(c: Classes, node: Node) -> Found:
    a, b = node.inputs
    for one in c.members(a, "exp"):
        for two in c.members(b, "exp"):
            if a.shape == b.shape and len(c.users(a)) == len(c.users(b)) == 1:
                yield exp(one.inputs[0] + two.inputs[0])


@rule(
    "log(exp(x)) = x",
    "log",
    example=lambda d: log(exp(d.value(3))),
    source="definition",
    always=True,
)
def undone(c: Classes, node: Node) -> Found:
    for inner in c.members(node.inputs[0], "exp"):
        yield inner.inputs[0]


@rule(
    "sign changes twice",
    "neg",
    "abs",
    example=lambda d: neg(neg(d.value(3))),
    source="definition",
    exact=True,
    integers=True,
    replaces=True,
)
def signs(c: Classes, node: Node) -> Found:
    for inner in c.members(node.inputs[0], "neg", "abs"):
        if node.prim == inner.prim:
            yield inner.inputs[0] if node.prim == "neg" else inner.value
        elif node.prim == "abs":
            yield make("abs", [inner.inputs[0]])[0]

"""Elementwise algebra: constants gather, functions written out are recognised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.prims import (
    add,
    clip,
    make,
    maximum,
    minimum,
    mul,
    neg,
    pow_,
    reciprocal,
    rsqrt,
    sqrt,
)
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.rules.linear import fixed_operand


def number(c: Classes, v: Value) -> float | None:
    """The one number of a fixed value of one element."""
    if v.type.numel != 1 or not c.is_fixed(v):
        return None
    return float(c.data(v).reshape(()))


def is_number(c: Classes, v: Value, wanted: float) -> bool:
    found = number(c, v)
    return found is not None and found == float(np.asarray(wanted, v.type.dtype.numpy))


def is_shared(c: Classes, v: Value) -> bool:
    """Do several primitives of the graph itself read it?"""
    return sum(not c.origin[u].equation for u in c.users(v)) > 1


def _pair(d: Draw) -> tuple[Value, Value, Value]:
    n, k = d.extents(2)
    return d.value(n, k), d.weights(k), d.weights(n, 1)


# ---------------------------------------------------------------- constants gather


def _two_shifts(d: Draw) -> Value:
    x, a, b = _pair(d)
    return (x + a) + b


@rule(
    "(x + a) + b = x + (a + b)",
    "add",
    example=_two_shifts,
    source="associativity",
    always=True,
    integers=True,
)
def two_shifts(c: Classes, node: Node) -> Found:
    yield from _gathered(c, node, "add")


def _two_factors(d: Draw) -> Value:
    x, a, b = _pair(d)
    return (x * a) * b


@rule(
    "(x a) b = x (a b)",
    "mul",
    example=_two_factors,
    source="associativity",
    always=True,
    integers=True,
)
def two_factors(c: Classes, node: Node) -> Found:
    yield from _gathered(c, node, "mul")


def _gathered(c: Classes, node: Node, prim: str) -> Iterator[Value | No]:
    if (outer := fixed_operand(c, node)) is None:
        return
    y, b = outer
    if is_shared(c, y):
        yield No("the inner one is computed anyway")
        return
    for inner in c.members(y, prim):
        if (found := fixed_operand(c, inner)) is not None:
            x, a = found
            both = make(prim, [a, b])[0]
            if both.type.numel > 2 * (a.type.numel + b.type.numel):
                yield No("the constant would be larger")
            else:
                yield make(prim, [x, both])[0]


def _shift_and_factor(d: Draw) -> Value:
    x, a, b = _pair(d)
    return (x * a + a) * b


@rule(
    "(x + a) b = x b + a b",
    "mul",
    example=_shift_and_factor,
    source="distributivity",
    always=True,
    integers=True,
)
def shift_and_factor(c: Classes, node: Node) -> Found:
    """So that b reaches what gives x."""
    if (outer := fixed_operand(c, node)) is None:
        return
    y, b = outer
    if is_shared(c, y):
        yield No("the sum is computed anyway")
        return
    for inner in c.members(y, "add", "sub"):
        if (found := fixed_operand(c, inner)) is None:
            continue
        x, a = found
        if not c.members(x, "contract", "conv", "mul"):
            yield No("nothing takes the factor")
            continue
        sides = [v * b for v in inner.inputs]
        if max(v.type.numel for v in sides if c.is_fixed(v)) <= 2 * a.type.numel + b.type.numel:
            yield make(inner.prim, sides)[0]


@rule(
    "x - k = x + -k",
    "sub",
    example=lambda d: d.value(3, 2) - d.weights(2),
    source="definition",
    always=True,
    integers=True,
)
def difference(c: Classes, node: Node) -> Found:
    x, k = node.inputs
    if c.is_fixed(k) and not c.is_fixed(x):
        yield add(x, neg(k))


@rule(
    "x / k = x (1 / k)",
    "div",
    example=lambda d: d.value(3, 2) / d.weights(2),
    source="definition",
    always=True,
)
def quotient(c: Classes, node: Node) -> Found:
    """Where the reciprocal is an ordinary number."""
    x, k = node.inputs
    if c.is_fixed(k) and not c.is_fixed(x) and _is_ordinary(c, k):
        yield mul(x, reciprocal(k))


def _is_ordinary(c: Classes, k: Value) -> bool:
    limits = np.finfo(k.type.dtype.numpy)
    size = np.abs(c.data(k))
    return bool(np.all((size > 4 * limits.tiny) & (size < 0.25 / limits.tiny)))


@rule(
    "-x = x (-1)",
    "neg",
    example=lambda d: neg(d.value(3) * d.weights(3)),
    source="definition",
    exact=True,
)
def negation(c: Classes, node: Node) -> Found:
    (x,) = node.inputs
    if c.members(x, "mul", "contract", "conv") and node.value.type.dtype.is_float:
        yield mul(x, -1.0)


@rule(
    "x a + y a = (x + y) a",
    "add",
    example=lambda d: d.value(2, 3) * (k := d.weights(3)) + d.value(2, 3) * k,
    source="distributivity",
    integers=True,
)
def common_factor(c: Classes, node: Node) -> Found:
    a, b = node.inputs
    for one in c.members(a, "mul"):
        for two in c.members(b, "mul"):
            for x, k in (one.inputs, one.inputs[::-1]):
                for y, m in (two.inputs, two.inputs[::-1]):
                    if c.same(k, m) and x.shape == y.shape and not c.is_fixed(x):
                        yield mul(x + y, k)


def _neutral(d: Draw) -> Value:
    return d.any((d.value(2, 3) * 1.0, d.value(2, 3) + (-0.0), d.value(2, 3) / 1.0))


@rule(
    "x 1 = x / 1 = x - 0 = x",
    "mul",
    "div",
    "add",
    "sub",
    example=_neutral,
    source="neutral elements",
    exact=True,
    integers=True,
    replaces=True,
)
def neutral(c: Classes, node: Node) -> Found:
    a, b = node.inputs
    pairs = [(a, b), (b, a)] if node.prim in ("mul", "add") else [(a, b)]
    zero = node.prim in ("add", "sub")
    for x, k in pairs:
        if x.shape != node.value.shape or c.is_fixed(x):
            continue
        if is_number(c, k, 0.0 if zero else 1.0) and (not zero or _keeps_sign(c, node.prim, k)):
            yield x


def _keeps_sign(c: Classes, prim: str, k: Value) -> bool:
    """-0 + 0 is 0, but -0 + -0 and -0 - 0 are -0."""
    if k.type.dtype.is_integer:
        return True
    return bool(np.signbit(c.data(k)).all()) == (prim == "add")


# ---------------------------------------------------------------- limits


def _bounds(d: Draw) -> Value:
    return maximum(maximum(d.value(2, 3), d.weights(3)), d.weights(1))


@rule(
    "max(max(x, a), b) = max(x, max(a, b))",
    "max",
    "min",
    example=_bounds,
    source="associativity",
    always=True,
    exact=True,
    integers=True,
)
def bounds(c: Classes, node: Node) -> Found:
    yield from _gathered(c, node, node.prim)


@rule(
    "min(max(x, a), b) = clip(x, a, b)",
    "min",
    example=lambda d: minimum(maximum(d.value(4), 0.0), 6.0),
    source="definition",
    always=True,
    exact=True,
)
def both_bounds(c: Classes, node: Node) -> Found:
    """Numbers."""
    if (outer := fixed_operand(c, node)) is None or outer[1].type.numel != 1:
        return
    for inner in c.members(outer[0], "max"):
        found = fixed_operand(c, inner)
        if found is not None and found[1].type.numel == 1:
            low, high = (make("reshape", [v], shape=())[0] if v.rank else v
                         for v in (found[1], outer[1]))  # fmt: skip
            yield make("clip", [found[0], low, high])[0]


@rule(
    "max(x, x) = x",
    "max",
    "min",
    example=lambda d: maximum(x := d.value(3), x),
    source="idempotence",
    exact=True,
    integers=True,
    replaces=True,
)
def equals(c: Classes, node: Node) -> Found:
    a, b = node.inputs
    if c.same(a, b):
        yield a


@rule(
    "max(max(x, 0), 0) = max(x, 0), and clip(clip(x)) = clip(x)",
    "max",
    "clip",
    example=lambda d: clip(clip(d.value(4), 0.0, 6.0), 0.0, 6.0),
    source="idempotence",
    exact=True,
    integers=True,
    replaces=True,
)
def bounded_twice(c: Classes, node: Node) -> Found:
    x = node.inputs[0]
    for inner in c.members(x, node.prim):
        same = (c.same(v, w) for v, w in zip(inner.inputs[1:], node.inputs[1:], strict=True))
        if all(c.is_fixed(v) for v in node.inputs[1:]) and all(same) and x.type == node.value.type:
            yield x


# ---------------------------------------------------------------- roots and powers


@rule(
    "1 / sqrt(x) = rsqrt(x)",
    "div",
    "reciprocal",
    example=lambda d: d.any((1.0 / sqrt(d.value(3)), reciprocal(sqrt(d.value(3))))),
    source="definition",
    always=True,
)
def inverse_root(c: Classes, node: Node) -> Found:
    x = node.inputs[-1]
    if node.prim == "div" and not is_number(c, node.inputs[0], 1.0):
        return
    for inner in c.members(x, "sqrt"):
        if x.shape == node.value.shape:
            yield rsqrt(inner.inputs[0])


@rule(
    "x / sqrt(y) = x rsqrt(y)",
    "div",
    example=lambda d: d.value(4, 3) / sqrt(d.value(4, 1)),
    source="definition",
    always=True,
)
def by_root(c: Classes, node: Node) -> Found:
    """Where there are fewer roots than quotients."""
    x, y = node.inputs
    for inner in c.members(y, "sqrt"):
        if 2 * y.type.numel <= x.type.numel:
            yield mul(x, rsqrt(inner.inputs[0]))


@rule(
    "x / y = x (1 / y)",
    "div",
    example=lambda d: d.value(4, 8) / d.value(4, 1),
    source="definition",
    ours=True,
)
def by_fewer(c: Classes, node: Node) -> Found:
    """Where there are fewer reciprocals than quotients."""
    x, y = node.inputs
    if not c.is_fixed(y) and 4 * y.type.numel <= x.type.numel:
        yield mul(x, reciprocal(y))


def _power(d: Draw) -> Value:
    return pow_(d.value(3) * 0.5, d.any((2.0, 3.0, -1.0, 1.0)))


@rule(
    "x^2 = x x, x^3 = x x x, x^1 = x, x^-1 = 1 / x",
    "pow",
    example=_power,
    source="definition",
    always=True,
)
def power(c: Classes, node: Node) -> Found:
    x, k = node.inputs
    exponent = number(c, k)
    if x.shape != node.value.shape or x.type.dtype != k.type.dtype:
        return
    if exponent == 1:
        yield x
    elif exponent == 2:
        yield mul(x, x)
    elif exponent == 3:
        yield mul(mul(x, x), x)
    elif exponent == -1:
        yield reciprocal(x)

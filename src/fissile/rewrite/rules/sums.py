"""Reductions: means are sums, factors and constants leave them."""

from __future__ import annotations

import math
from collections.abc import Collection

from fissile.ir.graph import Node, Value
from fissile.ir.prims import broadcast, contract, make, reduce_mean, reduce_sum
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.rules.linear import fixed_operand
from fissile.rewrite.views import padded

LINEAR = ("reduce_sum", "reduce_mean")


@rule(
    "mean(x) = sum(x) / n",
    "reduce_mean",
    example=lambda d: (
        reduce_mean(x := d.value(3, 4), (1,)) + contract(x, d.weights(4, 1), "nk,km->nm")
    ),
    source="definition",
)
def mean_is_sum(c: Classes, node: Node) -> Found:
    """Where a product of x could take the sum over."""
    x, axes = node.inputs[0], node.attrs["axes"]
    count = math.prod(x.shape[a] for a in axes)
    if not count or not c.users(x, "contract"):
        yield No("no product has the same operand")
        return
    yield reduce_sum(x, axes) * (1.0 / count)


def _twice(d: Draw) -> Value:
    prim = d.any(("reduce_sum", "reduce_mean", "reduce_max"))
    return make(prim, [make(prim, [d.value(*d.extents(3))], axes=(0,))[0]], axes=(1, 2))[0]


@rule(
    "reduce(reduce(x)) = reduce(x)",
    "reduce_sum",
    "reduce_mean",
    "reduce_max",
    "reduce_min",
    example=_twice,
    source="associativity",
)
def twice(c: Classes, node: Node) -> Found:
    axes = set(node.attrs["axes"])
    for inner in c.members(node.inputs[0], node.prim):
        both = tuple(sorted(axes | set(inner.attrs["axes"])))
        yield make(node.prim, [inner.inputs[0]], axes=both)[0]


def _factor(d: Draw) -> Value:
    n, k = d.extents(2)
    return make(d.any(LINEAR), [d.value(n, k) * d.weights(n, 1)], axes=(1,))[0]


@rule("sum(x k) = sum(x) k", *LINEAR, example=_factor, source="linearity")
def factor(c: Classes, node: Node) -> Found:
    """k is the same for all that a sum adds up."""
    for inner in c.members(node.inputs[0], "mul", "div"):
        x, k = inner.inputs
        pairs = [(x, k), (k, x)] if inner.prim == "mul" else [(x, k)]
        for y, by in pairs:
            wide = padded(by, inner.value.rank)
            if y.shape == inner.value.shape and _is_flat(wide, node.attrs["axes"]):
                reduced = make(node.prim, [y], axes=node.attrs["axes"])[0]
                yield make(inner.prim, [reduced, wide])[0]


def _is_flat(k: Value, axes: Collection[int]) -> bool:
    return all(k.shape[a] == 1 for a in axes)


def _shift(d: Draw) -> Value:
    n, k = d.extents(2)
    return reduce_mean(d.value(n, k) + d.weights(*d.any(((n, 1), (1, k), (n, k)))), (1,))


@rule(
    "mean(x + k) = mean(x) + mean(k)",
    "reduce_mean",
    "reduce_sum",
    example=_shift,
    source="linearity",
)
def shift(c: Classes, node: Node) -> Found:
    axes = node.attrs["axes"]
    for inner in c.members(node.inputs[0], "add", "sub"):
        if (found := fixed_operand(c, inner)) is None:
            continue
        x, k = found
        k = padded(k, x.rank)
        spread = [
            s if a in axes else e for a, (s, e) in enumerate(zip(x.shape, k.shape, strict=True))
        ]
        k = k if tuple(spread) == k.shape else broadcast(k, spread)
        y, b = (make(node.prim, [v], axes=axes)[0] for v in (x, k))
        sides = [y, b] if c.same(inner.inputs[0], x) else [b, y]
        yield make(inner.prim, sides)[0]


def _largest(d: Draw) -> Value:
    n, k = d.extents(2)
    return make("reduce_max", [d.value(n, k) + d.weights(n, 1)], axes=(1,))[0]


@rule("max(x + k) = max(x) + k", "reduce_max", "reduce_min", example=_largest, source="monotony")
def largest(c: Classes, node: Node) -> Found:
    """k is the same for all that are compared."""
    for inner in c.members(node.inputs[0], "add", "sub"):
        x, k = inner.inputs
        wide = padded(k, inner.value.rank)
        if x.shape == inner.value.shape and _is_flat(wide, node.attrs["axes"]):
            found = make(node.prim, [x], axes=node.attrs["axes"])[0]
            yield make(inner.prim, [found, wide])[0]


@rule(
    "reduce(x) = reshape(x), over extents of 1",
    *LINEAR,
    "reduce_max",
    "reduce_min",
    example=lambda d: reduce_sum(d.value(d.extent(), 1), (1,)),
    source="definition",
    exact=True,
    replaces=True,
)
def nothing_to_reduce(c: Classes, node: Node) -> Found:
    x = node.inputs[0]
    if x.shape == node.value.shape:
        yield x


@rule(
    "sum(x broadcast) = n x",
    *LINEAR,
    example=lambda d: reduce_sum(broadcast(d.value(3, 1), (3, 4)), (1,)),
    source="definition",
)
def repeated(c: Classes, node: Node) -> Found:
    axes = node.attrs["axes"]
    for wide in c.members(node.inputs[0], "broadcast"):
        x = padded(wide.inputs[0], wide.value.rank)
        if not _is_flat(x, axes):
            continue
        rest = [s if a not in axes else 1 for a, s in enumerate(wide.value.shape)]
        count = math.prod(wide.value.shape[a] for a in axes)
        x = broadcast(x, rest)
        yield x if node.prim == "reduce_mean" else x * float(count)

"""Transposes that meet their inverse: exporters from channels-last frameworks put one before and
one behind every stretch of elementwise primitives, paddings and concatenations.

A transpose moves up through such primitives only where, on every way up, its inverse stands: then
both go away.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.graph import Node, Value
from fissile.ir.prims import concat, make, maximum, pad, sigmoid, tanh, transpose
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.rules.layout import ELEMENTWISE
from fissile.rewrite.views import carried, inverse, seen_as

DEEP = 4  # primitives between a transpose and its inverse


def meets(c: Classes, v: Value, perm: Sequence[int], depth: int = DEEP) -> bool:
    """Does a transpose of v by `perm` meet its inverse on every way up?"""
    back = inverse(perm)
    if any(tuple(n.attrs["perm"]) == back for n in c.members(v, "transpose")):
        return True
    if not depth:
        return False
    for n in c.members(v, *ELEMENTWISE, "concat", "pad"):
        loose = [i for i in n.inputs if not c.is_fixed(i) and i.type.numel > 1]
        whole = all(i.shape == v.shape or n.prim in ("concat", "pad") for i in loose)
        if loose and whole and all(meets(c, i, perm, depth - 1) for i in loose):
            return True
    return False


def _there_and_back(d: Draw) -> Value:
    x, y = (transpose(d.value(2, 3, 4), (0, 2, 1)) for _ in range(2))
    f = d.any((sigmoid(tanh(x)), maximum(x, d.weights(3)), tanh(x) * y, sigmoid(x + y) * 2.0))
    return transpose(f, (0, 2, 1))


@rule(
    "transpose(f(transpose(x))) = f(x)",
    "transpose",
    example=_there_and_back,
    source="axes",
    exact=True,
)
def there_and_back(c: Classes, node: Node) -> Found:
    perm = node.attrs["perm"]
    for inner in c.members(node.inputs[0], *ELEMENTWISE):
        shape = inner.value.shape
        loose = [v for v in inner.inputs if not c.is_fixed(v) and v.type.numel > 1]
        if not loose or any(v.shape != shape for v in loose):
            continue
        if not all(meets(c, v, perm) for v in loose):
            yield No("its inverse does not stand on every way up")
            continue
        inputs = [seen_as(node, v) if v in loose else carried(node, v) for v in inner.inputs]
        if None not in inputs:
            yield make(inner.prim, inputs, **inner.attrs)[0]  # type: ignore


def _joined(d: Draw) -> Value:
    x, y = (transpose(d.value(2, d.extent(), 4), (2, 0, 1)) for _ in range(2))
    return transpose(concat([x, y], 2), (1, 2, 0))


@rule(
    "transpose(concat(transpose(x), transpose(y))) = concat(x, y)",
    "transpose",
    example=_joined,
    source="axes",
    exact=True,
)
def joined(c: Classes, node: Node) -> Found:
    perm = node.attrs["perm"]
    for inner in c.members(node.inputs[0], "concat"):
        loose = [v for v in inner.inputs if not c.is_fixed(v)]
        if loose and all(meets(c, v, perm) for v in loose):
            axis = perm.index(inner.attrs["axis"])
            yield concat([transpose(v, perm) for v in inner.inputs], axis)


def _bordered(d: Draw) -> Value:
    x = transpose(d.value(3, 4, 2), (0, 2, 1))
    x = pad(x, (0, 1, 0), (1, 0, 0), d.any(("constant", "edge")))
    return transpose(x, (0, 2, 1))


@rule(
    "transpose(pad(transpose(x))) = pad(x)",
    "transpose",
    example=_bordered,
    source="axes",
    exact=True,
)
def bordered(c: Classes, node: Node) -> Found:
    perm = node.attrs["perm"]
    for inner in c.members(node.inputs[0], "pad"):
        if meets(c, inner.inputs[0], perm):
            a = inner.attrs
            lo, hi = ([a[end][p] for p in perm] for end in ("lo", "hi"))
            yield pad(transpose(inner.inputs[0], perm), lo, hi, a["mode"], a["value"])

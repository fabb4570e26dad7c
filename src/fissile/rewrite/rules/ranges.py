"""What a value can be tells which clamps do nothing.

The search for equations (rewrite/generate.py) found these by the hundred, one function at a time:
|exp(x)| = exp(x), max(sigmoid(x), 0) = sigmoid(x). Said over ranges they are four rules.
"""

from __future__ import annotations

import math

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.prims import abs_, clip, exp, maximum, minimum, mul, neg, sigmoid, sqrt
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, rule
from fissile.rewrite.rules.linear import fixed_operand

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
POSITIVE: Range = (0.0, math.inf)
OF = {  # whatever the operand
    "exp": POSITIVE, "sqrt": POSITIVE, "rsqrt": POSITIVE, "softplus": POSITIVE, "abs": POSITIVE,
    "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0), "cos": (-1.0, 1.0),
}  # fmt: skip
KEEP = ("transpose", "reshape", "broadcast", "slice", "gather", "concat",
        "reduce_max", "reduce_min", "reduce_mean", "window_max")  # fmt: skip
DEEP = 5


def range_of(c: Classes, v: Value, deep: int = DEEP) -> Range:
    """Bounds of every element that is a number. Each member of a class may know one."""
    if c.is_fixed(v):
        data = np.asarray(c.data(v), np.float64)
        data = data[~np.isnan(data)]  # bounds are of numbers
        return (float(data.min()), float(data.max())) if data.size else ANY
    if not deep:
        return ANY
    found = [_of(c, node, deep - 1) for node in c.members(v)]
    return max((r[0] for r in found), default=-math.inf), min(
        (r[1] for r in found), default=math.inf
    )


def _of(c: Classes, node: Node, deep: int) -> Range:
    prim, args = node.prim, node.inputs
    if prim in OF:
        return OF[prim]
    if prim == "mul" and c.same(*args):
        return POSITIVE
    if prim not in (*KEEP, "max", "min", "clip", "neg", "add", "mul", "reduce_sum"):
        return ANY
    data = args[:1] if prim == "gather" else args
    lows, highs = zip(*(range_of(c, a, deep) for a in data), strict=True)
    if prim in KEEP:
        return min(lows), max(highs)
    if prim == "max":
        return max(lows), max(highs)
    if prim == "min":
        return min(lows), min(highs)
    if prim == "clip":
        low, high = (max(ends[:2]) for ends in (lows, highs))
        return min(low, lows[2]), min(high, highs[2])  # where a > b it is b
    if prim == "neg":
        return -highs[0], -lows[0]
    if prim == "add":
        return sum(lows), sum(highs)
    return POSITIVE if min(lows) >= 0 else ANY  # of a product, of a sum


def _positive(d: Draw) -> Value:
    x = d.value(*d.extents(2))
    return d.any((exp(x), sigmoid(x), sqrt(abs_(x)), mul(x, x), maximum(x, 0.5), abs_(x) + 1.0))


@rule("|x| = x, where x >= 0, and -x, where x <= 0", "abs", source="range", always=True,
      example=lambda d: abs_(d.any((_positive(d), neg(_positive(d))))))  # fmt: skip
def without_sign(c: Classes, node: Node) -> Found:
    (x,) = node.inputs
    low, high = range_of(c, x)
    if low >= 0:
        yield x
    elif high <= 0:
        yield neg(x)


@rule("max(x, k) = x, where x >= k", "max", source="range", always=True,
      example=lambda d: maximum(_positive(d), d.any((0.0, -1.0))))  # fmt: skip
def above(c: Classes, node: Node) -> Found:
    found = fixed_operand(c, node)
    if found is None:
        return
    x, k = found
    if x.type == node.value.type and range_of(c, x)[0] >= range_of(c, k)[1]:
        yield x


@rule("min(x, k) = x, where x <= k", "min", source="range", always=True,
      example=lambda d: minimum(sigmoid(d.value(*d.extents(2))), d.any((1.0, 6.0))))  # fmt: skip
def below(c: Classes, node: Node) -> Found:
    found = fixed_operand(c, node)
    if found is None:
        return
    x, k = found
    if x.type == node.value.type and range_of(c, x)[1] <= range_of(c, k)[0]:
        yield x


@rule("clip(x, a, b) = max(x, a) or min(x, b) or x, where x is on that side", "clip",
      source="range", always=True,
      example=lambda d: clip(_positive(d), d.any((0.0, 0.25)), d.any((1.0, 6.0))))  # fmt: skip
def within(c: Classes, node: Node) -> Found:
    x, a, b = node.inputs
    if x.type != node.value.type:
        return
    low, high = range_of(c, x)
    above, below = low >= range_of(c, a)[1], high <= range_of(c, b)[0]
    if above and below:
        yield x
    elif above:
        yield minimum(x, b)
    elif below and range_of(c, a)[1] <= range_of(c, b)[0]:
        yield maximum(x, a)

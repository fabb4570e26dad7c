"""Reductions over axes, and cumulative sums.

`axes` is an attribute or an input, by opset. Over no element they give the neutral element.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fissile.ir.graph import Value
from fissile.ir.prims import (
    abs_,
    argument,
    broadcast,
    cast,
    clip,
    constant,
    contract,
    exp,
    log,
    normal_axes,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reshape,
    sqrt,
)
from fissile.ir.types import BOOL, U8
from fissile.onnx.rule import Int, Ints, fission

Step = Callable[[Value], Value]
Reduce = Callable[[Value, tuple[int, ...]], Value]


def _same(x: Value) -> Value:
    return x


def _lowest(x: Value) -> float | int | bool:
    return -math.inf if x.type.dtype.is_float else False if x.type.dtype is BOOL else _info(x).min


def _highest(x: Value) -> float | int | bool:
    return math.inf if x.type.dtype.is_float else True if x.type.dtype is BOOL else _info(x).max


def _info(x: Value) -> np.iinfo:
    return np.iinfo(x.type.dtype.numpy)


def _extreme(reduce: Reduce) -> Reduce:
    """Truth values are compared as bytes, which every target can do."""

    def apply(x: Value, axes: tuple[int, ...]) -> Value:
        return cast(reduce(cast(x, U8), axes), BOOL) if x.type.dtype is BOOL else reduce(x, axes)

    return apply


def _log_sum_exp(x: Value, axes: tuple[int, ...]) -> Value:
    top = _limit(x)
    # infinite maxima are made finite: inf - inf would be no number
    m = clip(reduce_max(x, axes), -top, top)
    return log(reduce_sum(exp(x - m), axes)) + m


def _limit(x: Value) -> float:
    kinds = {2: 65504.0, 4: float(np.finfo(np.float32).max), 8: float(np.finfo(np.float64).max)}
    return 3.38e38 if x.type.dtype.name == "bf16" else kinds[x.type.dtype.size_bytes]


# operator: (before, reduce, after, neutral element)
_REDUCTIONS: dict[str, tuple[Step, Reduce, Step, Callable[[Value], float | int | bool]]] = {
    "ReduceSum": (_same, reduce_sum, _same, lambda x: 0),
    "ReduceMean": (_same, reduce_mean, _same, lambda x: math.nan),
    "ReduceMax": (_same, _extreme(reduce_max), _same, _lowest),
    "ReduceMin": (_same, _extreme(reduce_min), _same, _highest),
    "ReduceProd": (_same, reduce_prod, _same, lambda x: 1),
    "ReduceL1": (abs_, reduce_sum, _same, lambda x: 0),
    "ReduceL2": (lambda x: x * x, reduce_sum, sqrt, lambda x: 0),
    "ReduceSumSquare": (lambda x: x * x, reduce_sum, _same, lambda x: 0),
    "ReduceLogSum": (_same, reduce_sum, log, lambda x: -math.inf),
    "ReduceLogSumExp": (_same, _log_sum_exp, _same, lambda x: -math.inf),
}


def _rule(op: str) -> Callable[..., Value]:
    before, reduce, after, neutral = _REDUCTIONS[op]

    def apply(x, axes: Ints | None = None, *, keepdims=1, noop_with_empty_axes=0):
        if not axes and noop_with_empty_axes:
            return _over_nothing(op, x)
        over = normal_axes(x, axes or tuple(range(x.rank)))
        if math.prod(x.shape[a] for a in over):
            y = after(reduce(before(x), over)) if over else _over_nothing(op, x)
        else:
            shape = tuple(1 if a in over else s for a, s in enumerate(x.shape))
            y = broadcast(constant(neutral(x), x.type.dtype), shape)
        return y if keepdims else without(y, over)

    return apply


def _over_nothing(op: str, x: Value) -> Value:
    """Reduces no axis: only the maps before and after are left."""
    before, _, after, _ = _REDUCTIONS[op]
    return after(before(x))


for _op in _REDUCTIONS:
    fission(_op)(_rule(_op))


def without(x: Value, axes: tuple[int, ...]) -> Value:
    """Drops axes of extent 1."""
    return reshape(x, [s for a, s in enumerate(x.shape) if a not in axes])


def _argument(name: str) -> Callable[..., Value]:
    def apply(x, *, axis=0, keepdims=1, select_last_index=0):
        y = argument(name, x, axis, bool(select_last_index))
        return y if keepdims else without(y, normal_axes(x, axis))

    return apply


fission("ArgMax")(_argument("argmax"))
fission("ArgMin")(_argument("argmin"))


@fission("CumSum")
def cumulative_sum(x, axis: Int, *, exclusive=0, reverse=0):
    """A contraction with a triangle of ones."""
    (axis,) = normal_axes(x, axis)
    n = x.shape[axis]
    ones = np.triu(np.ones((n, n)), 1 if exclusive else 0)
    labels = "abcdefghij"[: x.rank]
    out = labels[:axis] + "z" + labels[axis + 1 :]
    triangle = constant(ones.T if reverse else ones, x.type.dtype)
    return contract(x, triangle, f"{labels},{labels[axis]}z->{out}")

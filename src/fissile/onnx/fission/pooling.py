"""Pooling: windows over a map that its own primitive has padded.

MaxPool pads with the lowest value. AveragePool sums and multiplies by one over the number of
elements that count in each window, which is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import (
    abs_,
    constant,
    equal,
    minimum,
    pow_,
    reduce_max,
    reduce_mean,
    reduce_sum,
    reshape,
    slice_,
    sqrt,
    where,
    window,
)
from fissile.ir.semantics import windowed
from fissile.onnx.fission.convolution import spatial, spatial_pads
from fissile.onnx.fission.layout import padded
from fissile.onnx.rule import fission

Pads = tuple[list[int], list[int]]


def _with_ceiling(
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Pads,
) -> Pads:
    """Pads for ceil_mode: the last window may hang over, but not start in the padding."""
    lo, hi = pads
    grown = []
    for n, k, s, d, a, b in zip(shape, kernel, strides, dilations, lo, hi, strict=True):
        reach = (k - 1) * d + 1
        count = -(-(n + a + b - reach) // s) + 1
        if (count - 1) * s >= n + a:
            count -= 1
        grown.append(max((count - 1) * s + reach - n - a, b))
    return lo, grown


@fission("MaxPool")
def max_pool(
    x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None, storage_order=0,
    strides=None, outputs,
):  # fmt: skip
    kernel, strides, dilations = spatial(x, kernel_shape, strides, dilations)
    lo, hi = spatial_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    if ceil_mode:
        lo, hi = _with_ceiling(x.shape[2:], kernel, strides, dilations, (lo, hi))
    dtype = x.type.dtype
    lowest = -math.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    wide = padded(x, (0, 0, *lo), (0, 0, *hi), fill=lowest)
    y = window("window_max", wide, kernel, strides, dilations)
    if outputs == 1:
        return y
    order = "F" if storage_order else "C"
    return y, _winner(wide, y, _numbers(x, lo, hi, order), kernel, strides, dilations)


def _numbers(x: Value, lo: Sequence[int], hi: Sequence[int], order: Any) -> np.ndarray:
    """Every element's position in the flattened x; padding gets a position beyond all."""
    n, c, *shape = x.shape
    inner = np.arange(math.prod(shape)).reshape(shape, order=order)
    number = np.arange(n * c).reshape(n, c, *[1] * len(shape)) * inner.size + inner
    widths = [(0, 0), (0, 0), *zip(lo, hi, strict=True)]
    return np.pad(number, widths, constant_values=x.type.numel)


def _winner(
    x: Value,
    best: Value,
    number: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Value:
    """The first position that holds each window's maximum: one comparison per tap."""
    result = constant(number.max())
    for tap in product(*(range(k) for k in kernel)):
        start = (0, 0, *(t * d for t, d in zip(tap, dilations, strict=True)))
        step = (1, 1, *strides)
        cut = tuple(
            slice(b, b + (s - 1) * d + 1, d)
            for b, s, d in zip(start, best.shape, step, strict=True)
        )
        here = where(equal(slice_(x, start, best.shape, step), best), constant(number[cut]), result)
        result = minimum(result, here)
    return result


@fission("AveragePool")
def average_pool(
    x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0, dilations=None,
    pads=None, strides=None,
):  # fmt: skip
    kernel, strides, dilations = spatial(x, kernel_shape, strides, dilations)
    shape = x.shape[2:]
    lo, hi = given = spatial_pads(shape, kernel, strides, dilations, pads, auto_pad)
    if ceil_mode:
        lo, hi = _with_ceiling(shape, kernel, strides, dilations, given)
    # elements that ceil_mode alone adds never count
    counted = np.pad(
        np.ones(shape), list(zip(*given, strict=True)), constant_values=count_include_pad
    )
    rest = [(0, b - g) for b, g in zip(hi, given[1], strict=True)]
    counted = np.pad(counted, rest)[None, None]
    (count,) = windowed(np.add)(counted, kernel, strides, dilations)
    scale = 1 / count if count.min() < count.max() else np.asarray(1 / count.flat[0])
    y = window("window_sum", padded(x, (0, 0, *lo), (0, 0, *hi)), kernel, strides, dilations)
    return y * constant(scale, x.type.dtype)


def _space(x: Value) -> tuple[int, ...]:
    if x.rank < 2:
        raise ModelError(f"{x.type} has no spatial axis")
    return tuple(range(2, x.rank))


@fission("GlobalAveragePool")
def global_average(x):
    return reduce_mean(x, _space(x))


@fission("GlobalMaxPool")
def global_max(x):
    return reduce_max(x, _space(x))


def _root(x: Value, p: float) -> Value:
    return x if p == 1 else sqrt(x) if p == 2 else pow_(x, 1 / p)


def _power(x: Value, p: float) -> Value:
    x = abs_(x)
    return x if p == 1 else x * x if p == 2 else pow_(x, float(p))


@fission("GlobalLpPool")
def global_lp(x, *, p=2):
    return _root(reduce_sum(_power(x, p), _space(x)), p)


@fission("LpPool")
def lp_pool(
    x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, p=2, pads=None, strides=None
):
    kernel, strides, dilations = spatial(x, kernel_shape, strides, dilations)
    lo, hi = spatial_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    if ceil_mode:
        lo, hi = _with_ceiling(x.shape[2:], kernel, strides, dilations, (lo, hi))
    y = padded(_power(x, p), (0, 0, *lo), (0, 0, *hi))
    return _root(window("window_sum", y, kernel, strides, dilations), p)


@fission("LRN")
def local_response(x, *, size, alpha=1e-4, beta=0.75, bias=1.0):
    """x / (bias + alpha/size * sum of squares over `size` neighbouring channels)^beta."""
    n, c, *space = x.shape
    rows = reshape(x * x, (n, 1, c, math.prod(space)))
    rows = padded(rows, (0, 0, (size - 1) // 2, 0), (0, 0, size - 1 - (size - 1) // 2, 0))
    squares = reshape(window("window_sum", rows, (size, 1), (1, 1)), x.shape)
    scale = squares * (alpha / size) + bias
    if beta == 0.75:  # as every published network has it: roots are vector instructions
        root = sqrt(scale)
        return x / (root * sqrt(root))
    return x / pow_(scale, beta)

"""Normalisations: centred variances, statistics in f32 for narrower floats where ONNX asks for it.

A batch normalisation of constants is one multiplication and one addition, its constants computed in
float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import (
    abs_,
    cast,
    constant,
    maximum,
    normal_axes,
    reduce_mean,
    reduce_sum,
    reshape,
    rsqrt,
    sqrt,
)
from fissile.ir.types import BY_ONNX
from fissile.onnx.rule import fission


def _channel(v: Value, x: Value) -> Value:
    """A vector over the channels (axis 1) of x, ready to broadcast."""
    return reshape(v, (v.type.numel, *[1] * (x.rank - 2)))


@fission("BatchNormalization")
def batch_norm(
    x, scale, bias, mean, variance, *, epsilon=1e-5, momentum=0.9, spatial=1, training_mode=0
):
    if training_mode:
        raise ModelError("training mode is not supported")
    if not spatial:
        raise ModelError("only one mean per channel is supported (spatial=1)")
    if x.rank < 2:
        x = reshape(x, (x.shape[0], 1))
    given = (scale, bias, mean, variance)
    if not all(v.is_constant for v in given):
        a = scale * rsqrt(variance + constant(epsilon, variance.type.dtype))
        scaled = x * _channel(cast(a, x.type.dtype), x)
        return scaled + _channel(cast(bias - mean * a, x.type.dtype), x)
    s, b, m, v = (c.array.astype(np.float64) for c in given)
    with np.errstate(all="ignore"):
        factor = s / np.sqrt(v + epsilon)
        offset = b - m * factor
    dtype = x.type.dtype
    return x * _channel(constant(factor, dtype), x) + _channel(constant(offset, dtype), x)


def _moments(x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """(mean, x - mean, 1 / sqrt(variance + epsilon))"""
    mean = reduce_mean(x, axes)
    centred = x - mean
    return mean, centred, rsqrt(reduce_mean(centred * centred, axes) + epsilon)


@fission("InstanceNormalization")
def instance_norm(x, scale, bias, *, epsilon=1e-5):
    _, centred, inverse = _moments(x, range(2, x.rank), epsilon)
    return centred * (inverse * _channel(scale, x)) + _channel(bias, x)


@fission("LayerNormalization")
def layer_norm(x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    axes = tuple(range(normal_axes(x, axis)[0], x.rank))
    stash = BY_ONNX[stash_type]
    narrow = x.type.dtype
    wide = cast(x, stash) if narrow.size_bytes < stash.size_bytes else x
    mean, centred, inverse = _moments(wide, axes, epsilon)
    y = cast(centred * inverse, narrow) * scale
    return (y if bias is None else y + bias, cast(mean, stash), cast(inverse, stash))


@fission("RMSNormalization")
def rms_norm(x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    axes = tuple(range(normal_axes(x, axis)[0], x.rank))
    stash = BY_ONNX[stash_type]
    narrow = x.type.dtype
    wide = cast(x, stash) if narrow.size_bytes < stash.size_bytes else x
    y = cast(wide * rsqrt(reduce_mean(wide * wide, axes) + epsilon), narrow)
    return cast(y, scale.type.dtype) * scale


@fission("GroupNormalization", since=21)
def group_norm(x, scale, bias, *, num_groups, epsilon=1e-5, stash_type=1):
    """Scale and bias per channel."""
    y = _group_normal(x, num_groups, epsilon, stash_type)
    y = reshape(y, x.shape)
    return y * _channel(scale, x) + _channel(bias, x)


@fission("GroupNormalization", since=18)
def group_norm_by_group(x, scale, bias, *, num_groups, epsilon=1e-5):
    """Scale and bias per group."""
    y = _group_normal(x, num_groups, epsilon, 1)
    vector = (num_groups, *[1] * (y.rank - 2))
    return reshape(y * reshape(scale, vector) + reshape(bias, vector), x.shape)


def _group_normal(x: Value, groups: int, epsilon: float, stash_type: int) -> Value:
    n, c, *space = x.shape
    if groups < 1 or c % groups:
        raise ModelError(f"{c} channels do not make {groups} groups")
    stash, narrow = BY_ONNX[stash_type], x.type.dtype
    wide = cast(x, stash) if narrow.size_bytes < stash.size_bytes else x
    grouped = reshape(wide, (n, groups, c // groups, *space))
    _, centred, inverse = _moments(grouped, range(2, grouped.rank), epsilon)
    return cast(centred * inverse, narrow)


@fission("LpNormalization")
def lp_norm(x, *, axis=-1, p=2):
    axes = normal_axes(x, axis)
    norm = reduce_sum(abs_(x), axes) if p == 1 else sqrt(reduce_sum(x * x, axes))
    # a row of zeros stays zero
    tiny = {2: 2.0**-24, 4: 2.0**-149}.get(x.type.dtype.size_bytes, 5e-324)
    return x / maximum(norm, tiny)


@fission("MeanVarianceNormalization")
def mean_variance_norm(x, *, axes=(0, 2, 3)):
    over = normal_axes(x, axes)
    centred = x - reduce_mean(x, over)
    deviation = sqrt(reduce_mean(centred * centred, over))
    return centred / (deviation + 1e-9)

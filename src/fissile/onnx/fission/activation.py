"""Activation functions and the softmax family.

Erf-, tanh- and sigmoid-GELU are three functions; the subtraction of the maximum stays; up to
opset 12 a softmax runs over all axes from `axis` on.                           (design, section 4)
"""

from __future__ import annotations

import math

import numpy as np

from fissile.ir.graph import Value
from fissile.ir.prims import (
    abs_,
    argument,
    cast,
    clip,
    constant,
    equal,
    erf,
    exp,
    less,
    log,
    maximum,
    normal_axes,
    reduce_max,
    reduce_sum,
    reshape,
    sigmoid,
    softplus,
    tanh,
    where,
)
from fissile.onnx.rule import fission


def _zero(x: Value) -> Value:
    return constant(0, x.type.dtype)


@fission("Relu")
def relu(x):
    return maximum(x, _zero(x))


@fission("LeakyRelu")
def leaky_relu(x, *, alpha=0.01):
    if 0 < alpha <= 1:
        return maximum(x, x * alpha)
    return where(less(x, _zero(x)), x * alpha, x)


@fission("PRelu")
def prelu(x, slope):
    if slope.is_constant and slope.type.dtype.is_float and _within_unit(slope.array):
        return maximum(x, x * slope)
    return where(less(x, _zero(x)), x * slope, x)


def _within_unit(slope: np.ndarray) -> bool:
    return bool(np.all((slope > 0) & (slope <= 1)))


@fission("ThresholdedRelu")
def thresholded_relu(x, *, alpha=1.0):
    return where(less(constant(alpha, x.type.dtype), x), x, 0.0)


@fission("Elu")
def elu(x, *, alpha=1.0):
    return where(less(x, _zero(x)), _scaled(exp(x) - 1.0, alpha), x)


@fission("Selu")
def selu(x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return where(less(_zero(x), x), x * gamma, exp(x) * (alpha * gamma) - alpha * gamma)


@fission("Celu")
def celu(x, *, alpha=1.0):
    inner = x if alpha == 1 else x / alpha
    return where(less(x, _zero(x)), _scaled(exp(inner) - 1.0, alpha), x)


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1 else x * factor


@fission("Softsign")
def softsign(x):
    return x / (abs_(x) + 1.0)


@fission("Mish")
def mish(x):
    return x * tanh(softplus(x))


@fission("Swish")
def swish(x, *, alpha=1.0):
    return x * sigmoid(_scaled(x, alpha))


@fission("Gelu")
def gelu(x, *, approximate="none"):
    if approximate == "tanh":
        cubic = x * (x * x * 0.044715 + 1.0)
        return x * 0.5 * (tanh(cubic * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


@fission("HardSigmoid")
def hard_sigmoid(x, *, alpha=0.2, beta=0.5):
    return clip(x * alpha + beta, 0.0, 1.0)


@fission("HardSwish")
def hard_swish(x):
    return x * clip(x * (1 / 6) + 0.5, 0.0, 1.0)


@fission("Shrink")
def shrink(x, *, bias=0.0, lambd=0.5):
    dtype = x.type.dtype
    low = where(less(x, constant(-lambd, dtype)), x + bias, constant(0, dtype))
    return where(less(constant(lambd, dtype), x), x - bias, low)


@fission("Softmax", since=13)
def softmax(x, *, axis=-1):
    return _softmax(x, normal_axes(x, axis))


@fission("Softmax")
def softmax_flattened(x, *, axis=1):
    return _softmax(x, _from(x, axis))


@fission("LogSoftmax", since=13)
def log_softmax(x, *, axis=-1):
    return _log_softmax(x, normal_axes(x, axis))


@fission("LogSoftmax")
def log_softmax_flattened(x, *, axis=1):
    return _log_softmax(x, _from(x, axis))


@fission("Hardmax", since=13)
def hardmax(x, *, axis=-1):
    return _hardmax(x, normal_axes(x, axis)[0])


@fission("Hardmax")
def hardmax_flattened(x, *, axis=1):
    axis = _split_at(x, axis)
    flat = reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return reshape(_hardmax(flat, 1), x.shape)


def _split_at(x: Value, axis: int) -> int:
    return axis + x.rank if axis < 0 else axis


def _from(x: Value, axis: int) -> tuple[int, ...]:
    return tuple(range(_split_at(x, axis), x.rank))


def _softmax(x: Value, axes: tuple[int, ...]) -> Value:
    if not x.type.numel:
        return x
    e = exp(x - reduce_max(x, axes))
    return e / reduce_sum(e, axes)


def _log_softmax(x: Value, axes: tuple[int, ...]) -> Value:
    if not x.type.numel:
        return x
    centred = x - reduce_max(x, axes)
    return centred - log(reduce_sum(exp(centred), axes))


def _hardmax(x: Value, axis: int) -> Value:
    column = np.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.rank)])
    hit = equal(argument("argmax", x, axis), constant(column.astype(np.int64)))
    return cast(hit, x.type.dtype)

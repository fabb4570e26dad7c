"""Arithmetic, comparison and logic: one primitive each, or nearly."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Operand, Value
from fissile.ir.prims import (
    cast,
    clip,
    constant,
    elementwise,
    equal,
    is_inf,
    is_nan,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    pow_,
    reshape,
    slice_,
    where,
)
from fissile.ir.types import BY_ONNX, DType
from fissile.onnx.rule import Known, fission

_UNARY = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round",
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log", "Tanh": "tanh",
    "Erf": "erf", "Sigmoid": "sigmoid", "Softplus": "softplus", "Not": "not",
    "BitwiseNot": "bit_not", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Asin": "asin", "Acos": "acos", "Atan": "atan",
    "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
    "BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor", "Equal": "equal",
    "Less": "less", "LessOrEqual": "less_equal",
}  # fmt: skip


def _unary(primitive: Callable[..., Value]) -> Callable[..., Value]:
    return lambda x: primitive(x)


def _binary(primitive: Callable[..., Value]) -> Callable[..., Value]:
    return lambda a, b: primitive(a, b)


for _op, _name in _UNARY.items():
    fission(_op)(_unary(elementwise(_name)))
for _op, _name in _BINARY.items():
    fission(_op)(_binary(elementwise(_name)))


@fission("Greater")
def greater(a, b):
    return less(b, a)


@fission("GreaterOrEqual")
def greater_or_equal(a, b):
    return less_equal(b, a)


@fission("IsNaN")
def isnan(x):
    return is_nan(x)


@fission("IsInf")
def isinf(x, *, detect_negative=1, detect_positive=1):
    if detect_negative and detect_positive:
        return is_inf(x)
    if not detect_negative and not detect_positive:
        return logical_and(is_inf(x), constant(False))
    zero = constant(0.0, x.type.dtype)
    return logical_and(is_inf(x), less(zero, x) if detect_positive else less(x, zero))


@fission("Mod")
def mod(a, b, *, fmod=0):
    return elementwise("fmod" if fmod else "mod")(a, b)


@fission("BitShift")
def bit_shift(a, b, *, direction):
    return elementwise("shift_left" if direction == "LEFT" else "shift_right")(a, b)


@fission("Pow")
def power(x, y):
    exponent = y.array.ravel()[0] if y.is_constant and y.type.numel == 1 else None
    if exponent is not None and y.rank <= x.rank and exponent in (1, 2, 3):
        # small whole powers are products: exact for 2, one rounding more for 3, as runtimes do
        return reduce(Value.__mul__, [x] * int(exponent))
    if x.type.dtype.is_float or not y.type.dtype.is_float:
        return pow_(x, cast(y, x.type.dtype))
    return cast(pow_(cast(x, y.type.dtype), y), x.type.dtype)


@fission("Sum")
def total(*xs: Value) -> Value:
    return reduce(Value.__add__, xs)


@fission("Mean")
def mean(*xs: Value) -> Value:
    count = len(xs)
    return total(*xs) / count if count > 1 else total(*xs)


@fission("Max")
def largest(*xs: Value) -> Value:
    return reduce(maximum, xs)


@fission("Min")
def smallest(*xs: Value) -> Value:
    return reduce(minimum, xs)


@fission("Where")
def select(condition, x, y):
    return where(condition, x, y)


@fission("Clip")
def clamp(x, min: Operand | None = None, max: Operand | None = None):
    # ONNX: where min exceeds max, everything becomes max; so does min(max(x, lo), hi)
    if min is None:
        return x if max is None else minimum(x, max)
    return maximum(x, min) if max is None else clip(x, min, max)


@fission("Cast")
def cast_to(x, *, to, saturate=1, round_mode="up"):
    return converted(x, BY_ONNX[to], bool(saturate))


@fission("CastLike")
def cast_like(x, target, *, saturate=1, round_mode="up"):
    return converted(x, target.type.dtype, bool(saturate))


_LARGEST = {"f8e4m3fn": 448.0, "f8e4m3fnuz": 240.0, "f8e5m2": 57344.0, "f8e5m2fnuz": 57344.0}


def converted(x: Value, to: DType, saturate: bool = True) -> Value:
    """A cast; to 8-bit floats it saturates, infinities included, where asked."""
    if to.name == "f8e8m0" and x.type.dtype != to:
        raise ModelError("rounding to powers of two (float8e8m0) is not supported")
    top = _LARGEST.get(to.name)
    if top is not None and saturate and x.type.dtype.name not in _LARGEST:
        x = clip(x, -top, top)
    return cast(x, to)


@fission("BitCast")
def bit_cast(x, *, to):
    if x.is_constant:
        return constant(x.array.reshape(-1).view(BY_ONNX[to].numpy).reshape(x.shape))
    raise ModelError("it reinterprets bits of what is not known at compile time; not supported yet")


@fission("OneHot")
def one_hot(indices, depth: Known, values, *, axis=-1):
    """values holds [off, on]; indices out of [-depth, depth) give off everywhere."""
    count = int(depth.ravel()[0])
    rank = indices.rank + 1
    axis = axis % rank
    column = np.arange(count).reshape([count if a == axis else 1 for a in range(rank)])
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    where_to = reshape(indices, shape)
    zero = constant(0, indices.type.dtype)
    where_to = where(less(where_to, zero), where_to + constant(count, indices.type.dtype), where_to)
    hit = equal(where_to, constant(column, indices.type.dtype))
    off, on = (reshape(slice_(values, (i,), (1,)), ()) for i in (0, 1))
    return where(hit, on, off)

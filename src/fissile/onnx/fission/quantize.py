"""Quantised operators, spelt out in integers and floats.

Rounding is half to even, results saturate, zero points and scales are per tensor, per axis or per
block; products of integers accumulate in 32 bits.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import cast, clip, constant, conv, gather, normal_axes, reshape, round_
from fissile.ir.types import BY_ONNX, F32, I32, U8, DType
from fissile.onnx.fission.convolution import spatial, spatial_pads
from fissile.onnx.fission.elementwise import converted
from fissile.onnx.fission.layout import padded
from fissile.onnx.fission.linear import matmul
from fissile.onnx.rule import fission


def _spread(v: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point, ready to broadcast with x."""
    if v.type.numel == 1:
        return reshape(v, ())
    (axis,) = normal_axes(x, axis)
    if v.rank == x.rank:
        if not block:
            raise ModelError("scales per block need a block_size")
        return gather(v, constant(np.arange(x.shape[axis]) // block), axis)
    if v.shape != (x.shape[axis],):
        raise ModelError(f"{v.type} is no scale or zero point along axis {axis}")
    return reshape(v, [s if a == axis else 1 for a, s in enumerate(x.shape)])


def _is_zero(v: Value) -> bool:
    return v.is_constant and not v.array.astype(np.float64).any()


@fission("DequantizeLinear")
def dequantize(x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0):
    factor = _spread(scale, x, axis, block_size)
    dtype = scale.type.dtype
    if zero is None or _is_zero(zero):
        whole = cast(x, F32)
    elif x.type.dtype.is_integer:
        whole = cast(cast(x, I32) - cast(_spread(zero, x, axis, block_size), I32), F32)
    else:
        whole = cast(x, F32) - cast(_spread(zero, x, axis, block_size), F32)
    return cast(whole * cast(factor, F32), BY_ONNX[output_dtype] if output_dtype else dtype)


@fission("QuantizeLinear")
def quantize(x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0, precision=0, saturate=1):
    target = zero.type.dtype if zero is not None else BY_ONNX[output_dtype] if output_dtype else U8
    y = cast(x, F32) / cast(_spread(scale, x, axis, block_size), F32)
    if not target.is_integer:
        return converted(y, target, bool(saturate))
    if zero is not None:
        zero = None if _is_zero(zero) else _spread(zero, x, axis, block_size)
    return _saturated(round_(y), zero, target)


def _saturated(whole: Value, zero: Value | None, target: DType) -> Value:
    """An integer-valued float plus a zero point, in a narrow integer type."""
    if zero is not None:
        whole = whole + cast(zero, whole.type.dtype)
    info = ml_dtypes.iinfo(target.numpy)
    return cast(clip(whole, float(info.min), float(info.max)), target)


def _centred(x: Value, zero: Value | None) -> Value:
    wide = cast(x, I32)
    return wide if zero is None or _is_zero(zero) else wide - cast(zero, I32)


def _rows(zero: Value | None) -> Value | None:
    """A vector of zero points belongs to the rows of a left operand."""
    return reshape(zero, (zero.type.numel, 1)) if zero is not None and zero.rank == 1 else zero


@fission("MatMulInteger")
def matmul_integer(a, b, a_zero=None, b_zero=None):
    return matmul(_centred(a, _rows(a_zero)), _centred(b, b_zero))


@fission("QLinearMatMul")
def matmul_quantized(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    total = matmul(_centred(a, _rows(a_zero)), _centred(b, b_zero))
    scale = _rows(a_scale) * b_scale / y_scale
    return _saturated(round_(cast(total, F32) * cast(scale, F32)), y_zero, y_zero.type.dtype)


def _integer_conv(x, w, x_zero, w_zero, auto_pad, dilations, group, pads, strides) -> Value:
    strides, dilations = spatial(x, strides, dilations)
    lo, hi = spatial_pads(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    if w_zero is not None and w_zero.type.numel > 1:
        w_zero = reshape(w_zero, (w_zero.type.numel, *[1] * (w.rank - 1)))
    # padding stands for the value 0, which is the zero point
    wide = padded(_centred(x, x_zero), (0, 0, *lo), (0, 0, *hi))
    return conv(wide, _centred(w, w_zero), strides, dilations, group)


@fission("ConvInteger")
def conv_integer(
    x, w, x_zero=None, w_zero=None, *, auto_pad="NOTSET", dilations=None, group=1,
    kernel_shape=None, pads=None, strides=None,
):  # fmt: skip
    return _integer_conv(x, w, x_zero, w_zero, auto_pad, dilations, group, pads, strides)


@fission("QLinearConv")
def conv_quantized(
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b=None, *, auto_pad="NOTSET",
    dilations=None, group=1, kernel_shape=None, pads=None, strides=None,
):  # fmt: skip
    total = _integer_conv(x, w, x_zero, w_zero, auto_pad, dilations, group, pads, strides)
    column = (math.prod(w_scale.shape), *[1] * (x.rank - 2))
    if b is not None:
        total = total + reshape(b, (b.type.numel, *column[1:]))
    scale = reshape(x_scale, ()) * reshape(w_scale, column if w_scale.type.numel > 1 else ())
    whole = round_(cast(total, F32) * (scale / reshape(y_scale, ())))
    return _saturated(whole, y_zero, y_zero.type.dtype)

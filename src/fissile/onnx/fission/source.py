"""Constants and what depends on shapes alone."""

from __future__ import annotations

import math

import numpy as np

from fissile.errors import ModelError
from fissile.ir.prims import broadcast, constant, where
from fissile.ir.types import BY_ONNX
from fissile.onnx.rule import Int, Ints, Known, fission


@fission("Constant")
def given(*, value=None, value_float=None, value_floats=None, value_int=None, value_ints=None):
    if value is not None:
        return constant(value)
    if value_float is not None or value_floats is not None:
        return constant(
            np.asarray(value_floats if value_float is None else value_float, np.float32)
        )
    if value_int is not None or value_ints is not None:
        return constant(np.asarray(value_ints if value_int is None else value_int, np.int64))
    raise ModelError("it holds no dense tensor of numbers")


@fission("ConstantOfShape")
def filled(shape: Ints, *, value=None):
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    return broadcast(constant(fill), shape)


@fission("Shape")
def shape_of(x, *, start=0, end=None):
    return constant(np.asarray(x.shape[start:end], np.int64))


@fission("OptionalHasElement")
def is_given(x=None):
    return constant(x is not None)


@fission("OptionalGetElement")
def element(x):
    return x


@fission("Size")
def size_of(x):
    return constant(np.asarray(x.type.numel, np.int64))


@fission("Range")
def progression(start: Known, limit: Known, delta: Known):
    first, last, step = (a.ravel()[0] for a in (start, limit, delta))
    if not step:
        raise ModelError("its delta is 0")
    count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    return constant((first + np.arange(count) * step).astype(start.dtype))


@fission("EyeLike")
def eye(x, *, dtype=None, k=0):
    numpy = BY_ONNX[dtype].numpy if dtype else x.type.dtype.numpy
    return constant(np.eye(*x.shape, k=k).astype(numpy))


@fission("Trilu")
def triangle(x, k: Int = 0, *, upper=1):
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    keep = columns - rows >= k if upper else columns - rows <= k
    return where(constant(keep), x, constant(0, x.type.dtype))


@fission("NonZero")
def nonzero(x: Known):
    return constant(np.array(np.nonzero(np.atleast_1d(x)), np.int64))


def _cosine_window(terms: tuple[float, ...]):
    def apply(size: Int, *, output_datatype=1, periodic=1):
        phase = 2 * np.pi * np.arange(size) / max(size if periodic else size - 1, 1)
        wave = sum(c * np.cos(i * phase) for i, c in enumerate(terms))
        return constant(np.asarray(wave).astype(BY_ONNX[output_datatype].numpy))

    return apply


fission("HannWindow")(_cosine_window((0.5, -0.5)))
fission("HammingWindow")(_cosine_window((25 / 46, -21 / 46)))
fission("BlackmanWindow")(_cosine_window((0.42, -0.5, 0.08)))

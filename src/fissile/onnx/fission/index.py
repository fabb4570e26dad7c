"""Operators that pick or place elements by index.

Gathers by constant evenly spaced indices are slices. The others reduce to one primitive: elements
are addressed by their position in a flattened map, computed with ordinary arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.opaque import scatter, topk
from fissile.ir.prims import (
    broadcast,
    cast,
    concat,
    constant,
    gather,
    less,
    normal_axes,
    reduce_sum,
    reshape,
    where,
)
from fissile.ir.types import I64
from fissile.onnx.fission.layout import along
from fissile.onnx.rule import Int, Ints, Known, fission


@fission("Gather")
def take(x, indices, *, axis=0):
    (axis,) = normal_axes(x, axis)
    if indices.is_constant:
        index = indices.array.astype(np.int64)
        n = x.shape[axis]
        if index.size and not (-n <= index.min() and index.max() < n):
            raise ModelError(f"its indices leave [-{n}, {n})")
        index = np.where(index < 0, index + n, index)
        if index.ndim == 0:
            picked = along(x, axis, int(index), 1)
            return reshape(picked, x.shape[:axis] + x.shape[axis + 1 :])
        if (step := _even(index)) is not None:
            return along(x, axis, int(index[0]), index.size, step)
        indices = constant(index)
    return gather(x, indices, axis)


def _even(index: np.ndarray) -> int | None:
    """The distance of a vector of evenly spaced different positions."""
    if index.ndim != 1 or not index.size:
        return None
    steps = np.unique(np.diff(index)).tolist() or [1]
    return steps[0] if len(steps) == 1 and steps[0] else None


def _wrapped(index: Value, extents: Value | int) -> Value:
    """Negative indices count from the end."""
    index = cast(index, I64)
    return where(less(index, constant(0)), index + extents, index)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


def _positions(shape: Sequence[int], strides: Sequence[int], skip: int) -> Value:
    """For every element of `shape` its offset by the given strides, the axis `skip` left out."""
    total = np.zeros((1,) * len(shape), np.int64)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if axis != skip:
            ramp = np.arange(extent) * stride
            total = total + ramp.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return constant(total)


def _element_index(x: Value, indices: Value, axis: int) -> Value:
    """Flat positions in x of the elements that GatherElements and ScatterElements address."""
    strides = _strides(x.shape)
    along_axis = _wrapped(indices, x.shape[axis]) * strides[axis]
    return along_axis + _positions(indices.shape, strides, axis)


def _flat(x: Value) -> Value:
    return reshape(x, (x.type.numel,))


@fission("GatherElements")
def take_elements(x, indices, *, axis=0):
    (axis,) = normal_axes(x, axis)
    return gather(_flat(x), _element_index(x, indices, axis))


@fission("ScatterElements", "Scatter")
def put_elements(x, indices, updates, *, axis=0, reduction="none"):
    (axis,) = normal_axes(x, axis)
    index = _flat(_element_index(x, indices, axis))
    return reshape(scatter(_flat(x), index, _flat(updates), reduction), x.shape)


def _tuple_index(shape: Sequence[int], indices: Value) -> Value:
    """Flat positions over the leading axes that the last axis of `indices` addresses."""
    depth = indices.shape[-1]
    extents = constant(np.asarray(shape[:depth], np.int64))
    strides = constant(np.asarray(_strides(shape[:depth]), np.int64))
    index = reduce_sum(_wrapped(indices, extents) * strides, indices.rank - 1)
    return reshape(index, indices.shape[:-1])


@fission("GatherND")
def take_nd(x, indices, *, batch_dims=0):
    depth = indices.shape[-1]
    batch, rest = x.shape[:batch_dims], x.shape[batch_dims:]
    if depth > len(rest) or indices.shape[:batch_dims] != batch:
        raise ModelError("the indices do not fit the data")
    index = _tuple_index(rest, indices)
    if batch_dims:
        step = math.prod(rest[:depth])
        first = np.arange(math.prod(batch)) * step
        index = index + constant(first.reshape(*batch, *[1] * (index.rank - batch_dims)))
    rows = reshape(x, (math.prod(batch) * math.prod(rest[:depth]), *rest[depth:]))
    return gather(rows, index)


@fission("ScatterND")
def put_nd(x, indices, updates, *, reduction="none"):
    depth = indices.shape[-1]
    inner = math.prod(x.shape[depth:])
    rows = reshape(x, (math.prod(x.shape[:depth]), inner))
    index = _flat(_tuple_index(x.shape, indices))
    changed = scatter(rows, index, reshape(updates, (index.shape[0], inner)), reduction)
    return reshape(changed, x.shape)


@fission("TopK")
def best(x, k: Int, *, axis=-1, largest=1, sorted=1):
    (axis,) = normal_axes(x, axis)
    return topk(x, axis, k, bool(largest))


@fission("MaxUnpool")
def unpool(x, indices, output_shape: Ints | None = None, *, kernel_shape, pads=None, strides=None):
    """Zeros but where `indices`, positions in the flattened result, put the elements of x."""
    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * 2 * rank
    if output_shape is not None or any(pads):
        raise ModelError("pads and output_shape are not supported")
    space = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, kernel_shape, strict=True)]
    shape = (*x.shape[:2], *space)
    blank = broadcast(constant(0, x.type.dtype), (math.prod(shape),))
    return reshape(scatter(blank, _flat(indices), _flat(x)), shape)


@fission("Compress")
def compress(x, condition: Known, *, axis=None):
    if axis is None:
        x, axis = _flat(x), 0
    (axis,) = normal_axes(x, axis)
    return take(x, constant(np.flatnonzero(condition).astype(np.int64)), axis=axis)


@fission("TensorScatter")
def write_rows(past, update, write_indices: Known | None = None, *, axis=-2, mode="linear"):
    """Rows of a cache from a known position on."""
    (axis,) = normal_axes(past, axis)
    starts = [0] * past.shape[0] if write_indices is None else write_indices.ravel().tolist()
    rows = []
    for row, start in enumerate(starts):
        old, new = along(past, 0, row, 1), along(update, 0, row, 1)
        n, size = past.shape[axis], update.shape[axis]
        if mode == "linear" and start + size > n:
            raise ModelError("the update does not fit the cache")
        order = np.arange(n)
        order[(start + np.arange(size)) % n] = n + np.arange(size)
        rows.append(gather(concat([old, new], axis), constant(order), axis))
    return concat(rows, 0)

"""Opaque primitives: operations that no other primitive composes. Rows like those of `ir.prims`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fissile.ir.graph import Value
from fissile.ir.prims import Kind, Primitive, make, row
from fissile.ir.types import I64, TensorType

Attrs = dict[str, Any]
Array = np.ndarray

_COMBINE = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    x, index, updates = types
    if index.rank != 1 or not x.rank or updates.shape != (*index.shape, *x.shape[1:]):
        raise ValueError(f"cannot scatter {updates} into {x} at {index}")
    if x.dtype != updates.dtype or attrs["reduction"] not in _COMBINE:
        raise ValueError(f"cannot scatter {updates} into {x} by {attrs['reduction']!r}")
    return (x,)


def _scatter_rows(x: Array, index: Array, updates: Array, reduction: str) -> tuple[Array]:
    y, combine = x.copy(), _COMBINE[reduction]
    if combine is None:
        for i, update in zip(index.tolist(), updates, strict=True):
            y[i] = update
    else:
        combine.at(y, index, updates)
    return (y,)


def _topk(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axis, k = types, attrs["axis"], attrs["k"]
    if not 0 <= axis < x.rank or not 0 <= k <= x.shape[axis]:
        raise ValueError(f"{x} has no top {k} along axis {axis}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(shape, x.dtype), TensorType(shape, I64)


def _best(x: Array, axis: int, k: int, largest: bool) -> tuple[Array, Array]:
    """Sorted; of equals the lower index first."""
    if largest:  # a stable sort of the flipped axis, read backwards, keeps ties in order
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    order = np.take(order, np.arange(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


row(Primitive("scatter", Kind.OPAQUE, _scatter, _scatter_rows, None, "ScatterND"))
row(Primitive("topk", Kind.OPAQUE, _topk, _best, None, "TopK"))


def scatter(x: Value, index: Value, updates: Value, reduction: str = "none") -> Value:
    """Rows of x replaced by, or combined with, updates.

    x: [n, ...], index: i64[m], updates: [m, ...]. `reduction`: none, add, mul, max or min; with
    none the last of equal indices wins."""
    return make("scatter", [x, index, updates], reduction=reduction)[0]


def topk(x: Value, axis: int, k: int, largest: bool) -> tuple[Value, ...]:
    """(values, i64 indices) of the k largest or smallest along an axis, sorted; ties by index."""
    return make("topk", [x], axis=axis, k=k, largest=largest)

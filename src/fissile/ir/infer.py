"""The types that primitives give: pure functions of operand types and attributes.

Each raises ValueError with the reason where the operands do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fissile.ir import semantics as sem
from fissile.ir.types import BOOL, BY_NAME, I64, TensorType

Attrs = dict[str, Any]


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """numpy's rule. Raises ValueError naming the shapes."""
    try:
        return tuple(int(s) for s in np.broadcast_shapes(*shapes))
    except ValueError:
        named = " and ".join(str(list(s)) for s in shapes)
        raise ValueError(f"shapes {named} do not broadcast") from None


def same(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    if len({t.dtype for t in types}) > 1:
        raise ValueError(f"operands have different element types: {', '.join(map(repr, types))}")
    return (TensorType(broadcast_shapes([t.shape for t in types]), types[0].dtype),)


def compare(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(same(types, attrs)[0].shape, BOOL),)


def select(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    shape = broadcast_shapes([t.shape for t in types])
    return (TensorType(shape, same(types[1:], attrs)[0].dtype),)


def cast(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(types[0].shape, BY_NAME[attrs["to"]]),)


def reduce(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axes = types, attrs["axes"]
    if not all(0 <= a < x.rank for a in axes) or list(axes) != sorted(set(axes)):
        raise ValueError(f"axes {list(axes)} do not fit {x}")
    shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
    return (TensorType(shape, I64 if "last" in attrs else x.dtype),)


def broadcast(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    if broadcast_shapes([types[0].shape, attrs["shape"]]) != attrs["shape"]:
        raise ValueError(f"{types[0]} does not broadcast to {list(attrs['shape'])}")
    return (TensorType(attrs["shape"], types[0].dtype),)


def transpose(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    perm: tuple[int, ...] = attrs["perm"]
    if sorted(perm) != list(range(x.rank)):
        raise ValueError(f"{list(perm)} is no permutation of the axes of {x}")
    return (TensorType(tuple(x.shape[a] for a in perm), x.dtype),)


def reshape(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    y = TensorType(attrs["shape"], types[0].dtype)
    if y.numel != types[0].numel or any(s < 0 for s in y.shape):
        raise ValueError(f"{types[0]} cannot be reshaped to {list(y.shape)}")
    return (y,)


def slice(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    start, size, step = attrs["start"], attrs["size"], attrs["step"]
    for s, b, n, d in zip(x.shape, start, size, step, strict=True):
        if n < 0 or d == 0 or (n and not (0 <= b < s and 0 <= b + (n - 1) * d < s)):
            raise ValueError(f"slice {list(start)} size {list(size)} step {list(step)} leaves {x}")
    return (TensorType(size, x.dtype),)


def concat(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    axis: int = attrs["axis"]
    first = types[0]
    for t in types:
        if t.dtype != first.dtype or t.rank != first.rank or not 0 <= axis < t.rank:
            raise ValueError(f"cannot concat {', '.join(map(repr, types))} along axis {axis}")
        if t.shape[:axis] + t.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]:
            raise ValueError(f"cannot concat {', '.join(map(repr, types))} along axis {axis}")
    shape = list(first.shape)
    shape[axis] = sum(t.shape[axis] for t in types)
    return (TensorType(tuple(shape), first.dtype),)


def pad(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), lo, hi, mode = types, attrs["lo"], attrs["hi"], attrs["mode"]
    for s, a, b in zip(x.shape, lo, hi, strict=True):
        if a < 0 or b < 0 or (mode == "reflect" and max(a, b) >= max(s, 1)):
            raise ValueError(f"cannot pad {x} by {list(lo)}, {list(hi)} in mode {mode}")
        if mode in ("edge", "wrap") and s == 0 and a + b:
            raise ValueError(f"cannot pad the empty axis of {x} in mode {mode}")
    shape = tuple(s + a + b for s, a, b in zip(x.shape, lo, hi, strict=True))
    return (TensorType(shape, x.dtype),)


def gather(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x, i), axis = types, attrs["axis"]
    if not 0 <= axis < x.rank or not i.dtype.is_integer:
        raise ValueError(f"cannot gather from {x} along axis {axis} with indices {i}")
    return (TensorType(x.shape[:axis] + i.shape + x.shape[axis + 1 :], x.dtype),)


def contract(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    left, right, out = sem.split_spec(attrs["spec"])
    extents: dict[str, int] = {}
    for labels, t in zip((left, right), types, strict=True):
        if len(labels) != t.rank or len(set(labels)) != len(labels):
            raise ValueError(f"{attrs['spec']!r} does not fit {t}")
        for label, extent in zip(labels, t.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise ValueError(f"{attrs['spec']!r}: {label} is {extents[label]} and {extent}")
    if len(set(out)) != len(out) or not set(out) <= set(extents):
        raise ValueError(f"{attrs['spec']!r} is not a contraction")
    if types[0].dtype != types[1].dtype:
        raise ValueError(f"operands have different element types: {', '.join(map(repr, types))}")
    return (TensorType(tuple(extents[c] for c in out), types[0].dtype),)


def conv(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    x, w = types
    strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
    if (
        x.dtype != w.dtype
        or x.rank != w.rank
        or x.rank != len(strides) + 2
        or len(dilations) != len(strides)
    ):
        raise ValueError(f"convolution of {x} with {w}, strides {list(strides)}")
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError(f"convolution of {x} with {w} in {groups} groups")
    spatial = sem.window_extents(x.shape[2:], w.shape[2:], strides, dilations)
    return (TensorType((x.shape[0], w.shape[0], *spatial), x.dtype),)


def window(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    if x.rank != len(attrs["kernel"]) + 2:
        raise ValueError(f"window {list(attrs['kernel'])} over {x}")
    spatial = sem.window_extents(x.shape[2:], attrs["kernel"], attrs["strides"], attrs["dilations"])
    return (TensorType((*x.shape[:2], *spatial), x.dtype),)

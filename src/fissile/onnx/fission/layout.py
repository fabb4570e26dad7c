"""Operators that move data: reshapes, transposes, slices, pads, tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.infer import broadcast_shapes
from fissile.ir.prims import (
    broadcast,
    concat,
    constant,
    normal_axes,
    pad,
    reshape,
    slice_,
    transpose,
)
from fissile.onnx.rule import Ints, Known, fission, known


@fission("Identity")
def identity(x):
    return x


@fission("Dropout")
def dropout(x, ratio=None, training_mode: Known | None = None, *, seed=0, outputs=1):
    if training_mode is not None and training_mode.any():
        raise ModelError("training mode is not supported")
    return (x, broadcast(constant(True), x.shape)) if outputs > 1 else x


@fission("Reshape")
def reshape_to(x, shape: Ints, *, allowzero=0):
    if not allowzero:
        if any(s == 0 for s in shape[x.rank :]):
            raise ModelError(f"the shape {list(shape)} copies a dimension that its input lacks")
        shape = tuple(x.shape[a] if s == 0 else s for a, s in enumerate(shape))
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise ModelError(f"{list(shape)} is no shape")
    if -1 in shape:
        rest = math.prod(s for s in shape if s != -1)
        if not rest or x.type.numel % rest:
            raise ModelError(f"{x.type} cannot be reshaped to {list(shape)}")
        shape = tuple(x.type.numel // rest if s == -1 else s for s in shape)
    return reshape(x, shape)


@fission("Flatten")
def flatten(x, *, axis=1):
    if not -x.rank <= axis <= x.rank:
        raise ModelError(f"axis {axis} does not fit")
    axis = axis + x.rank if axis < 0 else axis
    return reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@fission("Squeeze")
def squeeze(x, axes: Ints | None = None):
    dropped = (
        normal_axes(x, axes) if axes is not None else [a for a, s in enumerate(x.shape) if s == 1]
    )
    if any(x.shape[a] != 1 for a in dropped):
        raise ModelError(f"axes {list(dropped)} do not all have extent 1")
    return reshape(x, [s for a, s in enumerate(x.shape) if a not in dropped])


@fission("Unsqueeze")
def unsqueeze(x, axes: Ints):
    rank = x.rank + len(axes)
    if len({a % rank for a in axes}) < len(axes) or not all(-rank <= a < rank for a in axes):
        raise ModelError(f"axes {list(axes)} do not fit")
    added, extents = {a % rank for a in axes}, iter(x.shape)
    return reshape(x, [1 if a in added else next(extents) for a in range(rank)])


@fission("Transpose")
def permute(x, *, perm=None):
    return transpose(x, perm if perm is not None else range(x.rank)[::-1])


@fission("Concat")
def join(*xs, axis=1):
    rank = xs[0].rank
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} does not fit")
    return concat(xs, axis % rank)


@fission("Split")
def split(x, split: Ints | None = None, *, axis=0, num_outputs=None, outputs):
    (axis,) = normal_axes(x, axis)
    if split is None:
        count = num_outputs or outputs
        each = -(-x.shape[axis] // count)
        split = (*[each] * (count - 1), x.shape[axis] - each * (count - 1))
    if sum(split) != x.shape[axis] or min(split, default=0) < 0:
        raise ModelError(f"extents {list(split)} do not make up axis {axis}")
    starts = np.cumsum((0, *split[:-1])).tolist()
    return [along(x, axis, b, n) for b, n in zip(starts, split, strict=True)]


def along(x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
    """A slice of one axis, whole on the others."""
    starts, sizes, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return slice_(x, starts, sizes, steps)


@fission("Slice")
def cut(x, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None):
    axes = axes if axes is not None else tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    if len({len(starts), len(ends), len(axes), len(steps)}) > 1:
        raise ModelError("starts, ends, axes and steps differ in length")
    start, size, step = [0] * x.rank, list(x.shape), [1] * x.rank
    if len(normal_axes(x, axes)) < len(axes) or 0 in steps:
        raise ModelError(f"axes {list(axes)} repeat or a step is 0")
    for axis, b, e, d in zip(axes, starts, ends, steps, strict=True):
        picked = _picked(x.shape[axis], b, e, d)
        start[axis], size[axis], step[axis] = picked.start if picked else 0, len(picked), d
    return slice_(x, start, size, step)


def _picked(extent: int, start: int, end: int, step: int) -> range:
    """ONNX moves a start before the first element to it, backwards too; Python takes none."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    start, end = (p + extent if p < 0 else p for p in (start, end))
    first = min(max(start, 0), high)
    return range(first, min(max(end, low), high), step)


@fission("Pad")
def pad_by(x, pads: Ints, value=None, axes: Ints | None = None, *, mode="constant"):
    axes = tuple(range(x.rank)) if axes is None else tuple(a % x.rank for a in axes)
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{len(pads)} pads do not fit {len(axes)} axes")
    lo, hi = [0] * x.rank, [0] * x.rank
    for k, axis in enumerate(axes):
        lo[axis], hi[axis] = pads[k], pads[k + len(axes)]
    fill = 0 if value is None else known(value, "constant_value").ravel()[0]
    return padded(x, lo, hi, mode, fill)


def padded(
    x: Value, lo: Sequence[int], hi: Sequence[int], mode: str = "constant", fill: Any = 0
) -> Value:
    """pad, where negative amounts cut off."""
    start = [max(-a, 0) for a in lo]
    size = [s - a - max(-b, 0) for s, a, b in zip(x.shape, start, hi, strict=True)]
    if min(size, default=0) < 0:
        raise ModelError(f"pads {list(lo)}, {list(hi)} cut off more than there is")
    x = slice_(x, start, size)
    return pad(x, [max(a, 0) for a in lo], [max(b, 0) for b in hi], mode, fill)


@fission("Expand")
def expand(x, shape: Ints):
    return broadcast(x, broadcast_shapes([x.shape, shape]))


@fission("Tile")
def tile(x, repeats: Ints):
    if len(repeats) != x.rank or min(repeats, default=0) < 0:
        raise ModelError(f"repeats {list(repeats)} do not fit")
    inner = [e for r, s in zip(repeats, x.shape, strict=True) for e in ((1, s) if r != 1 else (s,))]
    outer = [e for r, s in zip(repeats, x.shape, strict=True) for e in ((r, s) if r != 1 else (s,))]
    shape = [r * s for r, s in zip(repeats, x.shape, strict=True)]
    return reshape(broadcast(reshape(x, inner), outer), shape)


@fission("DepthToSpace")
def depth_to_space(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    if c % (b * b):
        raise ModelError(f"{c} channels do not divide into blocks of {b}")
    if mode == "DCR":
        y = transpose(reshape(x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = transpose(reshape(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(y, (n, c // b**2, h * b, w * b))


@fission("SpaceToDepth")
def space_to_depth(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    if h % b or w % b:
        raise ModelError(f"the map does not divide into blocks of {b}")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    y = transpose(reshape(x, (n, c, h // b, b, w // b, b)), order)
    return reshape(y, (n, c * b * b, h // b, w // b))


@fission("ReverseSequence")
def reverse_sequence(x, sequence_lens: Ints, *, batch_axis=1, time_axis=0):
    rows = []
    for row, length in enumerate(sequence_lens):
        whole = along(x, batch_axis, row, 1)
        if length > 1:
            head = along(whole, time_axis, length - 1, length, -1)
            rest = along(whole, time_axis, length, x.shape[time_axis] - length)
            whole = concat([head, rest] if rest.shape[time_axis] else [head], time_axis)
        rows.append(whole)
    return concat(rows, batch_axis)

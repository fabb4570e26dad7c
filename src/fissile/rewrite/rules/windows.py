"""Windows: pools compose, and convolutions of large or repeated windows split.

Notation: up(x, s) repeats every element of the map s times along an axis (nearest Resize).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.prims import (
    clip,
    concat,
    constant,
    contract,
    conv,
    gather,
    make,
    maximum,
    mul,
    pad,
    reshape,
    sigmoid,
    slice_,
    tanh,
    transpose,
    window,
)
from fissile.rewrite.classes import Classes
from fissile.rewrite.labels import Named, both_ways, multiply
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.rules.elementary import number

LARGE = 5  # taps along an axis from which on a window is worth splitting
THREE = 3  # what the fast kernels of every library and of Winograd's take


# ---------------------------------------------------------------- pools


def _pool_twice(d: Draw) -> Value:
    x = d.value(1, d.extent(), 9, 8)
    return window("window_max", window("window_max", x, (2, 3), (1, 2)), (2, 1), (2, 1))


@rule(
    "max pool of max pool = max pool",
    "window_max",
    example=_pool_twice,
    source="SPP",
    exact=True,
    integers=True,
)
def pool_twice(c: Classes, node: Node) -> Found:
    a = node.attrs
    for inner in c.members(node.inputs[0], "window_max"):
        b = inner.attrs
        if {*a["dilations"], *b["dilations"]} != {1}:
            continue
        sizes = [
            (k - 1) * s + j for k, s, j in zip(a["kernel"], b["strides"], b["kernel"], strict=True)
        ]
        if any(s > j for s, j in zip(b["strides"], b["kernel"], strict=True)):
            yield No("the first pool leaves elements out")
            continue
        steps = [s * t for s, t in zip(a["strides"], b["strides"], strict=True)]
        yield window("window_max", inner.inputs[0], sizes, steps)


@dataclass(frozen=True)
class _Same:
    """A pool of stride 1 whose padding is that of a max pool: of x, by lo and hi, over kernel."""

    x: Value
    kernel: tuple[int, ...]
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    value: Value


def _same_pools(c: Classes, node: Node) -> Iterator[_Same]:
    a = node.attrs
    if {*a["strides"], *a["dilations"]} != {1}:
        return
    for border in c.members(node.inputs[0], "pad"):
        b = border.attrs
        if b["mode"] == "constant" and b["value"] == -math.inf:
            lo, hi = b["lo"][2:], b["hi"][2:]
            if not any((*b["lo"][:2], *b["hi"][:2])):
                yield _Same(border.inputs[0], a["kernel"], lo, hi, node.value)


def _pyramid(d: Draw) -> Value:
    x = d.value(1, 2, 7, 6)
    wide = (pad(x, (0, 0, p, p), (0, 0, p, p), value=-math.inf) for p in (1, 2))
    pools = [window("window_max", y, (k, k), (1, 1)) for y, k in zip(wide, (3, 5), strict=True)]
    return concat(pools, 1)


@rule(
    "a larger max pool of x is one of a smaller max pool of x",
    "window_max",
    example=_pyramid,
    source="SPP",
    exact=True,
)
def pyramid(c: Classes, node: Node) -> Found:
    """Both of stride 1 and padded: windows of windows reach as far, and borders add nothing."""
    for large in _same_pools(c, node):
        for border in c.users(large.x, "pad"):
            for user in c.users(border.value, "window_max"):
                for small in _same_pools(c, user):
                    if c.same(small.x, large.x) and small.value.shape == large.x.shape:
                        yield from _of_smaller(large, small)


def _of_smaller(large: _Same, small: _Same) -> Iterator[Value]:
    lo = [m - n for m, n in zip(large.lo, small.lo, strict=True)]
    hi = [m - n for m, n in zip(large.hi, small.hi, strict=True)]
    kernel = [m - n + 1 for m, n in zip(large.kernel, small.kernel, strict=True)]
    if min(*lo, *hi) < 0 or min(kernel) < 1 or max(kernel) == 1:
        return
    if large.value.shape == large.x.shape:
        y = pad(small.value, (0, 0, *lo), (0, 0, *hi), value=-math.inf)
        yield window("window_max", y, kernel, (1,) * len(kernel))


def _square(d: Draw) -> Value:
    prim = d.any(("window_max", "window_sum"))
    return window(prim, d.value(1, 2, 7, 8), (3, 4), (d.extent(1, 2), 1), (d.extent(1, 2), 1))


@rule(
    "a pool is one along each axis, one after another",
    "window_max",
    "window_sum",
    example=_square,
    source="separability",
)
def square(c: Classes, node: Node) -> Found:
    a = node.attrs
    if sum(k > 2 for k in a["kernel"]) < 2:
        return
    x = node.inputs[0]
    for axis in range(len(a["kernel"])):
        kernel, strides, dilations = (
            [s if i == axis else 1 for i, s in enumerate(a[key])]
            for key in ("kernel", "strides", "dilations")
        )
        x = window(node.prim, x, kernel, strides, dilations)
    yield x


def _monotone(d: Draw) -> Value:
    x = d.value(1, 2, 6, 5)
    y = d.any((maximum(x, 0.0), clip(x, -0.5, 0.5), sigmoid(x), tanh(x), x + d.weights(2, 1, 1),
               mul(x, 0.5)))  # fmt: skip
    y = pad(y, (0, 0, 1, 1), (0, 0, 1, 1), value=-math.inf) if d.any((True, False)) else y
    return window("window_max", y, (3, 3), (2, 2))


@rule(
    "max pool(f(x)) = f(max pool(x)), f monotone",
    "window_max",
    example=_monotone,
    source="monotony",
    exact=True,
)
def monotone(c: Classes, node: Node) -> Found:
    """So f is computed for fewer elements. A padding with minus infinity is never the largest."""
    x = node.inputs[0]
    if node.value.type.numel >= x.type.numel:
        return
    inside: list[tuple[Value, Node | None]] = [(x, None)]
    inside += [(b.inputs[0], b) for b in c.members(x, "pad") if _is_neutral(b, node)]
    for y, border in inside:
        for f in c.members(y, "max", "min", "clip", "sigmoid", "tanh", "exp", "add", "mul"):
            if not _rises(c, f) or f.inputs[0].shape != y.shape:
                continue
            z = f.inputs[0] if border is None else make("pad", [f.inputs[0]], **border.attrs)[0]
            pooled = make("window_max", [z], **node.attrs)[0]
            yield make(f.prim, [pooled, *f.inputs[1:]], **f.attrs)[0]


def _is_neutral(border: Node, pool: Node) -> bool:
    """Every window holds an element that is no padding."""
    a = border.attrs
    ends = zip(a["lo"][2:], a["hi"][2:], pool.attrs["kernel"], strict=True)
    plain = a["mode"] == "constant" and a["value"] == -math.inf
    dense = set(pool.attrs["dilations"]) == {1}
    return plain and dense and all(m < k and n < k for m, n, k in ends)


def _rises(c: Classes, f: Node) -> bool:
    """Does it keep the order of its first operand, within a channel?"""
    if f.prim in ("sigmoid", "tanh", "exp"):
        return True
    if f.prim in ("add", "mul") and not f.value.type.dtype.is_float:
        return False  # it wraps around
    if not all(c.is_fixed(v) for v in f.inputs[1:]) or c.is_fixed(f.inputs[0]):
        return False
    if f.prim == "add":
        k = f.inputs[1]
        return k.type.numel == 1 or (k.rank >= 3 and k.type.numel == k.shape[-3])
    if any(v.type.numel != 1 for v in f.inputs[1:]):
        return False
    return f.prim != "mul" or (number(c, f.inputs[1]) or -1.0) > 0


# ---------------------------------------------------------------- repeated elements


def repeats(c: Classes, node: Node) -> int:
    """How often a gather repeats every element of its axis in a row; 0 where it does not."""
    x, indices = node.inputs
    if indices.rank != 1 or not c.is_fixed(indices) or not x.shape[node.attrs["axis"]]:
        return 0
    n = x.shape[node.attrs["axis"]]
    found = c.data(indices)
    s, rest = divmod(len(found), n)
    return s if not rest and s > 1 and np.array_equal(found, np.repeat(np.arange(n), s)) else 0


@dataclass(frozen=True)
class _Up:
    """up(x) by `scale` along every spatial axis, behind a padding."""

    x: Value
    scale: tuple[int, ...]
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    mode: str


def _ups(c: Classes, v: Value) -> Iterator[_Up]:
    """What a map of repeated elements, padded or not, is made of."""
    rank = v.rank - 2
    for x, scale in _repeated(c, v, (1,) * rank):
        yield _Up(x, scale, (0,) * rank, (0,) * rank, "constant")
    for border in c.members(v, "pad"):
        a = border.attrs
        if any((*a["lo"][:2], *a["hi"][:2])) or (a["mode"] == "constant" and a["value"] != 0):
            continue
        for x, scale in _repeated(c, border.inputs[0], (1,) * rank):
            lo, hi = a["lo"][2:], a["hi"][2:]
            near = all(max(m, n) < s or not m + n for m, n, s in zip(lo, hi, scale, strict=True))
            if a["mode"] in ("constant", "edge") or (a["mode"] == "reflect" and near):
                mode = "constant" if a["mode"] == "constant" else "edge"
                yield _Up(x, scale, lo, hi, mode)


def _repeated(
    c: Classes, v: Value, scale: tuple[int, ...]
) -> Iterator[tuple[Value, tuple[int, ...]]]:
    for node in c.members(v, "gather"):
        axis, s = node.attrs["axis"], repeats(c, node)
        if s and axis >= 2 and scale[axis - 2] == 1:
            more = tuple(s if a == axis - 2 else t for a, t in enumerate(scale))
            deeper = list(_repeated(c, node.inputs[0], more))
            yield from deeper or [(node.inputs[0], more)]


def _upsampled(d: Draw) -> Value:
    x = d.value(1, d.extent(), 4, 3)
    for axis, s in ((2, 2), (3, d.extent(2, 3))):
        x = gather(x, constant(np.repeat(np.arange(x.shape[axis]), s)), axis)
    x = pad(x, (0, 0, 1, 1), (0, 0, 1, 1), d.any(("constant", "edge", "reflect")))
    return conv(x, d.weights(d.extent(), x.shape[1], 3, 3), (1, 1), (1, 1))


@rule(
    "conv(up(x), w): one convolution of x for each position in a cell",
    "conv",
    example=_upsampled,
    source="sub-pixel convolution (Shi et al., 2016)",
)
def upsampled(c: Classes, node: Node) -> Found:
    """Taps that read the same element are added up beforehand."""
    x, w = node.inputs
    a = node.attrs
    if a["groups"] != 1 or {*a["strides"], *a["dilations"]} != {1} or not c.is_fixed(w):
        return
    for up in _ups(c, x):
        kernel = w.shape[2:]
        whole = zip(up.lo, up.hi, kernel, up.scale, strict=True)
        if any(m + n != k - 1 or s < 2 for m, n, k, s in whole):
            yield No("the result's extents are no multiples of the map's")
            continue
        yield _cells(up, w)


def _cells(up: _Up, w: Value) -> Value:
    rank, space = len(up.scale), up.x.shape[2:]
    reach = [
        [_offsets(r, p, k, s) for r in range(s)]
        for p, k, s in zip(up.lo, w.shape[2:], up.scale, strict=True)
    ]
    lo = [max(0, -min(o[0] for o in per)) for per in reach]
    hi = [max(0, max(o[-1] for o in per)) for per in reach]
    x = pad(up.x, (0, 0, *lo), (0, 0, *hi), up.mode)
    parts: list[Value] = []
    for cell in product(*map(range, up.scale)):
        taps = [per[r] for per, r in zip(reach, cell, strict=True)]
        size = [n + o[-1] - o[0] for n, o in zip(space, taps, strict=True)]
        begin = [o[0] + m for o, m in zip(taps, lo, strict=True)]
        cut = slice_(x, (0, 0, *begin), (*x.shape[:2], *size))
        parts.append(conv(cut, _folded(w, taps), (1,) * rank, (1,) * rank))
    return _interleaved(parts, up.scale)


def _offsets(r: int, p: int, k: int, s: int) -> list[int]:
    """For each tap the element that it reads at position r of a cell, relative to the cell."""
    return [(r - p + t) // s for t in range(k)]


def _folded(w: Value, taps: Sequence[Sequence[int]]) -> Value:
    """Weights with the taps added up that read one element, axis by axis."""
    for axis, offsets in enumerate(taps):
        matrix = np.zeros((offsets[-1] - offsets[0] + 1, len(offsets)))
        matrix[[o - offsets[0] for o in offsets], range(len(offsets))] = 1
        labels, at = "abcdefgh"[: w.rank], axis + 2
        out = labels[:at] + "z" + labels[at + 1 :]
        w = contract(w, constant(matrix, w.type.dtype), f"{labels},z{labels[at]}->{out}")
    return w


def _interleaved(parts: Sequence[Value], scale: Sequence[int]) -> Value:
    """[n, m, space...] for every position in a cell as one map: depth to space."""
    n, m, *space = parts[0].shape
    rank = len(space)
    stacked = reshape(concat(parts, 1), (n, *scale, m, *space))
    order = [0, 1 + rank, *(a for i in range(rank) for a in (2 + rank + i, 1 + i))]
    whole = [s * t for s, t in zip(space, scale, strict=True)]
    return reshape(transpose(stacked, order), (n, m, *whole))


def _gathered(d: Draw) -> Value:
    x = d.value(d.extent(), d.extent(), 3)
    x = gather(x, constant(np.array([0, 0, 1, 1, 2, 2])), 2)
    return contract(x, d.weights(d.extent(), x.shape[1]), "nch,mc->nmh")


@rule(
    "gather(x) w = gather(x w), along another axis",
    "contract",
    example=_gathered,
    source="maps of different axes commute",
    exact=True,
)
def gathered(c: Classes, node: Node) -> Found:
    """Where the gather makes more of it."""
    for p in both_ways(node):
        for inner in c.members(p.a.value, "gather"):
            x, indices = inner.inputs
            axis = inner.attrs["axis"]
            label = p.a.labels[axis] if indices.rank == 1 else -1
            if label not in p.out or label in p.b.labels or c.is_fixed(x):
                continue
            if indices.shape[0] < x.shape[axis]:
                yield No("the gather leaves elements out")
                continue
            y = multiply(Named(x, p.a.labels), p.b, p.out)
            yield gather(y, indices, p.out.index(label))


# ---------------------------------------------------------------- large windows


def _few_inputs(d: Draw) -> Value:
    x = d.value(1, d.extent(1, 2), 11, 10)
    return conv(x, d.weights(32, x.shape[1], 9, 6), (1, 1), (1, 1))


@rule(
    "conv(x, w) = conv(shifted copies of x, w'), three taps an axis",
    "conv",
    example=_few_inputs,
    source="window = windows of windows",
)
def few_inputs(c: Classes, node: Node) -> Found:
    """Where x has few channels: fast kernels take windows of three."""
    if (blocks := _splits(c, node)) is None:
        return
    x, w = node.inputs
    if 4 * x.shape[1] > w.shape[0]:
        yield No("it has many channels to copy")
        return
    for axis, count in enumerate(blocks):
        shape = list(x.shape)
        shape[axis + 2] -= THREE * (count - 1)
        x = concat([_shifted(x, axis, THREE * i, shape) for i in range(count)], 1)
    weights = [_block(w, begin) for begin in _begins(blocks[::-1])]
    ones = (1,) * len(blocks)
    yield conv(x, concat(weights, 1), ones, ones)


def _shifted(x: Value, axis: int, begin: int, shape: Sequence[int]) -> Value:
    """A part of x from `begin` on along a spatial axis."""
    return slice_(x, [begin if a == axis + 2 else 0 for a in range(x.rank)], shape)


def _few_outputs(d: Draw) -> Value:
    x = d.value(1, 32, 11, 10)
    return conv(x, d.weights(d.extent(1, 2), 32, 9, 6), (1, 1), (1, 1))


@rule(
    "conv(x, w) = sum of shifts of conv(x, w'), three taps an axis",
    "conv",
    example=_few_outputs,
    source="window = windows of windows",
)
def few_outputs(c: Classes, node: Node) -> Found:
    """Where the result has few channels."""
    if (blocks := _splits(c, node)) is None:
        return
    x, w = node.inputs
    m, space = w.shape[0], node.value.shape[2:]
    if 4 * m > x.shape[1]:
        yield No("it has many channels to add")
        return
    ones = (1,) * len(space)
    weights = [_block(w, begin) for begin in _begins(blocks[::-1])]
    y = conv(x, concat(weights, 0), ones, ones)
    for axis in reversed(range(len(blocks))):  # the last to vary first
        m, total = y.shape[1] // blocks[axis], None
        for i in range(blocks[axis]):
            begin = [0, i * m, *(THREE * i if a == axis else 0 for a in range(len(space)))]
            shape = (y.shape[0], m, *y.shape[2 : axis + 2], space[axis], *y.shape[axis + 3 :])
            term = slice_(y, begin, shape)
            total = term if total is None else total + term
        assert total is not None
        y = total
    yield y


def _splits(c: Classes, node: Node) -> tuple[int, ...] | None:
    """Windows of three along each axis, for a large window."""
    w, a = node.inputs[1], node.attrs
    kernel = w.shape[2:]
    if a["groups"] != 1 or {*a["strides"], *a["dilations"]} != {1} or not c.is_fixed(w):
        return None
    if max(kernel) < LARGE or any(k % THREE for k in kernel):
        return None
    return tuple(k // THREE for k in kernel)


def _begins(blocks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Where windows begin, the first axis varying fastest; `blocks` come last axis first."""
    for begin in product(*(range(0, THREE * n, THREE) for n in blocks)):
        yield begin[::-1]


def _block(w: Value, begin: Sequence[int]) -> Value:
    return slice_(w, (0, 0, *begin), (*w.shape[:2], *[THREE] * len(begin)))

"""Convolutions: the padding is a primitive of its own, the bias an addition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import constant, contract, conv, pad, reshape, slice_, transpose
from fissile.onnx.fission.layout import padded
from fissile.onnx.rule import Ints, fission


def spatial_pads(
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> tuple[list[int], list[int]]:
    """(lo, hi) per spatial axis. SAME makes ceil(extent / stride) outputs."""
    rank = len(shape)
    if auto_pad in ("NOTSET", ""):
        pads = pads if pads is not None else (0,) * 2 * rank
        if len(pads) != 2 * rank:
            raise ModelError(f"pads {list(pads)} do not fit {rank} spatial axes")
        return list(pads[:rank]), list(pads[rank:])
    if auto_pad == "VALID":
        return [0] * rank, [0] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"auto_pad cannot be {auto_pad!r}")
    total = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(shape, kernel, strides, dilations, strict=True)
    ]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def spatial(x: Value, *settings: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Settings of one number per spatial axis, 1 where they are absent."""
    rank = x.rank - 2
    if rank < 1:
        raise ModelError(f"{x.type} has no spatial axis")
    filled = [tuple(s) if s is not None else (1,) * rank for s in settings]
    if any(len(s) != rank for s in filled):
        raise ModelError(f"strides, dilations or kernel do not fit {rank} spatial axes")
    return filled


def biased(y: Value, bias: Value | None) -> Value:
    return y if bias is None else y + reshape(bias, (bias.type.numel, *[1] * (y.rank - 2)))


@fission("Conv")
def convolve(
    x,
    w,
    b=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    strides, dilations = spatial(x, strides, dilations)
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise ModelError(f"the kernel is {list(w.shape[2:])}, not {list(kernel_shape)}")
    lo, hi = spatial_pads(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    x = padded(x, (0, 0, *lo), (0, 0, *hi))
    return biased(conv(x, w, strides, dilations, group), b)


@fission("ConvTranspose")
def convolve_back(
    x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
    output_padding=None, output_shape=None, pads=None, strides=None,
):  # fmt: skip
    """x: [n, c, spatial...], w: [c, m/group, kernel...]."""
    strides, dilations = spatial(x, strides, dilations)
    extra = tuple(output_padding) if output_padding is not None else (0,) * (x.rank - 2)
    kernel = w.shape[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [
        (n - 1) * s + r + e for n, s, r, e in zip(x.shape[2:], strides, reach, extra, strict=True)
    ]
    lo, hi = _cuts(x, full, strides, pads, auto_pad, output_shape)
    if kernel == strides and group == 1 and set(dilations) == {1} and not any((*lo, *hi, *extra)):
        return biased(_tiles(x, w), b)
    spread = _spread(x, strides)
    # a window must end on every output: the map grows by reach - 1 - pad on both sides
    before = [r - 1 - a for r, a in zip(reach, lo, strict=True)]
    after = [r - 1 - b + e for r, b, e in zip(reach, hi, extra, strict=True)]
    spread = padded(spread, (0, 0, *before), (0, 0, *after))
    return biased(conv(spread, _turned(w, group), (1,) * len(strides), dilations, group), b)


@fission("Col2Im")
def columns_to_image(
    x, image_shape: Ints, block_shape: Ints, *, dilations=None, pads=None, strides=None
):
    """x: [n, c * taps, windows]; every window is added back where it was cut out."""
    rank, taps = len(image_shape), math.prod(block_shape)
    strides, dilations = (tuple(s) if s else (1,) * rank for s in (strides, dilations))
    lo, hi = spatial_pads(image_shape, block_shape, strides, dilations, pads, "NOTSET")
    reach = [(k - 1) * d + 1 for k, d in zip(block_shape, dilations, strict=True)]
    whole = [n + a + b for n, a, b in zip(image_shape, lo, hi, strict=True)]
    windows = [(n - r) // s + 1 for n, r, s in zip(whole, reach, strides, strict=True)]
    left = [(n - r) % s for n, r, s in zip(whole, reach, strides, strict=True)]
    channels = x.shape[1] // taps
    one_hot = np.tile(np.eye(taps), (channels, 1)).reshape(-1, 1, *block_shape)
    return convolve_back(
        reshape(x, (x.shape[0], x.shape[1], *windows)), constant(one_hot, x.type.dtype),
        dilations=dilations, group=channels, output_padding=left, pads=pads, strides=strides,
    )  # fmt: skip


def _cuts(
    x: Value,
    full: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
    output_shape: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """How much of the full result is cut off at both ends of every spatial axis."""
    if output_shape is None and auto_pad in ("NOTSET", "", "VALID"):
        return spatial_pads(
            x.shape[2:], (), (), (), pads if auto_pad != "VALID" else None, "NOTSET"
        )
    wanted = output_shape
    if wanted is None:
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    total = [f - n for f, n in zip(full, wanted[-len(full) :], strict=True)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def _tiles(x: Value, w: Value) -> Value:
    """Windows that do not overlap: every input element makes one tile of the output."""
    space, taps = "hwd"[: x.rank - 2], "ijl"[: x.rank - 2]
    y = contract(x, w, f"nc{space},cm{taps}->nm{taps}{space}")
    rank = len(space)
    order = [axis for a in range(rank) for axis in (2 + rank + a, 2 + a)]
    shape = [n * k for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    return reshape(transpose(y, (0, 1, *order)), (x.shape[0], w.shape[1], *shape))


def _spread(x: Value, strides: Sequence[int]) -> Value:
    """stride - 1 zeros between neighbours of every spatial axis."""
    if set(strides) <= {1}:
        return x
    n, c, *shape = x.shape
    apart = reshape(x, (n, c, *(e for s in shape for e in (s, 1))))
    hi = [0, 0, *(e for s in strides for e in (0, s - 1))]
    apart = pad(apart, [0] * apart.rank, hi)
    wide = reshape(apart, (n, c, *(s * d for s, d in zip(shape, strides, strict=True))))
    size = [(s - 1) * d + 1 for s, d in zip(shape, strides, strict=True)]
    return slice_(wide, [0] * x.rank, (n, c, *size))


def _turned(w: Value, group: int) -> Value:
    """[c, m/g, kernel] -> [m, c/g, kernel] with every kernel axis reversed."""
    c, per_group, *kernel = w.shape
    rank = len(kernel)
    last = [k - 1 for k in kernel]
    w = slice_(w, (0, 0, *last), w.shape, (1, 1, *[-1] * rank))
    grouped = reshape(w, (group, c // group, per_group, *kernel))
    swapped = transpose(grouped, (0, 2, 1, *range(3, 3 + rank)))
    return reshape(swapped, (group * per_group, c // group, *kernel))

"""Layouts of constants for the micro-kernels, computed when a model is built. One packer a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from fissile.kernels.candidate import Packing

PACKERS: dict[str, Callable[..., np.ndarray]] = {}


def packer(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    PACKERS[fn.__name__] = fn
    return fn


def pack(array: np.ndarray, packing: Packing | None) -> np.ndarray:
    """The flat array that a kernel reads; row-major where there is no packing. What is not finite
    in `array`, or not when transformed, stays so, without a warning."""
    if packing is None:
        return np.ascontiguousarray(array).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return PACKERS[packing.packer](array, *packing.args)


@packer
def panels(
    array: np.ndarray, o: Sequence[int], k: Sequence[int], n: Sequence[int], width: int
) -> np.ndarray:
    """[o][panel][k][width]: columns n in panels of `width`, the last one ended with zeros. Axes
    that no group names have extent 1."""
    rest = [a for a in range(array.ndim) if a not in (*o, *k, *n)]
    size = [math.prod(array.shape[a] for a in group) for group in (o, k, n)]
    matrix = np.transpose(array, (*rest, *o, *k, *n)).reshape(size)
    count = -(-size[2] // width)
    padded = np.zeros((size[0], size[1], count * width), np.float32)
    padded[:, :, : size[2]] = matrix
    return np.ascontiguousarray(
        padded.reshape(size[0], size[1], count, width).transpose(0, 2, 1, 3)
    ).reshape(-1)


@packer
def strassen_panels(
    array: np.ndarray, k: Sequence[int], n: Sequence[int], width: int
) -> np.ndarray:
    """[panel][factor][k / 2][width]: the seven right factors of runtime/strassen.h in the order in
    which it multiplies, each half of the columns wide, rounded once from float64."""
    rest = [a for a in range(array.ndim) if a not in (*k, *n)]
    size = [math.prod(array.shape[a] for a in group) for group in (k, n)]
    b = np.transpose(array, (*rest, *k, *n)).reshape(size).astype(np.float64)
    (b11, b12), (b21, b22) = (np.hsplit(half, 2) for half in np.vsplit(b, 2))
    t1 = b12 - b11
    t2 = b22 - t1
    factors = np.stack([b11, t2, b22 - b12, b21 - t2, b21, t1, b22])
    count = -(-factors.shape[2] // width)
    padded = np.zeros((*factors.shape[:2], count * width), np.float32)
    padded[:, :, : factors.shape[2]] = factors
    shape = (len(factors), factors.shape[1], count, width)
    return np.ascontiguousarray(padded.reshape(shape).transpose(2, 0, 1, 3)).reshape(-1)


@packer
def fixed_panels(
    array: np.ndarray, k: Sequence[int], n: Sequence[int], width: int, pairs: int
) -> np.ndarray:
    """[panel][scales of the columns | pair of terms][width] for runtime/fixed.h: f32 scales, then
    pairs of int16. In each block of `pairs` pairs and each column, magnitudes sum to less than
    2^17. The scale is then what fits the rounded column best. The sums are ended with zeros to
    whole blocks, the columns to whole panels."""
    rest = [a for a in range(array.ndim) if a not in (*k, *n)]
    size = [math.prod(array.shape[a] for a in group) for group in (k, n)]
    b = np.transpose(array, (*rest, *k, *n)).reshape(size).astype(np.float64)
    blocks, panels = -(-size[0] // (2 * pairs)), -(-size[1] // width)
    padded = np.zeros((blocks, 2 * pairs, panels * width))
    padded.reshape(-1, panels * width)[: size[0], : size[1]] = b
    room = (1 << 17) - 1 - pairs  # each rounds by a half
    scale = np.maximum(np.abs(padded).sum(1).max(0) / room, np.abs(padded).max((0, 1)) / 32767)
    usual = np.isfinite(scale) & (scale > 0)
    q = np.rint(np.where(usual, padded / np.where(usual, scale, 1.0), 0.0))
    norm = np.square(q).sum((0, 1))
    scale = np.where(norm > 0, (q * padded).sum((0, 1)) / np.maximum(norm, 1.0), scale)
    scale, q = scale.astype(np.float32), q.astype(np.int16)
    q = q.reshape(blocks * pairs, 2, panels, width).transpose(2, 0, 3, 1)
    words = np.ascontiguousarray(q).view(np.float32).reshape(panels, -1)
    return np.concatenate([scale.reshape(panels, width), words], axis=1).reshape(-1)


@packer
def blend_rows(array: np.ndarray, row: int, terms: int) -> np.ndarray:
    """A matrix of at most `terms` non-zeros in a row as [row][weights, then their places]: the
    places as floats, and the last one again, with weight 0, where a row has fewer."""
    rows = array if row == 0 else array.T
    out = np.zeros((len(rows), 2, terms), np.float32)
    for z, weights in enumerate(rows):
        places = np.flatnonzero(weights)
        out[z, 0, : len(places)] = weights[places]
        out[z, 1] = places[-1] if len(places) else 0
        out[z, 1, : len(places)] = places
    return out.reshape(-1)


@packer
def conv_panels(array: np.ndarray, groups: int, width: int, vl: int) -> np.ndarray:
    """Weights [m, c/groups, kernel...] as [group][panel][kernel][c/groups][width of the panel]: a
    panel takes the place of `width` channels; the last one of a group is only as wide as its whole
    vectors."""
    m, c, taps = array.shape[0] // groups, array.shape[1], math.prod(array.shape[2:])
    grouped = array.reshape(groups, m, c, taps).transpose(0, 3, 2, 1).reshape(groups, taps * c, m)
    count = -(-m // width)
    out = np.zeros((groups, count, taps * c * width), np.float32)
    for p in range(count):
        part = grouped[:, :, p * width : (p + 1) * width]
        lanes = -(-part.shape[2] // vl) * vl
        panel = np.zeros((groups, taps * c, lanes), np.float32)
        panel[:, :, : part.shape[2]] = part
        out[:, p, : taps * c * lanes] = panel.reshape(groups, -1)
    return out.reshape(-1)


@packer
def conv_blocks(array: np.ndarray, share: int, rows: int) -> np.ndarray:
    """Weights [m, c/groups, kernel...] as [share][block of m][c/groups][kernel][m in the block]:
    shares of `share` channels, each in the blocks of for_rows<rows, share>."""
    shares = array.reshape(-1, share, math.prod(array.shape[1:]))
    blocks = -(-share // rows)
    low, high = divmod(share, blocks)
    edges = np.cumsum([0] + [low + 1] * high + [low] * (blocks - high))
    out = np.zeros((len(shares), share * shares.shape[2]), np.float32)
    for a, b in pairwise(edges):
        block = shares[:, a:b].transpose(0, 2, 1)
        out[:, a * shares.shape[2] : b * shares.shape[2]] = block.reshape(len(shares), -1)
    return out.reshape(-1)


@packer
def depthwise_taps(array: np.ndarray, vl: int) -> np.ndarray:
    """Weights [c, 1, kernel...] as [kernel][c], c ended with zeros to whole vectors."""
    c = array.shape[0]
    out = np.zeros((math.prod(array.shape[1:]), -(-c // vl) * vl), np.float32)
    out[:, :c] = array.reshape(c, -1).T
    return out.reshape(-1)


WINOGRAD_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 0.5, -2.0)}


def winograd_filter(points: Sequence[float]) -> np.ndarray:
    """G of Winograd's F(m, 3), float64[m + 2, 3], for m + 1 finite points and infinity. Row i is
    (1, x, x^2) / product of x - y over the other points y, where x is point i (Toom and Cook)."""
    rows = [[x**k / math.prod(x - y for y in points if y != x) for k in range(3)] for x in points]
    return np.array([*rows, [0.0, 0.0, 1.0]])


# G by the outputs of a tile: m x m at stride 1; 3 x 3 at stride 2, whose outer taps are F(3, 2) at
# 0, 1, -1 and infinity on every other input, the middle one being three products as they are
WINOGRAD_FORMS: dict[int, np.ndarray] = {
    **{m: winograd_filter(points) for m, points in WINOGRAD_POINTS.items()},
    3: np.array(
        [[-1, 0, 0], [0.5, 0, 0.5], [0.5, 0, -0.5], [0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0]]
    ),
}


@packer
def winograd_panels(array: np.ndarray, tile: int, width: int, vl: int) -> np.ndarray:
    """Weights [m, c, 3, 3] as [panel][tap of G g G^T][c][width of the panel], transformed in
    float64 and rounded once; a panel takes the place of `width` channels, the last one is only as
    wide as its whole vectors."""
    g = WINOGRAD_FORMS[tile]
    u = np.einsum("ai,mcij,bj->abcm", g, array.astype(np.float64), g, optimize=True)
    taps, c, m = g.shape[0] ** 2, array.shape[1], array.shape[0]
    u = u.reshape(taps, c, m)
    out = np.zeros((-(-m // width), taps * c * width), np.float32)
    for p, panel in enumerate(out):
        part = u[:, :, p * width : (p + 1) * width]
        lanes = -(-part.shape[2] // vl) * vl
        panel[: taps * c * lanes].reshape(taps, c, lanes)[:, :, : part.shape[2]] = part
    return out.reshape(-1)

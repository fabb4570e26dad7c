"""Layouts of constants for the micro-kernels, computed when a model is built. One packer a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fissile.kernels.candidate import Packing

PACKERS: dict[str, Callable[..., np.ndarray]] = {}


def packer(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    PACKERS[fn.__name__] = fn
    return fn


def pack(array: np.ndarray, packing: Packing | None) -> np.ndarray:
    """The flat array that a kernel reads; row-major where there is no packing."""
    if packing is None:
        return np.ascontiguousarray(array).reshape(-1)
    return PACKERS[packing.packer](array, *packing.args)


@packer
def panels(
    array: np.ndarray, o: Sequence[int], k: Sequence[int], n: Sequence[int], width: int
) -> np.ndarray:
    """[o][panel][k][width]: columns n in panels of `width`, the last one ended with zeros. Axes that no
    group names have extent 1."""
    rest = [a for a in range(array.ndim) if a not in (*o, *k, *n)]
    size = [math.prod(array.shape[a] for a in group) for group in (o, k, n)]
    matrix = np.transpose(array, (*rest, *o, *k, *n)).reshape(size)
    count = -(-size[2] // width)
    padded = np.zeros((size[0], size[1], count * width), np.float32)
    padded[:, :, : size[2]] = matrix
    return np.ascontiguousarray(padded.reshape(size[0], size[1], count, width).transpose(0, 2, 1, 3)).reshape(-1)

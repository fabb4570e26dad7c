"""Resize, axis by axis: nearest is a gather, linear and cubic contract with a constant matrix.

`_Axis` holds what one axis needs; a transform maps output positions to input coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import constant, contract, gather, where
from fissile.onnx.rule import Ints, Known, fission

_LETTERS = "abcdefghij"


@dataclass(frozen=True)
class _Axis:
    size: int  # input extent
    count: int  # output extent
    scale: float
    start: float = 0.0  # region of interest, for tf_crop_and_resize
    end: float = 1.0

    @property
    def positions(self) -> np.ndarray:
        return np.arange(self.count, dtype=np.float64)


@dataclass(frozen=True)
class _Filter:
    mode: str
    transform: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def _half_pixel(a: _Axis) -> np.ndarray:
    return (a.positions + 0.5) / a.scale - 0.5


def _symmetric(a: _Axis) -> np.ndarray:
    adjustment = a.count / (a.scale * a.size)
    return a.size / 2 * (1 - adjustment) + (a.positions + 0.5) / a.scale - 0.5


def _pytorch(a: _Axis) -> np.ndarray:
    return _half_pixel(a) if a.count > 1 else np.zeros(1)


def _corners(a: _Axis) -> np.ndarray:
    return a.positions * (a.size - 1) / (a.count - 1) if a.count > 1 else np.zeros(1)


def _crop(a: _Axis) -> np.ndarray:
    if a.count <= 1:
        return np.full(a.count, 0.5 * (a.start + a.end) * (a.size - 1))
    width = (a.end - a.start) * (a.size - 1)
    return a.start * (a.size - 1) + a.positions * width / (a.count - 1)


_TRANSFORMS: dict[str, Callable[[_Axis], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": _pytorch,
    "align_corners": _corners,
    "asymmetric": lambda a: a.positions / a.scale,
    "tf_half_pixel_for_nn": lambda a: (a.positions + 0.5) / a.scale,
    "tf_crop_and_resize": _crop,
}
_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@fission("Upsample")
def upsample(x, scales: Known, *, mode="nearest"):
    rule = _Filter("linear" if "linear" in mode else mode, "asymmetric", "floor")
    return _resized(x, _scaled_axes(x, scales), rule)


@fission("Resize")
def resize_asymmetric(x, scales: Known, *, mode="nearest"):
    return upsample(x, scales, mode=mode)


@fission("Resize", since=11)
def resize(
    x, roi: Known | None = None, scales: Known | None = None, sizes: Ints | None = None, *,
    antialias=0, axes=None, coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0, keep_aspect_ratio_policy="stretch", mode="nearest",
    nearest_mode="round_prefer_floor",
):  # fmt: skip
    axes = tuple(range(x.rank)) if axes is None else tuple(a % x.rank for a in axes)
    transform = coordinate_transformation_mode
    if (
        transform not in _TRANSFORMS
        or mode not in ("nearest", "linear", "cubic")
        or nearest_mode not in _ROUND
    ):
        raise ModelError(
            f"mode {mode!r}, {nearest_mode!r} with coordinates {transform!r} is not supported"
        )
    if scales is not None and scales.size:
        shape = _scaled_axes(x, scales, axes)
    elif sizes:
        shape = _sized_axes(x, sizes, axes, keep_aspect_ratio_policy)
    else:
        raise ModelError("it has neither scales nor sizes")
    if transform == "tf_crop_and_resize":
        shape = _cropped(shape, roi, axes)
    rule = _Filter(
        mode, transform, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias)
    )
    y = _resized(x, shape, rule)
    return y if transform != "tf_crop_and_resize" else _extrapolated(y, shape, extrapolation_value)


def _scaled_axes(x: Value, scales: np.ndarray, axes: tuple[int, ...] | None = None) -> list[_Axis]:
    axes = axes if axes is not None else tuple(range(x.rank))
    if scales.size != len(axes) or (scales <= 0).any():
        raise ModelError(f"scales {scales.ravel().tolist()} do not fit {x.type}")
    by_axis = dict(zip(axes, map(float, scales.ravel()), strict=True))
    # the output extent is a floor of an f32 product in every runtime
    return [
        _Axis(s, math.floor(np.float32(s) * np.float32(by_axis.get(a, 1.0))), by_axis.get(a, 1.0))
        for a, s in enumerate(x.shape)
    ]


def _sized_axes(x: Value, sizes: Ints, axes: tuple[int, ...], policy: str) -> list[_Axis]:
    if len(sizes) != len(axes):
        raise ModelError(f"sizes {list(sizes)} do not fit {x.type}")
    wanted = dict(zip(axes, sizes, strict=True))
    ratios = {a: n / x.shape[a] for a, n in wanted.items()}
    if policy != "stretch":
        common = min(ratios.values()) if policy == "not_larger" else max(ratios.values())
        ratios = dict.fromkeys(ratios, common)
        wanted = {a: math.floor(common * x.shape[a] + 0.5) for a in wanted}
    return [_Axis(s, wanted.get(a, s), ratios.get(a, 1.0)) for a, s in enumerate(x.shape)]


def _cropped(shape: list[_Axis], roi: np.ndarray | None, axes: tuple[int, ...]) -> list[_Axis]:
    if roi is None or roi.size != 2 * len(axes):
        raise ModelError("tf_crop_and_resize needs a region of interest")
    starts, ends = np.split(roi.ravel().astype(np.float64), 2)
    region = {a: (float(b), float(e)) for a, b, e in zip(axes, starts, ends, strict=True)}
    return [
        _Axis(s.size, s.count, s.scale, *region.get(a, (0.0, 1.0))) for a, s in enumerate(shape)
    ]


def _resized(x: Value, shape: list[_Axis], rule: _Filter) -> Value:
    for axis, a in enumerate(shape):
        if a.size == a.count and a.scale == 1 and (a.start, a.end) == (0.0, 1.0):
            continue
        coordinates = _TRANSFORMS[rule.transform](a)
        if rule.mode == "nearest":
            index = np.clip(_ROUND[rule.nearest](coordinates), 0, a.size - 1)
            x = gather(x, constant(index.astype(np.int64)), axis)
        else:
            x = _interpolated(x, axis, _matrix(coordinates, a, rule))
    return x


def _interpolated(x: Value, axis: int, matrix: np.ndarray) -> Value:
    """matrix: [out, in] over one axis of x."""
    labels = _LETTERS[: x.rank]
    out = labels[:axis] + "z" + labels[axis + 1 :]
    return contract(x, constant(matrix, x.type.dtype), f"{labels},z{labels[axis]}->{out}")


def _matrix(coordinates: np.ndarray, a: _Axis, rule: _Filter) -> np.ndarray:
    """Weights [out, in]: taps around the coordinate, clamped to the edge or left out beyond it."""
    stretch = min(a.scale, 1.0) if rule.antialias else 1.0
    radius = 1 if rule.mode == "linear" else 2
    reach = radius / stretch
    taps = np.arange(math.floor(-reach) + 1, 2 - (math.floor(-reach) + 1))
    base = np.floor(coordinates)
    index = (base[:, None] + taps).astype(np.int64)
    weights = _kernel((index - coordinates[:, None]) * stretch, rule)
    if rule.exclude_outside:
        weights = np.where((index < 0) | (index >= a.size), 0, weights)
    if rule.exclude_outside or rule.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((a.count, a.size))
    np.add.at(matrix, (np.arange(a.count)[:, None], np.clip(index, 0, a.size - 1)), weights)
    return matrix


def interpolation(count: int, size: int, transform: str) -> np.ndarray:
    """[count, size]: what a linear Resize of an axis to `count` elements multiplies with."""
    axis = _Axis(size, count, count / size)
    return _matrix(_TRANSFORMS[transform](axis), axis, _Filter("linear", transform))


def _kernel(distance: np.ndarray, rule: _Filter) -> np.ndarray:
    x = np.abs(distance)
    if rule.mode == "linear":
        return np.maximum(1 - x, 0)
    a = rule.cubic
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _extrapolated(y: Value, shape: list[_Axis], fill: float) -> Value:
    """Positions whose coordinate leaves the input become `fill`."""
    inside = np.ones((1,) * len(shape), bool)
    for axis, a in enumerate(shape):
        coordinates = _crop(a)
        ok = (coordinates >= 0) & (coordinates <= a.size - 1)
        inside = inside & ok.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return y if inside.all() else where(constant(inside), y, fill)

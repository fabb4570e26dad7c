"""What the primitives mean, in numpy. Pure functions of arrays; the oracle of everything else.

They work at any float precision: the evaluator hands them float64 where it wants a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from fissile.ir.types import BY_NAME

Array = np.ndarray


def wide(x: Array) -> Array:
    """Half-precision floats compute in f32; everything else as it is."""
    return x.astype(np.float32) if x.dtype.itemsize <= 2 and x.dtype.kind not in "iub" else x


# erf: W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969)
_A = (
    3.16112374387056560e00, 1.13864154151050156e02, 3.77485237685302021e02,
    3.20937758913846947e03, 1.85777706184603153e-1,
)  # fmt: skip
_B = (
    2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03,
    2.84423683343917062e03,
)  # fmt: skip
_C = (
    5.64188496988670089e-1, 8.88314979438837594e00, 6.61191906371416295e01,
    2.98635138197400131e02, 8.81952221241769090e02, 1.71204761263407058e03,
    2.05107837782607147e03, 1.23033935479799725e03, 2.15311535474403846e-8,
)  # fmt: skip
_D = (
    1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02,
    1.62138957456669019e03, 3.29079923573345963e03, 4.36261909014324716e03,
    3.43936767414372164e03, 1.23033935480374942e03,
)  # fmt: skip
_P = (
    3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4, 1.63153871373020978e-2,
)  # fmt: skip
_Q = (
    2.56852019228982242e00, 1.87295284992346725e00, 5.27905102951428412e-1,
    6.05183413124413191e-2, 2.33520497626869185e-3,
)  # fmt: skip


def _ratio(x: Array, top: Sequence[float], bottom: Sequence[float]) -> Array:
    """(top[-1] x^n + top[0] x^(n-1) + ... ) / (x^n + bottom[0] x^(n-1) + ...), Cody's order."""
    num, den = top[-1] * x, x
    for a, b in zip(top[:-2], bottom[:-1], strict=True):
        num, den = (num + a) * x, (den + b) * x
    return (num + top[-2]) / (den + bottom[-1])


def erf(x: Array) -> Array:
    """The error function to float64 precision."""
    z = np.abs(x.astype(np.float64))
    square, capped = z * z, np.clip(z, 0.46875, 30.0)
    small = z * _ratio(square, _A, _B)
    tail = 1.0 / (capped * capped)
    far = (1.0 / math.sqrt(math.pi) - tail * _ratio(tail, _P, _Q)) / capped
    complement = np.exp(-capped * capped) * np.where(
        z <= 4.0, _ratio(np.minimum(capped, 4.0), _C, _D), far
    )
    result = np.where(z <= 0.46875, small, np.where(z > 6.0, 1.0, 1.0 - complement))
    return np.where(np.isnan(x), x, np.copysign(result, x)).astype(x.dtype)


def reciprocal(x: Array) -> Array:
    return np.asarray(1, x.dtype) / x


def rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def softplus(x: Array) -> Array:
    return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).astype(x.dtype)


def divide(x: Array, y: Array) -> Array:
    """Integers truncate towards zero, as ONNX asks."""
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, 1, y)
    quotient = np.abs(x) // np.abs(safe)
    return (np.sign(x) * np.sign(safe) * quotient).astype(x.dtype)


def modulo(x: Array, y: Array) -> Array:
    """The sign of the divisor, as Python's %."""
    return np.mod(x, np.where(y == 0, 1, y)) if x.dtype.kind in "iu" else np.mod(x, y)


def power(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        return np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    return np.power(x, y)


def mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def clip(x: Array, low: Array, high: Array) -> tuple[Array]:
    return (np.minimum(np.maximum(x, low), high),)


def select(condition: Array, x: Array, y: Array) -> tuple[Array]:
    return (np.where(condition, x, y),)


def cast(x: Array, to: str) -> tuple[Array]:
    target = BY_NAME[to]
    if target.is_integer and x.dtype.kind not in "iub":
        # truncate first: numpy is undefined past the range, C and ONNX Runtime wrap through i64
        x = np.trunc(
            np.nan_to_num(wide(x).astype(np.float64), nan=0.0, posinf=2**63 - 1024, neginf=-(2**63))
        )
        return (x.astype(np.int64).astype(target.numpy),)
    return (x.astype(target.numpy),)


def broadcast(x: Array, shape: tuple[int, ...]) -> tuple[Array]:
    return (np.broadcast_to(x, shape),)


def transpose(x: Array, perm: tuple[int, ...]) -> tuple[Array]:
    return (np.transpose(x, perm),)


def reshape(x: Array, shape: tuple[int, ...]) -> tuple[Array]:
    return (np.reshape(x, shape),)


def concat(*xs: Array, axis: int) -> tuple[Array]:
    return (np.concatenate(xs, axis),)


def total(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    # numpy sums in pairs only along contiguous axes, else one by one with far larger error
    x = np.ascontiguousarray(x)
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    count = math.prod(x.shape[a] for a in axis)
    return divide(total(x, axis, keepdims), np.asarray(count, x.dtype))


def reducer(fn: Callable[..., Any]) -> Callable[..., tuple[Array]]:
    def evaluate(x: Array, axes: tuple[int, ...]) -> tuple[Array]:
        return (np.asarray(fn(x, axis=axes, keepdims=True)),)

    return evaluate


def arg(fn: Callable[..., Any]) -> Callable[..., tuple[Array]]:
    def evaluate(x: Array, axes: tuple[int, ...], last: bool) -> tuple[Array]:
        (axis,) = axes
        if not last:
            return (np.expand_dims(fn(x, axis=axis), axis).astype(np.int64),)
        return (
            x.shape[axis]
            - 1
            - np.expand_dims(fn(np.flip(x, axis), axis=axis), axis).astype(np.int64),
        )

    return evaluate


def slice_(
    x: Array, start: Sequence[int], size: Sequence[int], step: Sequence[int]
) -> tuple[Array]:
    index = tuple(np.arange(n) * d + b for b, n, d in zip(start, size, step, strict=True))
    return (x[np.ix_(*index)] if index else x,)


def pad(x: Array, lo: Sequence[int], hi: Sequence[int], mode: str, value: Any) -> tuple[Array]:
    widths = list(zip(lo, hi, strict=True))
    if mode == "constant":
        return (np.pad(x, widths, constant_values=np.asarray(value).astype(x.dtype)),)
    return (np.pad(x, widths, mode=mode),)  # pyright: ignore


def gather(x: Array, indices: Array, axis: int) -> tuple[Array]:
    return (np.take(x, indices.astype(np.int64), axis=axis),)


def split_spec(spec: str) -> tuple[str, str, str]:
    operands, _, out = spec.partition("->")
    left, _, right = operands.partition(",")
    return left, right, out


def contract(a: Array, b: Array, spec: str) -> tuple[Array]:
    return (np.asarray(np.einsum(spec, a, b, optimize=True)),)


def window_extents(
    shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Output extents of windows that stay inside. Raises ValueError where none fits."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(k < 1 or s < 1 or d < 1 for k, s, d in zip(kernel, strides, dilations, strict=True)):
        raise ValueError(
            f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}"
        )
    if any(r > s for r, s in zip(reach, shape, strict=True)):
        raise ValueError(
            f"kernel {list(kernel)} dilated by {list(dilations)} exceeds {list(shape)}"
        )
    return tuple((s - r) // d + 1 for s, r, d in zip(shape, reach, strides, strict=True))


def _taps(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """(offsets, view of x at that tap) for every kernel position."""
    out = window_extents(x.shape[2:], kernel, strides, dilations)
    for tap in product(*(range(k) for k in kernel)):
        start = [t * d for t, d in zip(tap, dilations, strict=True)]
        cut = tuple(
            slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(start, out, strides, strict=True)
        )
        yield tap, x[(slice(None), slice(None), *cut)]


BLOCK = 1 << 22  # elements of the columns of one product


def conv(
    x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], groups: int
) -> tuple[Array]:
    """For a block of output rows at a time, one product with columns that hold all taps."""
    n, m, per_group = x.shape[0], w.shape[0], w.shape[1]
    views = [view for _, view in _taps(x, w.shape[2:], strides, dilations)]
    out = window_extents(x.shape[2:], w.shape[2:], strides, dilations)
    if m == groups and per_group == 1:
        return (_depthwise(views, w.reshape(m, -1), (n, m, *out)),)
    count, rest = per_group * len(views), out[1:]
    rows = max(1, BLOCK // max(1, groups * count * math.prod(rest)))
    y = np.empty((n, m, *out), x.dtype)
    for image, top in product(range(n), range(0, out[0], rows)):
        shape = (groups, per_group, min(rows, out[0] - top), *rest)
        columns = np.empty((groups, per_group, len(views), *shape[2:]), x.dtype)
        for tap, view in enumerate(views):
            columns[:, :, tap] = view[image, :, top : top + rows].reshape(shape)
        block = w.reshape(groups, m // groups, count) @ columns.reshape(groups, count, -1)
        y[image, :, top : top + rows] = block.reshape(m, *shape[2:])
    return (y,)


def _depthwise(views: Sequence[Array], w: Array, shape: tuple[int, ...]) -> Array:
    """`w` holds a row of taps for each channel."""
    y = np.zeros(shape, w.dtype)
    for tap, view in enumerate(views):
        y += view * w[:, tap].reshape(-1, *(1 for _ in shape[2:]))
    return y


def windowed(fn: Callable[..., Any]) -> Callable[..., tuple[Array]]:
    def evaluate(
        x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> tuple[Array]:
        result = None
        for _, view in _taps(x, kernel, strides, dilations):
            result = view.copy() if result is None else fn(result, view)
        assert result is not None
        return (result,)

    return evaluate

"""Plain loops against numpy: all anchors, all element types, pads as guards, ties, opaque ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import opaque
from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Layout, channels_last
from fissile.ir.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
    of,
)
from fissile.targets.cpu.impls import loops

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

DTYPES = (F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL)
TOLERANCE = {F64: 1e-13, F32: 2e-6, F16: 2e-3, BF16: 2e-2}


def noise(shape: Sequence[int], dtype: DType = F32, seed: int = 5) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype is BOOL:
        return random.random(shape) < 0.5
    if dtype.is_integer:
        low = 0 if dtype.kind == "uint" else -50
        return random.integers(low, 50, shape).astype(dtype.numpy)
    return random.standard_normal(shape).astype(dtype.numpy)


def weights(*shape: int) -> Value:
    return p.constant(noise(shape, seed=3))


def check(
    outputs: Value | Sequence[Value],
    layouts: Mapping[Value, Layout] | None = None,
    inputs: Sequence[np.ndarray] | None = None,
) -> str:
    """The kernel's text, once its values are those of numpy: integers exactly."""
    outputs = (outputs,) if isinstance(outputs, Value) else tuple(outputs)
    candidate = candidate_of(outputs, dict(layouts or {}))
    kernel = loops.lower(candidate)
    assert kernel, kernel
    tensors = candidate.region.tensors
    inputs = inputs or [noise(v.shape, v.type.dtype, k) for k, v in enumerate(tensors)]
    results = run_kernel(candidate, kernel, inputs)
    exact, single = (expected(candidate, inputs, reference=r) for r in (True, False))
    for got, want, plain in zip(results, exact, single, strict=True):
        if got.dtype.kind in "iub":
            np.testing.assert_array_equal(got, plain)
            continue
        dtype = next(d for d in TOLERANCE if d.numpy == got.dtype)
        finite = np.isfinite(want)
        scale = np.abs(want[finite]).max(initial=0)
        error = np.abs(plain[finite].astype(np.float64) - want[finite]).max(initial=0)
        bound = max(TOLERANCE[dtype] * scale, 2 * error)
        np.testing.assert_allclose(got.astype(np.float64), want, 0, bound, equal_nan=True)
    return kernel.source


def refusal(*outputs: Value) -> str:
    result = loops.lower(candidate_of(outputs))
    assert not result
    return result.reason  # pyright: ignore


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_every_element_type(dtype: DType) -> None:
    a, b = placeholder(of([2, 3, 17], dtype)), placeholder(of([2, 17, 5], dtype))
    check(p.contract(a, b, "bmk,bkn->bmn"))
    for make in (p.reduce_sum, p.reduce_mean, p.reduce_max, p.reduce_min, p.reduce_prod):
        if not (dtype is BOOL and make is p.reduce_mean):
            check(make(a, (1, 2)))
    image = placeholder(of([1, 2, 7, 8], dtype))
    for name in ("window_max", "window_sum"):
        check(p.window(name, image, [3, 2], [2, 1], [1, 2]))
    if dtype is not BOOL:
        line, taps = placeholder(of([2, 2, 11], dtype)), placeholder(of([4, 1, 3], dtype))
        check(p.conv(line, taps, [1], [2], 2))


@pytest.mark.parametrize("dtype", [F32, F16, I8, U64, BOOL], ids=repr)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_index_of_an_extreme(name: str, last: bool, dtype: DType) -> None:
    x = placeholder(of([3, 9, 4], dtype))
    data = noise((3, 9, 4), dtype) if dtype is BOOL else noise((3, 9, 4), I8).astype(dtype.numpy)
    data = data if dtype is BOOL else data // 20  # many ties
    for axis in (0, 2):
        check(p.argument(name, x, axis, last), inputs=[data])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_index_of_an_extreme_with_nan(name: str, last: bool) -> None:
    rows = [[1, np.nan, 3, np.nan], [-np.inf] * 4, [2, 5, 5, 1], [np.inf] * 4, [np.nan] * 4]
    check(p.argument(name, placeholder(of([5, 4])), 1, last), inputs=[np.array(rows, np.float32)])


@pytest.mark.parametrize("last", [False, True])
def test_convolution_with_pad_bias_and_relu(last: bool) -> None:
    layout = channels_last(4)
    cases = (1, [1, 1], [1, 1]), (2, [2, 1], [1, 2]), (6, [1, 2], [2, 1])
    for groups, strides, dilations in cases:
        x, w = placeholder(of([2, 6, 9, 11])), weights(12, 6 // groups, 3, 3)
        padded = p.pad(x, (0, 0, 1, 2), (0, 0, 1, 0))
        y = p.maximum(p.conv(padded, w, strides, dilations, groups) + weights(12, 1, 1), 0.0)
        check(y, {x: layout, y: layout} if last else {})


def test_convolution_of_other_ranks() -> None:
    x = placeholder(of([1, 2, 5, 6, 7]))
    check(p.conv(x, weights(3, 2, 2, 3, 1), [1, 2, 2], [2, 1, 1]))
    check(p.window("window_max", x, [2, 3, 1], [1, 1, 2]))
    check(p.conv(placeholder(of([2, 3, 1])), weights(4, 3, 1), [1], [1]))


@pytest.mark.parametrize(
    "spec", ["mk,kn->mn", "km,nk->nm", "abc,cbd->da", "ab,b->a", "a,b->ba", "ab,ab->"]
)
def test_contractions(spec: str) -> None:
    extents = dict(zip("mknabcd", (3, 17, 5, 7, 4, 1, 6), strict=True))
    left, right = spec.split("->")[0].split(",")
    a = placeholder(of([extents[c] for c in left]))
    b = placeholder(of([extents[c] for c in right]))
    check(p.contract(a, b, spec))
    check(p.contract(p.exp(a) + 1.0, b * 0.5, spec))


def test_epilogues_end_where_the_layout_says() -> None:
    x = placeholder(of([4, 7]))
    y = p.contract(x, weights(7, 6), "mk,kn->mn") * weights(6)
    z = p.reshape(p.transpose(p.maximum(y, 0.0), (1, 0)), (2, 3, 4))
    check([z, y], {y: Layout((1, 0))})


def test_prologues() -> None:
    x = placeholder(of([5, 8, 6]))
    check(p.reduce_sum(p.concat([x, x * 2.0], 1), 1))
    check(p.reduce_max(p.pad(x, (0, 2, 1), (0, 1, 3), "reflect"), 1))
    check(p.reduce_mean(p.gather(x, p.constant(np.array([3, -1, 0])), 1), (0, 2)))


def test_long_sums() -> None:
    a, b = placeholder(of([3, 50021])), placeholder(of([50021, 2]))
    check(p.contract(a, b, "mk,kn->mn"))
    check(p.reduce_mean(placeholder(of([2, 50176])), 1))
    check(p.reduce_sum(placeholder(of([50176, 2])), 0))


def test_empty_operands() -> None:
    check(p.reduce_sum(placeholder(of([3, 0])), 1))
    check(p.reduce_mean(placeholder(of([3, 0])), 1))
    check(p.contract(placeholder(of([3, 0])), placeholder(of([0, 2])), "mk,kn->mn"))
    check(p.reduce_sum(placeholder(of([0, 3])), 1))


@pytest.mark.parametrize("dtype", [F32, F16, I8, U8, I64, BOOL], ids=repr)
@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool, dtype: DType) -> None:
    for shape, axis in (((3, 17, 5), 1), ((40,), 0), ((2, 3, 7), 2)):
        data = noise(shape, BOOL) if dtype is BOOL else noise(shape, U8).astype(dtype.numpy) // 5
        if dtype.is_float:
            data.reshape(-1)[[1, 5, 7]] = np.nan, np.nan, np.inf
        x = placeholder(of(shape, dtype))
        for k in (1, 3, shape[axis]):
            values, indices = opaque.topk(x, axis, k, largest)
            chosen = ((values, indices), (indices,), (values,)) if k == 3 else ((values, indices),)
            for outputs in chosen:
                candidate = candidate_of(outputs)
                kernel = loops.lower(candidate)
                assert kernel, kernel
                want = expected(candidate, [data], reference=False)
                for got, right in zip(run_kernel(candidate, kernel, [data]), want, strict=True):
                    np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    x, index, updates = (placeholder(of(*t)) for t in (([5, 4, 3],), ([6], I64), ([6, 4, 3],)))
    y = opaque.scatter(x, index, updates, reduction)
    where = np.array([0, 3, -1, 3, 3, 1])
    check(y, {y: Layout((0, 2, 1))}, [noise(x.shape), where, noise(updates.shape, seed=9)])
    row = placeholder(of([1, 4, 3]))
    check(opaque.scatter(x, p.constant(np.array([-2])), row, reduction))


def test_refusals_have_reasons() -> None:
    x = placeholder(of([4, 4]))
    assert "none" in refusal(x + 1.0)
    assert "reduce_max, reduce_sum" in refusal(p.reduce_sum(p.exp(x - p.reduce_max(x, 1)), 1))
    assert "not one value for each" in refusal(x - p.reduce_max(x, 1))
    y = p.contract(x, x, "ab,bc->ac")
    assert "another point" in refusal(y + p.transpose(y, (1, 0)))

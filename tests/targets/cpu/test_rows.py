"""Row kernels against numpy in float64: values, bounds, partitions, NaN, types, refusals."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Layout, channels_last, row_major
from fissile.ir.types import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType, of
from fissile.targets.cpu.impls import rows
from fissile.targets.cpu.machine import Machine, this_machine

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

LAST = channels_last(4)
HERE = this_machine()
TOLERANCE = {F64: 1e-14, F32: 2e-6, F16: 2e-3, BF16: 2e-2}


def softmax(x: Value, axes: int | tuple[int, ...]) -> Value:
    e = p.exp(x - p.reduce_max(x, axes))
    return e / p.reduce_sum(e, axes)


def normalised(x: Value, axes: int | tuple[int, ...]) -> Value:
    centred = x - p.reduce_mean(x, axes)
    return centred * p.rsqrt(p.reduce_mean(centred * centred, axes) + 1e-5)


def noise(*shape: int, seed: int = 7, dtype: DType = F32) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype is BOOL:
        return random.random(shape) < 0.5
    if dtype.is_integer:
        return random.integers(0, 20, shape).astype(dtype.numpy)
    return random.standard_normal(shape).astype(dtype.numpy)


def weights(*shape: int) -> Value:
    return p.constant(noise(*shape, seed=11))


def check(
    outputs: Value | Sequence[Value],
    layouts: Mapping[Value, Layout] | None = None,
    inputs: Sequence[np.ndarray] | None = None,
) -> str:
    """The kernel's text, once its values are those of numpy."""
    outputs = (outputs,) if isinstance(outputs, Value) else tuple(outputs)
    candidate = candidate_of(outputs, dict(layouts or {}))
    kernel = rows.lower(candidate)
    assert kernel, kernel
    tensors = candidate.region.tensors
    inputs = inputs or [noise(*v.shape, seed=k, dtype=v.type.dtype) for k, v in enumerate(tensors)]
    results = run_kernel(candidate, kernel, inputs)
    single = expected(candidate, inputs, reference=False)
    for got, want, plain in zip(results, expected(candidate, inputs), single, strict=True):
        if got.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
            continue
        dtype = next(d for d in TOLERANCE if d.numpy == got.dtype)
        scale = np.abs(want[np.isfinite(want)]).max(initial=0)
        finite = np.isfinite(want)
        error = np.abs(plain[finite] - want[finite]).max(initial=0)
        bound = max(TOLERANCE[dtype] * scale, 8 * error)
        np.testing.assert_allclose(got.astype(np.float64), want, 0, bound, equal_nan=True)
    return kernel.source


def refusal(*outputs: Value) -> str:
    result = rows.lower(candidate_of(outputs))
    assert not result
    return result.reason  # pyright: ignore


SHAPES = [(1, 1), (3, 7), (1, 17), (17, 1), (2, 17, 33), (5, 197), (4, 3, 128), (300, 33)]
SHAPES += [(3, 4100)]


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_and_layer_norm_over_the_last_axis(shape: tuple[int, ...]) -> None:
    x = placeholder(of(shape))
    n = shape[-1]
    check(softmax(x, -1))
    check(normalised(x, -1) * weights(n) + weights(n))


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_and_layer_norm_over_the_first_axis(shape: tuple[int, ...]) -> None:
    x = placeholder(of(shape))
    check(softmax(x, 0))
    check(normalised(x, 0))


@pytest.mark.parametrize("layout", [row_major(4), LAST])
@pytest.mark.parametrize("shape", [(1, 32, 12, 11), (2, 3, 9, 7), (3, 17, 1, 5), (1, 33, 33, 1)])
def test_maps(shape: tuple[int, ...], layout: Layout) -> None:
    """Instance norm, pooling over the whole map, softmax over channels."""
    x, c = placeholder(of(shape)), shape[1]
    norm = normalised(x, (2, 3)) * weights(c, 1, 1) + weights(c, 1, 1)
    pooled = p.reduce_mean(x, (2, 3))
    flat = p.reshape(p.maximum(pooled, 0.0), shape[:2])
    for y in (norm, p.maximum(norm, 0.0), softmax(x, 1), pooled, normalised(x, 1)):
        check(y, {x: layout, y: layout})
    check([flat, pooled], {x: layout, pooled: layout})
    check(p.reshape(p.reduce_max(x, (0, 1, 2, 3)), ()), {x: layout})


@pytest.mark.parametrize("shape", [(2, 70, 16, 32), (1, 150, 64, 8), (4, 97, 8, 7)])
def test_three_stages_of_three_blocks(shape: tuple[int, ...]) -> None:
    x = placeholder(of(shape))
    assert "bp" in check(softmax(x, 1))
    assert "bp" in check(softmax(x, 1) * x), "the last stage reads what the first did"
    assert "bp" in check(normalised(x, 1)), "the last stage reads what the first ended"
    w = weights(1, shape[1], 1, 1)
    assert "bp" in check(p.clip(normalised(x * w, 1) * w + p.reduce_max(x * w, 1), -0.5, 0.5))


def test_softmax_of_rows_that_take_turns() -> None:
    x = placeholder(of([12, 32, 33]))
    assert "bp" in check(softmax(x, -1))
    check(p.transpose(softmax(x * 0.5, -1), (0, 2, 1)))
    check(softmax(placeholder(of([48, 150])), -1))
    e = p.exp(x - p.reduce_max(x, -1))
    check((e, e / p.reduce_sum(e, -1)))


@pytest.mark.parametrize("rows_", [48, 64, 96, 128])
def test_groups_of_rows_that_take_turns(rows_: int) -> None:
    x = placeholder(of([rows_, 20]))
    check(normalised(x, -1))
    check((p.reduce_max(x, -1), p.reduce_mean(x * x, -1)))
    halves = p.concat([placeholder(of([rows_, 7])), placeholder(of([rows_, 13]))], -1)
    check(normalised(halves, -1))


def test_attention_softmax_with_scale_and_mask() -> None:
    x, mask = placeholder(of([2, 12, 17, 33])), placeholder(of([2, 1, 1, 33]))
    y = softmax(x * 0.125 + mask, -1)
    text = check(y)
    assert text.count("exp_below(") == 1, "the exponential is computed once and kept"
    check(p.transpose(y, (0, 2, 1, 3)))
    check(p.reshape(p.transpose(y, (0, 2, 1, 3)), (34, 12 * 33)))


def test_an_output_of_an_early_stage_is_read_back() -> None:
    x, skip = placeholder(of([9, 40])), placeholder(of([9, 40]))
    total = x + skip + weights(40)
    text = check([total, normalised(total, -1) * weights(40)])
    assert text.count("load(l, x0") == 1


def test_norms_and_statistics() -> None:
    x = placeholder(of([5, 197]))
    check(x / p.sqrt(p.reduce_sum(x * x, 1)))
    check(x * p.rsqrt(p.reduce_mean(x * x, 1) + 1e-6) * weights(197))
    top = p.reduce_max(x, 1)
    check(p.log(p.reduce_sum(p.exp(x - top), 1)) + top)
    for axis in (0, 1):
        check([make(x, axis) for make in (p.reduce_max, p.reduce_min, p.reduce_sum, p.reduce_prod)])


def test_group_norm_through_reshapes() -> None:
    x = placeholder(of([2, 32, 7, 5]))
    y = p.reshape(normalised(p.reshape(x, (2, 8, 140)), 2), x.shape) * weights(32, 1, 1)
    for layout in (row_major(4), LAST):
        check(y, {x: layout, y: layout})


def test_prologue_of_layout_primitives() -> None:
    x = placeholder(of([3, 20, 9]))
    check(softmax(p.slice_(p.transpose(x, (0, 2, 1)), (0, 1, 2), (3, 7, 17)), -1))
    check(p.reduce_mean(p.pad(x, (0, 0, 2), (0, 0, 3)), 2))
    check(p.reduce_max(p.concat([x, x * 2.0], 2), 2))
    check(softmax(p.concat([x, x * 2.0], 1), 1))
    check(normalised(p.pad(x, (0, 1, 0), (0, 1, 0), "edge"), 2))


def test_long_sums_are_as_accurate_as_pairwise_ones() -> None:
    data = noise(3, 50176) + np.float32(100)
    for shape, axis in (((3, 50176), 1), ((50176, 3), 0), ((6, 50021), 1), ((50021, 6), 0)):
        values = np.resize(data, shape)
        x = placeholder(of(shape))
        candidate = candidate_of((p.reduce_sum(x, axis),))
        kernel = rows.lower(candidate)
        assert kernel
        (got,) = run_kernel(candidate, kernel, [values])
        exact = values.astype(np.float64).sum(axis=axis, keepdims=True)
        pairwise = np.ascontiguousarray(np.moveaxis(values, axis, -1)).sum(axis=-1)
        error = np.abs(pairwise - exact.reshape(pairwise.shape)).max()
        assert np.abs(got - exact).max() <= 4 * error + 1e-7 * np.abs(exact).max()


def test_large_rows() -> None:
    check(normalised(placeholder(of([3, 130, 128])), (1, 2)))


LONG = (1 << 14) + 37  # a row of blocks and a rest
HOSTILE = {
    "noise": lambda x: x,
    "large mean": lambda x: x + np.float32(1e4),
    "larger mean": lambda x: x + np.float32(1e6),
    "constant": lambda x: np.full_like(x, 0.1),
    "a step": lambda x: x + np.where(np.arange(x.size) < x.size // 3, np.float32(1e4), 0),
    "a step at the end of a block": lambda x: x + np.where(np.arange(x.size) < 8192, 1e4, -3e3),
    "the first block far away": lambda x: x + np.where(np.arange(x.size) < 4096, 1e5, 0),
    "the first value far away": lambda x: x + np.where(np.arange(x.size) < 1, 1e6, 0),
    "the last values far away": lambda x: x + np.where(np.arange(x.size) >= x.size - 40, 1e6, 0),
    "a ramp": lambda x: x + np.arange(x.size) * np.float32(0.5),
    "steps up and down": lambda x: x + (np.arange(x.size) // 4096 % 2) * np.float32(1e5),
    "tiny": lambda x: x * np.float32(1e-15) + np.float32(1e-10),
    "large": lambda x: x * np.float32(1e15),
}


def taken(x: Value, axes: int | tuple[int, ...]) -> tuple[Value, Value]:
    """Mean and variance."""
    mean = p.reduce_mean(x, axes)
    return mean, p.reduce_mean((x - mean) * (x - mean), axes)


MACHINES = [
    (HERE, ()),
    (replace(HERE, vl=8, registers=16), ("-mno-avx512f", "-mavx2", "-mfma")),
    (replace(HERE, vl=4, registers=16), ("-mno-avx512f", "-mno-avx")),
]


@pytest.mark.parametrize(("machine", "flags"), MACHINES, ids=["native", "avx2", "sse"])
@pytest.mark.parametrize("length", [LONG, 5 << 12])
def test_one_pass_loses_no_more_than_two(
    length: int, machine: Machine, flags: tuple[str, ...]
) -> None:
    if machine.vl > HERE.vl or (flags and HERE.vl < 8):
        pytest.skip("not a processor that runs this")
    rows_ = [np.float32(make(noise(length, seed=k))) for k, make in enumerate(HOSTILE.values())]
    data = np.stack(rows_)
    candidate = candidate_of(taken(placeholder(of(data.shape)), 1))
    kernel = rows.lower(candidate, machine)
    assert kernel and "about(" in kernel.source
    mean, variance = (g[:, 0] for g in run_kernel(candidate, kernel, [data], flags=flags))
    wide = data.astype(np.float64)
    single = data.mean(axis=1, keepdims=True)
    two_passes = np.square(data - single).mean(axis=1)
    additions = 4096 // (4 * machine.vl) + length // 4096 + 8  # that one value goes through
    for k, name in enumerate(HOSTILE):
        exact = wide[k].mean(), wide[k].var()
        about = exact[1] + (mean[k] - exact[0]) ** 2  # squares of differences from that mean
        bound = max(4 * abs(two_passes[k] - exact[1]), 2e-6 * about)
        assert abs(variance[k] - about) <= bound, (name, variance[k], about)
        assert abs(mean[k] - exact[0]) <= additions * 2.0**-24 * np.abs(wide[k]).mean(), name


def test_one_pass_beside_other_sums_and_values() -> None:
    x = placeholder(of([2, LONG]))
    y = p.maximum(x * 0.5 + 1.0, -1.0)
    mean, variance = taken(y, 1)
    assert "about(" in check([y, mean, variance])
    assert "about(" in check([(y - mean) * p.rsqrt(variance + 1e-5), p.reduce_max(p.exp(y), 1)])
    apart = y - mean
    several = [p.reduce_sum(apart * apart, 1), p.reduce_max(p.abs_(apart), 1), apart]
    assert "about(" in check(several)
    z = placeholder(of([2, LONG]))
    both = normalised(x, 1) * normalised(z, 1)
    assert check(both).count("about(") == 2
    assert "about(" not in check(p.reduce_mean(apart * x, 1)), "no square"


def test_one_pass_has_one_order() -> None:
    x = placeholder(of([3, LONG]))
    mean, variance = taken(x, 1)
    data = [noise(3, LONG) + np.float32(100)]
    found = []
    for outputs in ((mean,), (mean, variance), (mean, variance, x - mean), (mean, x - mean)):
        candidate = candidate_of(outputs)
        found.append(run_kernel(candidate, rows.lower(candidate), data))  # pyright: ignore
    assert len({f[0].tobytes() for f in found}) == 1
    assert len({f[1].tobytes() for f in found[1:3]}) == 1


def test_one_pass_over_nan_and_infinities() -> None:
    data = noise(6, LONG)
    for row, (place, value) in enumerate([(5, np.nan), (4097, np.inf), (LONG - 1, -np.inf)]):
        data[row, place] = value
    data[3, :2] = np.inf, -np.inf
    data[4] = np.inf
    x = placeholder(of(data.shape))
    assert "about(" in check(normalised(x, 1), inputs=[data])
    assert "about(" in check(taken(x, 1), inputs=[data])


def test_nan_and_infinities() -> None:
    values = noise(6, 37)
    values[1, 5], values[2, 36], values[3, 0] = np.nan, np.inf, -np.inf
    values[4] = -np.inf
    x = placeholder(of([6, 37]))
    for axis in (0, 1):
        check([p.reduce_max(x, axis), p.reduce_min(x, axis)], inputs=[values])
        check(softmax(x, axis), inputs=[values])


@pytest.mark.parametrize("dtype", [F64, F16, BF16])
def test_other_floats(dtype: DType) -> None:
    x = placeholder(of([3, 5, 19], dtype))
    for axis in (1, 2):
        check(softmax(x, axis))
        check([make(x, axis) for make in (p.reduce_mean, p.reduce_max, p.reduce_sum)])


@pytest.mark.parametrize("dtype", [I8, I32, I64, U8])
def test_integers_wrap(dtype: DType) -> None:
    x = placeholder(of([3, 5, 19], dtype))
    for axis in (0, 2):
        check([make(x, axis) for make in (p.reduce_max, p.reduce_min, p.reduce_sum, p.reduce_prod)])
        check(p.cast(p.reduce_mean(x, axis), F32))
    check(p.reduce_mean(p.cast(x, F32), 2))


def test_a_sum_has_one_order() -> None:
    """The same statistic in two kernels has the same bits."""
    x = placeholder(of([4, 1000]))
    mean = p.reduce_mean(x, 1)
    centred = x - mean
    alone, with_use = candidate_of((mean,)), candidate_of((mean, centred))
    data = [noise(4, 1000)]
    results = [run_kernel(c, rows.lower(c), data)[0] for c in (alone, with_use)]  # pyright: ignore
    assert results[0].tobytes() == results[1].tobytes()


def test_a_parameter_asks_for_rows_side_by_side() -> None:
    x = placeholder(of([1, 64, 9, 7]))
    y = normalised(x, (2, 3))
    data = [noise(1, 64, 9, 7)]
    found = [candidate_of((y,), {x: LAST, y: LAST}, width=w) for w in (64, 16)]
    kernels = [rows.lower(c) for c in found]
    assert [k.tiles for k in kernels] == [1, 1]  # pyright: ignore
    first, second = (run_kernel(c, k, data) for c, k in zip(found, kernels, strict=True))  # pyright: ignore
    assert first[0].tobytes() == second[0].tobytes()
    refused = rows.lower(candidate_of((y,), {x: LAST, y: LAST}, width=24))
    assert not refused and "do not divide" in refused.reason  # pyright: ignore


def test_refusals_have_reasons() -> None:
    x = placeholder(of([4, 6]))
    assert "axes" in refusal(p.reduce_sum(x, 0) + p.reduce_sum(x, 1))
    assert "neither" in refusal(p.pad(softmax(x, 1), (1, 0), (0, 0)))
    assert "argmax" in refusal(p.argument("argmax", x, 1))
    assert "no reduction" in refusal(x + 1.0)
    assert "of nothing" in refusal(p.reduce_sum(placeholder(of([0, 3])), 1))
    square = placeholder(of([6, 6]))
    assert "another row" in refusal(square - p.transpose(p.reduce_mean(square, 1), (1, 0)))
    assert "contract" in refusal(p.reduce_sum(p.contract(square, square, "ab,bc->ac"), 1))


@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax_of_rows_that_hold_nan_and_infinities(axis: int) -> None:
    """The maximum of a softmax may lose a NaN, which the sum brings back to the whole row."""
    rows_ = noise(6, 37)
    rows_[0, 5] = rows_[5, 36] = rows_[5, 0] = np.nan
    rows_[1, 3] = np.inf
    rows_[2, :] = -np.inf
    rows_[3, 2:9] = -np.inf
    given = rows_ if axis == -1 else np.ascontiguousarray(rows_.T)
    x = placeholder(of(given.shape))
    text = check(softmax(x * 2.0, axis), inputs=[given])
    assert "greatest(" in text and "divide(1.0f" in text
    # what another kernel may read keeps its NaN, and a sum of anything else its division
    top = p.reduce_max(x, axis)
    e = p.exp(x - top)
    assert "greatest(" not in check([top, e / p.reduce_sum(e, axis)], inputs=[given])
    assert "greatest(" not in check([e, p.reduce_sum(e, axis)], inputs=[given])
    assert "greatest(" not in check(p.exp(x) / p.reduce_sum(p.exp(x), axis), inputs=[given * 1e-3])

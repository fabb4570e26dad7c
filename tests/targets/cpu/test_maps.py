"""Elementwise and layout kernels against numpy; aliases against strides."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder
from fissile.ir.layout import Layout, channels_last, row_major
from fissile.ir.types import BOOL, F16, F64, I8, I32, I64, DType, of
from fissile.targets.cpu.impls import maps

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel

LAST = channels_last(4)


def noise(v: Value, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if v.type.dtype.is_float:
        return rng.standard_normal(v.shape).astype(v.type.dtype.numpy)
    return rng.integers(0, 2 if v.type.dtype is BOOL else 5, v.shape).astype(v.type.dtype.numpy)


def check(*outputs: Value, layouts: dict[Value, Layout] | None = None, atol: float = 1e-6) -> str:
    candidate = candidate_of(outputs, layouts or {})
    kernel = maps.lower(candidate)
    assert kernel, kernel
    inputs = [noise(v, k) for k, v in enumerate(candidate.region.tensors)]
    results = run_kernel(candidate, kernel, inputs)
    for got, want in zip(results, expected(candidate, inputs), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=1e-6, atol=atol
        )
    return kernel.source


@pytest.mark.parametrize("layout", [None, LAST])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_in_all_modes_and_layouts(layout: Layout | None, mode: str) -> None:
    x = placeholder(of([2, 18, 9, 11]))
    y = p.pad(x * 2.0, (0, 0, 2, 1), (0, 0, 1, 3), mode) + 1.0
    check(y, layouts={x: layout, y: layout} if layout else {})


@pytest.mark.parametrize("layout", [None, LAST])
def test_concats_of_computed_parts(layout: Layout | None) -> None:
    x, z = placeholder(of([1, 20, 6, 7])), placeholder(of([1, 3, 6, 7]))
    y = p.concat([p.sigmoid(x), z, x + 1.0], 1)
    check(y, layouts=dict.fromkeys((x, y, z), layout) if layout else {})


def test_slices_gathers_and_broadcasts() -> None:
    x = placeholder(of([4, 30, 8]))
    check(p.slice_(x, (3, 29, 1), (4, 10, 3), (-1, -3, 2)) * 2.0)
    check(p.gather(x, p.constant(np.array([3, -1, 0])), 1) + 1.0)
    table, ids = placeholder(of([5, 16])), placeholder(of([2, 7], I64))
    check(p.gather(table, ids, 0) * 2.0)
    check(p.broadcast(placeholder(of([30, 1])), (4, 30, 8)) * x)


def test_reshapes_that_split_and_merge_unevenly() -> None:
    x = placeholder(of([6, 20, 7]))
    check(p.reshape(p.transpose(x, (1, 0, 2)), (8, 15, 7)) + 1.0)
    check(p.transpose(p.reshape(x, (3, 40, 7)), (2, 0, 1)))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_chains_of_layout_primitives(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4))
    x = y = placeholder(of(shape))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["transpose", "reshape", "pad", "slice", "neg"]))
        if kind == "transpose":
            y = p.transpose(y, data.draw(st.permutations(range(y.rank))))
        elif kind == "reshape":
            axis = data.draw(st.integers(0, y.rank - 1))
            rest = y.shape[axis + 1 :]
            merged = (
                [*y.shape[:axis], y.shape[axis] * rest[0], *rest[1:]] if rest else [1, *y.shape]
            )
            y = p.reshape(y, merged)
        elif kind == "pad":
            y = p.pad(y, [data.draw(st.integers(0, 2)) for _ in y.shape], [1] * y.rank)
        elif kind == "slice":
            y = p.slice_(y, [0] * y.rank, [max(1, s - 1) for s in y.shape])
        else:
            y = -y
    if y is not x:
        check(y)


@pytest.mark.parametrize("dtype", [F64, F16, I8, I64])
def test_other_element_types(dtype: DType) -> None:
    x, z = placeholder(of([5, 33], dtype)), placeholder(of([33], dtype))
    check(x * z + x, atol=1e-2 if dtype is F16 else 1e-12)
    check(p.where(p.less(x, z), x, z))
    check(p.cast(x, BOOL), p.cast(x, BOOL))


def test_outputs_that_share_work() -> None:
    x = placeholder(of([3, 100]))
    e = p.exp(x)
    check(e, e + 1.0)


def offset(x: Value, y: Value, need: Layout, give: Layout) -> object:
    return maps.alias_offset(candidate_of((y,), {x: need, y: give}, "alias"))


def test_aliases_are_found_exactly_where_memory_agrees() -> None:
    x = placeholder(of([1, 8, 4, 6]))
    tokens = p.transpose(p.reshape(x, (1, 8, 24)), (0, 2, 1))
    rows = row_major(3)
    assert offset(x, tokens, LAST, rows) == 0
    assert not offset(x, tokens, row_major(4), rows)
    part = p.slice_(x, (0, 2, 0, 0), (1, 3, 4, 6))
    assert offset(x, part, row_major(4), row_major(4)) == 2 * 24 * 4
    assert offset(x, part, LAST, LAST) is not 0 and not offset(x, part, LAST, LAST)  # noqa: F632
    assert not offset(x, p.pad(x, (0, 0, 1, 0), (0, 0, 0, 0)), row_major(4), row_major(4))


@pytest.mark.parametrize("dtype", [I8, I32, I64])
def test_integers_wrap(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    x, z = placeholder(of([40], dtype)), placeholder(of([40], dtype))
    y = x * z + x - (-z)
    candidate = candidate_of((y,), {})
    kernel = maps.lower(candidate)
    assert kernel, kernel
    rng = np.random.default_rng(1)
    data = [
        rng.integers(info.min, info.max, 40, dtype=dtype.numpy, endpoint=True) for _ in range(2)
    ]
    (got,) = run_kernel(candidate, kernel, data)
    np.testing.assert_array_equal(got, expected(candidate, data)[0])


def test_expressions_are_simplified() -> None:
    """Fewer instructions for the same value; NaN propagates through a bound."""
    x = placeholder(of([5, 67]))
    assert "mish(" in check(p.mish(x))
    assert "silu(" in check(p.sigmoid(x) * x)
    assert "sigmoid(" in check((x + 1.0) * p.sigmoid(x))
    for y in (p.erf(x / np.sqrt(2.0)) + 1.0, 1.0 + p.erf(x / np.sqrt(2.0))):
        assert "divide" not in (text := check(y)) and "erf_plus_one(" in text
    assert "erf(" in check(p.erf(x) + 2.0)
    assert "divide" in check(x / np.sqrt(2.0)), "the division itself is exact"
    for y, want in (
        (p.maximum(x, 0.5), "at_least"),
        (p.minimum(0.5, x), "at_most"),
        (p.clip(x, -0.5, 0.5), "at_least"),
    ):  # fmt: skip
        assert want in check(y)
        given = np.full(x.shape, np.nan, np.float32)
        given[1:] = np.linspace(-2, 2, 4 * 67).reshape(4, 67)
        candidate = candidate_of([y])
        (got,) = run_kernel(candidate, maps.lower(candidate), [given])
        (exact,) = expected(candidate, [given], reference=False)
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("shape", [(1, 128, 32, 4), (2, 67, 9, 41), (1, 16, 3, 16), (1, 33, 64, 1)])
def test_arithmetic_across_the_output_goes_through_squares(shape: tuple[int, ...]) -> None:
    x, z = placeholder(of(shape)), placeholder(of(shape))
    bias = p.constant(np.random.default_rng(5).standard_normal(shape[1]).astype(np.float32))
    y = p.sigmoid(x + p.reshape(bias, (shape[1], 1, 1))) * 2.0
    assert "square" in check(y, layouts={y: LAST})
    assert "square" in check(y, layouts={x: LAST})
    mixed = check(x + z, layouts={z: LAST})  # neither order suits both
    assert "square" not in mixed


@pytest.mark.parametrize("shape", [(1, 128, 32, 4), (2, 67, 9, 41), (1, 33, 64, 1)])
def test_light_arithmetic_across_the_output_stays_in_registers(shape: tuple[int, ...]) -> None:
    x = placeholder(of(shape))
    bias = p.constant(np.random.default_rng(5).standard_normal(shape[1]).astype(np.float32))
    y = x * x + p.reshape(bias, (shape[1], 1, 1))
    for v in (x, y):
        source = check(y, layouts={v: LAST})
        assert "transpose_rows(" in source and "square" not in source


def test_the_borders_of_a_row_are_written_with_it() -> None:
    x = placeholder(of((3, 40, 50)))
    source = check(p.pad(x, (0, 1, 2), (0, 1, 1), "constant"))
    assert source.count("for (int64_t i1") == 1


def test_long_arithmetic_loads_before_it_stores() -> None:
    x, z = placeholder(of((3, 301))), placeholder(of((3, 301)))
    assert "lanes_ahead(" in check(x * p.sigmoid(x) + z)
    assert "lanes_ahead(" in check(p.sigmoid(x), p.tanh(x))
    assert "lanes_ahead(" not in check(x * 2.0 + z)


def test_squares_ask_ahead_for_lines_beyond_the_second_cache() -> None:
    far, near = (placeholder(of((1, c, 48, 40))) for c in (96, 16))
    assert "fetch_later" not in check(far * 2.0 + 1.0)  # nothing lies across
    for x, asks in ((far, True), (near, False)):
        y = x * 2.0 + 1.0
        assert ("fetch_later" in check(y, layouts={y: LAST})) is asks

"""Loads, stores and horizontal reductions: no byte outside, and the documented order."""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

BODY = """
extern "C" void copy_n(const float* x, float* y, int64_t n) { storen(y, loadn(x, n), n); }
extern "C" void read_n(const float* x, float* y, int64_t n) { store(y, loadn(x, n)); }
extern "C" void strided(const float* x, float* y, int64_t s) { scatter(y, s, gather(x, s)); }
extern "C" void strided_n(const float* x, float* y, int64_t s, int64_t n) { scatter(y, s, gather(x, s, n), n); }
extern "C" void split_pairs(const float* x, float* y) { vf e, o; deinterleave(x, e, o); store(y, e); store(y + VL, o); }
extern "C" float sum(const float* x) { return hsum(load<vf>(x)); }
extern "C" float largest(const float* x) { return hmax(load<vf>(x)); }
extern "C" float smallest(const float* x) { return hmin(load<vf>(x)); }
extern "C" float sum_n(const float* x, int64_t n) { return hsum(loadn(x, n), n); }
extern "C" float largest_n(const float* x, int64_t n) { return hmax(loadn(x, n), n); }
"""


@pytest.fixture
def library(compile_cpp, machine):
    return compile_cpp(BODY, machine, "vec.h")


def before_guard(page: mmap.mmap, n: int) -> np.ndarray:
    """The last n floats of the first page of two, the second of which may not be touched."""
    whole = np.frombuffer(page, np.float32)
    return whole[mmap.PAGESIZE // 4 - n : mmap.PAGESIZE // 4]


def test_partial_access_touches_nothing_outside(library, lanes):
    pages = [mmap.mmap(-1, 2 * mmap.PAGESIZE) for _ in range(2)]
    libc = ctypes.CDLL(None, use_errno=True)
    for page in pages:
        address = np.frombuffer(page, np.float32).ctypes.data + mmap.PAGESIZE
        assert libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
    for n in range(1, lanes + 1):
        x, y = (before_guard(page, n) for page in pages)
        before = before_guard(pages[1], n + 4)
        before[:] = 7
        x[:] = np.arange(1, n + 1)
        library("copy_n", x, y, n)
        np.testing.assert_array_equal(y, x)
        assert np.all(before[:4] == 7)
        whole = np.full(lanes, 9, np.float32)
        library("read_n", x, whole, n)
        np.testing.assert_array_equal(whole, np.r_[x, np.zeros(lanes - n, np.float32)])
        library("read_n", x, whole, 0)
        assert np.all(whole == 0)


def test_strides(library, lanes):
    x = np.random.default_rng(0).standard_normal(lanes * 5).astype(np.float32)
    y = np.zeros_like(x)
    library("strided", x, y, 5)
    np.testing.assert_array_equal(y[::5], x[::5])
    assert np.count_nonzero(y) == lanes
    y[:] = 0
    library("strided_n", x, y, 5, 3)
    np.testing.assert_array_equal(y[:15:5], x[:15:5])
    assert np.count_nonzero(y) == 3
    library("split_pairs", x, y)
    np.testing.assert_array_equal(y[:lanes], x[: 2 * lanes : 2])
    np.testing.assert_array_equal(y[lanes : 2 * lanes], x[1 : 2 * lanes : 2])


def folded(v: np.ndarray, f) -> np.float32:
    while v.size > 1:
        v = f(v[: v.size // 2], v[v.size // 2 :])
    return v[0]


def test_horizontal(library, lanes):
    x = (np.random.default_rng(3).standard_normal(lanes) * 10.0 ** np.arange(lanes)).astype(
        np.float32
    )
    assert library("sum", x, result=ctypes.c_float) == folded(x, np.add)
    assert library("largest", x, result=ctypes.c_float) == x.max()
    assert library("smallest", x, result=ctypes.c_float) == x.min()
    for n in range(1, lanes + 1):
        padded = np.r_[x[:n], np.zeros(lanes - n, np.float32)]
        assert library("sum_n", x, n, result=ctypes.c_float) == folded(padded, np.add)
        assert library("largest_n", x, n, result=ctypes.c_float) == x[:n].max()
    x[lanes // 2] = np.nan
    assert np.isnan(library("largest", x, result=ctypes.c_float))
    assert np.isnan(library("smallest", x, result=ctypes.c_float))


ROWS = (1, 4, 5, 8, 12, 16, 24)
FOLDS = "".join(
    f"""
extern "C" void {name}_{n}(const float* x, float* y) {{
  Rows<{n}> a;
  for (int64_t r = 0; r < {n}; ++r) a[r] = load<vf>(x + r * VL);
  {name}_rows(y, a);
}}"""
    for name in ("hsum", "hmax")
    for n in ROWS
)


@pytest.mark.parametrize("n", ROWS)
def test_rows_fold_together_as_each_does_alone(compile_cpp, machine, lanes, n):
    library = compile_cpp(FOLDS, machine, "prims.h")
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, lanes)) * 10.0 ** rng.integers(-4, 5, (n, lanes))
    x = x.astype(np.float32)
    for name, f in (("hsum", np.add), ("hmax", np.maximum)):
        y = np.full(n + 1, 7, np.float32)
        library(f"{name}_{n}", x, y)
        np.testing.assert_array_equal(y[:n], [folded(row, f) for row in x])
        assert y[n] == 7  # nothing beyond the last row

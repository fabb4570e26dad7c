"""Contraction tiles against float64, and equal bits whatever the tile is."""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

KERNEL = """
extern "C" void rows_%(mr)d_%(nv)d(const float* a, const float* b, float* y, int64_t M, int64_t K, int64_t N, int64_t packed) {
  constexpr int64_t W = %(nv)d * VL;
  for (int64_t n = 0; n < N; n += W)
    for_rows<%(mr)d>(M, [&](auto mr, int64_t m) {
      vf c[mr.value][%(nv)d];
      zero(c);
      if (packed) contract(c, K, a + m * K, K, 1, b + n * K);
      else contract(c, K, a + m, 1, M, b + n, N);
      for (int i = 0; i < mr.value; i++)
        for (int v = 0; v < %(nv)d; v++)
          if (int64_t left = N - n - v * VL; left > 0) storen(y + (m + i) * N + n + v * VL, c[i][v], left < VL ? left : VL);
    });
}
"""
FIXED = """
template <int64_t M> static void fixed(const float* a, const float* b, float* y, int64_t K) {
  for_rows<5, M>([&](auto mr, int64_t m) {
    vf c[mr.value][2];
    zero(c);
    contract(c, K, a + m * K, K, 1, b);
    for (int i = 0; i < mr.value; i++)
      for (int v = 0; v < 2; v++) store(y + (m + i) * 2 * VL + v * VL, c[i][v]);
  });
}
extern "C" void fixed_4(const float* a, const float* b, float* y, int64_t K) { fixed<4>(a, b, y, K); }
extern "C" void fixed_11(const float* a, const float* b, float* y, int64_t K) { fixed<11>(a, b, y, K); }
extern "C" void fixed_15(const float* a, const float* b, float* y, int64_t K) { fixed<15>(a, b, y, K); }
extern "C" void packed_a(const float* a, const float* b, float* y, int64_t K, int64_t split) {
  vf c[6][1];
  zero(c);
  contract(c, split, a, 1, 6, b);
  contract(c, K - split, a + split * 6, 1, 6, b + split * VL);
  for (int i = 0; i < 6; i++) store(y + i * VL, c[i][0]);
}
"""
TILES = [(1, 1), (3, 1), (4, 2), (6, 2), (4, 3), (7, 4), (14, 2), (28, 1)]
BODY = "".join(KERNEL % {"mr": mr, "nv": nv} for mr, nv in TILES) + FIXED


def panels(b: np.ndarray, width: int) -> np.ndarray:
    """b: f32[k, n] -> f32[n / width, k, width], the last panel filled with zeros"""
    k, n = b.shape
    padded = np.zeros((k, -(-n // width) * width), np.float32)
    padded[:, :n] = b
    return np.ascontiguousarray(
        padded.reshape(k, padded.shape[1] // width, width).transpose(1, 0, 2)
    )


def close(y: np.ndarray, exact: np.ndarray, k: int) -> None:
    assert np.abs(y - exact).max() <= 2.0**-24 * 4 * np.sqrt(k) * max(1, np.abs(exact).max())


@pytest.mark.parametrize("m,k,n", [(1, 1, 1), (5, 7, 3), (29, 64, 70), (31, 129, 128), (14, 0, 32)])
def test_any_tile_gives_the_same_bits(compile_cpp, machine, lanes, m, k, n):
    rng = np.random.default_rng(m * k + n)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    library = compile_cpp(BODY, machine, "contract.h")
    results = []
    for mr, nv in TILES:
        y = np.zeros((m, n), np.float32)
        library(f"rows_{mr}_{nv}", a, panels(b, nv * lanes), y, m, k, n, 1)
        results.append(y)
        if n % (nv * lanes) == 0:
            library(
                f"rows_{mr}_{nv}", np.ascontiguousarray(a.T), b, y := np.zeros_like(y), m, k, n, 0
            )
            results.append(y)
    close(results[0], a.astype(np.float64) @ b.astype(np.float64), max(k, 1))
    for y in results[1:]:
        assert_array_equal(y, results[0])


@pytest.mark.parametrize("m", [4, 11, 15])
def test_constant_rows_are_split_evenly(compile_cpp, machine, lanes, m):
    rng = np.random.default_rng(m)
    a, b = (
        rng.standard_normal((m, 33), np.float32),
        rng.standard_normal((33, 2 * lanes), np.float32),
    )
    y = np.zeros((m, 2 * lanes), np.float32)
    compile_cpp(BODY, machine, "contract.h")(f"fixed_{m}", a, b, y, 33)
    close(y, a.astype(np.float64) @ b, 33)


def test_packed_rows_and_a_chain_in_two_parts(compile_cpp, machine, lanes):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((50, 6), np.float32), rng.standard_normal((50, lanes), np.float32)
    library = compile_cpp(BODY, machine, "contract.h")
    whole, parts = np.zeros((6, lanes), np.float32), np.zeros((6, lanes), np.float32)
    library("packed_a", a, b, whole, 50, 0)
    library("packed_a", a, b, parts, 50, 17)
    close(whole, a.astype(np.float64).T @ b, 50)
    assert_array_equal(whole, parts)


@pytest.mark.parametrize(
    "machine,vector,mr,nv",
    [
        ("native", "zmm", 14, 2),
        ("native", "zmm", 7, 4),
        ("native", "zmm", 28, 1),
        ("avx2", "ymm", 6, 2),
        ("avx2", "ymm", 4, 3),
    ],
)
def test_accumulators_stay_in_registers(assemble, machine, vector, mr, nv):
    text = assemble(
        f"""#include "contract.h"
    namespace fissile {{ extern "C" void k(const float* a, const float* b, float* y, int64_t K) {{
      vf c[{mr}][{nv}];
      zero(c);
      contract(c, K, a, 512, 1, b);
    #pragma GCC unroll 32
      for (int i = 0; i < {mr}; i++)
    #pragma GCC unroll 8
        for (int v = 0; v < {nv}; v++) store(y + i * 512 + v * VL, relu(c[i][v]));
    }} }}""",
        machine,
    )
    if f"%{vector}" not in text:
        pytest.skip("the machine has no such registers")
    assert len(re.findall(rf"vfmadd\w+ps.*%{vector}", text)) == mr * nv
    assert not re.search(rf"%{vector}.*\(%rsp\)|\(%rsp\).*%{vector}", text)

"""Convolution, depthwise convolution and pooling tiles against plain loops in float64."""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import numpy as np
import pytest

CONV = """
template <int PX, int NV, int PY, bool taps> static void conv(const float* x, const float* b, float* y, const int64_t* p) {
  int64_t H = p[0], W = p[1], C = p[2], N = p[3], KH = p[4], KW = p[5], S = p[6], D = p[7], WP = p[8];
  for (int64_t n = 0; n < N; n += NV * VL)
    for (int64_t h = 0; h < H; h += PY)
      for_rows<PX>(W, [&](auto px, int64_t w) {
        vf c[PY * px.value][NV];
        zero(c);
        const float* at = x + (h * S * WP + w * S) * C;
        const float* panel = b + n * KH * KW * C;
        if constexpr (taps) conv_tile_taps<px.value, NV, PY>(c, at, S * C, S * WP * C, D * WP * C, D * C, KH, KW, C, panel);
        else conv_tile<px.value, NV, PY>(c, at, S * C, S * WP * C, D * WP * C, KH, KW * C, panel);
        for (int i = 0; i < PY; i++)
          for (int j = 0; j < px.value; j++)
            for (int v = 0; v < NV; v++) store(y + ((h + i) * W + w + j) * N + n + v * VL, c[i * px.value + j][v]);
      });
}
extern "C" void conv_rows(const float* x, const float* b, float* y, const int64_t* p) { conv<6, 2, 1, false>(x, b, y, p); }
extern "C" void conv_block(const float* x, const float* b, float* y, const int64_t* p) { conv<3, 2, 2, false>(x, b, y, p); }
extern "C" void conv_taps(const float* x, const float* b, float* y, const int64_t* p) { conv<6, 2, 1, true>(x, b, y, p); }
"""


def windows(x: np.ndarray, kh: int, kw: int, s: int, d: int, h: int, w: int) -> np.ndarray:
    """x: [hp, wp, c] -> [h, w, kh, kw, c]"""
    out = np.zeros((h, w, kh, kw, x.shape[2]), x.dtype)
    for i in range(kh):
        for j in range(kw):
            out[:, :, i, j] = x[
                i * d : i * d + (h - 1) * s + 1 : s, j * d : j * d + (w - 1) * s + 1 : s
            ]
    return out


@pytest.mark.parametrize(
    "h,w,c,kh,kw,s,d",
    [
        (4, 11, 8, 3, 3, 1, 1),
        (6, 7, 3, 7, 7, 2, 1),
        (2, 9, 5, 3, 1, 2, 1),
        (4, 6, 4, 1, 1, 1, 1),
        (4, 8, 6, 3, 3, 1, 2),
        (2, 5, 2, 2, 3, 3, 3),
    ],
)
def test_convolution(compile_cpp, machine, lanes, h, w, c, kh, kw, s, d):
    rng = np.random.default_rng(h * w)
    hp, wp, n = (h - 1) * s + (kh - 1) * d + 1, (w - 1) * s + (kw - 1) * d + 2, 4 * lanes
    x, weight = (
        rng.standard_normal((hp, wp, c), np.float32),
        rng.standard_normal((kh, kw, c, n), np.float32),
    )
    panels = np.ascontiguousarray(
        weight.reshape(-1, n // (2 * lanes), 2 * lanes).transpose(1, 0, 2)
    )
    exact = np.einsum("hwijc,ijcn->hwn", windows(x.astype(np.float64), kh, kw, s, d, h, w), weight)
    library = compile_cpp(CONV, machine, "conv.h")
    p = np.array([h, w, c, n, kh, kw, s, d, wp], np.int64)
    results = []
    for name in ["conv_taps"] + ["conv_rows", "conv_block"] * (d == 1):
        y = np.zeros((h, w, n), np.float32)
        library(name, x, panels, y, p)
        results.append(y)
    assert np.abs(results[0] - exact).max() <= 2e-6 * np.abs(exact).max()
    for y in results[1:]:
        np.testing.assert_array_equal(y, results[0])


SLIDES = [(1, 1), (2, 1), (1, 2)]  # strides and dilations along the width


def channels_last(op: str, start: str, name: str, kh: int, kw: int) -> str:
    functions = "".join(
        f"""
extern "C" void {name}_{kh}{kw}_{tile}_{s}{d}(const float* x, const float* w, float* y, const int64_t* p) {{ {name}_tiles<{tile}, {s}, {d}>(x, w, y, p); }}"""
        for s, d in SLIDES
        for tile in (1, 4, 9)
    )
    return f"""
template <int PX, int S, int D> static void {name}_tiles(const float* x, const float* w, float* y, const int64_t* p) {{
  constexpr int64_t W = 9;
  int64_t H = p[0], C = p[2], WP = p[5];
  for (int64_t n = 0; n < C; n += VL)
    for (int64_t h = 0; h < H; h++)
      for_rows<PX, W>([&](auto px, int64_t j) {{
        constexpr int P = px.value;
        vf c[P][1];
        {start};
        slide_last<{op}, {kw}, S, D, 0, 0, VL, P>(c, x + (h * S * WP + j * S) * C + n, {kh}, D * WP * C, C, w + n, C);
        for (int q = 0; q < P; q++) store(y + (h * W + j + q) * C + n, c[q][0]);
      }});
}}{functions}
"""


def channels_first(call: str, any_call: str, start: str, name: str, kh: int, kw: int) -> str:
    return f"""
template <int S, int NV, int PY, bool any> static void {name}_tiles(const float* x, const float* w, float* y, const int64_t* p) {{
  int64_t H = p[0], W = p[1], D = p[4], WP = p[5];
  (void)w;
  for (int64_t h = 0; h < H; h += PY)
    for (int64_t j = 0; j < W; j += NV * VL) {{
      vf c[PY][NV];
      {start};
      const float* at = x + h * S * WP + j * S;
      int64_t line = S * WP, row = D * WP, tap = D;
      if constexpr (any) {any_call};
      else {call};
      for (int i = 0; i < PY; i++)
        for (int v = 0; v < NV; v++)
          if (int64_t left = W - j - v * VL; left > 0) storen(y + (h + i) * W + j + v * VL, c[i][v], left < VL ? left : VL);
    }}
}}
extern "C" void {name}_{kh}{kw}_s1(const float* x, const float* w, float* y, const int64_t* p) {{ {name}_tiles<1, 2, 2, false>(x, w, y, p); }}
extern "C" void {name}_{kh}{kw}_s2(const float* x, const float* w, float* y, const int64_t* p) {{ {name}_tiles<2, 1, 1, false>(x, w, y, p); }}
extern "C" void {name}_{kh}{kw}_s3(const float* x, const float* w, float* y, const int64_t* p) {{ {name}_tiles<3, 1, 2, true>(x, w, y, p); }}
"""


def bodies(kh: int, kw: int) -> str:
    text = ""
    for op, struct, start in [
        ("depthwise", "Weighted", "zero(c)"),
        ("max_pool", "Maximum", "fill(c, -__builtin_inff())"),
        ("sum_pool", "Sum", "zero(c)"),
    ]:
        w = ", w" if op == "depthwise" else ""
        text += channels_last(struct, start, f"{op}_last", kh, kw)
        text += channels_first(
            f"{op}_first<{kh}, {kw}, S, NV, PY>(c, at, line, row, tap{w})",
            f"{op}_first_any<S, NV, PY>(c, at, {kh}, {kw}, line, row, tap{w})",
            start,
            f"{op}_first",
            kh,
            kw,
        )
    return text


ORACLES = {
    "depthwise": lambda t, w: np.einsum("hwijc,ijc->hwc", t, w),
    "max_pool": lambda t, w: t.max((2, 3)),
    "sum_pool": lambda t, w: t.sum((2, 3)),
}


@pytest.mark.parametrize("kh,kw", [(3, 3), (2, 1)])
@pytest.mark.parametrize("op", ORACLES)
def test_window_channels_last(compile_cpp, machine, lanes, op, kh, kw):
    library = compile_cpp(bodies(kh, kw), machine, "pool.h")
    rng = np.random.default_rng(0)
    for s, d in SLIDES:
        h, w, c = 4, 9, 2 * lanes
        hp, wp = (h - 1) * s + (kh - 1) * d + 1, (w - 1) * s + (kw - 1) * d + 1
        x, weight = (
            rng.standard_normal((hp, wp, c), np.float32),
            rng.standard_normal((kh, kw, c), np.float32),
        )
        exact = ORACLES[op](windows(x.astype(np.float64), kh, kw, s, d, h, w), weight)
        results = []
        for tile in (1, 4, 9):
            y, p = np.zeros((h, w, c), np.float32), np.array([h, w, c, s, d, wp], np.int64)
            library(f"{op}_last_{kh}{kw}_{tile}_{s}{d}", x, weight, y, p)
            results.append(y)
        np.testing.assert_allclose(results[0], exact, rtol=0, atol=2e-6 * np.abs(exact).max())
        for y in results[1:]:
            np.testing.assert_array_equal(y, results[0])


@pytest.mark.parametrize("kh,kw", [(3, 3), (2, 1)])
@pytest.mark.parametrize("op", ORACLES)
def test_window_channels_first(compile_cpp, machine, lanes, op, kh, kw):
    library = compile_cpp(bodies(kh, kw), machine, "pool.h")
    rng = np.random.default_rng(0)
    for s, d in [(1, 1), (2, 1), (3, 1), (1, 3)]:
        h, w = 4, 2 * lanes + 5
        hp, wp = (h - 1) * s + (kh - 1) * d + 1, (w - 1) * s + (kw - 1) * d + 1
        slack = 4 * lanes * s  # whole vectors are read; the plane that follows usually holds this
        flat = np.zeros(hp * wp + slack, np.float32)
        x = flat[: hp * wp].reshape(hp, wp)
        x[:] = rng.standard_normal((hp, wp))
        weight = rng.standard_normal((kh, kw), np.float32)
        exact = ORACLES[op](
            windows(x.astype(np.float64)[..., None], kh, kw, s, d, h, w), weight[..., None]
        )[..., 0]
        y = np.zeros((h, w), np.float32)
        library(
            f"{op}_first_{kh}{kw}_s{s}", flat, weight, y, np.array([h, w, 1, s, d, wp], np.int64)
        )
        np.testing.assert_allclose(y, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


def test_max_pool_propagates_nan(compile_cpp, machine, lanes):
    x = np.ones((3, 11, lanes), np.float32)
    x[1, 1, 0] = np.nan
    y = np.zeros((1, 9, lanes), np.float32)
    compile_cpp(bodies(3, 3), machine, "pool.h")(
        "max_pool_last_33_4_11", x, x, y, np.array([1, 9, lanes, 1, 1, 11], np.int64)
    )
    assert np.isnan(y[0, :2, 0]).all() and np.isnan(y).sum() == 2

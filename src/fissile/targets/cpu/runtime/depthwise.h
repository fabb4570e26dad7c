// Depthwise convolution on an input that the caller has padded.
//
// Channels-last: lanes are channels, a tile is PX output pixels of one row and one vector.
//   c[px][0] += sum_{i < kh, j < KW} w[(i * KW + j) * w_tap ...] * x[i * row + (px * S + j * D) * pixel ...]
// Channels-first: lanes are output columns, a tile is PY rows and NV * VL columns of one plane.
//   c[py][v] += sum_{i < KH, j < KW} w[i * KW + j]
//               * x[py * line + i * row + j * tap + S * (v * VL ...)]
//
// Invariant: each output is one chain of fma in the order (kernel row, kernel column), whatever the
// tile is.
#ifndef FISSILE_DEPTHWISE_H
#define FISSILE_DEPTHWISE_H

#include "contract.h"

namespace fissile {

struct Weighted {
  static constexpr bool has_weights = true;
  FISSILE_INLINE vf fold(vf c, vf x, vf w) { return native_fma(x, w, c); }
};

// One row of PX output pixels that are S input columns apart, N channels: `kh` kernel rows, KW taps
// that are D columns apart. Every input vector is loaded once and enters all the windows that hold
// it. The first BEFORE and last AFTER columns that the windows span do not exist: x is the first
// that does.
template <class Op, int KW, int S, int D, int BEFORE, int AFTER, int N, int PX>
FISSILE_INLINE void slide_last(vf (&c)[PX][1], const float* x, int64_t kh, int64_t row,
                               int64_t pixel, const float* w, int64_t w_tap) {
  constexpr int END = (PX - 1) * S + (KW - 1) * D + 1 - AFTER;
  vf t[PX][1];
  copy_tile(t, c);
  for (int64_t i = 0; i < kh; i++, x += row) {
    vf k[KW] = {};
    if constexpr (Op::has_weights)
#pragma GCC unroll 32
      for (int j = 0; j < KW; j++, w += w_tap) {
        vf s = load<vf>(w);
        if (PX + KW + 2 <= REGISTERS) keep(s);  // within the array it would be stored as well
        k[j] = s;
      }
#pragma GCC unroll 128
    for (int q = BEFORE; q < END; q++) {
      const float* at = x + (q - BEFORE) * pixel;
      vf s = N >= VL ? load<vf>(at) : loadn(at, N);
      keep(s);
#pragma GCC unroll 32
      for (int j = 0; j < KW; j++) {
        const int p = q - j * D;
        if (p >= 0 && p % S == 0 && p / S < PX) t[p / S][0] = Op::fold(t[p / S][0], s, k[j]);
      }
    }
  }
  copy_tile(c, t);
}

// The same for PY rows of PX output pixels, from rows [i0, i1) of those that the windows span: the
// first TOP and last BOTTOM of them may not exist. `x` is the first of the span. The weights stay in
// registers, and an input vector is loaded once for all rows that it enters.
template <class Op, int KH, int KW, int SH, int S, int DH, int D, int TOP, int BOTTOM, int BEFORE,
          int AFTER, int N, int PY, int PX>
FISSILE_INLINE void slide_rows(vf (&c)[PY * PX][1], const float* x, int64_t i0, int64_t i1,
                               int64_t row, int64_t pixel, const float* w, int64_t w_tap) {
  constexpr int ROWS = (PY - 1) * SH + (KH - 1) * DH + 1;
  constexpr int END = (PX - 1) * S + (KW - 1) * D + 1 - AFTER;
  vf t[PY * PX][1], k[KH * KW] = {};
  copy_tile(t, c);
  if constexpr (Op::has_weights)
#pragma GCC unroll 32
    for (int i = 0; i < KH * KW; i++) {
      vf s = load<vf>(w + i * w_tap);
      keep(s);  // within the array it would be stored as well
      k[i] = s;
    }
#pragma GCC unroll 32
  for (int r = 0; r < ROWS; r++) {
    if ((r < TOP && r < i0) || (r >= ROWS - BOTTOM && r >= i1)) continue;
#pragma GCC unroll 32
    for (int q = BEFORE; q < END; q++) {
      const float* at = x + r * row + (q - BEFORE) * pixel;
      vf s = N >= VL ? load<vf>(at) : loadn(at, N);
      keep(s);
#pragma GCC unroll 8
      for (int y = 0; y < PY; y++) {
        const int i = r - y * SH;
        if (i < 0 || i % DH != 0 || i / DH >= KH) continue;
#pragma GCC unroll 32
        for (int j = 0; j < KW; j++) {
          const int p = q - j * D;
          if (p < 0 || p % S != 0 || p / S >= PX) continue;
          vf& sum = t[y * PX + p / S][0];
          sum = Op::fold(sum, s, k[i / DH * KW + j]);
        }
      }
    }
  }
  copy_tile(c, t);
}

// VL values at stride S. With S = 2 reads 2 VL values, otherwise (VL - 1) * S + 1.
template <int S> FISSILE_INLINE vf load_step(const float* p) {
  if constexpr (S == 1) return load<vf>(p);
  else if constexpr (S == 2) {
    vf even, odd;
    deinterleave(p, even, odd);
    return even;
  } else return gather(p, S);
}

template <int KH, int KW, int S, int NV, int PY = 1>
FISSILE_INLINE void depthwise_first(vf (&c)[PY][NV], const float* x, int64_t line, int64_t row,
                                    int64_t tap, const float* w) {
#pragma GCC unroll 16
  for (int i = 0; i < KH; i++)
#pragma GCC unroll 16
    for (int j = 0; j < KW; j++) {
      vf s = splat(w[i * KW + j]);
#pragma GCC unroll 16
      for (int py = 0; py < PY; py++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++)
          c[py][v] =
              native_fma(load_step<S>(x + py * line + i * row + j * tap + S * v * VL), s, c[py][v]);
    }
}

// Any kernel size; the window loops stay loops.
template <int S, int NV, int PY = 1>
FISSILE_INLINE void depthwise_first_any(vf (&c)[PY][NV], const float* x, int64_t kh, int64_t kw,
                                        int64_t line, int64_t row, int64_t tap, const float* w) {
  vf t[PY][NV];
  copy_tile(t, c);
  for (int64_t i = 0; i < kh; i++)
    for (int64_t j = 0; j < kw; j++, w++)
      depthwise_first<1, 1, S, NV, PY>(t, x + i * row + j * tap, line, 0, 0, w);
  copy_tile(c, t);
}

}  // namespace fissile

#endif

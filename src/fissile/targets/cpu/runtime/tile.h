// The end of a tile of accumulators, and the channels-first convolution.
#ifndef FISSILE_TILE_H
#define FISSILE_TILE_H

#include "depthwise.h"
#include "prims.h"

namespace fissile {

// f(l, c[p][v], p, v) for every vector of a tile whose lanes hold the first N places of an axis: l is Full, and Part for
// the rest. UNROLL keeps c in registers; without it a long f is compiled once.
template <int N, bool UNROLL, int P, int NV, class F> FISSILE_INLINE void each_vector(const vf (&c)[P][NV], F f) {
  if constexpr (UNROLL) {
#pragma GCC unroll 8
    for (int v = 0; v < N / VL; v++)
#pragma GCC unroll 32
      for (int p = 0; p < P; p++) f(Full{}, c[p][v], p, v);
    if constexpr (N % VL != 0)
#pragma GCC unroll 32
      for (int p = 0; p < P; p++) f(Part{N % VL}, c[p][N / VL], p, N / VL);
  } else {
#pragma GCC unroll 1
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 1
      for (int v = 0; v < N / VL; v++) f(Full{}, c[p][v], p, v);
      if constexpr (N % VL != 0) f(Part{N % VL}, c[p][N / VL], p, N / VL);
    }
  }
}

// How many of `taps` kernel taps, `step` apart, stand before a distance.
FISSILE_INLINE int64_t taps_before(int64_t distance, int64_t step, int64_t taps) {
  const int64_t n = distance <= 0 ? 0 : (distance + step - 1) / step;
  return n < taps ? n : taps;
}

// Rows [begin, end) of `size` elements lie in `rows`: those from `first` on move to its start.
FISSILE_INLINE void keep_rows(float* rows, int64_t begin, int64_t end, int64_t first,
                              int64_t size) {
  if (begin < first && first < end)
    __builtin_memmove(rows, rows + (first - begin) * size, (end - first) * size * sizeof(float));
}

// Channels-first, lanes are output columns: PY rows of MR output channels and NV * VL columns.
//
//   c[py * MR + m][v] += sum_{k < C, i < kh, j < kw}
//       a[((k * kh + i) * kw + j) * MR + m] * x[k * plane + (py + i) * row + j * tap + S * v * VL ...]
//
// With PY > 1, which needs stride and dilation 1 along the height, an input row is loaded once for
// all output rows that it belongs to. Invariant: one chain of fma in the order (k, i, j) whatever
// the tile is.
template <int MR, int NV, int S, int PY>
FISSILE_INLINE void conv_first(vf (&c)[PY * MR][NV], const float* x, int64_t C, int64_t plane,
                               int64_t kh, int64_t row, int64_t kw, int64_t tap, const float* a) {
  vf t[PY * MR][NV];
  copy_tile(t, c);
  for (int64_t k = 0; k < C; k++, x += plane, a += kh * kw * MR)
    for (int64_t q = 0; q < kh + PY - 1; q++)
      for (int64_t j = 0; j < kw; j++) {
        vf s[NV];
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) s[v] = load_step<S>(x + q * row + j * tap + S * v * VL);
#pragma GCC unroll 8
        for (int py = 0; py < PY; py++) {
          const int64_t i = q - py;
          if (PY > 1 && (i < 0 || i >= kh)) continue;
#pragma GCC unroll 32
          for (int m = 0; m < MR; m++) {
            vf w = splat(a[(i * kw + j) * MR + m]);
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) t[py * MR + m][v] = native_fma(w, s[v], t[py * MR + m][v]);
          }
        }
      }
  copy_tile(c, t);
}

}  // namespace fissile

#endif

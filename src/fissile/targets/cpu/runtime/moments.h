// Mean and centred sum of squares of many values, lane by lane.
//
// Everything is told from a base near the mean: the mean of the beginning of a band, itself told
// from the first value. With s and q the sums of d = value - base and of d^2,
//
//   mean = base + s / n,   squares = q - s^2 / n
//
// and a beginning that is the share f of a band bounds what the difference can lose: (mean - base)^2
// is at most (1 - f) / f times the variance. So lines are read once, while they are near. Bands combine
// by Chan's formula, in the order of the calls. A mean far larger than what values differ by loses
// nothing; equal values have themselves as their mean and squares of zero.
#ifndef FISSILE_MOMENTS_H
#define FISSILE_MOMENTS_H

#include "prims.h"

namespace fissile {

// Sums of d = x - base and of d^2 for `count` vectors x, `step` apart, of NV neighbours each; U sums at once, as an
// addition waits for the one before.
template <int NV, class L>
FISSILE_INLINE void line_sums(vf (&sum)[NV], vf (&squares)[NV], L l, const vf (&base)[NV], const float* x,
                              int64_t count, int64_t step) {
  constexpr int U = NV == 1 ? 4 : NV == 2 ? 3 : NV * 5 < REGISTERS ? 2 : 1;
  vf s[U][NV] = {}, q[U][NV] = {};
  const auto add = [&](int u, const float* at) FISSILE_BODY {
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) {
      const vf d = load(l, at + v * VL) - base[v];
      s[u][v] = s[u][v] + d;
      q[u][v] = native_fma(d, d, q[u][v]);
    }
  };
  int64_t i = 0;
  for (; i + U <= count; i += U)
#pragma GCC unroll 8
    for (int u = 0; u < U; u++) add(u, x + (i + u) * step);
  for (; i < count; i++) add(0, x + i * step);
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) {
    sum[v] = s[0][v], squares[v] = q[0][v];
#pragma GCC unroll 8
    for (int u = 1; u < U; u++) sum[v] = sum[v] + s[u][v], squares[v] = squares[v] + q[u][v];
  }
}

template <int NV, class L>
FISSILE_INLINE void band_moments_of(L l, float* part, int64_t apart, const float* x, int64_t rows, int64_t row,
                                    int64_t columns, int64_t pixel) {
  vf base[NV], s[NV], q[NV], sum[NV] = {}, squares[NV] = {};
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) base[v] = load(l, x + v * VL);
  const int64_t first = columns < 64 ? columns : 64;
  line_sums(s, q, l, base, x, first, pixel);
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) base[v] = base[v] + s[v] / splat((float)first);
#pragma GCC unroll 1
  for (int64_t h = 0; h < rows; h++) {
    line_sums(s, q, l, base, x + h * row, columns, pixel);
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) sum[v] = sum[v] + s[v], squares[v] = squares[v] + q[v];
  }
  const float n = (float)(rows * columns);
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) {
    const vf mean = sum[v] / splat(n);
    store(l, part + v * VL, base[v]);
    store(l, part + apart + v * VL, mean);
    store(l, part + 2 * apart + v * VL, at_least(squares[v] - mean * sum[v], 0.0f));
  }
}

// Of N channels, which are neighbours, over `rows` x `columns` pixels: base, mean - base and squares, `apart` from each
// other.
template <int N>
FISSILE_INLINE void band_moments(float* part, int64_t apart, const float* x, int64_t rows, int64_t row,
                                 int64_t columns, int64_t pixel) {
  constexpr int NV = N / VL;
  if constexpr (NV > 0) band_moments_of<NV>(Full{}, part, apart, x, rows, row, columns, pixel);
  if constexpr (N % VL != 0)
    band_moments_of<1>(Part{N % VL}, part + NV * VL, apart, x + NV * VL, rows, row, columns, pixel);
}

// f(mean, variance) of one vector of channels from what `band_moments` left in `parts` parts of n values each, the last
// one of `rest`.
template <class L, class F>
FISSILE_INLINE void combined_moments(L l, const float* part, int64_t parts, int64_t apart, float n, float rest, F f) {
  const vf base = load(l, part);
  vf mean = load(l, part + apart), squares = load(l, part + 2 * apart);
  float seen = parts > 1 ? n : rest;
  for (int64_t i = 1; i < parts; i++) {
    const float* x = part + 3 * i * apart;
    const float more = i + 1 < parts ? n : rest, share = more / (seen + more);
    const vf d = ((load(l, x) - base) + load(l, x + apart)) - mean;
    mean = fma(d, share, mean);
    squares = fma(d * d, seen * share, squares + load(l, x + 2 * apart));
    seen = seen + more;
  }
  f(base + mean, squares / splat(seen));
}

}  // namespace fissile

#endif

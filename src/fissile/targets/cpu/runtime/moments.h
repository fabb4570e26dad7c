// Mean and centred sum of squares of many values, lane by lane.
//
// Lines are read twice while they are near: for the mean, then for the squares of what differs from
// it. Parts combine by Chan's formula, in the order of the calls. Everything is told from a base,
// the first value of a part: so means far larger than what they differ by lose nothing, and equal
// values have themselves as their mean and squares of zero.
#ifndef FISSILE_MOMENTS_H
#define FISSILE_MOMENTS_H

#include "prims.h"

namespace fissile {

// Of n values in each lane: mean - base, and the sum of (value - mean)^2.
template <int NV> struct Moments {
  vf mean[NV], squares[NV];
  float n;
};

// a and b, which have one base, become one.
template <int NV> FISSILE_INLINE void combine(Moments<NV>& a, const Moments<NV>& b) {
  const float n = a.n + b.n, share = b.n / n, both = a.n * share;
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) {
    const vf d = b.mean[v] - a.mean[v];
    a.mean[v] = fma(d, share, a.mean[v]);
    a.squares[v] = fma(d * d, both, a.squares[v] + b.squares[v]);
  }
  a.n = n;
}

// sum[v] = sum of f(x, v) for `count` vectors x, `step` apart, of NV neighbours each; U sums at once, as an addition
// waits for the one before.
template <int NV, int U, class L, class F>
FISSILE_INLINE void line_sums(vf (&sum)[NV], L l, const float* x, int64_t count, int64_t step, F f) {
  vf s[U][NV] = {};
  int64_t i = 0;
  for (; i + U <= count; i += U)
#pragma GCC unroll 8
    for (int u = 0; u < U; u++)
#pragma GCC unroll 8
      for (int v = 0; v < NV; v++) s[u][v] = f(s[u][v], load(l, x + (i + u) * step + v * VL), v);
  for (; i < count; i++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) s[0][v] = f(s[0][v], load(l, x + i * step + v * VL), v);
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) {
    sum[v] = s[0][v];
#pragma GCC unroll 8
    for (int u = 1; u < U; u++) sum[v] = sum[v] + s[u][v];
  }
}

// of `count` neighbours of a line
template <int NV, class L>
FISSILE_INLINE Moments<NV> line_moments(L l, const vf (&base)[NV], const float* x, int64_t count, int64_t step) {
  constexpr int U = NV < 3 ? 6 / NV : 2;
  Moments<NV> m;
  m.n = (float)count;
  line_sums<NV, U>(m.mean, l, x, count, step, [&](vf sum, vf a, int v) FISSILE_BODY {
    return sum + (a - base[v]);
  });
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) m.mean[v] = m.mean[v] / splat(m.n);
  line_sums<NV, U>(m.squares, l, x, count, step, [&](vf sum, vf a, int v) FISSILE_BODY {
    const vf d = (a - base[v]) - m.mean[v];
    return native_fma(d, d, sum);
  });
  return m;
}

template <int NV, class L>
FISSILE_INLINE void band_moments_of(L l, float* part, int64_t apart, const float* x, int64_t rows, int64_t row,
                                    int64_t columns, int64_t pixel) {
  vf base[NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) base[v] = load(l, x + v * VL);
  Moments<NV> all = line_moments<NV>(l, base, x, columns, pixel);
#pragma GCC unroll 1
  for (int64_t h = 1; h < rows; h++) combine(all, line_moments<NV>(l, base, x + h * row, columns, pixel));
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) {
    store(l, part + v * VL, base[v]);
    store(l, part + apart + v * VL, all.mean[v]);
    store(l, part + 2 * apart + v * VL, all.squares[v]);
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
  Moments<1> all = {{load(l, part + apart)}, {load(l, part + 2 * apart)}, parts > 1 ? n : rest};
  for (int64_t i = 1; i < parts; i++) {
    const float* x = part + 3 * i * apart;
    const vf mean = (load(l, x) - base) + load(l, x + apart);
    combine(all, Moments<1>{{mean}, {load(l, x + 2 * apart)}, i + 1 < parts ? n : rest});
  }
  f(base + all.mean[0], all.squares[0] / splat(all.n));
}

}  // namespace fissile

#endif

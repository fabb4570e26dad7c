// Winograd's minimal filtering F(M x M, 3 x 3): M x M outputs of a 3 x 3 convolution from
// (M + 2) x (M + 2) inputs with (M + 2)^2 multiplications instead of 9 M^2.
//
//   y = A^T [ (G g G^T) o (B^T d B) ] A        summed over the channels before A
//
// The matrices are those of Toom and Cook for the points 0, p and -p of `Filter<M>`, and infinity;
// packing.py computes G g G^T from the same points. Lanes are channels. Invariant: every element is
// one fixed sequence of operations, wherever its tile stands.
#ifndef FISSILE_WINOGRAD_H
#define FISSILE_WINOGRAD_H

#include "contract.h"
#include "prims.h"

namespace fissile {

template <int M> struct Filter;

// Points 0, 1, -1 and infinity.
template <> struct Filter<2> {
  // B^T d, in place
  FISSILE_INLINE void input(vf (&d)[4]) {
    vf a = d[2] - d[0], b = d[1] + d[2], c = d[2] - d[1], e = d[3] - d[1];
    d[0] = a, d[1] = b, d[2] = c, d[3] = e;
  }
  // A^T v, in place: the first two
  FISSILE_INLINE void output(vf (&v)[4]) {
    vf a = v[0] + (v[1] + v[2]), b = (v[1] - v[2]) + v[3];
    v[0] = a, v[1] = b;
  }
};

// Points 0, p, -p, q, -q and infinity. Every coefficient is exact.
template <> struct Filter<4> {
  static constexpr float p = 0.6875f, q = 1.5f;
  static constexpr float p2 = p * p, q2 = q * q, p3 = p2 * p, q3 = q2 * q;
  FISSILE_INLINE vf with(float a, vf b, vf c) { return native_fma(splat(a), b, c); }
  FISSILE_INLINE void input(vf (&d)[6]) {
    vf zero = with(p2 * q2, d[0], with(-(p2 + q2), d[2], d[4]));
    vf infinite = with(p2 * q2, d[1], with(-(p2 + q2), d[3], d[5]));
    vf even_p = with(-q2, d[2], d[4]), odd_p = with(-q2, d[1], d[3]);
    vf even_q = with(-p2, d[2], d[4]), odd_q = with(-p2, d[1], d[3]);
    d[0] = zero, d[5] = infinite;
    d[1] = with(p, odd_p, even_p), d[2] = with(-p, odd_p, even_p);
    d[3] = with(q, odd_q, even_q), d[4] = with(-q, odd_q, even_q);
  }
  FISSILE_INLINE void output(vf (&v)[6]) {
    vf even_p = v[1] + v[2], odd_p = v[1] - v[2], even_q = v[3] + v[4], odd_q = v[3] - v[4];
    v[0] = v[0] + (even_p + even_q);
    v[1] = with(q, odd_q, splat(p) * odd_p);
    v[2] = with(q2, even_q, splat(p2) * even_p);
    v[3] = with(q3, odd_q, with(p3, odd_p, v[5]));
  }
};

template <int M, class F> FISSILE_INLINE void filter_input(float* v, int64_t plane, F at) {
  constexpr int S = M + 2;
  vf t[S][S];
#pragma GCC unroll 6
  for (int j = 0; j < S; j++) {
    vf d[S];
#pragma GCC unroll 6
    for (int i = 0; i < S; i++) d[i] = at(i, j);
    Filter<M>::input(d);
#pragma GCC unroll 6
    for (int i = 0; i < S; i++) t[i][j] = d[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < S; i++) {
    Filter<M>::input(t[i]);
#pragma GCC unroll 6
    for (int j = 0; j < S; j++) store(v + (i * S + j) * plane, t[i][j]);
  }
}

// B^T d B of one tile for C channels: v[(i * S + j) * plane + c], whole vectors. `x` is the corner of
// the tile, `row` and `pixel` the steps along it; the input outside of rows [top, bottom) and columns
// [left, right) of the tile is zero and is not read.
template <int M>
FISSILE_INLINE void winograd_input(float* v, int64_t plane, const float* x, int64_t row, int64_t pixel, int64_t C,
                                   int64_t top, int64_t bottom, int64_t left, int64_t right) {
  if (top <= 0 && bottom >= M + 2 && left <= 0 && right >= M + 2) {
    lanes(C, [&](auto l, int64_t c) FISSILE_BODY {
      filter_input<M>(v + c, plane, [&](int i, int j) FISSILE_BODY { return load(l, x + (i * row + j * pixel + c)); });
    });
  } else {
    lanes(C, [&](auto l, int64_t c) FISSILE_BODY {
      filter_input<M>(v + c, plane, [&](int i, int j) FISSILE_BODY {
        if (i < top || i >= bottom || j < left || j >= right) return splat(0.0f);
        return load(l, x + (i * row + j * pixel + c));
      });
    });
  }
}

// A^T u A of one tile for N channels that lie at u[(i * S + j) * plane + channel]: f(l, y, i, j, vector) for
// every output in the first `rows` rows and `columns` columns. UNROLL keeps them in registers.
template <int M, int N, bool UNROLL, class F>
FISSILE_INLINE void winograd_output(const float* u, int64_t plane, int64_t rows, int64_t columns, F f) {
  constexpr int S = M + 2;
#pragma GCC unroll 1
  for (int v = 0; v * VL < N; v++) {
    vf t[S][S];
#pragma GCC unroll 6
    for (int j = 0; j < S; j++) {
      vf d[S];
#pragma GCC unroll 6
      for (int i = 0; i < S; i++) d[i] = load<vf>(u + (i * S + j) * plane + v * VL);
      Filter<M>::output(d);
#pragma GCC unroll 6
      for (int i = 0; i < M; i++) t[i][j] = d[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < M; i++) Filter<M>::output(t[i]);
    if (UNROLL && rows >= M && columns >= M && (v + 1) * VL <= N) {
#pragma GCC unroll 6
      for (int i = 0; i < M; i++)
#pragma GCC unroll 6
        for (int j = 0; j < M; j++) f(Full{}, t[i][j], i, j, v);
    } else {
      for (int i = 0; i < M && i < rows; i++)
        for (int j = 0; j < M && j < columns; j++) {
          if ((v + 1) * VL <= N) {
            f(Full{}, t[i][j], i, j, v);
          } else {
            f(Part{N % VL}, t[i][j], i, j, v);
          }
        }
    }
  }
}

template <int MR, int NV> FISSILE_INLINE void store_tile(float* y, int64_t row, const vf (&c)[MR][NV]) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) store(y + m * row + v * VL, c[m][v]);
}

}  // namespace fissile

#endif

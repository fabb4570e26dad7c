// Winograd's minimal filtering F(M x M, 3 x 3): M x M outputs of a 3 x 3 convolution from S x S
// inputs with S^2 multiplications instead of 9 M^2. S is M + 2 for M = 2 and 4, of stride 1, and 7
// for M = 3, of stride 2.
//
//   y = A^T [ (G g G^T) o (B^T d B) ] A        summed over the channels before A
//
// The matrices are those of Toom and Cook for the points that stand at `Filter<M>`; packing.py
// computes G g G^T from the same points. Lanes are channels.
//
// Invariants: every element is one fixed sequence of operations, wherever its tile stands. A tile of
// equal inputs leaves B^T d B exactly zero but for the tap of the points (1, 1), because every other
// row is computed from differences; so its outputs are bit-equal, as those of the definition are.
// Without that, a flat image would leave noise for an instance normalisation to amplify.
#ifndef FISSILE_WINOGRAD_H
#define FISSILE_WINOGRAD_H

#include "contract.h"
#include "prims.h"

namespace fissile {

template <int M> struct Filter;

// Points 0, 1, -1 and infinity.
template <> struct Filter<2> {
  static constexpr int S = 4;
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

// Points 0, 1, -1, 1/2, -2 and infinity.
template <> struct Filter<4> {
  static constexpr int S = 6;
  FISSILE_INLINE vf with(float a, vf b, vf c) { return native_fma(splat(a), b, c); }
  FISSILE_INLINE void input(vf (&d)[6]) {
    vf a = d[2] - d[0], b = d[3] - d[1], c = d[4] - d[2], e = d[5] - d[3];
    vf odd = with(1.5f, d[2], b), even = with(1.5f, d[3], c);
    d[0] = with(1.5f, b, c - a);
    d[1] = even + odd, d[2] = even - odd;
    d[3] = with(2.0f, b, c), d[4] = with(-0.5f, b, c);
    d[5] = with(1.5f, c, e - b);
  }
  FISSILE_INLINE void output(vf (&v)[6]) {
    vf sum = v[1] + v[2], difference = v[1] - v[2];
    v[0] = (v[0] + sum) + (v[3] + v[4]);
    v[1] = with(-2.0f, v[4], with(0.5f, v[3], difference));
    v[2] = with(4.0f, v[4], with(0.25f, v[3], sum));
    v[3] = with(-8.0f, v[4], with(0.125f, v[3], difference)) + v[5];
  }
};

// Stride 2: outputs y_i = g_0 d_2i + g_1 d_2i+1 + g_2 d_2i+2. The outer taps are F(3, 2) on the even
// inputs, at 0, 1, -1 and infinity; the middle one multiplies the odd inputs as they are.
template <> struct Filter<3> {
  static constexpr int S = 7;
  FISSILE_INLINE void input(vf (&d)[7]) {
    vf a = d[4] - d[0], b = d[2] + d[4], c = d[4] - d[2], e = d[6] - d[2];
    vf odd[3] = {d[1], d[3], d[5]};
    d[0] = a, d[1] = b, d[2] = c, d[3] = e;
    d[4] = odd[0], d[5] = odd[1], d[6] = odd[2];
  }
  FISSILE_INLINE void output(vf (&v)[7]) {
    vf sum = v[1] + v[2], a = (v[0] + sum) + v[4], b = (v[1] - v[2]) + v[5], c = (sum + v[3]) + v[6];
    v[0] = a, v[1] = b, v[2] = c;
  }
};

template <int M, class F> FISSILE_INLINE void filter_input(float* v, int64_t plane, F at) {
  constexpr int S = Filter<M>::S;
  vf t[S][S];
#pragma GCC unroll 7
  for (int j = 0; j < S; j++) {
    vf d[S];
#pragma GCC unroll 7
    for (int i = 0; i < S; i++) d[i] = at(i, j);
    Filter<M>::input(d);
#pragma GCC unroll 7
    for (int i = 0; i < S; i++) t[i][j] = d[i];
  }
#pragma GCC unroll 7
  for (int i = 0; i < S; i++) {
    Filter<M>::input(t[i]);
#pragma GCC unroll 7
    for (int j = 0; j < S; j++) store(v + (i * S + j) * plane, t[i][j]);
  }
}

// B^T d B of one tile for C channels: v[(i * S + j) * plane + c], whole vectors. `x` is the corner of
// the tile, `row` and `pixel` the steps along it. Inputs behind the first `rows` and `columns` only
// reach outputs that nobody wants; the last ones stand for them.
template <int M>
FISSILE_INLINE void winograd_input(float* v, int64_t plane, const float* x, int64_t row, int64_t pixel,
                                   int64_t C, int64_t rows, int64_t columns) {
  if (rows >= Filter<M>::S && columns >= Filter<M>::S) {
    lanes(C, [&](auto l, int64_t c) FISSILE_BODY {
      filter_input<M>(v + c, plane, [&](int i, int j) FISSILE_BODY {
        return load(l, x + (i * row + j * pixel + c));
      });
    });
  } else {
    lanes(C, [&](auto l, int64_t c) FISSILE_BODY {
      filter_input<M>(v + c, plane, [&](int i, int j) FISSILE_BODY {
        return load(l, x + ((i < rows ? i : rows - 1) * row + (j < columns ? j : columns - 1) * pixel + c));
      });
    });
  }
}

// A^T u A of one tile for N channels that lie at u[(i * S + j) * plane + channel]: f(l, y, i, j, vector) for
// every output in the first `rows` rows and `columns` columns. UNROLL keeps them in registers.
template <int M, int N, bool UNROLL, class F>
FISSILE_INLINE void winograd_output(const float* u, int64_t plane, int64_t rows, int64_t columns, F f) {
  constexpr int S = Filter<M>::S;
#pragma GCC unroll 1
  for (int v = 0; v * VL < N; v++) {
    vf t[S][S];
#pragma GCC unroll 7
    for (int j = 0; j < S; j++) {
      vf d[S];
#pragma GCC unroll 7
      for (int i = 0; i < S; i++) d[i] = load<vf>(u + (i * S + j) * plane + v * VL);
      Filter<M>::output(d);
#pragma GCC unroll 7
      for (int i = 0; i < M; i++) t[i][j] = d[i];
    }
#pragma GCC unroll 7
    for (int i = 0; i < M; i++) Filter<M>::output(t[i]);
    if (UNROLL && rows >= M && columns >= M && (v + 1) * VL <= N) {
#pragma GCC unroll 7
      for (int i = 0; i < M; i++)
#pragma GCC unroll 7
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

// Fetch the lines that a tile's outputs will be stored to: stores wait for each other.
template <int M, int N> FISSILE_INLINE void fetch_outputs(const float* y, int64_t row, int64_t pixel) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < M; j++)
      for (int m = 0; m < N; m += 16) __builtin_prefetch(y + i * row + j * pixel + m, 1);
}

template <int MR, int NV> FISSILE_INLINE void store_tile(float* y, int64_t row, const vf (&c)[MR][NV]) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) store(y + m * row + v * VL, c[m][v]);
}

}  // namespace fissile

#endif

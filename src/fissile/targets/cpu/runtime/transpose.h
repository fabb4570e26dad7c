// y[c * y_row + r] = x[r * x_row + c] for r < R, c < C, elements of 1, 2, 4 or 8 bytes.
//
// Blocks of N x N go through registers: after log2(N) perfect shuffles row j holds column j. Whole
// cache lines are read and written, so that this runs near the speed of a copy. Invariant: no
// access outside the two matrices.
#ifndef FISSILE_TRANSPOSE_H
#define FISSILE_TRANSPOSE_H

#include "vec.h"

namespace fissile {

// The unsigned integer of each size, as a transpose only moves bits, and the side of a block.
template <size_t bytes> struct Word;
template <> struct Word<1> {
  typedef uint8_t type;
  static constexpr int block = 16;
};
template <> struct Word<2> {
  typedef uint16_t type;
  static constexpr int block = 8;
};
template <> struct Word<4> {
  typedef uint32_t type;
  static constexpr int block = VL;
};
template <> struct Word<8> {
  typedef uint64_t type;
  static constexpr int block = VL == 16 ? 8 : 4;
};

// The two halves of a shuffle: a0 b0 a1 b1 ..., and the rest.

#define FISSILE_LOW4 0, 4, 1, 5
#define FISSILE_HIGH4 2, 6, 3, 7
#define FISSILE_LOW8 0, 8, 1, 9, 2, 10, 3, 11
#define FISSILE_HIGH8 4, 12, 5, 13, 6, 14, 7, 15
#define FISSILE_LOW16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define FISSILE_HIGH16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#if __has_builtin(__builtin_shufflevector)
#define FISSILE_SHUFFLE(a, b, I, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FISSILE_SHUFFLE(a, b, I, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif

template <class T, int N> FISSILE_INLINE void transpose_block(T* y, int64_t y_row, const T* x,
                                                              int64_t x_row) {
  typedef typename Word<sizeof(T)>::type W;
  typedef W V __attribute__((vector_size(N * sizeof(W))));
  typedef W memory __attribute__((vector_size(N * sizeof(W)), aligned(1), may_alias));
  V a[N], b[N];
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) a[r] = *reinterpret_cast<const memory*>(x + r * x_row);
#pragma GCC unroll 4
  for (int s = 1; s < N; s *= 2) {
#pragma GCC unroll 16
    for (int r = 0; r < N / 2; r++) {
      V p = a[r], q = a[r + N / 2];
      if constexpr (N == 4) {
        b[2 * r] = FISSILE_SHUFFLE(p, q, V, FISSILE_LOW4);
        b[2 * r + 1] = FISSILE_SHUFFLE(p, q, V, FISSILE_HIGH4);
      } else if constexpr (N == 8) {
        b[2 * r] = FISSILE_SHUFFLE(p, q, V, FISSILE_LOW8);
        b[2 * r + 1] = FISSILE_SHUFFLE(p, q, V, FISSILE_HIGH8);
      } else {
        b[2 * r] = FISSILE_SHUFFLE(p, q, V, FISSILE_LOW16);
        b[2 * r + 1] = FISSILE_SHUFFLE(p, q, V, FISSILE_HIGH16);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) a[r] = b[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) *reinterpret_cast<memory*>(y + r * y_row) = a[r];
}

// Blocks go down columns, so that rows of y are written as streams; each step reads whole cache
// lines of x. The last blocks overlap the ones before: they write the same values again, which is
// cheaper than single elements.
template <class T> static void transpose(T* y, int64_t y_row, const T* x, int64_t x_row, int64_t R,
                                         int64_t C) {
  constexpr int64_t N = Word<sizeof(T)>::block, LINE = 64 / sizeof(T);
  if (R < N || C < N) {
    for (int64_t c = 0; c < C; c++)
      for (int64_t r = 0; r < R; r++) y[c * y_row + r] = x[r * x_row + c];
    return;
  }
  for (int64_t line = 0; line < C; line += LINE)
    for (int64_t row = 0; row < R; row += N)
      for (int64_t column = line; column < line + LINE && column < C; column += N) {
        int64_t r = row < R - N ? row : R - N, c = column < C - N ? column : C - N;
        transpose_block<T, N>(y + c * y_row + r, y_row, x + r * x_row + c, x_row);
      }
}

}  // namespace fissile

#endif

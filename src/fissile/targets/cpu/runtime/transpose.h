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

// Rows of N x N elements become columns: perfect shuffles, log2(N) times.
template <int N, class V> FISSILE_INLINE void turn(V* a) {
  V b[N];
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
}

// The same for N vectors of N floats, in other steps: blocks of 4 x 4 within quarters of 16 bytes,
// then whole quarters. A machine does each of these by one instruction, which takes no pattern from
// a register and overwrites no operand; a perfect shuffle needs two, or both.
typedef int64_t pairs __attribute__((vector_size(VL * 4)));
#if defined(FISSILE_AVX512)
#define FISSILE_FLOATS_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define FISSILE_FLOATS_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define FISSILE_PAIRS_LOW 0, 8, 2, 10, 4, 12, 6, 14
#define FISSILE_PAIRS_HIGH 1, 9, 3, 11, 5, 13, 7, 15
#define FISSILE_QUARTERS_EVEN 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define FISSILE_QUARTERS_ODD 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif defined(FISSILE_AVX)
#define FISSILE_FLOATS_LOW 0, 8, 1, 9, 4, 12, 5, 13
#define FISSILE_FLOATS_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#define FISSILE_PAIRS_LOW 0, 4, 2, 6
#define FISSILE_PAIRS_HIGH 1, 5, 3, 7
#define FISSILE_QUARTERS_EVEN 0, 1, 2, 3, 8, 9, 10, 11
#define FISSILE_QUARTERS_ODD 4, 5, 6, 7, 12, 13, 14, 15
#else
#define FISSILE_FLOATS_LOW 0, 4, 1, 5
#define FISSILE_FLOATS_HIGH 2, 6, 3, 7
#define FISSILE_PAIRS_LOW 0, 2
#define FISSILE_PAIRS_HIGH 1, 3
#endif
#define FISSILE_OF_PAIRS(a, b, which) vf(FISSILE_SHUFFLE(pairs(a), pairs(b), pairs, which))
FISSILE_INLINE void turn_floats(vf* a) {
#pragma GCC unroll 4
  for (int g = 0; g < VL; g += 4) {  // then quarter l of a[g + k]: column 4 l + k of rows g to g + 3
    vf p = FISSILE_PICK(a[g], a[g + 1], FISSILE_FLOATS_LOW);
    vf q = FISSILE_PICK(a[g], a[g + 1], FISSILE_FLOATS_HIGH);
    vf r = FISSILE_PICK(a[g + 2], a[g + 3], FISSILE_FLOATS_LOW);
    vf s = FISSILE_PICK(a[g + 2], a[g + 3], FISSILE_FLOATS_HIGH);
    a[g] = FISSILE_OF_PAIRS(p, r, FISSILE_PAIRS_LOW);
    a[g + 1] = FISSILE_OF_PAIRS(p, r, FISSILE_PAIRS_HIGH);
    a[g + 2] = FISSILE_OF_PAIRS(q, s, FISSILE_PAIRS_LOW);
    a[g + 3] = FISSILE_OF_PAIRS(q, s, FISSILE_PAIRS_HIGH);
  }
#if defined(FISSILE_QUARTERS_EVEN)
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    vf p = FISSILE_PICK(a[k], a[k + 4], FISSILE_QUARTERS_EVEN);
    vf r = FISSILE_PICK(a[k], a[k + 4], FISSILE_QUARTERS_ODD);
    if constexpr (VL == 16) {
      vf q = FISSILE_PICK(a[k + 8], a[k + 12], FISSILE_QUARTERS_EVEN);
      vf s = FISSILE_PICK(a[k + 8], a[k + 12], FISSILE_QUARTERS_ODD);
      a[k] = FISSILE_PICK(p, q, FISSILE_QUARTERS_EVEN);
      a[k + 8] = FISSILE_PICK(p, q, FISSILE_QUARTERS_ODD);
      a[k + 12] = FISSILE_PICK(r, s, FISSILE_QUARTERS_ODD);
      p = a[k];
      r = FISSILE_PICK(r, s, FISSILE_QUARTERS_EVEN);
    }
    a[k] = p;
    a[k + 4] = r;
  }
#endif
}

template <class T, int N> FISSILE_INLINE void transpose_block(T* y, int64_t y_row, const T* x,
                                                              int64_t x_row) {
  typedef typename Word<sizeof(T)>::type W;
  typedef W memory __attribute__((vector_size(N * sizeof(W)), aligned(1), may_alias));
  if constexpr (sizeof(T) == sizeof(float)) {
    vf a[N];
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) a[r] = vf(*reinterpret_cast<const memory*>(x + r * x_row));
    turn_floats(a);
#pragma GCC unroll 16
    for (int r = 0; r < N; r++)
      *reinterpret_cast<memory*>(y + r * y_row) = memory(a[r]);
  } else {
    typedef W V __attribute__((vector_size(N * sizeof(W))));
    V a[N];
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) a[r] = *reinterpret_cast<const memory*>(x + r * x_row);
    turn<N>(a);
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) *reinterpret_cast<memory*>(y + r * y_row) = a[r];
  }
}

// The same of rows that are computed: row(r, c) gives the VL elements of row r from column c on.
template <class F> FISSILE_INLINE void transpose_rows_block(float* y, int64_t y_row, int64_t r,
                                                            int64_t c, F& row) {
  vf a[VL];
#pragma GCC unroll 16
  for (int k = 0; k < VL; k++) a[k] = row(r + k, c);
  turn_floats(a);
#pragma GCC unroll 16
  for (int k = 0; k < VL; k++) store(y + (c + k) * y_row + r, a[k]);
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

// y[c * y_row + r] = element c of row r, for r < R, c < C, both at least VL: row(r, c) computes VL
// elements, and must give the same where it is asked twice.
template <class F> FISSILE_INLINE void transpose_rows(float* y, int64_t y_row, int64_t R, int64_t C,
                                                      F&& row) {
  constexpr int64_t LINE = 16;
  for (int64_t line = 0; line < C; line += LINE)
    for (int64_t top = 0; top < R; top += VL)
      for (int64_t column = line; column < line + LINE && column < C; column += VL) {
        int64_t r = top < R - VL ? top : R - VL, c = column < C - VL ? column : C - VL;
        transpose_rows_block(y, y_row, r, c, row);
      }
}

}  // namespace fissile

#endif

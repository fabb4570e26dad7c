// Contraction: an MR x (NV * VL) tile of C += A B, kept in registers.
//
//   c[m][v] += sum_{k < K} a[m * a_row + k * a_k] * b[k * b_step + v * VL ... + VL]
//
// Invariant: each element of C is one chain of fma over k = 0 .. K-1, whatever MR and NV are. So
// tile shape, remainders and number of threads never change a bit; only splitting K does.
#ifndef FISSILE_CONTRACT_H
#define FISSILE_CONTRACT_H

#include "vec.h"

namespace fissile {

template <int N> struct Int {
  static constexpr int value = N;
};

// The tile shapes that measured best; README.md has the table.
#if defined(FISSILE_AVX512)
constexpr int BEST_MR = 14, BEST_NV = 2;  // 28 accumulators + 2 of B + 1 broadcast of 32 registers
#elif defined(FISSILE_AVX)
constexpr int BEST_MR = 6, BEST_NV = 2;  // 12 + 2 + 1 of 16
#elif defined(__aarch64__)
constexpr int BEST_MR = 8, BEST_NV = 3;  // 24 + 3 + 2 of 32
#else
constexpr int BEST_MR = 4, BEST_NV = 2;
#endif

template <int MR, int NV> FISSILE_INLINE void zero(vf (&c)[MR][NV]) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) c[m][v] = splat(0.0f);
}

template <int MR, int NV> FISSILE_INLINE void copy_tile(vf (&to)[MR][NV],
                                                        const vf (&from)[MR][NV]) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) to[m][v] = from[m][v];
}

// Steps of k that B is fetched ahead of its use: costs nothing when B is near and hides most of
// DRAM when it is not.
template <int NV> constexpr int64_t STEPS_AHEAD = NV == 1 ? 64 : 32;
template <int NV> FISSILE_INLINE void fetch_ahead(const float* b, int64_t b_step) {
#pragma GCC unroll 8
  for (int i = 0; i < NV * VL; i += 16) __builtin_prefetch(b + STEPS_AHEAD<NV> * b_step + i);
}

template <int MR, int NV> FISSILE_INLINE void load_row(vf (&row)[NV], const float* b) {
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) {
    row[v] = load<vf>(b + v * VL);
    if (MR * NV + NV + 1 <= REGISTERS) keep(row[v]);
  }
}

// One step of k: c[m][v] += a[m * a_row] * b[v * VL ...].
template <int MR, int NV>
FISSILE_INLINE void contract_step(vf (&c)[MR][NV], const float* a, int64_t a_row, const float* b) {
  vf row[NV];
  load_row<MR, NV>(row, b);
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++) {
    vf x = splat(a[m * a_row]);
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) c[m][v] = native_fma(x, row[v], c[m][v]);
  }
}

template <int MR, int NV>
FISSILE_INLINE void contract(vf (&c)[MR][NV], int64_t K, const float* a, int64_t a_row, int64_t a_k,
                             const float* b, int64_t b_step = NV * VL) {
  vf t[MR][NV];  // a local copy: the caller's array may have its address taken, and then c would
                 // live in memory
  copy_tile(t, c);
  for (int64_t k = 0; k < K; k++, a += a_k, b += b_step) {
    fetch_ahead<NV>(b, b_step);
    contract_step<MR, NV>(t, a, a_row, b);
  }
  copy_tile(c, t);
}

// As `contract` with a_k = 1 and the default step of B, but the rows of A that the next tile reads
// are fetched, a line of each while 16 steps pass.
template <int MR, int NV>
FISSILE_INLINE void contract_ahead(vf (&c)[MR][NV], int64_t K, const float* a, int64_t a_row,
                                   const float* b) {
  vf t[MR][NV];
  copy_tile(t, c);
  for (int64_t k = 0; k < K; k += 16) {
    const float* next = a + MR * a_row + k;
#pragma GCC unroll 32
    for (int m = 0; m < MR; m++) __builtin_prefetch(next + m * a_row);
    const int64_t stop = k + 16 < K ? k + 16 : K;
    for (int64_t i = k; i < stop; i++, b += NV * VL) {
      fetch_ahead<NV>(b, NV * VL);
      contract_step<MR, NV>(t, a + i, a_row, b);
    }
  }
  copy_tile(c, t);
}

// f(row, vector) for every place of a tile.
template <int MR, int NV, class F> FISSILE_INLINE void each_place(F f) {
#pragma GCC unroll 32
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) f(r, v);
}

// f(Int<rows>, first row) over M rows. With M constant: the fewest tiles, of two sizes that differ
// by one, because a tile of one or two rows cannot hide the latency of fma. Otherwise full tiles
// and then 16, 8, 4, 2, 1, so that few sizes are compiled.
template <int MR, int64_t M, class F> FISSILE_INLINE void for_rows(F f) {
  if constexpr (M > 0) {
    constexpr int64_t tiles = (M + MR - 1) / MR;
    constexpr int low = int(M / tiles);
    constexpr int64_t high_rows = M % tiles * (low + 1);
    if constexpr (high_rows > 0)
      for (int64_t m = 0; m < high_rows; m += low + 1) f(Int<low + 1>(), m);
    for (int64_t m = high_rows; m < M; m += low) f(Int<low>(), m);
  }
}
template <int MR, class F> FISSILE_INLINE void for_rows(int64_t M, F f) {
  int64_t m = 0;
  for (; m + MR <= M; m += MR) f(Int<MR>(), m);
  if constexpr (MR > 16)
    for (; m + 16 <= M; m += 16) f(Int<16>(), m);
  if constexpr (MR > 8)
    for (; m + 8 <= M; m += 8) f(Int<8>(), m);
  if constexpr (MR > 4)
    for (; m + 4 <= M; m += 4) f(Int<4>(), m);
  if constexpr (MR > 2)
    for (; m + 2 <= M; m += 2) f(Int<2>(), m);
  if constexpr (MR > 1)
    for (; m < M; m++) f(Int<1>(), m);
}

}  // namespace fissile

#endif

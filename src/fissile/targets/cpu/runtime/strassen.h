// One level of Strassen's multiplication in Winograd's form, on register tiles.
//
//   C11 = P1 + P2            P1 = A11 B11          P5 = (A21 + A22) (B12 - B11)
//   C12 = P1 + P6 + P5 + P3  P2 = A12 B21          P6 = (A21 + A22 - A11) (B22 - B12 + B11)
//   C21 = P1 + P6 + P7 + P4  P3 = (A12 - A21 - A22 + A11) B22
//   C22 = P1 + P6 + P7 + P5  P4 = A22 (B21 - B22 + B12 - B11)   P7 = (A11 - A21) (B22 - B12)
//
// Seven products of half the size instead of eight. The sums of B are made when weights are packed,
// those of A when rows are. A product starts from the accumulators of the one before it wherever
// the result is their sum, so only three tiles pass through memory.
//
// Source: S. Winograd 1971; D. Knuth, The Art of Computer Programming 2, section 4.6.4.
// Invariant: the chains of fma depend on K and the position alone, not on the tile's shape.
#ifndef FISSILE_STRASSEN_H
#define FISSILE_STRASSEN_H

#include "contract.h"

namespace fissile {

template <int MR, int NV> FISSILE_INLINE void keep_tile(float* q, const vf (&c)[MR][NV]) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) store(Full{}, q + (m * NV + v) * VL, c[m][v]);
}

template <int MR, int NV> FISSILE_INLINE void start_from(vf (&c)[MR][NV], const float* q) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) c[m][v] = load<vf>(q + (m * NV + v) * VL);
}

template <int MR, int NV> FISSILE_INLINE void add_tile(vf (&c)[MR][NV], const float* q) {
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) c[m][v] = c[m][v] + load<vf>(q + (m * NV + v) * VL);
}

// f11, f12, f21, f22 take the finished tiles of C. `a` holds the seven left factors, `part` apart, rows of them a_row
// apart; `b` the seven panels of right factors one behind another; `q` room for three tiles.
// `fetch(m, n)` may ask for what f_mn needs: a product stands between.
template <int MR, int NV, class F11, class F12, class F21, class F22, class Fetch>
FISSILE_INLINE void strassen(float* q, int64_t K, const float* a, int64_t a_row, int64_t part, const float* b,
                             F11 f11, F12 f12, F21 f21, F22 f22, Fetch fetch) {
  constexpr int tile = MR * NV * VL;
  const int64_t panel = K * NV * VL;
  vf c[MR][NV];
  zero(c);
  contract<MR, NV>(c, K, a, a_row, 1, b);  // P1
  keep_tile(q, c);
  contract<MR, NV>(c, K, a + part, a_row, 1, b + panel);  // + P6
  keep_tile(q + tile, c);
  contract<MR, NV>(c, K, a + 2 * part, a_row, 1, b + 2 * panel);  // + P7
  keep_tile(q + 2 * tile, c);
  fetch(2, 1);
  contract<MR, NV>(c, K, a + 3 * part, a_row, 1, b + 3 * panel);  // + P4
  f21(c);
  start_from(c, q);
  fetch(1, 1);
  contract<MR, NV>(c, K, a + 4 * part, a_row, 1, b + 4 * panel);  // P1 + P2
  f11(c);
  zero(c);
  fetch(2, 2);
  contract<MR, NV>(c, K, a + 5 * part, a_row, 1, b + 5 * panel);  // P5
  keep_tile(q, c);
  add_tile(c, q + 2 * tile);
  f22(c);
  start_from(c, q);
  add_tile(c, q + tile);
  fetch(1, 2);
  contract<MR, NV>(c, K, a + 6 * part, a_row, 1, b + 6 * panel);  // + P3
  f12(c);
}

}  // namespace fissile

#endif

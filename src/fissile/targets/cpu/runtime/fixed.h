// Contractions in block fixed point: two products of 16-bit numbers for one instruction of f32.
//
//   x[m][k] ~ s[m] p[m][k]        s[m] = max_k |x[m][k]| / MOST,  p in int16
//   w[k][n] ~ t[n] q[k][n]        when weights are packed, q in int16
//   y[m][n] = s[m] t[n] sum over blocks of k (float of (sum over k in the block of p q, in int32))
//
// |p| <= MOST = 2^14 - 1 and, for each block and column, sum |q| < 2^17: no sum leaves int32.
// Invariant: the sums are exact and the blocks are added in order, whatever the tile's shape is.
#ifndef FISSILE_FIXED_H
#define FISSILE_FIXED_H

#include "contract.h"

namespace fissile {

constexpr int32_t MOST = (1 << 14) - 1;
constexpr int32_t INFINITE = 0x7f800000;  // bits; those of NaN are beyond
typedef int16_t vs __attribute__((vector_size(VL * 2)));

// c[lane] += the products of two neighbours: those of *pair, and those of lane 2 i and 2 i + 1 of b.
FISSILE_INLINE void add_pairs(vi& c, const int32_t* pair, vi b) {
#if defined(FISSILE_AVX512) && defined(__AVX512VNNI__)
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*pair));
#elif defined(FISSILE_AVX) && VL == 8 && defined(__AVXVNNI__)
  vi a = splat_int(*pair);
  asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(c) : "x"(b), "x"(a));
#else
  vi a = splat_int(*pair);
  c += ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

template <int MR, int NV>
FISSILE_INLINE void add_block(vi (&c)[MR][NV], int64_t pairs, const int32_t* a, int64_t a_row, const int32_t* b) {
  vi t[MR][NV];
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) t[m][v] = splat_int(0);
  for (int64_t k = 0; k < pairs; k++, b += NV * VL) {
    fetch_ahead<NV>((const float*)b, NV * VL);
    vi row[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) row[v] = load<vi>(b + v * VL);
#pragma GCC unroll 32
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
      for (int v = 0; v < NV; v++) add_pairs(t[m][v], a + m * a_row + k, row[v]);
  }
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) c[m][v] = t[m][v];
}

// c = the product of MR rows and a panel of NV vectors over `blocks` blocks of `pairs` pairs of terms. `a`: rows of
// pairs, a_row apart, with the scales s. `b`: NV * VL scales, then [pair][column] of pairs. `q` has room for the tile.
template <int MR, int NV>
FISSILE_INLINE void contract_fixed(vf (&c)[MR][NV], float* q, int64_t blocks, int64_t pairs, const int32_t* a,
                                   int64_t a_row, const float* s, const float* b) {
  const int32_t* k = (const int32_t*)b + NV * VL;
  vi t[MR][NV];
  for (int64_t i = 0; i + 1 < blocks; i++, a += pairs, k += pairs * NV * VL) {
    add_block(t, pairs, a, a_row, k);
#pragma GCC unroll 32
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
      for (int v = 0; v < NV; v++) {
        float* at = q + (m * NV + v) * VL;
        store(at, i ? load<vf>(at) + to_float(t[m][v]) : to_float(t[m][v]));
      }
  }
  add_block(t, pairs, a, a_row, k);
  vf scale[NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; v++) scale[v] = load<vf>(b + v * VL);
#pragma GCC unroll 32
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) {
      vf sum = to_float(t[m][v]);
      if (blocks > 1) sum = load<vf>(q + (m * NV + v) * VL) + sum;
      c[m][v] = sum * (splat(s[m]) * scale[v]);
    }
}

// p = x / scale, rounded to nearest; `room` of p, a whole number of vectors from K on, ends in zeros. Returns the scale:
// NaN for a row with an infinity or a NaN, 0 for one without a normal number of some size.
FISSILE_INLINE float fixed_row(int16_t* p, const float* x, int64_t K, int64_t room) {
  vi most = splat_int(0);
  int64_t k = 0;
  for (; k + VL <= K; k += VL) {
    vi size = bits(load<vf>(x + k)) & 0x7fffffff;
    most = select(size > most, size, most);
  }
  if (k < K) {
    vi size = bits(loadn(x + k, K - k)) & 0x7fffffff;
    most = select(size > most, size, most);
  }
  int32_t top = 0;
  for (int i = 0; i < VL; i++) top = most[i] > top ? most[i] : top;
  const float largest = from_bits(top);
  const bool usual = top < INFINITE && largest > 1e-30f;
  const float inverse = usual ? MOST / largest : 0.0f;
  constexpr float middle = 12582912.0f;  // 1.5 * 2^23: a sum with it ends in an integer
  const auto put = [&](int64_t at, vf v) FISSILE_BODY {
    vi r = bits(v * splat(inverse) + splat(middle)) - bits(middle);
    vs narrow = __builtin_convertvector(usual ? r : splat_int(0), vs);
    __builtin_memcpy(p + at, &narrow, sizeof narrow);
  };
  for (k = 0; k + VL <= K; k += VL) put(k, load<vf>(x + k));
  if (k < K) put(k, loadn(x + k, K - k)), k += VL;
  for (; k < room; k += VL) put(k, splat(0.0f));
  return usual ? largest / MOST : top < INFINITE ? 0.0f : __builtin_nanf("");
}

}  // namespace fissile

#endif

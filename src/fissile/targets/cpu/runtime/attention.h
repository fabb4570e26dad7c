// Attention for MR queries at a time, their scores in the first caches.
//
//   s[r][j] = score(sum_d q[r][d] k[d][j])    p = 2^(rate (s - max_j s))    o[r][n] = finish(sum_j p[r][j] v[j][n] / sum_j p[r][j])
//
// Blocks of keys follow each other with a running maximum (online softmax, Milakov and Gimelshein 2018; Dao et al. 2022),
// and what earlier blocks gave is scaled when the maximum grows. Division comes last.
//
// Invariant: a row's bits depend on KEYS, BLOCK and VL alone, not on MR: contractions are chains of fma over all d, and over
// the keys of a block; sums of exponentials go by in_turn.
#ifndef FISSILE_ATTENTION_H
#define FISSILE_ATTENTION_H

#include "contract.h"
#include "tile.h"
#include "vmath.h"

namespace fissile {

// 2^(rate d) for d <= 0, to 1.6e-7 of it: 0 from rate d = -151 on, NaN stays
template <class V> FISSILE_INLINE V decay(V d, float rate) {
  d = at_least(d, -151.0f / rate);
#if defined(FISSILE_LOOKUP) && defined(FISSILE_FMA)
  const V t = fma(d, rate, f32::to_root), r = fma(d, rate, f32::to_root - t), root = lookup(f32::roots, bits(t));
  return f32::scale_to(fma(root * r, f32::horner(r, 0.693147242f, 0.240257636f, 0.0554962195f), root), t);
#else
  const V t = fma(d, rate, f32::to_nearest), r = fma(d, rate, f32::to_nearest - t);
  const V y = f32::horner(r, 1.0f, 0.693147004f, 0.240222424f, 0.0555073358f, 0.0096715130f, 0.0013264727f);
  return f32::scale(y, bits(t) - bits(f32::to_nearest));
#endif
}

// k: [panel of keys][D][width], v: [panel of columns][KEYS][values], the last panels zero-padded
template <int64_t KEYS, int64_t BLOCK, int64_t D, int64_t DV, int KV, int NV> struct Attention {
  static constexpr int64_t width = KV * VL, values = NV * VL;
  static_assert(BLOCK == KEYS || BLOCK % width == 0, "blocks begin with a panel");
  static constexpr int64_t row = (BLOCK + VL - 1) / VL * VL + VL;  // of p; no multiple of a page
  static constexpr int64_t columns = (DV + values - 1) / values * values;
  static constexpr int64_t blocks = (KEYS + BLOCK - 1) / BLOCK;
  static constexpr int64_t last = KEYS - (blocks - 1) * BLOCK;  // keys of the last block
  static constexpr float lowest = -__builtin_inff();

  template <int MR> struct State {
    vf top[MR];     // lane by lane
    float over[MR]; // the maximum of the blocks so far
    float sum[MR];
    float scale[MR];  // what the values of earlier blocks are worth now
  };

  // scores of the first N keys of a panel
  template <int N, int MR, class S>
  FISSILE_INLINE void panel(State<MR>& s, float* p, const float* q, int64_t q_row, int64_t q_k, const float* k, S score) {
    constexpr int nv = (N + VL - 1) / VL;
    vf c[MR][nv];
    zero(c);
    contract<MR, nv>(c, D, q, q_row, q_k, k, width);
    each_vector<N, true>(c, [&](auto l, vf a, int r, int v) FISSILE_BODY {
      const vf x = score(l, a, r, int64_t(v) * VL);
      store(l, p + r * row + v * VL, x);
      s.top[r] = native_max(s.top[r], keep(l, x, lowest));
    });
  }

  // p = score, then e^(p - maximum), for N keys from j0 on
  template <int64_t N, int MR, class S>
  FISSILE_INLINE void exponentials(State<MR>& s, float* p, const float* q, int64_t q_row, int64_t q_k, const float* k,
                                          int64_t j0, float rate, S score) {
    for (int r = 0; r < MR; ++r) s.top[r] = splat(lowest);
    int64_t j = 0;
    auto at = [&](auto l, vf a, int r, int64_t v) FISSILE_BODY { return score(l, a, r, j0 + j + v); };
    for (; j + width <= N; j += width) panel<width>(s, p + j, q, q_row, q_k, k + (j0 + j) * D, at);
    if constexpr (N % width != 0) panel<N % width>(s, p + j, q, q_row, q_k, k + (j0 + j) * D, at);
#pragma GCC unroll 1
    for (int r = 0; r < MR; ++r) {
      float over = hmax(s.top[r]);
      if constexpr (blocks > 1) {  // nothing but -inf so far: no NaN before the end
        over = native_max(s.over[r], over);
        const float m = over == lowest ? 0.0f : over;
        s.scale[r] = decay(s.over[r] - m, rate);
        s.over[r] = over;
        over = m;
      }
      Turns<N> sum(0.0f);
      in_turn<N>([&](auto l, int64_t i, auto t) FISSILE_BODY {
        const vf e = decay(load(l, p + r * row + i) - over, rate);
        store(l, p + r * row + i, e);
        sum[t] = sum[t] + keep(l, e, 0.0f);
      });
      if constexpr (blocks > 1) s.sum[r] = s.sum[r] * s.scale[r] + hsum(sum);
      else s.sum[r] = hsum(sum);
    }
  }

  // columns n0 .. n0 + N of the values: K keys of v; `o` holds the sums of earlier blocks
  template <int N, int MR, class F>
  FISSILE_INLINE void product(State<MR>& s, int64_t K, const float* p, const float* v, float* o, bool first, bool ends,
                                     F finish) {
    constexpr int nv = (N + VL - 1) / VL;
    vf c[MR][nv];
    if (blocks == 1 || first) zero(c);
    else
#pragma GCC unroll 32
      for (int r = 0; r < MR; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < nv; ++i) c[r][i] = load<vf>(o + r * columns + i * VL) * s.scale[r];
    contract<MR, nv>(c, K, p, row, 1, v, values);
    if (blocks == 1 || ends)
      each_vector<N, true>(c, [&](auto l, vf a, int r, int i) FISSILE_BODY { finish(l, a * s.sum[r], r, int64_t(i) * VL); });
    else
#pragma GCC unroll 32
      for (int r = 0; r < MR; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < nv; ++i) store(o + r * columns + i * VL, c[r][i]);
  }

  template <int64_t N, int MR, class S, class F>
  FISSILE_INLINE void block(State<MR>& s, int64_t j0, const float* q, int64_t q_row, int64_t q_k, const float* k,
                                   const float* v, float* p, float* o, float rate, S score, F finish) {
    exponentials<N>(s, p, q, q_row, q_k, k, j0, rate, score);
    const bool ends = j0 + N == KEYS;
    if (ends)
      for (int r = 0; r < MR; ++r) s.sum[r] = 1.0f / s.sum[r];
    int64_t n = 0;
    auto at = [&](auto l, vf a, int r, int64_t i) FISSILE_BODY { finish(l, a, r, n + i); };
    for (; n + values <= DV; n += values)
      product<values>(s, N, p, v + n * KEYS + j0 * values, o + n, j0 == 0, ends, at);
    if constexpr (DV % values != 0)
      product<DV % values>(s, N, p, v + n * KEYS + j0 * values, o + n, j0 == 0, ends, at);
  }

  // p = 2^(rate (score - maximum)). score(l, a, r, j): vector of scores from the contraction a of query r and key j; finish(l, a, r, n) stores values.
  // p holds MR * row floats, and o MR * columns where there are several blocks.
  template <int MR, class S, class F>
  FISSILE_INLINE void rows(const float* q, int64_t q_row, int64_t q_k, const float* k, const float* v, float* p, float* o,
                                  float rate, S score, F finish) {
    State<MR> s;
    if constexpr (blocks > 1) {
      for (int r = 0; r < MR; ++r) s.over[r] = lowest, s.sum[r] = 0.0f;
      for (int64_t j0 = 0; j0 < KEYS - last; j0 += BLOCK) block<BLOCK>(s, j0, q, q_row, q_k, k, v, p, o, rate, score, finish);
    }
    block<last>(s, KEYS - last, q, q_row, q_k, k, v, p, o, rate, score, finish);
  }
};

}  // namespace fissile

#endif

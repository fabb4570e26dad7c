// Window maximum and window sum, the strides and tiles of depthwise.h. The caller starts the tile:
// with fill(c, -inf) or zero(c); padding for a maximum is -inf, for a sum 0. An average divides the
// sum in the epilogue.
//
// Invariant: the window is folded in the order (row, column); a NaN in the window gives NaN.
#ifndef FISSILE_POOL_H
#define FISSILE_POOL_H

#include "depthwise.h"

namespace fissile {

template <int M, int NV> FISSILE_INLINE void fill(vf (&c)[M][NV], float x) {
#pragma GCC unroll 32
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) c[m][v] = splat(x);
}

struct Maximum {
  FISSILE_INLINE vf fold(vf a, vf b) { return max(a, b); }
  static constexpr bool has_weights = false;
  FISSILE_INLINE vf fold(vf a, vf b, vf) { return max(a, b); }
};
struct Sum {
  FISSILE_INLINE vf fold(vf a, vf b) { return a + b; }
  static constexpr bool has_weights = false;
  FISSILE_INLINE vf fold(vf a, vf b, vf) { return a + b; }
};

template <class Op, int KH, int KW, int S, int NV, int PY>
FISSILE_INLINE void pool_first(vf (&c)[PY][NV], const float* x, int64_t line, int64_t row,
                               int64_t tap) {
#pragma GCC unroll 16
  for (int i = 0; i < KH; i++)
#pragma GCC unroll 16
    for (int j = 0; j < KW; j++)
#pragma GCC unroll 16
      for (int py = 0; py < PY; py++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++)
          c[py][v] =
              Op::fold(c[py][v], load_step<S>(x + py * line + i * row + j * tap + S * v * VL));
}

#define FISSILE_POOL(name, Op)                                                                     \
  template <int KH, int KW, int S, int NV, int PY = 1>                                             \
  FISSILE_INLINE void name##_first(vf(&c)[PY][NV], const float* x, int64_t line, int64_t row,      \
                                   int64_t tap) {                                                  \
    pool_first<Op, KH, KW, S, NV, PY>(c, x, line, row, tap);                                       \
  }                                                                                                \
  template <int S, int NV, int PY = 1>                                                             \
  FISSILE_INLINE void name##_first_any(vf(&c)[PY][NV], const float* x, int64_t kh, int64_t kw,     \
                                       int64_t line, int64_t row, int64_t tap) {                   \
    vf t[PY][NV];                                                                                  \
    copy_tile(t, c);                                                                               \
    for (int64_t i = 0; i < kh; i++)                                                               \
      for (int64_t j = 0; j < kw; j++)                                                             \
        pool_first<Op, 1, 1, S, NV, PY>(t, x + i * row + j * tap, line, 0, 0);                     \
    copy_tile(c, t);                                                                               \
  }
FISSILE_POOL(max_pool, Maximum)
FISSILE_POOL(sum_pool, Sum)
#undef FISSILE_POOL

}  // namespace fissile

#endif

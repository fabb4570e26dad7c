// Convolution, channels-last, as an implicit contraction: no im2col, the input rows are read in
// place.
//
// A tile is PY x PX output pixels and NV * VL output channels in registers. The caller has padded
// the input, so a kernel row of one pixel is one contiguous run of KW * C elements (dilation 1),
// and the K loop is KH runs:
//
//   c[py * PX + px][v] += sum_{i < kh, k < run} x[py * line + px * pixel + i * row + k]
//                                             * b[i * run + k][v * VL ...]
//
// Invariant: as in contract.h, each output is one chain of fma in the order (kernel row, kernel
// column, channel).
#ifndef FISSILE_CONV_H
#define FISSILE_CONV_H

#include "contract.h"

namespace fissile {

template <int PX, int NV, int PY>
FISSILE_INLINE void conv_run(vf (&c)[PY * PX][NV], const float* x, int64_t pixel, int64_t line,
                             int64_t run, const float* b, int64_t b_step) {
  for (int64_t k = 0; k < run; k++, x++, b += b_step) {
    fetch_ahead<NV>(b, b_step);
    vf w[NV];
    load_row<PY * PX, NV>(w, b);
#pragma GCC unroll 32
    for (int py = 0; py < PY; py++)
#pragma GCC unroll 32
      for (int px = 0; px < PX; px++) {
        vf s = splat(x[py * line + px * pixel]);
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) c[py * PX + px][v] = native_fma(s, w[v], c[py * PX + px][v]);
      }
  }
}

template <int PX, int NV, int PY = 1>
FISSILE_INLINE void conv_tile(vf (&c)[PY * PX][NV], const float* x, int64_t pixel, int64_t line,
                              int64_t row, int64_t kh, int64_t run, const float* b) {
  vf t[PY * PX][NV];
  copy_tile(t, c);
  for (int64_t i = 0; i < kh; i++, x += row, b += run * NV * VL)
    conv_run<PX, NV, PY>(t, x, pixel, line, run, b, NV * VL);
  copy_tile(c, t);
}

// With dilation along the width each tap is a run of its own.
template <int PX, int NV, int PY = 1>
FISSILE_INLINE void conv_tile_taps(vf (&c)[PY * PX][NV], const float* x, int64_t pixel,
                                   int64_t line, int64_t row, int64_t tap, int64_t kh, int64_t kw,
                                   int64_t C, const float* b) {
  vf t[PY * PX][NV];
  copy_tile(t, c);
  for (int64_t i = 0; i < kh; i++)
    for (int64_t j = 0; j < kw; j++, b += C * NV * VL)
      conv_run<PX, NV, PY>(t, x + i * row + j * tap, pixel, line, C, b, NV * VL);
  copy_tile(c, t);
}

}  // namespace fissile

#endif

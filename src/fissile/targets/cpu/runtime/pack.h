// Constants that are packed when a model is opened, because the packed form is larger than the plain
// one. Each function stands for the packer of the same name in packing.py:
//
//   NAME(to, from, extents of the constant..., arguments of the packing...)
#ifndef FISSILE_PACK_H
#define FISSILE_PACK_H

#include <stdint.h>
#include <string.h>

namespace fissile {

// G of Winograd's F(M, 3): row i is (1, x, x^2) over the product of x - y for the other points y,
// where x is point i; the last row is that of infinity. Points as in winograd.h.
template <int M> struct Points;
template <> struct Points<2> {
  static constexpr double at[3] = {0.0, 1.0, -1.0};
};
template <> struct Points<4> {
  static constexpr double at[5] = {0.0, 1.0, -1.0, 0.5, -2.0};
};

template <int M> struct FilterMatrix {
  static constexpr int S = M + 2;
  double g[M + 2][3];
  constexpr FilterMatrix() : g() {
    for (int i = 0; i <= M; i++) {
      const double x = Points<M>::at[i];
      double scale = 1.0;
      for (int j = 0; j <= M; j++)
        if (j != i) scale *= x - Points<M>::at[j];
      g[i][0] = 1.0 / scale, g[i][1] = x / scale, g[i][2] = x * x / scale;
    }
    g[M + 1][0] = g[M + 1][1] = 0.0, g[M + 1][2] = 1.0;
  }
};

// Of stride 2: F(3, 2) of the outer taps at 0, 1, -1 and infinity, and the middle one three times.
template <> struct FilterMatrix<3> {
  static constexpr int S = 7;
  double g[7][3] = {{-1, 0, 0}, {0.5, 0, 0.5}, {0.5, 0, -0.5}, {0, 0, 1}, {0, 1, 0}, {0, 1, 0}, {0, 1, 0}};
};

// G g G^T of LANES filters, w[tap][lane], in double and rounded once: u[tap][lane].
template <int M, int LANES> inline void winograd_filters(float* u, const double (&w)[9][LANES]) {
  constexpr FilterMatrix<M> filter{};
  constexpr int S = FilterMatrix<M>::S;
  double t[S][3][LANES];
  for (int i = 0; i < S; i++)
    for (int j = 0; j < 3; j++)
      for (int l = 0; l < LANES; l++)
        t[i][j][l] = filter.g[i][0] * w[j][l] + filter.g[i][1] * w[3 + j][l] + filter.g[i][2] * w[6 + j][l];
  for (int i = 0; i < S; i++)
    for (int j = 0; j < S; j++)
      for (int l = 0; l < LANES; l++)
        u[(i * S + j) * LANES + l] = (float)(filter.g[j][0] * t[i][0][l] + filter.g[j][1] * t[i][1][l] +
                                             filter.g[j][2] * t[i][2][l]);
}

template <int M>
void winograd_panels_of(float* to, const float* from, int64_t m, int64_t c, int64_t width, int64_t vl) {
  constexpr int S = FilterMatrix<M>::S, LANES = 8;
  for (int64_t first = 0; first < m; first += width, to += S * S * c * width) {
    const int64_t left = m - first < width ? m - first : width, row = (left + vl - 1) / vl * vl;
    for (int64_t k = 0; k < c; k++)
      for (int64_t begin = 0; begin < row; begin += LANES) {
        const int64_t end = begin + LANES < row ? begin + LANES : row;
        double w[9][LANES] = {};
        for (int64_t l = begin; l < end && l < left; l++)
          for (int tap = 0; tap < 9; tap++) w[tap][l - begin] = from[((first + l) * c + k) * 9 + tap];
        float u[S * S * LANES];
        winograd_filters<M>(u, w);
        for (int tap = 0; tap < S * S; tap++)
          memcpy(to + (tap * c + k) * row + begin, u + tap * LANES, (end - begin) * sizeof(float));
      }
  }
}

// Weights [m][c][3][3] as [panel][tap of G g G^T][c][width of the panel]: a panel takes the place of
// `width` channels, the last one is only as wide as its whole vectors.
inline void winograd_panels(float* to, const float* from, int64_t m, int64_t c, int64_t, int64_t, int64_t tile,
                            int64_t width, int64_t vl) {
  if (tile == 2) {
    winograd_panels_of<2>(to, from, m, c, width, vl);
  } else if (tile == 3) {
    winograd_panels_of<3>(to, from, m, c, width, vl);
  } else {
    winograd_panels_of<4>(to, from, m, c, width, vl);
  }
}

}  // namespace fissile

#endif

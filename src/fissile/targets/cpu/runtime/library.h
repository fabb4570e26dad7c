// Matrix products of libraries: row-major, c[m][n] = sum_k a[m][k] b[k][n], an operand transposed
// where it lies so. Declared for all kernels, linked only where a kernel calls one.
//
// Invariant: a call runs in the calling thread alone, so that the bits of a result hang on the
// extents and on the library, never on the number of threads.
#ifndef FISSILE_LIBRARY_H
#define FISSILE_LIBRARY_H

#include "types.h"

extern "C" {
void scipy_cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k,
                       float alpha, const float* a, int lda, const float* b, int ldb, float beta,
                       float* c, int ldc);
void scipy_openblas_set_num_threads(int threads);
int dnnl_sgemm(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
               int64_t ldc);
// of the OpenMP that oneDNN may have been built with
int omp_get_max_threads(void) __attribute__((weak));
void omp_set_num_threads(int threads) __attribute__((weak));
}

namespace fissile {

// OpenBLAS: its number of threads is one for the whole process.
inline void openblas_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                             const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                             int64_t ldc) {
  static const bool alone = (scipy_openblas_set_num_threads(1), true);
  (void)alone;
  scipy_cblas_sgemm(101, transpose_a ? 112 : 111, transpose_b ? 112 : 111, int(m), int(n), int(k),
                    1.0f, a, int(lda), b, int(ldb), 0.0f, c, int(ldc));
}

// oneDNN: the number of threads of OpenMP belongs to the calling thread, which gets it back.
inline void onednn_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                           const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                           int64_t ldc) {
  const bool openmp = omp_get_max_threads && omp_set_num_threads;
  const int before = openmp ? omp_get_max_threads() : 1;
  if (openmp) omp_set_num_threads(1);
  dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, 0.0f,
             c, ldc);
  if (openmp) omp_set_num_threads(before);
}

}  // namespace fissile

#endif

// Arithmetic on the vectors of types.h.
//
// Invariant: every function exists for float and for vf, runs the same operations in the same order
// for both, and so gives the same bits in each lane. A generator prints one expression for the
// vector body and for the scalar tail. Compile with -ffp-contract=off: a product and a sum are
// fused where the code says fma, and nowhere else.
#ifndef FISSILE_VEC_H
#define FISSILE_VEC_H

#include "types.h"

namespace fissile {

// ---- one instruction each -----------------------------------------------------------------------

// native_fma(a, b, c) = a * b + c, rounded once where the machine can.
// native_max(a, b) = a > b ? a : b and native_min(a, b) = a < b ? a : b: the second operand where
// either is NaN.
FISSILE_INLINE double native_fma(double a, double b, double c) {
#if defined(FISSILE_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
FISSILE_INLINE float native_fma(float a, float b, float c) {
#if defined(FISSILE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
FISSILE_INLINE vf native_fma(vf a, vf b, vf c) {
#if !defined(FISSILE_FMA)
  return a * b + c;
#elif __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(FISSILE_AVX512)
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1,
                                         4);  // 4: the current rounding mode
#elif defined(FISSILE_AVX)
  return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__aarch64__) && !defined(__clang__)
  return __builtin_aarch64_fmav4sf(a, b, c);
#else
  return each(a, b,
              [&, i = 0](float p, float q) mutable { return __builtin_fmaf(p, q, float(c[i++])); });
#endif
}

template <class T> FISSILE_INLINE T native_max(T a, T b) { return a > b ? a : b; }
template <class T> FISSILE_INLINE T native_min(T a, T b) { return a < b ? a : b; }
#if defined(FISSILE_AVX512) && !defined(__clang__)
template <> inline __attribute__((always_inline)) vf native_max(vf a, vf b) {
  return __builtin_ia32_maxps512_mask(a, b, a, (unsigned short)-1, 4);
}
template <> inline __attribute__((always_inline)) vf native_min(vf a, vf b) {
  return __builtin_ia32_minps512_mask(a, b, a, (unsigned short)-1, 4);
}
#elif defined(FISSILE_AVX)
template <> inline __attribute__((always_inline)) vf native_max(vf a, vf b) {
  return __builtin_ia32_maxps256(a, b);
}
template <> inline __attribute__((always_inline)) vf native_min(vf a, vf b) {
  return __builtin_ia32_minps256(a, b);
}
#endif

FISSILE_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
FISSILE_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
FISSILE_INLINE float floor(float x) { return __builtin_floorf(x); }
FISSILE_INLINE double floor(double x) { return __builtin_floor(x); }
FISSILE_INLINE float ceil(float x) { return __builtin_ceilf(x); }
FISSILE_INLINE double ceil(double x) { return __builtin_ceil(x); }
FISSILE_INLINE float trunc(float x) { return __builtin_truncf(x); }
FISSILE_INLINE double trunc(double x) { return __builtin_trunc(x); }
// Half to even, as ONNX Round and numpy.
FISSILE_INLINE float round(float x) { return __builtin_rintf(x); }
FISSILE_INLINE double round(double x) { return __builtin_rint(x); }

#if defined(FISSILE_AVX512) && !defined(__clang__)
FISSILE_INLINE vf sqrt(vf x) { return __builtin_ia32_sqrtps512_mask(x, x, (unsigned short)-1, 4); }
#define FISSILE_ROUND(x, how) __builtin_ia32_rndscaleps_mask(x, how, x, (unsigned short)-1, 4)
#elif defined(FISSILE_AVX) && !defined(__clang__)
FISSILE_INLINE vf sqrt(vf x) { return __builtin_ia32_sqrtps256(x); }
#define FISSILE_ROUND(x, how) __builtin_ia32_roundps256(x, how)
#elif __has_builtin(__builtin_elementwise_sqrt)
FISSILE_INLINE vf sqrt(vf x) { return __builtin_elementwise_sqrt(x); }
#else
FISSILE_INLINE vf sqrt(vf x) {
  return each(x, [](float t) { return __builtin_sqrtf(t); });
}
#endif

#if defined(FISSILE_ROUND)
FISSILE_INLINE vf round(vf x) { return FISSILE_ROUND(x, 8); }  // 8: no inexact flag
FISSILE_INLINE vf floor(vf x) { return FISSILE_ROUND(x, 9); }
FISSILE_INLINE vf ceil(vf x) { return FISSILE_ROUND(x, 10); }
FISSILE_INLINE vf trunc(vf x) { return FISSILE_ROUND(x, 11); }
#elif __has_builtin(__builtin_elementwise_rint)
FISSILE_INLINE vf round(vf x) { return __builtin_elementwise_rint(x); }
FISSILE_INLINE vf floor(vf x) { return __builtin_elementwise_floor(x); }
FISSILE_INLINE vf ceil(vf x) { return __builtin_elementwise_ceil(x); }
FISSILE_INLINE vf trunc(vf x) { return __builtin_elementwise_trunc(x); }
#else
FISSILE_INLINE vf round(vf x) {
  return each(x, [](float t) { return __builtin_rintf(t); });
}
FISSILE_INLINE vf floor(vf x) {
  return each(x, [](float t) { return __builtin_floorf(t); });
}
FISSILE_INLINE vf ceil(vf x) {
  return each(x, [](float t) { return __builtin_ceilf(t); });
}
FISSILE_INLINE vf trunc(vf x) {
  return each(x, [](float t) { return __builtin_truncf(t); });
}
#endif

// ---- arithmetic; any mix of vf and scalars ------------------------------------------------------

template <class A, class B, class C> FISSILE_INLINE wide3_t<A, B, C> fma(A a, B b, C c) {
  typedef wide3_t<A, B, C> V;
  return native_fma(broadcast<V>(a), broadcast<V>(b), broadcast<V>(c));
}

// NaN propagates from either side, as in ONNX and numpy.
template <class A, class B> FISSILE_INLINE wide_t<A, B> max(A a, B b) {
  typedef wide_t<A, B> V;
  V x = broadcast<V>(a), y = broadcast<V>(b);
  return x != x ? x : native_max(x, y);
}
template <class A, class B> FISSILE_INLINE wide_t<A, B> min(A a, B b) {
  typedef wide_t<A, B> V;
  V x = broadcast<V>(a), y = broadcast<V>(b);
  return x != x ? x : native_min(x, y);
}
template <class A, class B, class C> FISSILE_INLINE wide3_t<A, B, C> max(A a, B b, C c) {
  return max(max(a, b), c);
}
template <class A, class B, class C> FISSILE_INLINE wide3_t<A, B, C> min(A a, B b, C c) {
  return min(min(a, b), c);
}

// The maximum, which may lose a NaN: one instruction.
template <class A, class B> FISSILE_INLINE wide_t<A, B> greatest(A a, B b) {
  typedef wide_t<A, B> V;
  return native_max(broadcast<V>(a), broadcast<V>(b));
}

// The bound must not be NaN; then one instruction suffices and NaN in x propagates.
template <class A, class B> FISSILE_INLINE wide_t<A, B> at_least(A x, B bound) {
  typedef wide_t<A, B> V;
  return native_max(broadcast<V>(bound), broadcast<V>(x));
}
template <class A, class B> FISSILE_INLINE wide_t<A, B> at_most(A x, B bound) {
  typedef wide_t<A, B> V;
  return native_min(broadcast<V>(bound), broadcast<V>(x));
}
template <class V, class L, class H> FISSILE_INLINE V clip(V x, L low, H high) {
  return V(at_most(at_least(x, broadcast<V>(low)), broadcast<V>(high)));
}
template <class V> FISSILE_INLINE V relu(V x) { return at_least(x, V()); }

FISSILE_INLINE float abs(float x) { return __builtin_fabsf(x); }
FISSILE_INLINE double abs(double x) { return __builtin_fabs(x); }
FISSILE_INLINE vf abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
template <class T> FISSILE_INLINE T abs(T x) { return T(x < T(0) ? -x : x); }

// x clipped to [-bound, bound], and -min(|x|, bound): one instruction where has_within; a NaN may
// become the bound.
template <class V> constexpr bool has_within = false;
template <class V> FISSILE_INLINE V within(V x, float bound) {
  return at_most(at_least(x, -bound), bound);
}
template <class V> FISSILE_INLINE V minus_within(V x, float bound) {
  return at_least(-abs(x), -bound);
}
#if defined(FISSILE_AVX512)
template <> constexpr bool has_within<vf> = true;
FISSILE_INLINE vf within(vf x, float bound) {  // 2: the smaller magnitude with the sign of x
  return __builtin_ia32_rangeps512_mask(x, splat(bound), 2, x, (unsigned short)-1, 4);
}
FISSILE_INLINE vf minus_within(vf x, float bound) {  // 14: the smaller magnitude below zero
  return __builtin_ia32_rangeps512_mask(x, splat(bound), 14, x, (unsigned short)-1, 4);
}
#endif

// The magnitude of x with the sign of s.
FISSILE_INLINE float copysign(float x, float s) { return __builtin_copysignf(x, s); }
FISSILE_INLINE double copysign(double x, double s) { return __builtin_copysign(x, s); }
FISSILE_INLINE vf copysign(vf x, vf s) {
  return (vf)(((vi)x & 0x7fffffff) | ((vi)s & int32_t(0x80000000)));
}

template <class T> FISSILE_INLINE T neg(T x) { return T(-x); }
template <class V> FISSILE_INLINE V recip(V x) { return broadcast<V>(1) / x; }
template <class V> FISSILE_INLINE V rsqrt(V x) {
  return broadcast<V>(1) / sqrt(x);
}  // two roundings
template <class T> FISSILE_INLINE T sign(T x) {
  return T(x > T(0) ? 1 : x < T(0) ? -1 : x);
}  // NaN and zeros stay
FISSILE_INLINE vf sign(vf x) { return x > 0.0f ? splat(1.0f) : x < 0.0f ? splat(-1.0f) : x; }

// ---- horizontal reductions: halves are folded, lane i with lane i + n/2, until one lane is left -

template <class V, class F> FISSILE_INLINE float folded(V v, F both) {
  constexpr int n = sizeof(V) / 8;
  typedef float half __attribute__((vector_size(n * 4)));
  if constexpr (n > 2) {
    half h[2];
    __builtin_memcpy(h, &v, sizeof v);
    return folded(half(both(h[0], h[1])), both);
  } else {
#if __has_builtin(__builtin_shufflevector)
    v = both(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    v = both(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
#else
    typedef int32_t index __attribute__((vector_size(16)));
    v = both(v, __builtin_shuffle(v, index{2, 3, 0, 1}));
    v = both(v, __builtin_shuffle(v, index{1, 0, 3, 2}));
#endif
    return v[0];
  }
}
#define FISSILE_FOLD(name, combine)                           \
  FISSILE_INLINE float name(vf v) {                           \
    return folded(v, [](auto a, auto b) { return combine; }); \
  }
FISSILE_FOLD(hsum, a + b)
FISSILE_FOLD(hprod, a* b)
FISSILE_FOLD(hmax, a != a ? a : a > b ? a : b)
FISSILE_FOLD(hmin, a != a ? a : a < b ? a : b)
FISSILE_FOLD(hgreatest, a > b ? a : b)
FISSILE_INLINE float hsum(float v) { return v; }
FISSILE_INLINE float hmax(float v) { return v; }
FISSILE_INLINE float hmin(float v) { return v; }
FISSILE_INLINE float hsum(vf v, int64_t n) { return hsum(select(first_lanes(n), v, 0.0f)); }
FISSILE_INLINE float hmax(vf v, int64_t n) {
  return hmax(select(first_lanes(n), v, -__builtin_inff()));
}
FISSILE_INLINE float hmin(vf v, int64_t n) {
  return hmin(select(first_lanes(n), v, __builtin_inff()));
}

}  // namespace fissile

#endif

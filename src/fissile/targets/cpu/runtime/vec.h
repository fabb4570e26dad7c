// Vectors of floats by compiler extension: one name for AVX-512, AVX2, NEON and plain code.
//
// Invariant: every function exists for float and for vf, runs the same operations in the same order for both, and so
// gives the same bits in each lane. A generator prints one expression for the vector body and for the scalar tail.
// Compile with -ffp-contract=off: a product and a sum are fused where the code says fma, and nowhere else.
#ifndef FISSILE_VEC_H
#define FISSILE_VEC_H

#include <stddef.h>
#include <stdint.h>

#define FISSILE_INLINE static inline __attribute__((always_inline))

#ifndef __has_builtin
#define __has_builtin(x) 0
#endif

namespace fissile {

// FISSILE_NARROW asks for half-width vectors on a machine with AVX-512.
#if defined(__AVX512F__) && defined(__AVX512DQ__) && !defined(FISSILE_NARROW)
#define FISSILE_AVX512 1
constexpr int VL = 16;
#elif defined(__AVX__)
#define FISSILE_AVX 1
constexpr int VL = 8;
#else
constexpr int VL = 4;
#endif

#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
#define FISSILE_FMA 1
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));

// The same vectors in memory: no alignment, and they may overlap any other type.
typedef float vf_memory __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi_memory __attribute__((vector_size(VL * 4), aligned(4), may_alias));

// ---- types: which vector, which integer, which mask goes with V; which type holds both A and B ----------------------

template <class V> struct of;
template <> struct of<float> { typedef float element; typedef int32_t integer; typedef bool mask; };
template <> struct of<double> { typedef double element; typedef int64_t integer; typedef bool mask; };
template <> struct of<int32_t> { typedef int32_t element; typedef int32_t integer; typedef bool mask; };
template <> struct of<vf> { typedef float element; typedef vi integer; typedef vi mask; };
template <> struct of<vi> { typedef int32_t element; typedef vi integer; typedef vi mask; };

template <class A, class B> struct wide { typedef decltype(A() + B()) type; };
template <class A> struct wide<A, A> { typedef A type; };      // int8 with int8 stays int8, unlike A() + A()
template <class A> struct wide<vf, A> { typedef vf type; };
template <class A> struct wide<A, vf> { typedef vf type; };
template <> struct wide<vf, vf> { typedef vf type; };
template <class A, class B> using wide_t = typename wide<A, B>::type;
template <class A, class B, class C> using wide3_t = wide_t<wide_t<A, B>, C>;

// ---- constants and broadcasts ---------------------------------------------------------------------------------------

#if defined(FISSILE_AVX512)
FISSILE_INLINE vf splat(float x) { return vf{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
FISSILE_INLINE vi splat_int(int32_t x) { return vi{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
constexpr vi lane_index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(FISSILE_AVX)
FISSILE_INLINE vf splat(float x) { return vf{x, x, x, x, x, x, x, x}; }
FISSILE_INLINE vi splat_int(int32_t x) { return vi{x, x, x, x, x, x, x, x}; }
constexpr vi lane_index = {0, 1, 2, 3, 4, 5, 6, 7};
#else
FISSILE_INLINE vf splat(float x) { return vf{x, x, x, x}; }
FISSILE_INLINE vi splat_int(int32_t x) { return vi{x, x, x, x}; }
constexpr vi lane_index = {0, 1, 2, 3};
#endif

template <class V> struct broadcaster {
  template <class T> FISSILE_INLINE V of(T x) { return V(x); }
};
template <> struct broadcaster<vf> {
  FISSILE_INLINE vf of(vf x) { return x; }
  template <class T> FISSILE_INLINE vf of(T x) { return splat(float(x)); }
};
template <> struct broadcaster<vi> {
  FISSILE_INLINE vi of(vi x) { return x; }
  template <class T> FISSILE_INLINE vi of(T x) { return splat_int(int32_t(x)); }
};
// broadcast<V>(x): x as a V, in every lane
template <class V, class T> FISSILE_INLINE V broadcast(T x) { return broadcaster<V>::of(x); }

// ---- memory ---------------------------------------------------------------------------------------------------------

// load<vf>(p), load<float>(p), load<double>(p), ...
template <class V, class T> FISSILE_INLINE V load(const T* p) {
  static_assert(sizeof(V) % sizeof(T) == 0, "load a vector from its own element type");
  if constexpr (sizeof(V) == sizeof(T)) return *p;
  else {
    typedef V memory __attribute__((aligned(4), may_alias));
    return *reinterpret_cast<const memory*>(p);
  }
}
FISSILE_INLINE void store(float* p, vf v) { *reinterpret_cast<vf_memory*>(p) = v; }
FISSILE_INLINE void store(int32_t* p, vi v) { *reinterpret_cast<vi_memory*>(p) = v; }
template <class T> FISSILE_INLINE void store(T* p, T v) { *p = v; }

FISSILE_INLINE vi first_lanes(int64_t n) { return lane_index < int32_t(n); }

#if defined(FISSILE_AVX512)
FISSILE_INLINE unsigned short lane_bits(int64_t n) { return (unsigned short)((1u << n) - 1); }
FISSILE_INLINE vf loadn(const float* p, int64_t n) {
  return (vf)__builtin_ia32_loadups512_mask(p, splat(0.0f), lane_bits(n));
}
FISSILE_INLINE void storen(float* p, vf v, int64_t n) { __builtin_ia32_storeups512_mask(p, v, lane_bits(n)); }
#elif defined(FISSILE_AVX)
FISSILE_INLINE vf loadn(const float* p, int64_t n) {
  typedef float v8 __attribute__((vector_size(32)));
  return (vf)__builtin_ia32_maskloadps256(reinterpret_cast<const v8*>(p), first_lanes(n));
}
FISSILE_INLINE void storen(float* p, vf v, int64_t n) {
  typedef float v8 __attribute__((vector_size(32)));
  __builtin_ia32_maskstoreps256(reinterpret_cast<v8*>(p), first_lanes(n), v);
}
#else
FISSILE_INLINE vf loadn(const float* p, int64_t n) {
  vf v = splat(0.0f);
  for (int i = 0; i < VL; i++)
    if (i < n) v[i] = p[i];
  return v;
}
FISSILE_INLINE void storen(float* p, vf v, int64_t n) {
  for (int i = 0; i < VL; i++)
    if (i < n) p[i] = v[i];
}
#endif
FISSILE_INLINE vi loadn(const int32_t* p, int64_t n) { return (vi)loadn(reinterpret_cast<const float*>(p), n); }
FISSILE_INLINE void storen(int32_t* p, vi v, int64_t n) { storen(reinterpret_cast<float*>(p), (vf)v, n); }

// Lane i is at p[i * stride].
FISSILE_INLINE vf gather(const float* p, int64_t stride) {
  vf v;
  for (int i = 0; i < VL; i++) v[i] = p[i * stride];
  return v;
}
FISSILE_INLINE vf gather(const float* p, int64_t stride, int64_t n) {
  vf v = splat(0.0f);
  for (int i = 0; i < VL; i++)
    if (i < n) v[i] = p[i * stride];
  return v;
}
FISSILE_INLINE void scatter(float* p, int64_t stride, vf v) {
  for (int i = 0; i < VL; i++) p[i * stride] = v[i];
}
FISSILE_INLINE void scatter(float* p, int64_t stride, vf v, int64_t n) {
  for (int i = 0; i < VL; i++)
    if (i < n) p[i * stride] = v[i];
}

// Lanes picked from the 2 VL lanes of (a, b).
#if __has_builtin(__builtin_shufflevector)
#define FISSILE_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FISSILE_PICK(a, b, ...) __builtin_shuffle(a, b, vi{__VA_ARGS__})
#endif
#if defined(FISSILE_AVX512)
#define FISSILE_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define FISSILE_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(FISSILE_AVX)
#define FISSILE_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define FISSILE_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define FISSILE_EVEN 0, 2, 4, 6
#define FISSILE_ODD 1, 3, 5, 7
#endif
// even[i] = p[2 i], odd[i] = p[2 i + 1]; reads 2 VL floats.
FISSILE_INLINE void deinterleave(const float* p, vf& even, vf& odd) {
  vf a = load<vf>(p), b = load<vf>(p + VL);
  even = FISSILE_PICK(a, b, FISSILE_EVEN);
  odd = FISSILE_PICK(a, b, FISSILE_ODD);
}

// ---- bits and selection ---------------------------------------------------------------------------------------------

FISSILE_INLINE int32_t bits(float x) { int32_t i; __builtin_memcpy(&i, &x, 4); return i; }
FISSILE_INLINE vi bits(vf x) { return (vi)x; }
FISSILE_INLINE float from_bits(int32_t i) { float x; __builtin_memcpy(&x, &i, 4); return x; }
FISSILE_INLINE vf from_bits(vi i) { return (vf)i; }

// Toward zero; the value must fit in int32.
FISSILE_INLINE int32_t to_int(float x) { return int32_t(x); }
FISSILE_INLINE vi to_int(vf x) { return __builtin_convertvector(x, vi); }
FISSILE_INLINE float to_float(int32_t x) { return float(x); }
FISSILE_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }

FISSILE_INLINE vf select(vi mask, vf a, vf b) { return mask ? a : b; }
FISSILE_INLINE vf select(vi mask, float a, vf b) { return mask ? splat(a) : b; }
FISSILE_INLINE vf select(vi mask, vf a, float b) { return mask ? a : splat(b); }
FISSILE_INLINE vf select(vi mask, float a, float b) { return mask ? splat(a) : splat(b); }
FISSILE_INLINE vi select(vi mask, vi a, vi b) { return mask ? a : b; }
template <class A, class B> FISSILE_INLINE wide_t<A, B> select(bool mask, A a, B b) {
  typedef wide_t<A, B> V;
  return mask ? broadcast<V>(a) : broadcast<V>(b);
}
FISSILE_INLINE bool any(bool mask) { return mask; }
FISSILE_INLINE bool any(vi mask) {
  int32_t r = 0;
  for (int i = 0; i < VL; i++) r |= mask[i];
  return r != 0;
}

// Keeps v in a register: otherwise the compiler may fold its load into every use, and loads become the bottleneck.
#if defined(__x86_64__) && defined(__AVX512F__)
constexpr int REGISTERS = 32;
FISSILE_INLINE void keep(vf& v) { asm("" : "+v"(v)); }
#elif defined(__x86_64__)
constexpr int REGISTERS = 16;
FISSILE_INLINE void keep(vf& v) { asm("" : "+x"(v)); }
#else
constexpr int REGISTERS = 32;
FISSILE_INLINE void keep(vf&) {}
#endif

// f in each lane: for functions that no network needs to be fast in
template <class F> FISSILE_INLINE vf each(vf x, F f) {
  vf r;
  for (int i = 0; i < VL; i++) r[i] = f(float(x[i]));
  return r;
}
template <class F> FISSILE_INLINE vf each(vf x, vf y, F f) {
  vf r;
  for (int i = 0; i < VL; i++) r[i] = f(float(x[i]), float(y[i]));
  return r;
}

// ---- one instruction each -------------------------------------------------------------------------------------------

// native_fma(a, b, c) = a * b + c, rounded once where the machine can.
// native_max(a, b) = a > b ? a : b and native_min(a, b) = a < b ? a : b: the second operand where either is NaN.
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
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);   // 4: the current rounding mode
#elif defined(FISSILE_AVX)
  return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__aarch64__) && !defined(__clang__)
  return __builtin_aarch64_fmav4sf(a, b, c);
#else
  return each(a, b, [&, i = 0](float p, float q) mutable { return __builtin_fmaf(p, q, float(c[i++])); });
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
template <> inline __attribute__((always_inline)) vf native_max(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
template <> inline __attribute__((always_inline)) vf native_min(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
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
FISSILE_INLINE vf sqrt(vf x) { return each(x, [](float t) { return __builtin_sqrtf(t); }); }
#endif

#if defined(FISSILE_ROUND)
FISSILE_INLINE vf round(vf x) { return FISSILE_ROUND(x, 8); }     // 8: no inexact flag
FISSILE_INLINE vf floor(vf x) { return FISSILE_ROUND(x, 9); }
FISSILE_INLINE vf ceil(vf x) { return FISSILE_ROUND(x, 10); }
FISSILE_INLINE vf trunc(vf x) { return FISSILE_ROUND(x, 11); }
#elif __has_builtin(__builtin_elementwise_rint)
FISSILE_INLINE vf round(vf x) { return __builtin_elementwise_rint(x); }
FISSILE_INLINE vf floor(vf x) { return __builtin_elementwise_floor(x); }
FISSILE_INLINE vf ceil(vf x) { return __builtin_elementwise_ceil(x); }
FISSILE_INLINE vf trunc(vf x) { return __builtin_elementwise_trunc(x); }
#else
FISSILE_INLINE vf round(vf x) { return each(x, [](float t) { return __builtin_rintf(t); }); }
FISSILE_INLINE vf floor(vf x) { return each(x, [](float t) { return __builtin_floorf(t); }); }
FISSILE_INLINE vf ceil(vf x) { return each(x, [](float t) { return __builtin_ceilf(t); }); }
FISSILE_INLINE vf trunc(vf x) { return each(x, [](float t) { return __builtin_truncf(t); }); }
#endif

// ---- arithmetic; any mix of vf and scalars --------------------------------------------------------------------------

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
template <class A, class B, class C> FISSILE_INLINE wide3_t<A, B, C> max(A a, B b, C c) { return max(max(a, b), c); }
template <class A, class B, class C> FISSILE_INLINE wide3_t<A, B, C> min(A a, B b, C c) { return min(min(a, b), c); }

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

// The magnitude of x with the sign of s.
FISSILE_INLINE float copysign(float x, float s) { return __builtin_copysignf(x, s); }
FISSILE_INLINE double copysign(double x, double s) { return __builtin_copysign(x, s); }
FISSILE_INLINE vf copysign(vf x, vf s) { return (vf)(((vi)x & 0x7fffffff) | ((vi)s & int32_t(0x80000000))); }

template <class T> FISSILE_INLINE T neg(T x) { return T(-x); }
template <class V> FISSILE_INLINE V recip(V x) { return broadcast<V>(1) / x; }
template <class V> FISSILE_INLINE V rsqrt(V x) { return broadcast<V>(1) / sqrt(x); }      // two roundings
template <class T> FISSILE_INLINE T sign(T x) { return T(x > T(0) ? 1 : x < T(0) ? -1 : x); }   // NaN and zeros stay
FISSILE_INLINE vf sign(vf x) { return x > 0.0f ? splat(1.0f) : x < 0.0f ? splat(-1.0f) : x; }

// ---- horizontal reductions: halves are folded, lane i with lane i + n/2, until one lane is left ----------------------

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
#define FISSILE_FOLD(name, combine)                                  \
  FISSILE_INLINE float name(vf v) {                                  \
    return folded(v, [](auto a, auto b) { return combine; });        \
  }
FISSILE_FOLD(hsum, a + b)
FISSILE_FOLD(hprod, a * b)
FISSILE_FOLD(hmax, a != a ? a : a > b ? a : b)
FISSILE_FOLD(hmin, a != a ? a : a < b ? a : b)
FISSILE_INLINE float hsum(float v) { return v; }
FISSILE_INLINE float hmax(float v) { return v; }
FISSILE_INLINE float hmin(float v) { return v; }
FISSILE_INLINE float hsum(vf v, int64_t n) { return hsum(select(first_lanes(n), v, 0.0f)); }
FISSILE_INLINE float hmax(vf v, int64_t n) { return hmax(select(first_lanes(n), v, -__builtin_inff())); }
FISSILE_INLINE float hmin(vf v, int64_t n) { return hmin(select(first_lanes(n), v, __builtin_inff())); }

}  // namespace fissile

#endif

// Vectors of floats by compiler extension: one name for AVX-512, AVX2, NEON and plain code. Types,
// memory, lanes; vec.h adds the arithmetic.
//
// Invariant: nothing reads or writes past the lanes that it is told of.
#ifndef FISSILE_TYPES_H
#define FISSILE_TYPES_H

#include <stddef.h>
#include <stdint.h>

// In the body of a loop with a choice: the loop stays one of branches. GCC 12 makes masked loads of
// such loops and then, where the mask is constant, whole ones, which read past the end of memory.
#define FISSILE_NO_MASKS asm volatile("")

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

// ---- types: which vector, which integer, which mask goes with V; which type holds both A and B --

template <class V> struct of;
template <> struct of<float> {
  typedef float element;
  typedef int32_t integer;
  typedef bool mask;
};
template <> struct of<double> {
  typedef double element;
  typedef int64_t integer;
  typedef bool mask;
};
template <> struct of<int32_t> {
  typedef int32_t element;
  typedef int32_t integer;
  typedef bool mask;
};
template <> struct of<vf> {
  typedef float element;
  typedef vi integer;
  typedef vi mask;
};
template <> struct of<vi> {
  typedef int32_t element;
  typedef vi integer;
  typedef vi mask;
};

template <class A, class B> struct wide {
  typedef decltype(A() + B()) type;
};
template <class A> struct wide<A, A> {
  typedef A type;
};  // int8 with int8 stays int8, unlike A() + A()
template <class A> struct wide<vf, A> {
  typedef vf type;
};
template <class A> struct wide<A, vf> {
  typedef vf type;
};
template <> struct wide<vf, vf> {
  typedef vf type;
};
template <class A, class B> using wide_t = typename wide<A, B>::type;
template <class A, class B, class C> using wide3_t = wide_t<wide_t<A, B>, C>;

// ---- constants and broadcasts -------------------------------------------------------------------

#if defined(FISSILE_AVX512)
FISSILE_INLINE vf splat(float x) { return vf{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
FISSILE_INLINE vi splat_int(int32_t x) {
  return vi{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
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

// ---- memory -------------------------------------------------------------------------------------

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

// Asks for a line that is read or written a while later, not soon: into the second cache, from where
// it does not push out what is in use. Also where it will be written: asked for as a line to write,
// it would go to the first cache, which waits for few lines at a time.
FISSILE_INLINE void fetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }

FISSILE_INLINE vi first_lanes(int64_t n) { return lane_index < int32_t(n); }

#if defined(FISSILE_AVX512)
FISSILE_INLINE unsigned short lane_bits(int64_t n) { return (unsigned short)((1u << n) - 1); }
FISSILE_INLINE vf loadn(const float* p, int64_t n) {
  return (vf)__builtin_ia32_loadups512_mask(p, splat(0.0f), lane_bits(n));
}
FISSILE_INLINE void storen(float* p, vf v, int64_t n) {
  __builtin_ia32_storeups512_mask(p, v, lane_bits(n));
}
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
FISSILE_INLINE vi loadn(const int32_t* p, int64_t n) {
  return (vi)loadn(reinterpret_cast<const float*>(p), n);
}
FISSILE_INLINE void storen(int32_t* p, vi v, int64_t n) {
  storen(reinterpret_cast<float*>(p), (vf)v, n);
}

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
#if defined(FISSILE_AVX512) && !defined(__clang__)
// Lane i of b where bit i is set, else of a: FISSILE_PICK would be a shuffle, of which fewer run at a time.
#define FISSILE_BLEND 1
FISSILE_INLINE vf blend(vf a, vf b, unsigned short bits) { return __builtin_ia32_blendmps_512_mask(a, b, bits); }
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

// lookup(table, j): lane i is table[j[i] % VL], for a table of VL floats on a line of its own.
#if defined(FISSILE_AVX512) || defined(__AVX2__)
#define FISSILE_LOOKUP 1
FISSILE_INLINE float lookup(const float* table, int32_t j) { return table[j & (VL - 1)]; }
FISSILE_INLINE vf lookup(const float* table, vi j) {
#if !defined(__clang__)
  return __builtin_shuffle(*reinterpret_cast<const vf*>(table), j);
#elif defined(FISSILE_AVX512)
  return __builtin_ia32_permvarsf512(*reinterpret_cast<const vf*>(table), j);
#else
  return __builtin_ia32_permvarsf256(*reinterpret_cast<const vf*>(table), j);
#endif
}
#endif

// ---- bits and selection -------------------------------------------------------------------------

FISSILE_INLINE int32_t bits(float x) {
  int32_t i;
  __builtin_memcpy(&i, &x, 4);
  return i;
}
FISSILE_INLINE vi bits(vf x) { return (vi)x; }
FISSILE_INLINE float from_bits(int32_t i) {
  float x;
  __builtin_memcpy(&x, &i, 4);
  return x;
}
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

// Keeps v in a register: otherwise the compiler may fold its load into every use, and loads become
// the bottleneck.
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

}  // namespace fissile

#endif

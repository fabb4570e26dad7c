// What generated kernels call besides vec.h: element access for every type, lane loops with a partial last step,
// conversions, ONNX's integer rules. Invariant: nothing reads or writes past the elements that it is told of.
#pragma once
#include "vec.h"
#include "vmath.h"

namespace fissile {

// ---- lane loops: body(l, i) runs with all lanes, and once with the rest
struct Full {
  static constexpr int n = VL;
};
struct Part {
  int n;
};
template <class F> FISSILE_INLINE void lanes(int64_t extent, F&& body) {
  int64_t i = 0;
  for (; i + VL <= extent; i += VL) body(Full{}, i);
  if (i < extent) body(Part{int(extent - i)}, i);
}
// The same for bodies that compute for long, body(l, i, loads(l, i)), with loads four steps before their use.
// A processor takes a load for one of what a store before it writes where the low 12 bits of both addresses are
// equal, and lets it wait for the result: steps would not overlap where tensors lie 64 to 256 bytes apart by that
// measure. With few registers what is loaded ahead would be stored and loaded once more, which costs as much.
template <int n> struct Vectors {
  vf v[n];
  inline const vf& operator[](int k) const { return v[k]; }
};
template <int n> FISSILE_INLINE void keep(Vectors<n>& all) {
  for (vf& v : all.v) keep(v);
}
template <class L, class F> FISSILE_INLINE void lanes_ahead(int64_t extent, L&& loads, F&& body) {
  constexpr int steps = 4;
  int64_t i = 0;
  if (REGISTERS >= 32 && extent > steps * VL) {
    decltype(loads(Full{}, i)) ahead[steps];
#pragma GCC unroll 4
    for (int k = 0; k < steps; ++k) ahead[k] = loads(Full{}, k * VL);
    for (; i + (steps + 1) * VL <= extent; i += VL) {
      auto next = loads(Full{}, i + steps * VL);
      keep(next);  // here, not where it is used
      body(Full{}, i, ahead[0]);
#pragma GCC unroll 4
      for (int k = 1; k < steps; ++k) ahead[k - 1] = ahead[k];
      ahead[steps - 1] = next;
    }
  }
  for (; i + VL <= extent; i += VL) body(Full{}, i, loads(Full{}, i));
  if (i < extent) {
    const Part l{int(extent - i)};
    body(l, i, loads(l, i));
  }
}
// the NV vectors of a panel of which `left` columns exist: body(l, v, v * VL)
template <int NV, class F> FISSILE_INLINE void panel(int64_t left, F&& body) {
  for (int v = 0; v < NV; ++v) {
    if (left >= (v + 1) * VL) {
      body(Full{}, v, int64_t(v) * VL);
    } else if (left > v * VL) {
      body(Part{int(left - v * VL)}, v, int64_t(v) * VL);
    }
  }
}
FISSILE_INLINE void zero_fill(float* p, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = 0.0f;
}
FISSILE_INLINE vf load(Full, const float* p) { return load<vf>(p); }
FISSILE_INLINE vf load(Part l, const float* p) { return loadn(p, l.n); }
FISSILE_INLINE void store(Full, float* p, vf v) { store(p, v); }
FISSILE_INLINE void store(Part l, float* p, vf v) { storen(p, v, l.n); }
FISSILE_INLINE vf gather(Full, const float* p, int64_t stride) { return gather(p, stride); }
FISSILE_INLINE vf gather(Part l, const float* p, int64_t stride) { return gather(p, stride, l.n); }
// lanes that do not take part become `other`
FISSILE_INLINE vf keep(Full, vf v, float) { return v; }
FISSILE_INLINE vf keep(Part l, vf v, float other) { return select(first_lanes(l.n), v, other); }

// ---- reductions over lanes: vector j of the loop goes to accumulator j % n, so that long sums stay accurate and
// additions overlap; the order depends on the extent and on VL alone
template <int k> struct Turn {};
template <int64_t extent> struct Turns {
  static constexpr int64_t vectors = (extent + VL - 1) / VL;
  static constexpr int n = vectors < 1 ? 1 : vectors < 4 ? int(vectors) : 4;
  vf v[n];
  inline Turns(float start) {
    for (int k = 0; k < n; ++k) v[k] = splat(start);
  }
  template <int k> inline vf& operator[](Turn<k>) { return v[k]; }
};
#define FISSILE_BODY __attribute__((always_inline))
// one register for each of `extent` lanes, and a loop over them without a count: body(l, i, k)
template <int64_t extent> struct Abreast {
  static constexpr int n = (extent + VL - 1) / VL;
  vf v[n];
  inline Abreast(float start) {
    for (int k = 0; k < n; ++k) v[k] = splat(start);
  }
  template <int k> inline vf& operator[](Turn<k>) { return v[k]; }
  inline void store(float* y) const {
#pragma GCC unroll 16
    for (int k = 0; k < extent / VL; ++k) fissile::store(y + k * VL, v[k]);
    if constexpr (extent % VL != 0) storen(y + (n - 1) * VL, v[n - 1], extent % VL);
  }
};
template <int64_t extent, int k = 0, class F> FISSILE_INLINE void abreast(F&& body) {
  if constexpr ((k + 1) * VL <= extent) {
    body(Full{}, int64_t(k * VL), Turn<k>{});
    abreast<extent, k + 1>(body);
  } else if constexpr (k * VL < extent) {
    body(Part{int(extent - k * VL)}, int64_t(k * VL), Turn<k>{});
  }
}
template <int k, int n, class F> FISSILE_INLINE void all_turns(F& body, int64_t i) {
  if constexpr (k < n) {
    body(Full{}, i + k * VL, Turn<k>{});
    all_turns<k + 1, n>(body, i);
  }
}
template <int64_t extent, int64_t i, int k, class F> FISSILE_INLINE void last_turns(F& body) {
  if constexpr (i + VL <= extent) {
    body(Full{}, i, Turn<k>{});
    last_turns<extent, i + VL, k + 1>(body);
  } else if constexpr (i < extent) {
    body(Part{int(extent - i)}, i, Turn<k>{});
  }
}
template <int64_t extent, class F> FISSILE_INLINE void in_turn(F&& body) {
  constexpr int n = Turns<extent>::n;
  constexpr int64_t whole = extent / (n * VL) * (n * VL);
  for (int64_t i = 0; i < whole; i += n * VL) all_turns<0, n>(body, i);
  last_turns<extent, whole, 0>(body);
}
#define FISSILE_TURNS(name, both)                                                            \
  template <int64_t extent> FISSILE_INLINE vf name##_lanes(const Turns<extent>& a) {         \
    if constexpr (a.n == 1) return a.v[0];                                                   \
    else if constexpr (a.n == 2) return both(a.v[0], a.v[1]);                                \
    else if constexpr (a.n == 3) return both(both(a.v[0], a.v[1]), a.v[2]);                  \
    else return both(both(a.v[0], a.v[1]), both(a.v[2], a.v[3]));                            \
  }                                                                                          \
  template <int64_t extent> FISSILE_INLINE float name(const Turns<extent>& a) {              \
    return name(name##_lanes(a));                                                            \
  }                                                                                          \
  template <int n> FISSILE_INLINE void name##_rows(float* y, const Rows<n>& a) {             \
    for (int r = 0; r < n; r += VL)                                                          \
      store_rows<n>(y, r, folded_rows<VL>(a.v + r, [](vf p, vf q) { return both(p, q); }));  \
  }
// Sums about a base, block by block: what `squares.py` adds up in one pass
template <int blocks> struct Squares {
  float base[blocks], sum[blocks], squares[blocks];
  inline void put(int64_t block, float b, float s, float q) { base[block] = b, sum[block] = s, squares[block] = q; }
  // squares of differences from `mean`; all blocks have `n` values but the last, which has `rest`
  inline float about(float mean, float n, float rest) const {
    float total = 0.0f;
    for (int i = 0; i < blocks; ++i) {
      const float apart = base[i] - mean;
      const float more = fma(i + 1 < blocks ? n : rest, apart, 2.0f * sum[i]);
      total = total + fma(apart, more, squares[i]);
    }
    return at_least(total, 0.0f);
  }
};
// One vector for each of n rows; h..._rows(y, rows) folds each into one number as h... does, all together: y[r] = h...(v[r])
template <int n> struct Rows {
  static constexpr int most = (n + VL - 1) / VL * VL;
  vf v[most];
  inline Rows() {
    for (int r = n; r < most; ++r) v[r] = splat(0.0f);
  }
  inline vf& operator[](int64_t r) { return v[r]; }
};
template <int... i> struct Places {};
template <int n, int... i> struct Counted : Counted<n - 1, n - 1, i...> {};
template <int... i> struct Counted<0, i...> {
  typedef Places<i...> type;
};
// in blocks of `size` lanes: the halves of a and of b that stay in their places, and those that change them
template <int size, int... i> FISSILE_INLINE vf in_place(vf a, vf b, Places<i...>) {
#if defined(FISSILE_BLEND)
  return blend(a, b, (unsigned short)((i % size < size / 2 ? 0 : 1 << i) | ...));
#else
  return FISSILE_PICK(a, b, (i % size < size / 2 ? i : VL + i)...);
#endif
}
template <int size, int... i> FISSILE_INLINE vf crossed(vf a, vf b, Places<i...>) {
  return FISSILE_PICK(a, b, (i % size < size / 2 ? i + size / 2 : VL + i - size / 2)...);
}
// n rows, `step` apart, of VL / n lanes that are left of each; lane i belongs to row i % n
template <int n, int step = 1, class F> FISSILE_INLINE vf folded_rows(const vf* v, F both) {
  if constexpr (n == 1) return v[0];
  else {
    constexpr int size = 2 * VL / n;
    const vf a = folded_rows<n / 2, 2 * step>(v, both), b = folded_rows<n / 2, 2 * step>(v + step, both);
    typename Counted<VL>::type all;
    return both(in_place<size>(a, b, all), crossed<size>(a, b, all));
  }
}
template <int n> FISSILE_INLINE void store_rows(float* y, int r, vf v) {
  if (r + VL <= n) store(y + r, v);
  else storen(y + r, v, n - r);
}
FISSILE_INLINE vf plus(vf a, vf b) { return a + b; }
FISSILE_INLINE vf times(vf a, vf b) { return a * b; }
FISSILE_TURNS(hsum, plus)
FISSILE_TURNS(hprod, times)
FISSILE_TURNS(hmax, max)
FISSILE_TURNS(hmin, min)
FISSILE_TURNS(hgreatest, greatest)

// ---- element types
struct bfloat16 {
  uint16_t bits;
};
template <class T> struct wide_of {
  typedef T type;
};
template <> struct wide_of<bfloat16> {
  typedef float type;
};
#ifdef __FLT16_MAX__
template <> struct wide_of<_Float16> {
  typedef float type;
};
#endif
FISSILE_INLINE float widen(bfloat16 x) {
  union {
    uint32_t i;
    float f;
  } u = {uint32_t(x.bits) << 16};
  return u.f;
}
FISSILE_INLINE bfloat16 to_bfloat16(float x) {
  union {
    float f;
    uint32_t i;
  } u = {x};
  if ((u.i & 0x7fffffffu) > 0x7f800000u) return bfloat16{uint16_t((u.i >> 16) | 0x40u)};  // keep NaN a NaN
  return bfloat16{uint16_t((u.i + 0x7fffu + ((u.i >> 16) & 1u)) >> 16)};                  // half to even
}
template <class T> FISSILE_INLINE typename wide_of<T>::type get(const T* p) { return typename wide_of<T>::type(*p); }
FISSILE_INLINE float get(const bfloat16* p) { return widen(*p); }
template <class T, class V> FISSILE_INLINE void put(T* p, V v) { *p = T(v); }
template <class V> FISSILE_INLINE void put(bfloat16* p, V v) { *p = to_bfloat16(float(v)); }
template <class T> struct rounder {
  FISSILE_INLINE float of(float x) { return float(T(x)); }
};
template <> struct rounder<bfloat16> {
  FISSILE_INLINE float of(float x) { return widen(to_bfloat16(x)); }
};
template <class T> FISSILE_INLINE float rounded(float x) { return rounder<T>::of(x); }

// ---- conversions: floats truncate into integers through int64, NaN becomes 0, as the evaluator does
template <class T> FISSILE_INLINE bool is_nan(T x) { return x != x; }
template <class T> FISSILE_INLINE bool is_inf(T x) { return x - x != x - x && x == x; }
template <class T, bool integer> struct caster {
  template <class V> FISSILE_INLINE T of(V x) { return T(x); }
};
FISSILE_INLINE int64_t whole(double x) {
  if (x != x) return 0;
  if (x >= 9223372036854774784.0) return 9223372036854774784;
  return x <= -9223372036854775808.0 ? INT64_MIN : int64_t(x);
}
template <class T> struct caster<T, true> {
  template <class V> FISSILE_INLINE T of(V x) { return T(x); }
  FISSILE_INLINE T of(float x) { return T(whole(double(x))); }
  FISSILE_INLINE T of(double x) { return T(whole(x)); }
};
template <class T> struct is_whole {
  static constexpr bool value = T(1) / T(2) == T(0);
};
template <> struct is_whole<bool> {
  static constexpr bool value = false;
};
template <class T, class V> FISSILE_INLINE T cast(V x) { return caster<T, is_whole<T>::value>::of(x); }

// ---- ONNX's arithmetic where C's differs
FISSILE_INLINE int32_t wrap_add(int32_t x, int32_t y) { return int32_t(uint32_t(x) + uint32_t(y)); }
FISSILE_INLINE int32_t wrap_sub(int32_t x, int32_t y) { return int32_t(uint32_t(x) - uint32_t(y)); }
FISSILE_INLINE int32_t wrap_mul(int32_t x, int32_t y) { return int32_t(uint32_t(x) * uint32_t(y)); }
FISSILE_INLINE int64_t wrap_add(int64_t x, int64_t y) { return int64_t(uint64_t(x) + uint64_t(y)); }
FISSILE_INLINE int64_t wrap_sub(int64_t x, int64_t y) { return int64_t(uint64_t(x) - uint64_t(y)); }
FISSILE_INLINE int64_t wrap_mul(int64_t x, int64_t y) { return int64_t(uint64_t(x) * uint64_t(y)); }
template <class T> FISSILE_INLINE T divide_whole(T x, T y) { return y == 0 ? T(0) : y == T(-1) && T(-1) < T(0) ? T(0 - x) : T(x / y); }
FISSILE_INLINE int8_t divide(int8_t x, int8_t y) { return divide_whole(x, y); }
FISSILE_INLINE int16_t divide(int16_t x, int16_t y) { return divide_whole(x, y); }
FISSILE_INLINE int32_t divide(int32_t x, int32_t y) { return divide_whole(x, y); }
FISSILE_INLINE int64_t divide(int64_t x, int64_t y) { return divide_whole(x, y); }
FISSILE_INLINE uint8_t divide(uint8_t x, uint8_t y) { return divide_whole(x, y); }
FISSILE_INLINE uint16_t divide(uint16_t x, uint16_t y) { return divide_whole(x, y); }
FISSILE_INLINE uint32_t divide(uint32_t x, uint32_t y) { return divide_whole(x, y); }
FISSILE_INLINE uint64_t divide(uint64_t x, uint64_t y) { return divide_whole(x, y); }
FISSILE_INLINE float divide(float x, float y) { return x / y; }
FISSILE_INLINE double divide(double x, double y) { return x / y; }
FISSILE_INLINE vf divide(vf x, vf y) { return x / y; }
FISSILE_INLINE vf divide(float x, vf y) { return splat(x) / y; }
FISSILE_INLINE vf divide(vf x, float y) { return x / splat(y); }
template <class T> FISSILE_INLINE T reciprocal(T x) { return T(1) / x; }
FISSILE_INLINE vf reciprocal(vf x) { return splat(1.0f) / x; }
template <class T> FISSILE_INLINE T round_even(T x) { return round(x); }
template <class T> FISSILE_INLINE T modulo(T x, T y) {
  if constexpr (is_whole<T>::value) {
    if (y == 0 || (T(-1) < T(0) && y == T(-1))) return T(0);
    const T r = T(x % y);
    return r != 0 && ((r < 0) != (y < 0)) ? T(r + y) : r;
  } else {
    return mod(x, y);
  }
}

// ---- indices
template <class T> FISSILE_INLINE int64_t index_at(const T* p, int64_t i, int64_t extent) {
  int64_t k = int64_t(p[i]);
  if (k < 0) k += extent;
  return k < 0 ? 0 : k >= extent ? extent - 1 : k;
}
FISSILE_INLINE int64_t reflect_index(int64_t i, int64_t n) {
  if (i < 0) i = -i;
  return i < n ? i : 2 * (n - 1) - i;
}
FISSILE_INLINE int64_t clamp_index(int64_t i, int64_t lo, int64_t hi) { return i < lo ? lo : i > hi ? hi : i; }

// ---- identities of max and min
template <class T> FISSILE_INLINE T lowest() {
  if constexpr (is_whole<T>::value) {
    if constexpr (T(-1) < T(0)) return T(uint64_t(1) << (8 * sizeof(T) - 1));
    return T(0);
  }
  return T(-__builtin_inf());
}
template <class T> FISSILE_INLINE T highest() {
  if constexpr (is_whole<T>::value) {
    if constexpr (T(-1) < T(0)) return T((uint64_t(1) << (8 * sizeof(T) - 1)) - 1);
    return T(-1);
  }
  return T(__builtin_inf());
}

}  // namespace fissile

// Elementary functions on vec.h: exp, log, tanh, erf, ... for float and vf (the same bits in each
// lane, NaN payloads aside) and for double (libm).
//
// Errors in units of the last place against exact values, over every finite float, with fma
// (tests/targets/cpu_runtime checks them, `make every-float` all floats; README.md has what it
// found): exp 1.0, exp2 1.1, expm1 1.6, log 0.9, log2 1.5, log1p 1.0, tanh 1.5, sigmoid 1.9,
// softplus 2.0, tanh_softplus 2.0, erf 1.6, sin and cos 1.6; without the fma instruction up to 0.8
// more.
// Below 2^-126 the unit is 2^-149: denormals are rounded, not flushed. tanh, sigmoid and erf reach
// exactly 0, 1 or -1. NaN stays NaN; infinities and the sign of zero are those of the exact value.
// Polynomials are minimax fits (Lawson's iteration in double), their coefficients rounded to float
// by a search for the least error of the result.
#ifndef FISSILE_VMATH_H
#define FISSILE_VMATH_H

#include "vec.h"

namespace fissile {
namespace f32 {

constexpr float infinity = __builtin_inff();
constexpr float nan = __builtin_nanf("");
constexpr float log2_e = 1.44269504f;
constexpr float ln2_high = 0x1.62e4p-1f,
                ln2_low = 0x1.7f7d1cp-20f;  // high has 15 bits: n * high is exact
constexpr float to_nearest = 0x1.8p23f;     // x + it - it rounds x to an integer

// c[0] + x (c[1] + x (c[2] + ...))
template <class V, class C> FISSILE_INLINE V horner(V, C c) { return broadcast<V>(c); }
template <class V, class C, class... Cs> FISSILE_INLINE V horner(V x, C c, Cs... rest) {
  return native_fma(horner(x, rest...), x, broadcast<V>(c));
}

// y * 2^n, rounded once, for integers n in [-252, 254]
template <class V, class I> FISSILE_INLINE V scale(V y, I n) {
  I half = n >> 1;
  return y * from_bits((half + 127) << 23) * from_bits((n - half + 127) << 23);
}

// x = n ln 2 + r with |r| <= ln(2) / 2;  e^r - 1 = r + r^2 q(r)
template <class V> struct Reduced {
  typename of<V>::integer n;
  V r;
};
template <class V> FISSILE_INLINE Reduced<V> reduce_ln2(V x) {
  V t = fma(x, log2_e, to_nearest);
  V n = t - to_nearest;
  return {bits(t) - bits(to_nearest), fma(n, -ln2_low, fma(n, -ln2_high, x))};
}
template <class V> FISSILE_INLINE V expm1_reduced(V r) {
  V q = horner(r, 0.5f, 0.166665211f, 0.0416663885f, 0.00836867746f, 0.00139418768f);
  return fma(q, r * r, r);
}

// y = 2^(n / ROOTS) m with m near 1. Where one instruction looks up 2^(j / ROOTS) in a register for
// every lane, four terms of the power series are enough; elsewhere ROOTS = 1 and six are.
#if defined(FISSILE_LOOKUP) && defined(FISSILE_FMA)
constexpr int ROOT_BITS = VL == 16 ? 4 : 3;
#if defined(FISSILE_AVX512)
alignas(64) constexpr float roots[] = {
    1.0f,        1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f,
    1.29683959f, 1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f,
    1.68179286f, 1.75625217f, 1.8340081f,  1.91520655f};
#else
alignas(64) constexpr float roots[] = {1.0f,        1.09050775f, 1.18920708f, 1.29683959f,
                                       1.41421354f, 1.54221082f, 1.68179286f, 1.8340081f};
#endif
constexpr float to_root = to_nearest / (1 << ROOT_BITS);  // x + it - it rounds to 1 / ROOTS

// near_roots[j] = k 2^(j / ROOTS): k was searched for so that all of them lie close to floats: to
// 0.38 of 2^-24 with 16 roots (0.13 where tanh_softplus needs it, j = 5 to 9), 0.08 with 8; k = 1
// is off by 0.79 and 0.53. e^r = k + k grown_less_1(r) undoes the k.
#if defined(FISSILE_AVX512)
alignas(64) constexpr float near_roots[] = {
    1.0130279f, 1.0578785f, 1.1047148f, 1.1536247f, 1.2047f,   1.2580366f, 1.3137347f, 1.3718987f,
    1.4326378f, 1.4960661f, 1.5623026f, 1.6314716f, 1.703703f, 1.7791325f, 1.8579013f, 1.9401577f};
template <bool CLOSER, class V> FISSILE_INLINE V grown_less_1(V r) {
  return horner(r, -0.012860364f, 0.98713964f, 0.49358913f, 0.16452907f);
}
#else
alignas(64) constexpr float near_roots[] = {0.99743897f, 1.0877149f, 1.1861615f, 1.2935183f,
                                            1.4105917f,  1.5382612f, 1.6774857f, 1.8293111f};
template <bool CLOSER, class V> FISSILE_INLINE V grown_less_1(V r) {
  if constexpr (!CLOSER) return horner(r, 0.002567598f, 1.0025676f, 0.50135666f, 0.16711758f);
  V high = horner(r, 0.5012838f, 0.16711423f, 0.04177823f);
  return fma(high, r * r, horner(r, 0.0025676086f, 1.0025676f));
}
#endif

// y = T 2^n with T = 2^(j / ROOTS): the exponent from the bits of t = n + j / ROOTS + to_root
template <class V> FISSILE_INLINE V scale_to(V y, V t) {
  return scale(y, (bits(t) - bits(to_root)) >> ROOT_BITS);
}
#if defined(FISSILE_AVX512)
// the instruction rounds the exponent down
FISSILE_INLINE vf scale_to(vf y, vf t) {
  return __builtin_ia32_scalefps512_mask(y, t - to_root, y, (unsigned short)-1, 4);
}
#endif
// e^x for LEAST <= x <= MOST; narrow bounds save instructions where none of them scales. CLOSER: 0.8
// ulp instead of 0.95 with 8 roots
template <int LEAST, int MOST, bool CLOSER = false, class V> FISSILE_INLINE V exp_within(V x) {
  // one exponent serves from 2^-126 on: below, 2^64 e^x is computed, and scaled by a product
  constexpr bool one_exponent = VL < 16 && MOST <= 43, tiny = LEAST < -87;
  constexpr float rounder = to_root + (one_exponent && tiny ? 64 : 0);
  V t = fma(x, log2_e, rounder), n = t - rounder;
  V r = fma(n, -ln2_low, fma(n, -ln2_high, x)), root = lookup(near_roots, bits(t));
  auto shift = [&](auto exponent) { return from_bits(bits(root) + (exponent << 23)); };
  if constexpr (VL == 16) {
    return scale_to(fma(root, grown_less_1<CLOSER>(r), root), t);
  } else if constexpr (one_exponent) {
    root = shift(bits(t) >> ROOT_BITS);
    V y = fma(root, grown_less_1<CLOSER>(r), root);
    return tiny ? y * 0x1p-64f : y;
  } else {
    auto i = bits(t) - bits(to_root), half = i >> (ROOT_BITS + 1);
    root = shift(half);
    V rest = from_bits(((i >> ROOT_BITS) - half + 127) << 23);
    return fma(root, grown_less_1<CLOSER>(r), root) * rest;
  }
}
#else
template <int LEAST, int MOST, bool CLOSER = false, class V> FISSILE_INLINE V exp_within(V x) {
  Reduced<V> a = reduce_ln2(x);
  V y = expm1_reduced(a.r) + 1.0f;
  if constexpr (MOST > 43) return scale(y, a.n);
  else if constexpr (LEAST < -87) return y * from_bits((a.n + (127 + 64)) << 23) * 0x1p-64f;
  else return y * from_bits((a.n + 127) << 23);
}
#endif

// Beyond these bounds the result is 0 or inf whatever x is.
template <class V> FISSILE_INLINE V exp(V x) {
  return exp_within<-104, 89>(at_most(at_least(x, -104.0f), 89.0f));
}

// e^x for x <= 0 or NaN
template <class V> FISSILE_INLINE V exp_below(V x) {
  return exp_within<-104, 0>(at_least(x, -104.0f));
}

template <class V> FISSILE_INLINE V exp2(V x) {
  x = at_most(at_least(x, -151.0f), 129.0f);
  V t = x + to_nearest, n = t - to_nearest, r = x - n;
  V q = horner(r, 0.693147182f, 0.240226507f, 0.0555040613f, 0.0096180886f, 0.00133366673f,
               0.000154514142f, 1.46707525e-05f);
  return scale(fma(q, r, 1.0f), bits(t) - bits(to_nearest));
}

// e^x - 1 = 2^n (1 + m) - 1
template <class V> FISSILE_INLINE V expm1(V x) {
  Reduced<V> a = reduce_ln2(at_most(at_least(x, -20.0f), 89.0f));
  V half_power = from_bits((a.n + 126) << 23);  // 2^128 would overflow before the sum does
  V y = fma(half_power, expm1_reduced(a.r), half_power - 0.5f);
  return select(abs(x) < 0x1p-24f, x, y + y);
}

// log(1 + f) for sqrt(1/2) <= 1 + f <= sqrt(2), as f plus what is returned
template <class V> FISSILE_INLINE V log1p_tail(V f) {
  V p = horner(f, 0.333333135f, -0.250000089f, 0.200020716f, -0.166679889f, 0.142203584f,
               -0.124062337f, 0.118835486f, -0.116700977f, 0.0674926788f);
  V square = f * f;
  return fma(p * f, square, -0.5f * square);
}
constexpr int32_t sqrt_half_bits = 0x3f3504f3;

// x = 2^n m with sqrt(1/2) <= m <= sqrt(2), for x > 0
template <class V> struct Split {
  V n;
  V m;
};
template <class V> FISSILE_INLINE Split<V> split(V x) {
  auto tiny = x < 0x1p-126f;
  auto i = bits(select(tiny, x * 0x1p23f, x)) - sqrt_half_bits;
  return {to_float(i >> 23) + select(tiny, broadcast<V>(-23.0f), broadcast<V>(0.0f)),
          from_bits((i & 0x7fffff) + sqrt_half_bits)};
}
template <class V> FISSILE_INLINE V log_special(V x, V y) {
  y = select(x < infinity, y, x);
  return select(x > 0.0f, y, select(x == 0.0f, broadcast<V>(-infinity), broadcast<V>(nan)));
}
template <class V> FISSILE_INLINE V log(V x) {
  Split<V> s = split(x);
  V f = s.m - 1.0f;
  return log_special(x, fma(s.n, ln2_high, f + fma(s.n, ln2_low, log1p_tail(f))));
}
template <class V> FISSILE_INLINE V log2(V x) {
  Split<V> s = split(x);
  V f = s.m - 1.0f, tail = log1p_tail(f);
  // f log2(e) in two parts, or the last bit of log2(e) would be the error near 1; what the first
  // part loses is added to the rest, or it would be the error near sqrt(2)
  constexpr float e_high = 1.4423828f, e_low = 3.12203984e-04f;
  V y = fma(f, e_high, s.n), lost = fma(f, e_high, s.n - y);
  return log_special(x, y + fma(tail, log2_e, fma(f, e_low, lost)));
}
template <class V> FISSILE_INLINE V log1p(V x) {
  V u = 1.0f + x;
  auto i = bits(u) - sqrt_half_bits;
  // 1 + x = 2^n (1 + f): f = x 2^-n + (2^-n - 1) has one rounding, of which most is `lost`
  auto n = i >> 23;
  V power = from_bits((127 - n) << 23), less = power - 1.0f, f = fma(x, power, less);
  V lost = fma(x, power, less - f), nf = to_float(n);
  V y = fma(nf, ln2_high, f + fma(nf, ln2_low, log1p_tail(f) + lost));
  return select(abs(x) < 0x1p-24f, x, log_special(u, select(x < 0x1p126f, y, log(x))));
}

// t + t^3 s(t^2) below 0.6, else 1 - 2 / (e^2t + 1)
template <class V> FISSILE_INLINE V tanh(V x) {
  V t = at_most(abs(x), 10.0f), z = t * t;
  V s = horner(z, -0.333332986f, 0.133319572f, -0.0537866727f, 0.0208053291f, -0.0059057679f);
  V e = exp_within<0, 20>(t + t);
  return copysign(select(t < 0.6f, fma(t * z, s, t), 1.0f - 2.0f / (e + 1.0f)), x);
}

// x where e^x decides, [-104, 40] or more; a NaN may be lost
template <class V> FISSILE_INLINE V decisive(V x) {
  return has_within<V> ? within(x, 104.0f) : at_most(at_least(x, -104.0f), 40.0f);
}

// e^x / (1 + e^x) = a - a a / (1 + e) with e = e^x, a = min(e, 1): below 0 the errors of the
// quotient are scaled down by a, above 0 the result is near 1. Beyond 40 it is 1.
template <class V> FISSILE_INLINE V sigmoid_of(V bounded) {
  V e = exp_within<-104, 40>(bounded), a = at_most(e, 1.0f);
  return fma(-a, a / (e + 1.0f), a);
}
template <class V> FISSILE_INLINE V sigmoid(V x) {
  return sigmoid_of(at_most(at_least(x, -104.0f), 40.0f));
}
template <class V> FISSILE_INLINE V silu(V x) { return x * sigmoid_of(decisive(x)); }

// tanh(log(1 + e)) = 1 - 2 / ((e + 1)^2 + 1) with e = e^x, by the same means: below 0 as
// e - e (e^2 + e) / (e^2 + 2 e + 2). Beyond 20 it is 1.
template <class V> FISSILE_INLINE V tanh_softplus_of(V bounded) {
  V e = exp_within<-104, 40, true>(bounded), a = at_most(e, 1.0f);
  return fma(-(a / fma(e, e + 2.0f, 2.0f)), fma(a, a, a), a);
}
template <class V> FISSILE_INLINE V tanh_softplus(V x) {
  return tanh_softplus_of(at_most(at_least(x, -104.0f), 40.0f));
}
template <class V> FISSILE_INLINE V mish(V x) { return x * tanh_softplus_of(decisive(x)); }

// max(x, 0) + log(1 + e) with e = e^-|x|
template <class V> FISSILE_INLINE V softplus(V x) {
  V e = exp_within<-104, 0, true>(minus_within(x, 104.0f)), z = e * e, p;  // the sum keeps a NaN
  constexpr float c[] = {-0.499999315f, 0.33330512f,   -0.249585897f, 0.196953982f, -0.153553903f,
                         0.106805541f,  -0.057664372f, 0.0202044956f, -0.00331847928f};
  if constexpr (VL == 16) {
    p = horner(e, c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]);
  } else {  // with few registers in flight the short chain is faster
    V c01 = fma(e, c[1], c[0]), c23 = fma(e, c[3], c[2]), c45 = fma(e, c[5], c[4]),
      c67 = fma(e, c[7], c[6]);
    p = fma(fma(fma(fma(z, c[8], c67), z, c45), z, c23), z, c01);
  }
  return fma(p, z, e) + at_least(x, 0.0f);
}

// t + t p(t^2) below 0.95, else 1 - p(t)^4: one polynomial with two sets of coefficients
template <class V> FISSILE_INLINE V erf(V x) {
  V t = at_most(abs(x), 3.95f), z = t * t;
  auto small = t < 0.95f;
  V u = select(small, z, t);
  V p = select(small, broadcast<V>(-0.000586212962f),
               horner(t, -0.0111545138f, 0.000355328753f, 0.000239766377f, -2.61470777e-05f));
  p = fma(p, u, select(small, broadcast<V>(0.00496753305f), broadcast<V>(0.0401194245f)));
  p = fma(p, u, select(small, broadcast<V>(-0.0267488621f), broadcast<V>(-0.0121427784f)));
  p = fma(p, u, select(small, broadcast<V>(0.112813212f), broadcast<V>(-0.0980545208f)));
  p = fma(p, u, select(small, broadcast<V>(-0.376124471f), broadcast<V>(-0.291254103f)));
  p = fma(p, u, select(small, broadcast<V>(0.128379136f), broadcast<V>(1.00168705f)));
  V square = p * p;
  return copysign(select(small, fma(t, p, t), fma(-square, square, 1.0f)), x);
}

// 1 + erf(x) within 2.1 2^-23, which is what is left of erf's accuracy near 0: so one polynomial
// serves, 1 - p(t)^4 of t = |x|. Below -4 it is 0.
template <class V> FISSILE_INLINE V erf_plus_one(V x) {
  V p = horner(at_most(abs(x), 4.0f), 1.0f, -0.282094508f, -0.119371057f, 0.015492145f,
               0.0185366478f, -0.00107540889f, -0.00208041049f, 0.000281307439f, 0.000111097725f,
               -3.28257629e-05f, 2.52918358e-06f);
  V square = p * p;
  return copysign(fma(-square, square, 1.0f), x) + 1.0f;
}

// x = n pi / 2 + r; quadrant 0: sin r, 1: cos r, 2: -sin r, 3: -cos r
constexpr float largest_angle =
    48000.0f;  // beyond, three parts of pi / 2 do not suffice: libm in double
template <class V, class I> FISSILE_INLINE V sin_quadrant(V r, I quadrant) {
  V z = r * r;
  V s = horner(z, -0.166666672f, 0.00833337847f, -0.000198525653f, 2.82641486e-06f);
  V c = horner(z, 0.0416666456f, -0.00138873013f, 2.44306702e-05f);
  V y = select((quadrant & 1) != 0, fma(c, z * z, fma(z, -0.5f, 1.0f)), fma(s, z * r, r));
  return from_bits(bits(y) ^ ((quadrant & 2) << 30));
}
FISSILE_INLINE float sin_slow(float x) { return float(__builtin_sin(double(x))); }
FISSILE_INLINE float cos_slow(float x) { return float(__builtin_cos(double(x))); }
FISSILE_INLINE vf sin_slow(vf x) {
  return each(x, [](float t) { return sin_slow(t); });
}
FISSILE_INLINE vf cos_slow(vf x) {
  return each(x, [](float t) { return cos_slow(t); });
}
#if defined(FISSILE_FMA)
template <class V> FISSILE_INLINE V angle(V x, V n) {
  return fma(n, 1.71512451e-15f, fma(n, 4.37113883e-08f, fma(n, -1.57079637f, x)));
}
template <class V> FISSILE_INLINE V sin(V x) {
  V t = fma(x, 0.636619772f, to_nearest);
  V y = sin_quadrant(angle(x, t - to_nearest), bits(t) - bits(to_nearest));
  y = select(x == 0.0f, x, y);  // -0
  auto fits = abs(x) < largest_angle;
  return any(fits == 0) ? select(fits, y, sin_slow(x)) : y;
}
template <class V> FISSILE_INLINE V cos(V x) {
  V t = fma(x, 0.636619772f, to_nearest);
  V y = sin_quadrant(angle(x, t - to_nearest), bits(t) - bits(to_nearest) + 1);
  auto fits = abs(x) < largest_angle;
  return any(fits == 0) ? select(fits, y, cos_slow(x)) : y;
}
#else
template <class V> FISSILE_INLINE V sin(V x) { return sin_slow(x); }
template <class V> FISSILE_INLINE V cos(V x) { return cos_slow(x); }
#endif

}  // namespace f32

#define FISSILE_UNARY(name)                                   \
  FISSILE_INLINE vf name(vf x) { return f32::name(x); }       \
  FISSILE_INLINE float name(float x) { return f32::name(x); } \
  FISSILE_INLINE double name(double x) { return __builtin_##name(x); }
FISSILE_UNARY(exp)
FISSILE_UNARY(exp2)
FISSILE_UNARY(expm1)
FISSILE_UNARY(log)
FISSILE_UNARY(log2)
FISSILE_UNARY(log1p)
FISSILE_UNARY(tanh)
FISSILE_UNARY(erf)
FISSILE_UNARY(sin)
FISSILE_UNARY(cos)
#undef FISSILE_UNARY

template <class V> FISSILE_INLINE V erf_plus_one(V x) { return f32::erf_plus_one(x); }
FISSILE_INLINE double erf_plus_one(double x) { return erf(x) + 1.0; }

// Rare in networks: libm in each lane.
#define FISSILE_LANES(name)                                             \
  FISSILE_INLINE float name(float x) { return __builtin_##name##f(x); } \
  FISSILE_INLINE vf name(vf x) {                                        \
    return each(x, [](float t) { return __builtin_##name##f(t); });     \
  }                                                                     \
  FISSILE_INLINE double name(double x) { return __builtin_##name(x); }
FISSILE_LANES(tan)
FISSILE_LANES(sinh)
FISSILE_LANES(cosh)
FISSILE_LANES(asin)
FISSILE_LANES(acos)
FISSILE_LANES(atan)
FISSILE_LANES(asinh)
FISSILE_LANES(acosh)
FISSILE_LANES(atanh)
#undef FISSILE_LANES

// In double, because x^y multiplies the error of log x by y log x.
FISSILE_INLINE float pow(float x, float y) { return float(__builtin_pow(double(x), double(y))); }
FISSILE_INLINE double pow(double x, double y) { return __builtin_pow(x, y); }
FISSILE_INLINE vf pow(vf x, vf y) {
  return each(x, y, [](float s, float t) { return pow(s, t); });
}
FISSILE_INLINE vf pow(vf x, float y) { return pow(x, splat(y)); }
FISSILE_INLINE vf pow(float x, vf y) { return pow(splat(x), y); }

// fmod has the sign of x (C, ONNX Mod fmod=1), mod the sign of y (Python, ONNX Mod fmod=0).
FISSILE_INLINE float fmod(float x, float y) { return __builtin_fmodf(x, y); }
FISSILE_INLINE double fmod(double x, double y) { return __builtin_fmod(x, y); }
FISSILE_INLINE vf fmod(vf x, vf y) {
  return each(x, y, [](float s, float t) { return __builtin_fmodf(s, t); });
}
FISSILE_INLINE vf fmod(vf x, float y) { return fmod(x, splat(y)); }
template <class T> FISSILE_INLINE T mod(T x, T y) {
  if constexpr (T(1) / T(2) == T(0)) {
    T r = T(x % y);
    return r != 0 && (r < 0) != (y < 0) ? T(r + y) : r;
  } else {
    T r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
  }
}
FISSILE_INLINE vf mod(vf x, vf y) {
  return each(x, y, [](float s, float t) { return mod(s, t); });
}
FISSILE_INLINE vf mod(vf x, float y) { return mod(x, splat(y)); }

// ---- activations --------------------------------------------------------------------------------

template <class V> FISSILE_INLINE V exp_below(V x) { return f32::exp_below(x); }
FISSILE_INLINE vf sigmoid(vf x) { return f32::sigmoid(x); }
FISSILE_INLINE float sigmoid(float x) { return f32::sigmoid(x); }
FISSILE_INLINE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
FISSILE_INLINE vf softplus(vf x) { return f32::softplus(x); }
FISSILE_INLINE float softplus(float x) { return f32::softplus(x); }
FISSILE_INLINE double softplus(double x) { return max(x, 0.0) + log1p(exp(-abs(x))); }

template <class V> FISSILE_INLINE V tanh_softplus(V x) { return f32::tanh_softplus(x); }
FISSILE_INLINE double tanh_softplus(double x) { return tanh(softplus(x)); }
template <class V> FISSILE_INLINE V silu(V x) { return f32::silu(x); }
FISSILE_INLINE double silu(double x) { return x * sigmoid(x); }
template <class V> FISSILE_INLINE V mish(V x) { return f32::mish(x); }
FISSILE_INLINE double mish(double x) { return x * tanh_softplus(x); }
template <class V> FISSILE_INLINE V gelu(V x) {
  return broadcast<V>(0.5) * x * erf_plus_one(x * broadcast<V>(0.70710678118654752));
}
template <class V> FISSILE_INLINE V gelu_tanh(V x) {
  V half = broadcast<V>(0.5) * x, cubic = fma(broadcast<V>(0.044715) * x * x, x, x);
  return fma(half, tanh(broadcast<V>(0.79788456080286536) * cubic), half);
}
template <class V> FISSILE_INLINE V hardsigmoid(V x, float a, float b) {
  return clip(fma(x, a, b), 0.0f, 1.0f);
}
template <class V> FISSILE_INLINE V hardswish(V x) {
  return x * hardsigmoid(x, 0.166666667f, 0.5f);
}
template <class V> FISSILE_INLINE V elu(V x, float a) { return select(x < V(), a * expm1(x), x); }
template <class V> FISSILE_INLINE V leaky_relu(V x, float a) { return select(x < V(), a * x, x); }
template <class V> FISSILE_INLINE V softsign(V x) { return x / (broadcast<V>(1) + abs(x)); }

}  // namespace fissile

#endif

"""The elementary functions at every float, or at one in 509 of them: largest error against libm in
double, special values, vector lanes equal to scalars. All of them take minutes: `make test-all`."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

LIMITS = {  # units of the last place with fma, as vmath.h states them
    "exp": 1.1, "exp2": 1.1, "expm1": 1.6, "log": 0.9, "log2": 2.0, "log1p": 1.4,
    "tanh": 1.5, "sigmoid": 2.4, "softplus": 2.2, "erf": 1.6,
    "tanh_softplus": 3.2,
}  # fmt: skip
STRIDE = 509

EXACT = """
static inline double exact_exp(double x) { return __builtin_exp(x); }
static inline double exact_exp2(double x) { return __builtin_exp2(x); }
static inline double exact_expm1(double x) { return __builtin_expm1(x); }
static inline double exact_log(double x) { return __builtin_log(x); }
static inline double exact_log2(double x) { return __builtin_log2(x); }
static inline double exact_log1p(double x) { return __builtin_log1p(x); }
static inline double exact_tanh(double x) { return __builtin_tanh(x); }
static inline double exact_erf(double x) { return __builtin_erf(x); }
static inline double exact_sigmoid(double x) {
  double e = __builtin_exp(-__builtin_fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
static inline double exact_softplus(double x) {
  return __builtin_fmax(x, 0) + __builtin_log1p(__builtin_exp(-__builtin_fabs(x)));
}
static inline double exact_tanh_softplus(double x) { return __builtin_tanh(exact_softplus(x)); }
static inline double unit_of(double y) {  // the distance between floats at y
  int e;
  double m = __builtin_fabs(y) < 0x1p-126 ? 0x1p-126 : __builtin_fabs(y);
  __builtin_frexp(m, &e);
  return __builtin_ldexp(1.0, e - 24);
}
// Vectors of VL neighbouring floats, `stride` vectors apart. found: the largest error and where it
// is, then how many results are NaN or infinite where they should not be or the other way round,
// then how many lanes differ from the scalar function.
template <class F, class E>
static void compare(F f, E exact, int64_t first, int64_t stride, double* found) {
  for (int64_t k = 0; k < 4; k++) found[k] = 0;
  for (int64_t from = first * VL; from < (int64_t(1) << 32); from += stride * VL) {
    float x[VL], y[VL];
    for (int i = 0; i < VL; i++) x[i] = from_bits(int32_t(uint32_t(from + i)));
    store(y, f(load<vf>(x)));
    for (int i = 0; i < VL; i++) {
      float one = f(x[i]);
      double want = exact(double(x[i]));
      float rounded = float(want);
      bool both_nan = y[i] != y[i] && one != one;
      found[3] += !both_nan && bits(one) != bits(y[i]);
      if (want != want || y[i] != y[i]) {
        found[2] += !(want != want && y[i] != y[i]);
      } else if (abs(rounded) == __builtin_inff() || abs(y[i]) == __builtin_inff()) {
        found[2] += rounded != y[i];
      } else if (double error = abs(y[i] - want) / unit_of(want); error > found[0]) {
        found[0] = error;
        found[1] = x[i];
      }
    }
  }
}
"""
BODY = EXACT + "".join(
    f"""
struct {name}_of {{
  template <class V> V operator()(V x) const {{ return {name}(x); }}
}};
extern "C" void every_{name}(int64_t first, int64_t stride, double* found) {{
  compare({name}_of(), exact_{name}, first, stride, found);
}}"""
    for name in LIMITS
)


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LIMITS)
def test_error_at_every_float(compile_cpp, machine, has_fma, name, stride):
    library = compile_cpp(BODY, machine, "vmath.h")
    found = np.zeros(4)
    first = int(np.random.default_rng(3).integers(stride))
    call = getattr(library.cdll, f"every_{name}")
    call(ctypes.c_int64(first), ctypes.c_int64(stride), ctypes.c_void_p(found.ctypes.data))
    error, where, special, lanes = found
    assert error <= LIMITS[name] + (0 if has_fma else 0.8), float(where)
    assert special == 0
    assert lanes == 0

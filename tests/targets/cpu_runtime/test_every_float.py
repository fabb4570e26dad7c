"""The elementary functions at every float, or at one in 509 of them: largest error against libm in
double, special values, vector lanes equal to scalars. Each exact value is computed once and serves
every instruction set. `make every-float` tries all of them and prints the errors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

LIMITS = {  # units of the last place with fma, as vmath.h states them
    "exp": 1.0, "exp2": 1.1, "expm1": 1.6, "log": 0.9, "log2": 1.5, "log1p": 1.0,
    "tanh": 1.5, "sigmoid": 1.9, "softplus": 2.0, "tanh_softplus": 2.0,
    "erf": 1.6, "sin": 1.6, "cos": 1.6,
}  # fmt: skip
WITHOUT_FMA = 0.8
LIBM_BEYOND = {"sin": 65536.0, "cos": 65536.0}  # libm in each lane: one in STRIDE is enough
STRIDE = 509
BLOCK = 1 << 10  # neighbouring floats
BLOCKS = (1 << 32) // BLOCK

EXACT = """
typedef void (*function)(const float* x, float* y);
static inline double exact_exp(double x) { return __builtin_exp(x); }
static inline double exact_exp2(double x) { return __builtin_exp2(x); }
static inline double exact_expm1(double x) { return __builtin_expm1(x); }
static inline double exact_log(double x) { return __builtin_log(x); }
static inline double exact_log2(double x) { return __builtin_log2(x); }
static inline double exact_log1p(double x) { return __builtin_log1p(x); }
static inline double exact_tanh(double x) { return __builtin_tanh(x); }
static inline double exact_erf(double x) { return __builtin_erf(x); }
static inline double exact_sin(double x) { return __builtin_sin(x); }
static inline double exact_cos(double x) { return __builtin_cos(x); }
static inline double exact_sigmoid(double x) {
  double e = __builtin_exp(-__builtin_fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
static inline double exact_softplus(double x) {
  return __builtin_fmax(x, 0) + __builtin_log1p(__builtin_exp(-__builtin_fabs(x)));
}
static inline double exact_tanh_softplus(double x) { return __builtin_tanh(exact_softplus(x)); }
// 1 / the distance between floats at y
static inline double units_in_1(double y) {
  union { double value; uint64_t bits; } u = {__builtin_fabs(y)};
  if (u.value < 0x1p-126) u.value = 0x1p-126;
  u.bits = ((2046 + 23) - (u.bits >> 52)) << 52;
  return u.value;
}
static inline bool finite(float y) { return abs(y) < __builtin_inff(); }
// Blocks first, first + stride, ... < last of neighbouring floats. For each of the n pairs of a
// vector and a scalar function, found has 4 numbers: the largest error and where it is, how many
// results are NaN or infinite and should not be or the other way round, how many lanes differ from
// the scalar function. Two NaN count as equal.
template <class E>
static void compare(E exact, const function* vectors, const function* scalars, int64_t n,
                    int64_t first, int64_t stride, int64_t last, double* found) {
  float x[BLOCK], rounded[BLOCK], y[BLOCK], one[BLOCK];
  double want[BLOCK], units[BLOCK];
  for (int64_t k = 0; k < 4 * n; k++) found[k] = 0;
  for (int64_t block = first; block < last; block += stride) {
    for (int i = 0; i < BLOCK; i++) {
      x[i] = from_bits(int32_t(uint32_t(block * BLOCK + i)));
      want[i] = exact(double(x[i]));
      rounded[i] = float(want[i]);
      units[i] = units_in_1(want[i]);
    }
    for (int64_t k = 0; k < n; k++) {
      vectors[k](x, y);
      scalars[k](x, one);
      double* result = found + 4 * k;
      int64_t special = 0, lanes = 0;
      for (int i = 0; i < BLOCK; i++) {
        bool nan = y[i] != y[i];
        lanes += bits(one[i]) != bits(y[i]) && !(nan && one[i] != one[i]);
        if (finite(rounded[i]) && finite(y[i])) {
          double error = __builtin_fabs(double(y[i]) - want[i]) * units[i];
          if (error > result[0]) result[0] = error, result[1] = x[i];
        } else {
          special += rounded[i] != y[i] && !(nan && rounded[i] != rounded[i]);
        }
      }
      result[2] += special;
      result[3] += lanes;
    }
  }
}
"""
COMPARE = EXACT + "".join(
    f"""
extern "C" void compare_{name}(const function* v, const function* s, int64_t n, int64_t first,
                               int64_t stride, int64_t last, double* found) {{
  compare(exact_{name}, v, s, n, first, stride, last, found);
}}"""
    for name in LIMITS
)
FUNCTIONS = "".join(
    f"""
extern "C" void vector_{name}(const float* x, float* y) {{
  for (int i = 0; i < BLOCK; i += VL) store(y + i, {name}(load<vf>(x + i)));
}}
extern "C" void scalar_{name}(const float* x, float* y) {{
  for (int i = 0; i < BLOCK; i++) y[i] = {name}(x[i]);
}}"""
    for name in LIMITS
)
SIZE = f"constexpr int BLOCK = {BLOCK};\n"


@pytest.fixture(scope="module")
def libraries(compile_cpp, machines):
    compiled = [compile_cpp(SIZE + FUNCTIONS, machine, "vmath.h").cdll for machine in machines]
    return compile_cpp(SIZE + COMPARE, "native", "vec.h").cdll, compiled


def parts(name: str, stride: int) -> Iterator[tuple[int, int, int]]:
    """First block, stride and end of blocks that are neighbours, 64 or more for threads."""
    half, edge = BLOCKS // 2, int(np.float32(LIBM_BEYOND.get(name, 1.0)).view(np.int32)) // BLOCK
    beyond = max(stride, STRIDE) if name in LIBM_BEYOND else stride
    offset, pieces = int(np.random.default_rng(3).integers(stride)), 32
    for sign in (0, half):
        for begin, end, step in ((0, edge, stride), (edge, half, beyond)):
            for k in range(pieces):
                low, high = (sign + begin + (end - begin) * i // pieces for i in (k, k + 1))
                yield low + (offset - low) % step, step, high


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LIMITS)
def test_error_at_every_float(libraries, machines, name, stride):
    oracle, compiled = libraries
    vectors, scalars = (
        (ctypes.c_void_p * len(compiled))(
            *(ctypes.cast(getattr(c, f"{kind}_{name}"), ctypes.c_void_p).value for c in compiled)
        )
        for kind in ("vector", "scalar")
    )

    def found(part: tuple[int, int, int]) -> np.ndarray:
        result = np.zeros((len(compiled), 4))
        numbers = [ctypes.c_int64(k) for k in (len(compiled), *part)]
        getattr(oracle, f"compare_{name}")(
            vectors, scalars, *numbers, ctypes.c_void_p(result.ctypes.data)
        )
        return result

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        results = np.stack(list(threads.map(found, parts(name, stride))))
    for k, (machine, has_fma) in enumerate(machines.items()):
        error, where = results[results[:, k, 0].argmax(), k, :2]
        print(f"{name} {machine}: {error:.3f} at {np.float32(where)!r}")
        assert error <= LIMITS[name] + (0 if has_fma else WITHOUT_FMA), (machine, where)
        special, lanes = results[:, k, 2:].sum(0)
        assert special == 0, machine
        assert lanes == 0, machine

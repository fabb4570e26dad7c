"""Elementary functions: accuracy against numpy float64, special values, vector lanes equal to scalars."""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])

# name: oracle, largest error in units of the last place (stated in vmath.h)
FUNCTIONS = {
    "exp": (np.exp, 1.0),
    "exp2": (np.exp2, 1.1),
    "expm1": (np.expm1, 1.6),
    "log": (np.log, 0.9),
    "log2": (np.log2, 2.0),
    "log1p": (np.log1p, 1.4),
    "tanh": (np.tanh, 1.5),
    "sigmoid": (sigmoid, 1.9),
    "tanh_softplus": (lambda x: np.tanh(softplus(x)), 2.0),
    "softplus": (softplus, 2.0),
    "erf": (erf, 1.6),
    "sin": (np.sin, 1.6),
    "cos": (np.cos, 1.6),
    "tan": (np.tan, 1.0),
    "atan": (np.arctan, 1.0),
    "asinh": (np.arcsinh, 2.0),
    "sqrt": (np.sqrt, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.6),
    "floor": (np.floor, 0),
    "ceil": (np.ceil, 0),
    "trunc": (np.trunc, 0),
    "round": (np.rint, 0),
    "abs": (np.abs, 0),
    "neg": (np.negative, 0),
    "relu": (lambda x: np.maximum(x, 0), 0),
    "sign": (np.sign, 0),
}
# Products with a factor that underflows or cancels: absolute error, in units of the largest float near max(|x|, 1)
ACTIVATIONS = {
    "mish": lambda x: x * np.tanh(softplus(x)),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * erfc(-x / np.sqrt(2)),
    "gelu_tanh": lambda x: x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "softsign": lambda x: x / (1 + np.abs(x)),
}
LOOPS = "".join(
    f"""
extern "C" void vector_{name}(const float* x, float* y, int64_t n) {{
  for (int64_t i = 0; i < n; i += VL) storen(y + i, {name}(loadn(x + i, n - i < VL ? n - i : VL)), n - i < VL ? n - i : VL);
}}
extern "C" void scalar_{name}(const float* x, float* y, int64_t n) {{
  for (int64_t i = 0; i < n; i++) store(y + i, {name}(load<float>(x + i)));
}}"""
    for name in [*FUNCTIONS, *ACTIVATIONS, "erf_plus_one"]
)
SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-45,
    1.1754944e-38,
    -1.1754944e-38,
    88.72283,
    88.72284,
    -103.97208,
    -103.97209,
    -87.33655,
    3.4028235e38,
    -3.4028235e38,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    8388607.5,
    9.01,
    17.0,
    -17.5,
    3.9,
    4.0,
    127.99999,
    128.0,
    -149.0,
    -150.0,
]


@pytest.fixture(scope="module")
def xs() -> np.ndarray:
    rng = np.random.default_rng(1)
    n = 1 << 15
    every = rng.integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    nans = np.array([0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    parts = [every, *(rng.uniform(-r, r, n) for r in (0.1, 1, 2, 20, 110)), SPECIAL, nans]
    return np.concatenate([np.asarray(p, np.float32) for p in parts])


def both(library, name: str, x: np.ndarray) -> np.ndarray:
    """The vector result, after a check that the scalar one has the same bits."""
    vector, scalar = np.empty_like(x), np.empty_like(x)
    library(f"vector_{name}", x, vector, x.size)
    library(f"scalar_{name}", x, scalar, x.size)
    nan = np.isnan(vector)
    np.testing.assert_array_equal(nan, np.isnan(scalar))
    np.testing.assert_array_equal(vector.view(np.int32)[~nan], scalar.view(np.int32)[~nan])
    return vector


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(compile_cpp, machine, has_fma, xs, name):
    oracle, limit = FUNCTIONS[name]
    if limit and not has_fma:
        limit += 0.8
    y = both(compile_cpp(LOOPS, machine, "vmath.h"), name, xs)
    exact = oracle(xs.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded) & np.isfinite(y)
    np.testing.assert_array_equal(y[~finite & ~np.isnan(y)], rounded[~finite & ~np.isnan(y)])
    zero = (y == 0) & (rounded == 0) & (name not in ("relu", "sign"))
    np.testing.assert_array_equal(np.signbit(y[zero]), np.signbit(rounded[zero]))
    magnitude = np.clip(np.abs(exact[finite]), 2.0**-126, 2.0**127)
    unit = 2.0 ** (np.floor(np.log2(magnitude)) - 23)
    error = np.abs(y[finite] - exact[finite]) / unit
    worst = error.argmax()
    assert error[worst] <= limit, (xs[finite][worst], y[finite][worst], exact[finite][worst])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(compile_cpp, machine, xs, name):
    """At infinity and NaN as the formula has it: silu, gelu and mish of -inf are -inf * 0."""
    y = both(compile_cpp(LOOPS, machine, "vmath.h"), name, xs).astype(np.float64)
    exact = ACTIVATIONS[name](xs.astype(np.float64))
    finite = np.isfinite(xs)
    np.testing.assert_array_equal(y[~finite], exact[~finite])
    bound = 4 * 2.0**-24 * np.maximum(np.abs(xs[finite]), 2.0**-126)
    assert np.all(np.abs(y - exact)[finite] <= bound), name


def test_erf_plus_one(compile_cpp, machine, has_fma, xs):
    """Absolute error, in units of the largest results; exactly 0 and 2 where erf is -1 and 1."""
    y = both(compile_cpp(LOOPS, machine, "vmath.h"), "erf_plus_one", xs).astype(np.float64)
    exact = erfc(-xs.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
    known = ~np.isnan(exact)
    assert np.max(np.abs(y - exact)[known]) <= (2.1 if has_fma else 3.0) * 2.0**-23
    assert set(y[xs <= -4]) == {0.0} and set(y[xs >= 4]) == {2.0}


def test_saturation_is_exact(compile_cpp, machine):
    library = compile_cpp(LOOPS, machine, "vmath.h")
    x = np.array([20.0, 1e4, np.inf, -1e4, -np.inf] + [0.0] * 11, np.float32)
    assert both(library, "tanh", x)[:5].tolist() == [1, 1, 1, -1, -1]
    assert both(library, "sigmoid", x)[:5].tolist() == [1, 1, 1, 0, 0]
    assert both(library, "erf", x)[:5].tolist() == [1, 1, 1, -1, -1]
    assert both(library, "exp", x)[3:5].tolist() == [0, 0]
    assert both(library, "softplus", x)[2:5].tolist() == [np.inf, 0, 0]


PAIRS = """
#define PAIR(name, expression) \\
extern "C" void vector_##name(const float* x, const float* y, float* z, int64_t n) { \\
  for (int64_t i = 0; i < n; i += VL) { vf a = load<vf>(x + i), b = load<vf>(y + i); (void)b; store(z + i, expression); } } \\
extern "C" void scalar_##name(const float* x, const float* y, float* z, int64_t n) { \\
  for (int64_t i = 0; i < n; i++) { float a = x[i], b = y[i]; (void)b; store(z + i, expression); } }
PAIR(max, max(a, b))
PAIR(min, min(a, b))
PAIR(pow, pow(a, b))
PAIR(mod, mod(a, b))
PAIR(fmod, fmod(a, b))
PAIR(select, select(a < b, a, 2.0f))
PAIR(fma, fma(a, b, 1.0f))
PAIR(clip, clip(a, -1.0f, 2.5f))
PAIR(elu, elu(a, 0.5f))
PAIR(hardsigmoid, hardsigmoid(a, 0.2f, 0.5f))
PAIR(leaky, leaky_relu(a, 0.1f))
"""
PAIR_ORACLES = {
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "select": lambda a, b: np.where(a < b, a, 2.0),
    "fma": lambda a, b: a * b + 1,
    "clip": lambda a, b: np.clip(a, -1, 2.5),
    "elu": lambda a, b: np.where(a < 0, 0.5 * np.expm1(a), a),
    "hardsigmoid": lambda a, b: np.clip(a * np.float64(np.float32(0.2)) + 0.5, 0, 1),
    "leaky": lambda a, b: np.where(a < 0, np.float64(np.float32(0.1)) * a, a),
}


@pytest.mark.parametrize("name", PAIR_ORACLES)
def test_pair(compile_cpp, machine, name):
    values = np.array(
        [
            -np.inf,
            -3.5,
            -2.0,
            -1.0,
            -0.25,
            0.0,
            0.25,
            1.0,
            2.0,
            3.0,
            7.5,
            np.inf,
            np.nan,
            100.0,
            0.1,
            -0.1,
        ]
    )
    a, b = (np.ascontiguousarray(v, np.float32).ravel() for v in np.meshgrid(values, values))
    library = compile_cpp(PAIRS, machine, "vmath.h")
    vector, scalar = np.empty_like(a), np.empty_like(a)
    library(f"vector_{name}", a, b, vector, a.size)
    library(f"scalar_{name}", a, b, scalar, a.size)
    np.testing.assert_array_equal(vector, scalar)
    exact = PAIR_ORACLES[name](a.astype(np.float64), b.astype(np.float64))
    # fma without the instruction rounds the product: relative to the operands, not to the cancelled result
    np.testing.assert_allclose(
        vector, exact.astype(np.float32), rtol=3e-7, atol=1e-6 if name == "fma" else 1e-7
    )


def test_other_types(compile_cpp, machine):
    body = """
    extern "C" int64_t check() {
      int8_t a = -5, b = 3;
      if (max(a, b) != 3 || min(a, b) != -5 || abs(a) != 5 || sign(a) != -1 || mod(a, b) != 1 || relu(a) != 0) return 1;
      if (mod(int64_t(5), int64_t(-3)) != -1 || clip(int32_t(9), 0, 4) != 4 || max(uint8_t(200), uint8_t(7)) != 200) return 2;
      if (abs(exp(1.0) - 2.718281828459045) > 1e-15 || abs(sigmoid(0.5) - 0.6224593312018546) > 1e-15) return 3;
      if (abs(gelu(1.0) - 0.8413447460685429) > 1e-15 || max(1.0, 2.0f) != 2.0 || sqrt(2.25) != 1.5) return 4;
      if (round(2.5) != 2.0 || floor(-0.5) != -1.0 || pow(2.0, 0.5) != __builtin_sqrt(2.0)) return 5;
      return 0;
    }"""
    assert compile_cpp(body, machine, "vmath.h")("check", result=ctypes.c_int64) == 0

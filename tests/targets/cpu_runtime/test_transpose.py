"""Transposes against numpy, for every element size, and nothing written outside."""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import numpy as np
import pytest

TYPES = {"uint8_t": np.uint8, "int16_t": np.int16, "float": np.float32, "double": np.float64}
BODY = "".join(
    f'extern "C" void t_{t}({t}* y, int64_t y_row, const {t}* x, int64_t x_row, int64_t R, int64_t C)'
    f" {{ transpose(y, y_row, x, x_row, R, C); }}\n"
    for t in TYPES
)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    "rows,columns", [(1, 1), (16, 16), (17, 5), (5, 40), (49, 64), (33, 130), (0, 7)]
)
def test_transpose(compile_cpp, machine, name, rows, columns):
    rng = np.random.default_rng(rows)
    x = rng.integers(0, 120, (rows, columns + 3)).astype(TYPES[name])
    y = np.full((columns, rows + 2), 77, TYPES[name])
    compile_cpp(BODY, machine, "transpose.h")(
        f"t_{name}", y, rows + 2, x, columns + 3, rows, columns
    )
    np.testing.assert_array_equal(y[:, :rows], x[:, :columns].T)
    assert np.all(y[:, rows:] == 77)


ROWS = """extern "C" void rows(float* y, int64_t y_row, const float* x, int64_t x_row, int64_t R, int64_t C) {
  transpose_rows(y, y_row, R, C, [&](int64_t r, int64_t c) { return 2.0f * load<vf>(x + r * x_row + c); });
}
"""


@pytest.mark.parametrize("rows,columns", [(16, 16), (17, 40), (49, 64), (33, 131)])
def test_computed_rows_become_columns(compile_cpp, machine, rows, columns):
    x = np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)
    y = np.full((columns, rows + 2), 77, np.float32)
    compile_cpp(ROWS, machine, "transpose.h")("rows", y, rows + 2, x, columns, rows, columns)
    np.testing.assert_array_equal(y[:, :rows], 2 * x.T)
    assert np.all(y[:, rows:] == 77)

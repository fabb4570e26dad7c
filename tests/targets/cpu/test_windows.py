"""Pooling kernels against numpy in float64 and ONNX Runtime."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Value
from fissile.targets.cpu.impls import windows

sys.path.insert(0, str(Path(__file__).parent))
import running
from sliding_cases import (
    BOTH,
    FIRST,
    LAST,
    NARROW,
    WIDE,
    candidate,
    case,
    check,
    image,
    noise,
    padded,
    weights,
)

NEUTRAL = {"window_max": -math.inf, "window_sum": 0.0}
SHAPES = {
    "3x3, stride 2": case(
        c=64, size=(28, 28), kernel=(3, 3), strides=(2, 2), pads=((1, 1), (1, 1))
    ),
    "2x2": case(c=24, size=(13, 57), kernel=(2, 2), strides=(2, 2), pads=((0, 1), (0, 1))),
    "5x5 on 3x4": case(c=16, size=(3, 4), kernel=(5, 5), strides=(1, 1), pads=((2, 2), (2, 2))),
    "9x9": case(c=32, size=(13, 13), kernel=(9, 9), strides=(1, 1), pads=((4, 4), (4, 4))),
    "13x13 on 13x29": case(
        c=20, size=(13, 29), kernel=(13, 13), strides=(1, 1), pads=((6, 6), (6, 6))
    ),
    "whole map": case(c=100, size=(7, 7), kernel=(7, 7), strides=(1, 1), pads=((0, 0), (0, 0))),
    "odd, uneven": case(
        c=33, size=(15, 14), kernel=(3, 2), strides=(3, 1), pads=((0, 2), (1, 0)), n=2
    ),
    "one channel": case(c=1, size=(9, 33), kernel=(3, 3), strides=(1, 1), pads=((1, 1), (1, 1))),
    "one axis": case(c=48, size=(50,), kernel=(4,), strides=(3,), pads=((1, 2),), n=2),
}  # fmt: skip


def pool(
    name: str,
    c: int,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
    n: int = 1,
) -> Value:
    return p.window(name, padded(image(n, c, *size), pads, value=NEUTRAL[name]), kernel, strides)


@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NEUTRAL)
def test_shapes(name, shape, where):
    check(windows.lower, pool(name, **SHAPES[shape]), where)


@pytest.mark.parametrize("where", BOTH)
@pytest.mark.parametrize("shape", ["2x2", "odd, uneven"])
def test_vectors_of_eight(shape, where):
    check(windows.lower, pool("window_sum", **SHAPES[shape]), where, machine=NARROW)


@pytest.mark.parametrize(("needs", "gives"), [(FIRST, LAST), (LAST, FIRST)])
def test_another_layout_than_the_input(needs, gives):
    check(windows.lower, pool("window_max", **SHAPES["3x3, stride 2"]), needs, gives)


@pytest.mark.parametrize("where", BOTH)
def test_a_pad_that_is_not_neutral(where):
    x = padded(p.sigmoid(image(1, 16, 9, 10)), ((1, 1), (1, 1)), value=0.5)
    check(windows.lower, p.window("window_max", x, (3, 3), (1, 1)), where)


@pytest.mark.parametrize("where", BOTH)
def test_an_average_and_a_residual(where):
    x = padded(image(1, 32, 14, 14), ((1, 1), (1, 1)))
    counts = p.window("window_sum", padded(p.constant(np.ones((1, 1, 14, 14), np.float32)),
                                           ((1, 1), (1, 1))), (3, 3), (1, 1))  # fmt: skip
    counts = p.constant(running.expected(running.candidate_of((counts,)), [])[0].astype(np.float32))
    y = p.window("window_sum", x, (3, 3), (1, 1)) / counts
    check(windows.lower, y + image(*y.shape) * weights(1, 32, 1, 1), where)


def test_nan_in_a_window_gives_nan():
    y = p.window("window_max", image(1, 16, 4, 4), (2, 2), (2, 2))
    x = noise(1, 16, 4, 4)
    x[0, 3, 1, 1] = np.nan
    for where in BOTH:
        c = candidate((y,), where, where)
        (got,) = running.run_kernel(c, windows.lower(c, WIDE), [x])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(running.expected(c, [x])[0]))


def test_onnx_runtime_agrees():
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    x, attributes = (
        noise(1, 20, 15, 17),
        case(kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 0, 1]),
    )
    nodes = [
        onnx.helper.make_node("MaxPool", ["x"], ["m"], **attributes),
        onnx.helper.make_node("AveragePool", ["x"], ["a"], count_include_pad=1, **attributes),
    ]

    def info(name, shape):
        return onnx.helper.make_tensor_value_info(name, 1, shape)

    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", x.shape)], [info("m", None), info("a", None)]
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    wants = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    source, pads = image(*x.shape), ((1, 0), (1, 1))
    largest = p.window("window_max", padded(source, pads, value=-math.inf), (3, 3), (2, 1))
    mean = p.window("window_sum", padded(source, pads), (3, 3), (2, 1)) * (1 / 9)
    for where in BOTH:
        for y, want in zip((largest, mean), wants, strict=True):
            c = candidate((y,), where, where)
            (got,) = running.run_kernel(c, windows.lower(c, WIDE), [x])
            np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: p.window("window_max", image(1, 2, 4, 4, 4), (2, 2, 2), (1, 1, 1)),
            "3 spatial axes",
        ),
        (lambda: p.concat([pool("window_max", **SHAPES["2x2"])] * 2, 1), "not one value for each"),
    ],
)
def test_refusals_give_the_reason(make, reason):
    refusal = windows.lower(running.candidate_of((make(),)), WIDE)
    assert not refusal and reason in refusal.reason

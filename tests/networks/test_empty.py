"""Tensors without elements: nothing is computed from nothing, and no memory is touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from models import model_of
from onnx import helper

import fissile

N = helper.make_node
CASES: dict[str, tuple[onnx.NodeProto, Sequence[int], dict[str, np.ndarray], float | None]] = {
    "relu": (N("Relu", ["x"], ["y"]), [0, 3], {}, None),
    "conv": (N("Conv", ["x", "w"], ["y"]), [0, 3, 4, 4], {"w": np.ones((2, 3, 1, 1), "f4")}, None),
    "conv 3x3": (
        N("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        [0, 3, 4, 4],
        {"w": np.ones((2, 3, 3, 3), "f4")},
        None,
    ),
    "pool": (N("MaxPool", ["x"], ["y"], kernel_shape=[2, 2]), [0, 3, 4, 4], {}, None),
    "softmax": (N("Softmax", ["x"], ["y"]), [2, 0], {}, None),
    "sum of nothing": (N("ReduceSum", ["x"], ["y"]), [0, 3], {}, 0.0),
    "product over nothing": (
        N("MatMul", ["x", "w"], ["y"]),
        [2, 0],
        {"w": np.ones((0, 3), "f4")},
        0.0,
    ),
    "concat": (N("Concat", ["x", "x"], ["y"], axis=0), [0, 3], {}, None),
    "transpose": (N("Transpose", ["x"], ["y"]), [0, 3], {}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_empty(name: str) -> None:
    node, shape, constants, value = CASES[name]
    model = model_of([node], {"x": shape}, ["y"], constants)
    exe = fissile.compile(model, threads=2, tune=0)
    for _ in range(20):
        y = exe(np.zeros(shape, np.float32))
    assert y.shape == exe.outputs[0].shape
    assert y.size == 0 if value is None else (y == value).all()

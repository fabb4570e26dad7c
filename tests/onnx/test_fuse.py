"""Operators that are recognised again: by name, and by what ONNX Runtime makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from fissile.ir.evaluate import evaluate
from fissile.onnx.fuse import forms
from fissile.onnx.load import load
from fissile.onnx.save import save

rng = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def model(op: str, shape: tuple[int, ...], *constants: Any, **attrs: Any) -> onnx.ModelProto:
    """One operator on x and constants; None leaves an input out."""
    named = {f"c{i}": c for i, c in enumerate(constants) if c is not None}
    inputs = ["x", *(f"c{i}" if c is not None else "" for i, c in enumerate(constants))]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], **attrs)], "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(c), n) for n, c in named.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def resize(mode: str, how: str, *scales: float) -> onnx.ModelProto:
    nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return model("Resize", (1, 3, 5, 6), None, np.array([1, 1, *scales], np.float32), mode=mode,
                 coordinate_transformation_mode=how, **nearest)  # fmt: skip


MAP, ROWS = (2, 4, 9, 8), (2, 5, 12)
CASES = {
    "Softmax": model("Softmax", ROWS, axis=-1),
    "Softmax over channels": model("Softmax", MAP, axis=1),
    "LogSoftmax": model("LogSoftmax", ROWS, axis=2),
    "LayerNormalization": model("LayerNormalization", ROWS, weights(12), weights(12)),
    "LayerNormalization without bias": model("LayerNormalization", ROWS, weights(12), epsilon=1e-3),
    "LayerNormalization of two axes": model(
        "LayerNormalization", ROWS, weights(5, 12), weights(5, 12), axis=1
    ),
    "InstanceNormalization": model("InstanceNormalization", MAP, weights(4), weights(4)),
    "Relu": model("Relu", ROWS),
    "LeakyRelu": model("LeakyRelu", ROWS, alpha=0.25),
    "HardSwish": model("HardSwish", ROWS),
    "HardSigmoid": model("HardSigmoid", ROWS, alpha=0.25, beta=0.5),
    "Gelu": model("Gelu", ROWS),
    "Gelu by tanh": model("Gelu", ROWS, approximate="tanh"),
    "Conv": model("Conv", MAP, weights(6, 4, 3, 3), weights(6), pads=[1, 1, 1, 1]),
    "Conv of groups": model("Conv", MAP, weights(8, 2, 3, 2), weights(8), group=2, strides=[2, 1]),
    "Gemm": model("Gemm", (3, 12), weights(12, 7), weights(7)),
    "Gemm of a transposed matrix": model("Gemm", (3, 12), weights(7, 12), weights(7), transB=1),
    "AveragePool": model("AveragePool", MAP, kernel_shape=[3, 3], strides=[2, 2]),
    "AveragePool without padding": model(
        "AveragePool", MAP, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
    ),
    "AveragePool with padding": model(
        "AveragePool", MAP, kernel_shape=[2, 2], pads=[1, 0, 0, 1], count_include_pad=1
    ),
    "GlobalAveragePool": model("GlobalAveragePool", MAP),
    "DepthToSpace": model("DepthToSpace", MAP, blocksize=2),
    "DepthToSpace by columns": model("DepthToSpace", MAP, blocksize=2, mode="CRD"),
    "Resize": resize("linear", "half_pixel", 2, 2),
    "Resize with corners": resize("linear", "align_corners", 2.2, 1.5),
    "Resize asymmetric": resize("linear", "asymmetric", 2, 1),
    "Resize by copies": resize("nearest", "asymmetric", 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_one_again(name):
    graph = load(CASES[name])
    found = forms(graph)
    assert [f.op for f in found.values()] == [name.split()[0]]
    written = save(graph, whole=True)
    onnx.checker.check_model(written, full_check=True)
    assert [n.op_type for n in written.graph.node] == [name.split()[0]]
    agree(graph, written)


def agree(graph, written: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(written.SerializeToString())
    feeds = [weights(*v.shape) for v in graph.inputs]
    got = session.run(None, dict(zip(graph.input_names, feeds, strict=True)))
    want = evaluate(graph, feeds, reference=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(w).max()))


def chain(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, MAP)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(c, n) for n, c in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_what_others_read_is_not_covered():
    """The exponentials are read twice: no softmax hides them."""
    graph = load(chain(
        helper.make_node("ReduceMax", ["x", "a"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Exp", ["d"], ["e"]), helper.make_node("ReduceSum", ["e", "a"], ["s"]),
        helper.make_node("Div", ["e", "s"], ["p"]), helper.make_node("Add", ["p", "e"], ["y"]),
        a=np.array([1]),
    ))  # fmt: skip
    assert not forms(graph)
    agree(graph, save(graph, whole=True))


def test_a_padding_may_stand_in_two_convolutions():
    graph = load(chain(
        helper.make_node("Conv", ["x", "v", "b"], ["p"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "w", "b"], ["q"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["p", "q"], ["y"]),
        v=weights(6, 4, 3, 3), w=weights(6, 4, 3, 3), b=weights(6),
    ))  # fmt: skip
    written = save(graph, whole=True)
    assert sorted(n.op_type for n in written.graph.node) == ["Add", "Conv", "Conv"]
    agree(graph, written)


def test_a_normalisation_in_other_words_is_recognised():
    """As exporters write it, with Pow, Sqrt and Div, once rewritten; not with another epsilon on
    the way."""
    graph = load(chain(
        helper.make_node("ReduceMean", ["x", "a"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["d"]), helper.make_node("Mul", ["d", "d"], ["q"]),
        helper.make_node("ReduceMean", ["q", "a"], ["v"]),
        helper.make_node("Add", ["v", "e"], ["r"]), helper.make_node("Sqrt", ["r"], ["s"]),
        helper.make_node("Reciprocal", ["s"], ["t"]), helper.make_node("Mul", ["d", "t"], ["y"]),
        a=np.array([3]), e=np.array(1e-5, np.float32),
    ))  # fmt: skip
    written = save(graph, whole=True)
    agree(graph, written)

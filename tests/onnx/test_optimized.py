"""`fission --optimize` on whole blocks of networks: valid ONNX with the same results."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import NAMES, network
from onnx import TensorProto, helper, numpy_helper

from fissile.cli import main
from fissile.ir.evaluate import evaluate
from fissile.onnx.load import load
from fissile.onnx.save import save
from fissile.rewrite.rules import RULES
from fissile.select.spellings import for_runtimes

PARTS = [n for n in NAMES if n.startswith("case_")]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_networks(name):
    model = network(name)
    graph = load(model)
    written = save(for_runtimes(graph, RULES.values()), whole=True)
    onnx.checker.check_model(written, full_check=True)
    feeds = [
        np.random.default_rng(0).standard_normal(v.shape).astype(np.float32) for v in graph.inputs
    ]
    session = onnxruntime.InferenceSession(written.SerializeToString())
    got = session.run(None, dict(zip(graph.input_names, feeds, strict=True)))
    for g, w in zip(got, evaluate(graph, feeds, reference=True), strict=True):
        scale = float(np.abs(w).max())
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 * scale)
    assert len(written.graph.node) <= len(save(graph).graph.node)


def written(*nodes: onnx.NodeProto, shape: tuple[int, ...], **constants: np.ndarray) -> Counter:
    """The operators of a small model, optimised. Its results stay."""
    model = helper.make_model(
        helper.make_graph(
            nodes, "small",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a if a.dtype == np.int64 else a.astype(np.float32), n)
             for n, a in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip
    graph = load(model)
    made = save(for_runtimes(graph, RULES.values()), whole=True)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (got,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    (want,) = evaluate(graph, [x], reference=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * float(np.abs(want).max()))
    return Counter(n.op_type for n in made.graph.node)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape) / 4


def test_a_bias_that_an_activation_reads_twice_stays_one():
    node = helper.make_node
    count = written(
        node("Conv", ["x", "w", "b"], ["a"]), node("HardSwish", ["a"], ["y"]),
        shape=(1, 16, 9, 9), w=numbers(16, 16, 3, 3), b=numbers(16),
    )  # fmt: skip
    assert count == {"Conv": 1, "HardSwish": 1}


def test_a_softmax_before_a_product_stays_whole():
    node = helper.make_node
    count = written(
        node("MatMul", ["x", "v"], ["a"]), node("Softmax", ["a"], ["b"], axis=-1),
        node("MatMul", ["b", "w"], ["y"]), shape=(4, 32, 16), v=numbers(16, 64), w=numbers(64, 16),
    )  # fmt: skip
    assert count["Softmax"] == 1 and not count["Exp"]


def test_a_gelu_keeps_its_half():
    """Runtimes know it by x (1 + erf(x / sqrt(2))) / 2; in weights behind it the half is lost."""
    node = helper.make_node
    count = written(
        node("MatMul", ["x", "v"], ["a"]), node("Div", ["a", "root"], ["b"]),
        node("Erf", ["b"], ["c"]), node("Add", ["c", "one"], ["d"]), node("Mul", ["a", "d"], ["e"]),
        node("Mul", ["e", "half"], ["f"]), node("MatMul", ["f", "w"], ["y"]),
        shape=(4, 32, 16), v=numbers(16, 64), w=numbers(64, 16),
        root=np.array(2**0.5), one=np.array(1.0), half=np.array(0.5),
    )  # fmt: skip
    assert count["Gelu"] == 1 or count["Mul"] == 2


def test_a_bias_behind_a_reshape_joins_its_convolution():
    """Tokens, a linear map, a map of pixels, a bias for each channel: as in decode heads."""
    node = helper.make_node
    count = written(
        node("MatMul", ["x", "w"], ["a"]), node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        node("Reshape", ["b", "map"], ["c"]), node("Add", ["c", "bias"], ["y"]),
        shape=(1, 4096, 32), w=numbers(32, 256), bias=numbers(256, 1, 1),
        map=np.array([1, 256, 64, 64]),
    )  # fmt: skip
    assert count["Conv"] == 1 and not count["Add"]


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "other"),
    [
        ("Max", TensorProto.INT64, (3,), np.array(0)),
        ("MatMul", TensorProto.FLOAT, (3, 4), np.zeros((4, 0), np.float32)),
    ],
)
def test_operators_that_runtimes_refuse_are_not_written(op, dtype, shape, other):
    """Relu of int64, Resize of nothing."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, ["x", "k"], ["y"])], "one",
            [helper.make_tensor_value_info("x", dtype, shape)],
            [helper.make_tensor_value_info("y", dtype, None)],
            [numpy_helper.from_array(other, "k")],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip
    made = save(for_runtimes(load(model), RULES.values()), whole=True)
    x = (
        np.arange(-1, math.prod(shape) - 1)
        .reshape(shape)
        .astype(helper.tensor_dtype_to_np_dtype(dtype))
    )
    got, want = (
        onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0]
        for m in (made, model)
    )
    np.testing.assert_array_equal(got, want)


def test_the_command_writes_it(tmp_path):
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(network("case_segformer_attn"), source)
    assert main(["fission", str(source), "-o", str(target), "--optimize"]) == 0
    assert onnx.load(target).graph.node

"""Small ONNX models for tests, ONNX Runtime as the oracle, and the folders of larger models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT.parent / "zoo"
SHARED = ROOT.parent / "shared"
CODES = {np.dtype(k): v for k, v in {
    "f4": TensorProto.FLOAT, "f8": TensorProto.DOUBLE, "f2": TensorProto.FLOAT16,
    "i8": TensorProto.INT64, "i4": TensorProto.INT32, "u1": TensorProto.UINT8,
    "i1": TensorProto.INT8, "?": TensorProto.BOOL,
}.items()}  # fmt: skip


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, np.ndarray | Sequence[Any]],
    outputs: Mapping[str, int] | Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    **rest: Any,
) -> ModelProto:
    """Inputs are given as example arrays, or as shapes of f32; outputs have free shapes."""
    infos = []
    for name, like in inputs.items():
        array = isinstance(like, np.ndarray)
        code = CODES[like.dtype] if array else TensorProto.FLOAT
        infos.append(helper.make_tensor_value_info(name, code, like.shape if array else like))
    codes = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, TensorProto.FLOAT)
    outs = [helper.make_tensor_value_info(n, c, None) for n, c in codes.items()]
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "test", infos, outs, tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **rest)


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> NodeProto:
    """Names are separated by spaces; `_` is an absent input."""
    operands = ["" if n == "_" else n for n in inputs.split()]
    return helper.make_node(op, operands, outputs.split(), name, **attributes)


def runtime(model: ModelProto | str, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes, its optimisers off. Skips where it is not installed."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, dict(feeds))]


def values(graph: Graph, feeds: Mapping[str, np.ndarray], reference: bool = False):
    """The evaluator's results for inputs given by name."""
    return evaluate(graph, [feeds[n] for n in graph.input_names], reference)


def assert_near(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-5) -> None:
    """Equal types, shapes and integers; floats within a tolerance of the largest magnitude."""
    assert got.shape == want.shape
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = np.max(np.abs(want), initial=0.0, where=np.isfinite(want))
    np.testing.assert_allclose(got, want, tolerance, tolerance * scale)


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats, integers below 100."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, value in zip(graph.input_names, graph.inputs, strict=True):
        dtype = value.type.dtype
        drawn = (
            rng.standard_normal(value.shape)
            if dtype.is_float
            else rng.integers(0, 100, value.shape)
        )
        feeds[name] = np.asarray(drawn).astype(dtype.numpy)
    return feeds


def checked(model: ModelProto) -> ModelProto:
    onnx.checker.check_model(model, full_check=True)
    return model

"""ONNX's own node tests: which must give their expected values, and which must be refused, and why.

What is not supported is listed by operator, kind of value, domain or name; no case is left out.
"""

from __future__ import annotations

import warnings

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from fissile.errors import ModelError
from fissile.ir.graph import Graph
from fissile.onnx.load import load

UNSUPPORTED = {
    "Bernoulli", "CumProd", "DFT", "DeformConv", "Det", "GridSample", "ImageDecoder",
    "MelWeightMatrix", "NonMaxSuppression", "RandomUniformLike", "RegexFullMatch", "RoiAlign",
    "STFT", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "Unique",
}  # fmt: skip
UNSUPPORTED_KINDS = {"sequence_type", "optional_type", "sparse_tensor_type"}
UNSUPPORTED_DOMAINS = {"ai.onnx.ml", "ai.onnx.preview.training"}
REFUSED = {
    "test_maxunpool_export_with_output_shape": "output_shape",
    "test_batchnorm_example_training_mode": "training",
    "test_batchnorm_epsilon_training_mode": "training",
    "test_cast_e8m0_FLOAT_to_FLOAT8E8M0": "float8e8m0",
    "test_cast_e8m0_FLOAT16_to_FLOAT8E8M0": "float8e8m0",
    "test_einsum_batch_diagonal": "repeated label",
    "test_equal_string": "string",
    "test_equal_string_broadcast": "string",
    "test_not_2d": "opset",
    "test_not_3d": "opset",
    "test_not_4d": "opset",
    "test_scan_sum": "opset 8 scans a batch",
    "test_training_dropout": "training",
    "test_training_dropout_default": "training",
    "test_training_dropout_default_mask": "training",
    "test_training_dropout_mask": "training",
    "test_training_dropout_zero_ratio": "training",
    "test_training_dropout_zero_ratio_mask": "training",
}
# align_corners with scales: the data divide by a fractional output length, the text of the
# specification and ONNX Runtime by the whole one
DEPARTURES = {
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}
BF16_STEP = 2.0**-7  # the suite's tolerance is finer than one rounding to bf16


def _cases() -> list:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")


def _ops(graph: GraphProto) -> set[tuple[str, str]]:
    found = {(n.domain, n.op_type) for n in graph.node}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= _ops(attribute.g)
    return found


def _is_refused(case) -> bool:
    graph = case.model.graph
    infos = [*graph.input, *graph.output]
    ops = _ops(graph)
    return bool(
        case.name in REFUSED
        or any(i.type.WhichOneof("value") in UNSUPPORTED_KINDS for i in infos)
        or any(i.type.tensor_type.elem_type == TensorProto.STRING for i in infos)
        or any(d in UNSUPPORTED_DOMAINS or op in UNSUPPORTED for d, op in ops)
    )


CASES = _cases()
GIVEN = [c for c in CASES if not _is_refused(c) and c.name not in DEPARTURES]
TURNED_DOWN = [c for c in CASES if _is_refused(c)]


def array_of(data) -> np.ndarray:
    return numpy_helper.to_array(data) if isinstance(data, TensorProto) else np.asarray(data)


def specialised(model: ModelProto, arrays: dict[str, np.ndarray]) -> Graph:
    """Inputs stay inputs where they can; the suite feeds shapes and axes at run time too."""
    names = list(arrays)
    for free in (len(names), 1, 0):
        fixed = {n: arrays[n] for n in names[free:]}
        shapes = {n: arrays[n].shape for n in names[:free]}
        try:
            return load(model, shapes, fixed)
        except ModelError as error:
            if not free or "known at compile time" not in str(error):
                raise
    raise AssertionError


def compare(got: np.ndarray, want: np.ndarray, case, reference: bool) -> None:
    assert got.shape == want.shape
    if not reference:
        assert got.dtype == want.dtype
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    step = BF16_STEP if want.dtype.name == "bfloat16" else 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    atol = max(case.atol, step * np.max(np.abs(want), initial=0.0, where=np.isfinite(want)))
    np.testing.assert_allclose(got, want, max(case.rtol, step), atol)

"""Every operator against the expected data of ONNX's own node tests, and refusals by name.

Oracle: the arrays that come with the onnx package. What is not supported is listed here and must be
refused with a ModelError; a case in neither list must give the expected values.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from fissile.errors import ModelError
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph
from fissile.onnx.load import load

UNSUPPORTED = {
    "Bernoulli", "CumProd", "DFT", "DeformConv", "Det", "GridSample", "ImageDecoder", "MelWeightMatrix",
    "NonMaxSuppression", "RandomUniformLike", "RegexFullMatch", "RoiAlign", "STFT",
    "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "Unique",
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


def _array(data) -> np.ndarray:
    return numpy_helper.to_array(data) if isinstance(data, TensorProto) else np.asarray(data)


def _specialised(model: ModelProto, arrays: dict[str, np.ndarray]) -> Graph:
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


@pytest.mark.parametrize("case", GIVEN, ids=lambda c: c.name)
def test_expected_values(case):
    inputs, wanted = case.data_sets[0]
    arrays = {i.name: _array(a) for i, a in zip(case.model.graph.input, inputs, strict=True)}
    graph = _specialised(case.model, arrays)
    operands = [arrays[n] for n in graph.input_names]
    exact = {v.type.dtype.name for n in graph.nodes for v in n.outputs} <= {"f32", "f64", "i64", "bool"}
    for reference in (False, True)[: 1 + exact]:
        for got, want in zip(evaluate(graph, operands, reference), wanted, strict=True):
            _compare(got, _array(want), case, reference)


def _compare(got: np.ndarray, want: np.ndarray, case, reference: bool) -> None:
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


@pytest.mark.parametrize("case", TURNED_DOWN, ids=lambda c: c.name)
def test_refused_with_a_reason(case):
    """What is not supported is said so, in one sentence, and never computed wrongly."""
    shapes = {}
    for info in case.model.graph.input:
        if info.type.WhichOneof("value") == "tensor_type":
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = [d.dim_value or 2 for d in dims]
    with pytest.raises(ModelError) as refusal:
        load(case.model, shapes)
    assert "\n" not in str(refusal.value)


def test_departures_still_exist():
    names = {c.name for c in CASES}
    assert names >= DEPARTURES and names >= set(REFUSED)

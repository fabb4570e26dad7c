"""Every operator's primitives as ONNX: valid, and equal in ONNX Runtime to ONNX's expected data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from nodes import GIVEN, array_of, compare, specialised

from fissile.onnx.save import save

ort = pytest.importorskip("onnxruntime")
NARROW = {"bfloat16", "float8", "int4", "int2", "uint4", "uint2", "float4"}


def _plain(array: np.ndarray) -> bool:
    """Whether ONNX Runtime's Python interface takes and gives this element type."""
    return not any(array.dtype.name.startswith(n) for n in NARROW)


@pytest.mark.parametrize("case", GIVEN, ids=lambda c: c.name)
def test_saved_form_is_valid_and_equal(case):
    inputs, wanted = case.data_sets[0]
    arrays = {i.name: array_of(a) for i, a in zip(case.model.graph.input, inputs, strict=True)}
    wanted = [array_of(a) for a in wanted]
    graph = specialised(case.model, arrays)
    model = save(graph)
    onnx.checker.check_model(model, full_check=True)
    feeds = {n: arrays[n] for n in graph.input_names}
    if not all(map(_plain, [*feeds.values(), *wanted])):
        return
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        assert "NOT_IMPLEMENTED" in str(error)  # a kernel the runtime lacks for this element type
        return
    for got, want in zip(session.run(None, feeds), wanted, strict=True):
        compare(np.asarray(got), want, case, reference=False)

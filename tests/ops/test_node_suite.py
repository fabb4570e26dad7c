"""Every operator against the expected data of ONNX's own node tests, and refusals by name.

Oracle: the arrays that come with the onnx package.
"""

from __future__ import annotations

import pytest
from nodes import CASES, DEPARTURES, GIVEN, REFUSED, TURNED_DOWN, array_of, compare, specialised

from fissile.errors import ModelError
from fissile.ir.evaluate import evaluate
from fissile.onnx.load import load


@pytest.mark.parametrize("case", GIVEN, ids=lambda c: c.name)
def test_expected_values(case):
    inputs, wanted = case.data_sets[0]
    arrays = {i.name: array_of(a) for i, a in zip(case.model.graph.input, inputs, strict=True)}
    graph = specialised(case.model, arrays)
    operands = [arrays[n] for n in graph.input_names]
    exact = {v.type.dtype.name for n in graph.nodes for v in n.outputs} <= {
        "f32",
        "f64",
        "i64",
        "bool",
    }
    for reference in (False, True)[: 1 + exact]:
        for got, want in zip(evaluate(graph, operands, reference), wanted, strict=True):
            compare(got, array_of(want), case, reference)


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

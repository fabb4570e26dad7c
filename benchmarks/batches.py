"""A network of batch 1 as one of batch N, where its graph allows it.

The first extent of every input becomes N, and with it the leading 1 of constant shapes that
Reshape, Expand and Resize take. What comes out is believed only if N different inputs give, row by
row, what each gives alone.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

NEAR = 1e-3  # of the output's scale: rows of one batch may be summed in another order
SHAPE_OPERAND = {"Reshape": 1, "Expand": 1, "Resize": 3}


def batched(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Raises ValueError where the rows of the batch would not be what each gives alone."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    constants = {t.name: t for t in wide.graph.initializer}
    inputs = [v for v in wide.graph.input if v.name not in constants]
    for value in inputs:
        extents = value.type.tensor_type.shape.dim
        if not extents or extents[0].dim_value != 1:
            raise ValueError(f"input {value.name!r} has no batch of 1")
        extents[0].dim_value = batch
    for value in wide.graph.output:
        value.type.tensor_type.ClearField("shape")
    del wide.graph.value_info[:]
    _widen_shapes(wide.graph, constants, batch)
    _check(model, wide, batch)
    return wide


def _widen_shapes(
    graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto], batch: int
) -> None:
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    widened: set[str] = set()
    for node in graph.node:
        place = SHAPE_OPERAND.get(node.op_type)
        name = node.input[place] if place is not None and place < len(node.input) else ""
        if name in constants and name not in widened:
            shape = numpy_helper.to_array(constants[name]).copy()
            if shape.ndim == 1 and shape.size > 1 and shape[0] == 1:
                shape[0] = batch
                constants[name].CopyFrom(numpy_helper.from_array(shape, constants[name].name))
                widened.add(name)


def _check(model: onnx.ModelProto, wide: onnx.ModelProto, batch: int) -> None:
    one, many = _session(model), _session(wide)
    rng = np.random.default_rng(0)
    rows = [
        {
            i.name: rng.standard_normal(i.shape).astype(np.float32)
            if "float" in i.type
            else rng.integers(0, 2, i.shape).astype("i8" if "64" in i.type else "i4")
            for i in one.get_inputs()
        }
        for _ in range(batch)
    ]
    together = {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
    try:
        found = many.run(None, together)
    except Exception as error:
        raise ValueError(f"no batch of {batch}: {str(error)[:200]}") from None
    alone = [one.run(None, r) for r in rows]
    for got, parts in zip(found, zip(*alone, strict=True), strict=True):
        want = np.concatenate([np.asarray(p) for p in parts])
        scale = float(np.abs(want).max()) or 1.0
        if got.shape != want.shape or float(np.abs(got - want).max()) > NEAR * scale:
            raise ValueError(f"no batch of {batch}: its rows are not what each input gives alone")


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"this batch cannot be built: {str(error)[:200]}") from None

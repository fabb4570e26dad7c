"""What ONNX's own schemas say about a node: arity, attributes, element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx.defs
from onnx import TensorProto
from onnx.defs import OpSchema, SchemaError

from fissile.errors import ModelError
from fissile.ir.graph import Value

OLDEST_OPSET = 7
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()
_VARIADIC = OpSchema.FormalParameterOption.Variadic


def schema_of(op: str, domain: str, opset: int) -> OpSchema:
    """Raises ModelError where ONNX does not know the operator."""
    where = f"domain {domain!r}" if domain else "ONNX"
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except SchemaError:
        raise ModelError(f"{where} has no such operator in opset {opset}") from None


def check(
    schema: OpSchema, inputs: Sequence[Value | None], attributes: Mapping[str, Any], outputs: int
) -> None:
    """Raises ModelError with the reason where a node does not fit its schema."""
    if schema.deprecated:
        raise ModelError(f"it is deprecated since opset {schema.since_version}")
    if not schema.min_input <= len(inputs) <= schema.max_input:
        raise ModelError(
            f"it has {len(inputs)} inputs; {_range(schema.min_input, schema.max_input)} fit"
        )
    if not outputs <= schema.max_output:
        raise ModelError(
            f"it has {outputs} outputs; {_range(schema.min_output, schema.max_output)} fit"
        )
    for name in attributes:
        if name not in schema.attributes:
            raise ModelError(f"its attribute {name!r} is unknown in opset {schema.since_version}")
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in attributes:
            raise ModelError(f"its attribute {name!r} is missing")
    _check_types(schema, inputs)


def _check_types(schema: OpSchema, inputs: Sequence[Value | None]) -> None:
    bound: dict[str, str] = {}
    for index, value in enumerate(inputs):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if value is None:
            if formal.option == OpSchema.FormalParameterOption.Single:
                raise ModelError(f"its input {formal.name} is missing")
            continue
        kind = f"tensor({TensorProto.DataType.Name(value.type.dtype.onnx).lower()})"
        if kind not in formal.types:
            raise ModelError(
                f"its input {formal.name} cannot have the element type {value.type.dtype}"
            )
        if formal.option == _VARIADIC and not formal.is_homogeneous:
            continue
        if bound.setdefault(formal.type_str, kind) != kind and "(" not in formal.type_str:
            other = bound[formal.type_str]
            raise ModelError(f"its input {formal.name} has the element type {value.type.dtype}, "
                             f"which differs from {other} of another input")  # fmt: skip


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"

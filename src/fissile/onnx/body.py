"""Bodies that ONNX itself defines for operators without a rule here: its schemas' functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, helper, numpy_helper
from onnx.defs import OpSchema

from fissile.ir.graph import Value


def function_of(
    schema: Any,  # an OpSchema, whose stubs lack the functions
    node: NodeProto,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    opset: int,
) -> FunctionProto | None:
    """The operator as a function of simpler ones, None where ONNX has no such definition."""
    function = FunctionProto()
    if schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        types = [_type(v) for v in inputs]
        copy = _plain(node, attributes).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, copy, types)
    elif schema.has_function:
        version = _newest(schema.function_opset_versions, opset)
        data = schema.get_function_with_opset_version(version)
    else:
        return None
    if not data:
        return None
    function.ParseFromString(data)
    if not function.opset_import:
        function.opset_import.append(helper.make_opsetid("", version))
    return function


def defaults(schema: OpSchema) -> dict[str, Any]:
    """Attribute values that a node leaves out."""
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            value = helper.get_attribute_value(attribute.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _type(value: Value | None) -> bytes:
    if value is None:
        return b""
    proto = helper.make_tensor_type_proto(value.type.dtype.onnx, value.shape)
    return proto.SerializeToString()


def _plain(node: NodeProto, attributes: Mapping[str, Any]) -> NodeProto:
    """The node with the attributes that it takes from a calling function spelt out."""
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(a for a in node.attribute if not a.ref_attr_name)
    for name in (a.name for a in node.attribute if a.ref_attr_name and a.name in attributes):
        value = attributes[name]
        value = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        copy.attribute.append(helper.make_attribute(name, value))
    return copy

"""A primitive graph becomes an ONNX model that any runtime executes.

Constants are initialisers, names of inputs and outputs stay, every node is named after the model's
node that it came from. How a primitive reads in ONNX: `export/`.
"""

from __future__ import annotations

import onnx
from onnx import ModelProto, helper

from fissile.ir.graph import Graph, Value
from fissile.onnx import export as families
from fissile.onnx.fuse import forms, live
from fissile.onnx.fuse import write as write_form
from fissile.onnx.writer import OPSET, Writer, opset_for, tensor, write_node

assert families.FAMILIES  # importing them fills the table of ONNX forms
IR_VERSION = 10


def save(graph: Graph, whole: bool = False) -> ModelProto:
    """Valid ONNX with equal results. `whole`: operators rather than primitives, where runtimes are
    faster with them (`onnx/fuse`). Raises ModelError where a primitive has no ONNX form."""
    writer = Writer(graph)
    found = forms(graph) if whole else {}
    written = live(graph, found)
    for name, value in zip(graph.input_names, graph.inputs, strict=True):
        writer.names[value] = name
    direct = _name_outputs(graph, writer)
    for node in graph.primitives:
        if node not in written:
            continue
        if node in found:
            write_form(writer, node, found[node])
        elif node not in writer.folded:
            write_node(writer, node)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if direct.get(value) != name and writer.names.get(value) != name:
            writer.add("Identity", [writer.name(value)], name=name)
    proto = helper.make_graph(
        writer.nodes,
        graph.name,
        [_info(n, v) for n, v in zip(graph.input_names, graph.inputs, strict=True)],
        [_info(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)],
        initializer=[tensor(name, array) for name, array in writer.constants.items()],
    )
    opset = opset_for(graph)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(
        proto,
        opset_imports=imports,
        ir_version=IR_VERSION if opset == OPSET else onnx.IR_VERSION,
        producer_name="fissile",
    )


def _name_outputs(graph: Graph, writer: Writer) -> dict[Value, str]:
    """Values that carry an output's name; inputs, constants and repeated outputs need a copy."""
    direct: dict[Value, str] = {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value.node.prim not in ("input", "constant") and value not in direct:
            direct[value] = writer.names[value] = name
    return direct


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, value.type.dtype.onnx, value.shape)

"""The verifier: a graph is what its types say.

For every node the primitive exists, its operands' types give the types that it claims, and the
graph's inputs and names fit. Faults name the node of the model that it came from.
"""

from __future__ import annotations

from fissile.errors import ModelError, shown
from fissile.ir.graph import Graph, Node
from fissile.ir.prims import PRIMS


def verify(graph: Graph) -> Graph:
    """The graph itself. Raises ModelError at the first fault."""
    for what, values, names in (
        ("inputs", graph.inputs, graph.input_names),
        ("outputs", graph.outputs, graph.output_names),
    ):
        if len(values) != len(names):
            raise ModelError(f"graph {shown(graph.name)}: {len(values)} {what}, {len(names)} names")
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise ModelError(f"graph {shown(graph.name)}: two {what} are called {shown(twice)}")
    inputs = {v.node for v in graph.inputs}
    if len(inputs) != len(graph.inputs):
        raise ModelError(f"graph {shown(graph.name)}: one input is listed twice")
    for node in inputs:
        if node.prim != "input":
            raise ModelError(
                f"graph {shown(graph.name)}: {where(graph, node)} is listed as an input"
            )
    for node in graph.nodes:
        if node.prim == "input" and node not in inputs:
            raise ModelError(f"graph {shown(graph.name)}: reads an input that it does not list")
        _verify_node(graph, node)
    return graph


def _verify_node(graph: Graph, node: Node) -> None:
    if node.prim not in PRIMS:
        raise ModelError(f"{where(graph, node)}: no such primitive")
    if node.prim == "input":
        if len(node.types) != 1 or node.attrs.get("of") != repr(node.types[0]):
            raise ModelError(f"{where(graph, node)}: type and attributes disagree")
        return
    try:
        types = PRIMS[node.prim].infer([v.type for v in node.inputs], dict(node.attrs))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"{where(graph, node)}: {error}") from None
    if tuple(types) != node.types:
        raise ModelError(
            f"{where(graph, node)}: claims {_list(node.types)}, computes {_list(types)}"
        )
    for attr in node.attrs.values():
        if isinstance(attr, Graph):
            verify(attr)


def where(graph: Graph, node: Node) -> str:
    """How a fault names a node: primitive, operand types, and the model's nodes behind it."""
    names = ", ".join(shown(n) for n in graph.provenance.get(node, ())[:3])
    operands = ", ".join(str(v.type) for v in node.inputs)
    return f"{node.prim}({operands})" + (f" from {names}" if names else "")


def _list(types: object) -> str:
    return ", ".join(map(repr, types))  # pyright: ignore

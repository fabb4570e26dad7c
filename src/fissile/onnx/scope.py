"""Fission of a list of ONNX nodes: names to values, one rule per node, constants folded on the way.

Invariant: every primitive made here is in `provenance`, under the names of the nodes that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, helper

from fissile.errors import ModelError, shown
from fissile.ir.graph import Node, Value
from fissile.ir.prims import constant
from fissile.onnx import fission as families
from fissile.onnx.body import defaults, function_of
from fissile.onnx.fold import fold
from fissile.onnx.order import live, title
from fissile.onnx.read import Tensors
from fissile.onnx.rule import call, rule_for
from fissile.onnx.schema import check, schema_of

assert families.FAMILIES  # importing them fills the table of rules
ELEMENTS_LIMIT = 2**40
NESTING_LIMIT = 32

Body = Callable[..., tuple[Value, ...]]


@dataclass
class Scope:
    """Names of one graph or function body; a nested scope starts with those of the outer one."""

    values: dict[str, Value]
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], FunctionProto]
    tensors: Tensors
    provenance: dict[Node, dict[str, None]]
    given: Mapping[str, Any] = field(default_factory=dict)  # attributes of the calling node
    depth: int = 0
    under: str = ""  # the node whose body this is
    origin: str = ""  # the node that all nodes here stem from, where ONNX itself gave the body

    def run(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], own: Collection[str]
    ) -> tuple[Value, ...]:
        """The values of these names after the nodes have run; `own` are the names of inputs and
        initialisers of the same graph. Raises ModelError."""
        for node in live(nodes, outputs, self.values, own):
            self._step(node)
        return tuple(self.values[name] for name in outputs)

    def _step(self, node: NodeProto) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        try:
            results = self._apply(node, inputs)
            for name, value in zip_longest(node.output, results[: len(node.output)]):
                if name:
                    self.values[name] = _checked(name, value)
        except RecursionError:
            raise
        except Fault as fault:
            raise fault
        except _REASONS as error:
            raise Fault(_sentence(node, inputs, error)) from error

    def _apply(self, node: NodeProto, inputs: list[Value | None]) -> Sequence[Value | None]:
        borders = {v for v in inputs if v is not None}
        name = self.origin or self.under + title(node)
        attributes = self._attributes(node, borders, name)
        domain = "" if node.domain == "ai.onnx" else node.domain
        function = self.functions.get((domain, node.op_type))
        if function is not None:
            return self._call(function, inputs, node.output, attributes, name)
        opset = self.opsets.get(domain)
        if opset is None:
            raise ModelError(f"the model imports no opset for the domain {shown(domain)}")
        schema = schema_of(node.op_type, domain, opset)
        check(schema, inputs, attributes, len(node.output))
        rule = rule_for(domain, node.op_type, opset)
        if rule is None:
            body = function_of(schema, node, inputs, attributes, opset)
            if body is None:
                raise ModelError("the operator is not supported yet")
            given = defaults(schema) | attributes
            return self._call(body, inputs, node.output, given, name, origin=name)
        results = call(rule, inputs, attributes, opset, len(node.output))
        folded, primitives = fold(results, borders)
        for primitive in primitives:
            self.provenance.setdefault(primitive, {})[name] = None
        return folded

    def _attributes(self, node: NodeProto, borders: set[Value], name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in self.given:
                    found[attribute.name] = self.given[attribute.ref_attr_name]
            elif attribute.type == AttributeProto.GRAPH:
                found[attribute.name] = self._body(attribute.g, borders, name)
            else:
                found[attribute.name] = self._plain(attribute)
        return found

    def _plain(self, attribute: AttributeProto) -> Any:
        if attribute.type == AttributeProto.TENSOR:
            return self.tensors.array(attribute.t)
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, int | float):
            return value
        if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            return tuple(value)
        if attribute.type == AttributeProto.STRINGS:
            return tuple(v.decode("utf-8", "replace") for v in value)
        kind = AttributeProto.AttributeType.Name(attribute.type).lower()
        raise ModelError(f"its attribute {shown(attribute.name)} of kind {kind} is not supported")

    def _body(self, graph: GraphProto, borders: set[Value], name: str) -> Body:
        """A function that fissions the subgraph for given operands; names from outside are seen."""

        def body(*operands: Value) -> tuple[Value, ...]:
            if len(operands) != len(graph.input):
                raise ModelError(f"its body takes {len(graph.input)} inputs, not {len(operands)}")
            values = dict(self.values)
            values.update(zip((i.name for i in graph.input), operands, strict=True))
            constants = initialisers(graph, self.tensors)
            own = {i.name for i in graph.input} | set(constants)
            inner = self._inner(values | constants, name)
            results = inner.run(graph.node, [o.name for o in graph.output], own)
            borders.update(results)
            return results

        return body

    def _inner(self, values: dict[str, Value], name: str) -> Scope:
        if self.depth >= NESTING_LIMIT:
            raise ModelError(f"bodies are nested deeper than {NESTING_LIMIT} levels")
        return replace(self, values=values, depth=self.depth + 1, under=name + "/")

    def _call(
        self,
        function: FunctionProto,
        inputs: Sequence[Value | None],
        outputs: Sequence[str],
        attributes: dict[str, Any],
        name: str,
        origin: str = "",
    ) -> list[Value | None]:
        """The function's results, None where the caller does not ask for one."""
        if len(inputs) > len(function.input):
            raise ModelError(f"the function takes {len(function.input)} inputs, not {len(inputs)}")
        values = {n: v for n, v in zip(function.input, inputs, strict=False) if v is not None}
        given = {a.name: self._plain(a) for a in function.attribute_proto} | attributes
        inner = self._inner(values, name)
        opsets = {**self.opsets, **versions(function.opset_import)}
        inner = replace(inner, given=given, opsets=opsets, origin=origin)
        wanted = [own for own, asked in zip(function.output, outputs, strict=False) if asked]
        results = dict(zip(wanted, inner.run(function.node, wanted, function.input), strict=True))
        return [results.get(name) for name in function.output]


class Fault(ModelError):
    """A model error that already names its node."""


_REASONS = (ModelError, ValueError, IndexError, KeyError, TypeError, OverflowError,
            ZeroDivisionError, MemoryError, AssertionError, NotImplementedError)  # fmt: skip


def _sentence(node: NodeProto, inputs: Sequence[Value | None], error: Exception) -> str:
    types = ", ".join("none" if v is None else repr(v.type) for v in inputs[:8])
    types += ", ..." if len(inputs) > 8 else ""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    operator = shown(operator)[1:-1]
    return f"node {shown(title(node))} ({operator} of {types or 'nothing'}): {error}"


def _checked(name: str, value: Value | None) -> Value:
    if value is None:
        raise ModelError(f"its output {shown(name)} is not supported")
    if value.type.numel > ELEMENTS_LIMIT:
        raise ModelError(f"its result {value.type} is too large")
    return value


def initialisers(graph: GraphProto, tensors: Tensors) -> dict[str, Value]:
    """The constants of a graph by name. Raises ModelError."""
    if graph.sparse_initializer:
        raise ModelError("sparse initialisers are not supported; export the model with dense ones")
    found: dict[str, Value] = {}
    for tensor in graph.initializer:
        if tensor.name in found:
            raise ModelError(f"the initialiser {shown(tensor.name)} is given twice")
        array: np.ndarray = tensors.array(tensor)
        found[tensor.name] = constant(array)
    return found


def versions(imports: Sequence[Any]) -> dict[str, int]:
    """Opset by domain; ai.onnx is the empty domain."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}

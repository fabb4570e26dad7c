"""Interned nodes, values, graphs.

Invariant: two nodes with equal primitive, operands and attributes are the same object, so equality
and hash are identity and common subexpressions never exist twice. Attributes are compared by their
typed bits: 0.0 is not -0.0, True is not 1. Walks are iterative, so graphs may be very deep. Where a
node came from (`Graph.provenance`) is a table of the graph and never part of a node.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, Union

import numpy as np

from fissile.ir.types import TensorType, dtype_of


class Literal:
    """Constant data of a node: a read-only array, compared by its bits."""

    __slots__ = ("array", "digest")

    def __init__(self, array: np.ndarray):
        data = np.array(array, order="C", copy=True)
        data.flags.writeable = False
        self.array = data
        head = f"{data.dtype}{data.shape}".encode()
        self.digest = hashlib.sha256(head + data.tobytes()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"Literal({self.array.dtype}{list(self.array.shape)} {self.digest[:8]})"

    @property
    def type(self) -> TensorType:
        return TensorType(self.array.shape, dtype_of(self.array))


Attr: TypeAlias = Union[int, float, str, bool, Literal, "Graph", "tuple[Attr, ...]", None]


class Value:
    """One output of a node. Arithmetic operators are filled in by `ir.prims`."""

    __slots__ = ("__weakref__", "index", "node", "type")

    def __init__(self, node: Node, index: int, type: TensorType):
        self.node, self.index, self.type = node, index, type

    def __repr__(self) -> str:
        return f"<{self.node.prim}.{self.index}: {self.type}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def is_constant(self) -> bool:
        return self.node.prim == "constant"

    @property
    def array(self) -> np.ndarray:
        """The data of a constant."""
        return self.node.attrs["value"].array

    def __add__(self, other: Operand) -> Value:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Operand) -> Value:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Operand) -> Value:
        return OPERATORS["sub"](self, other)

    def __rsub__(self, other: Operand) -> Value:
        return OPERATORS["sub"](other, self)

    def __mul__(self, other: Operand) -> Value:
        return OPERATORS["mul"](self, other)

    def __rmul__(self, other: Operand) -> Value:
        return OPERATORS["mul"](other, self)

    def __truediv__(self, other: Operand) -> Value:
        return OPERATORS["div"](self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return OPERATORS["div"](other, self)

    def __neg__(self) -> Value:
        return OPERATORS["neg"](self)


Operand: TypeAlias = Value | int | float | bool
OPERATORS: dict[str, Callable[..., Value]] = {}


class Node:
    """A primitive applied to values. Make one with `intern`, never directly."""

    __slots__ = ("__weakref__", "attrs", "inputs", "outputs", "prim", "serial")

    def __init__(
        self,
        prim: str,
        inputs: tuple[Value, ...],
        attrs: Mapping[str, Any],
        types: tuple[TensorType, ...],
        serial: int,
    ):
        self.prim, self.inputs, self.attrs, self.serial = prim, inputs, attrs, serial
        self.outputs = tuple(Value(self, i, t) for i, t in enumerate(types))

    def __repr__(self) -> str:
        return f"<{self.prim} {', '.join(str(v.type) for v in self.outputs)}>"

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(v.type for v in self.outputs)

    @property
    def value(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value


_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_SERIAL = itertools.count()


def attr_bits(value: Any) -> Any:
    """A hashable key that tells attribute values apart by type and bits."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    if isinstance(value, int):
        return ("int", value)
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, Literal):
        return ("literal", value.digest)
    if isinstance(value, tuple):
        return ("tuple", tuple(attr_bits(v) for v in value))  # pyright: ignore
    if isinstance(value, Graph):
        return ("graph", id(value))
    raise TypeError(f"an attribute cannot hold {type(value).__name__}")


def intern(
    prim: str, inputs: Iterable[Value], attrs: Mapping[str, Any], types: Iterable[TensorType]
) -> Node:
    """The one node with this primitive, these operands and these attributes."""
    inputs = tuple(inputs)
    attrs = {k: attrs[k] for k in sorted(attrs)}
    bits = tuple((k, attr_bits(v)) for k, v in attrs.items())
    key = (prim, tuple((id(v.node), v.index) for v in inputs), bits)
    node = _TABLE.get(key)
    if node is None:
        node = Node(prim, inputs, attrs, tuple(types), next(_SERIAL))
        _TABLE[key] = node
    return node


_INPUT_ID = itertools.count()


def placeholder(type: TensorType, id: int | None = None) -> Value:
    """A graph input; every call without an id makes a new one."""
    id = next(_INPUT_ID) if id is None else id
    return intern("input", (), {"id": id, "of": repr(type)}, (type,)).value


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs and outputs of a computation; nodes and users are derived.

    `provenance` maps a node to the names of the model's nodes that it came from.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    provenance: Mapping[Node, tuple[str, ...]] = field(default_factory=dict[Node, tuple[str, ...]])
    name: str = "main"

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that an output needs, operands first; inputs and constants included."""
        return tuple(walk(v.node for v in self.outputs))

    @cached_property
    def primitives(self) -> tuple[Node, ...]:
        """The nodes that compute: all but inputs and constants."""
        return tuple(n for n in self.nodes if n.prim not in ("input", "constant"))

    @cached_property
    def users(self) -> Mapping[Value, tuple[Node, ...]]:
        """Nodes that read a value, each once, in topological order."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                users.setdefault(value, []).append(node)
        return {v: tuple(ns) for v, ns in users.items()}


def walk(roots: Iterable[Node]) -> Iterator[Node]:
    """Nodes reachable from `roots`, operands before users, deterministic, without recursion."""
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        if expanded:
            done.add(node)
            yield node
            continue
        stack.append((node, True))
        stack.extend((v.node, False) for v in reversed(node.inputs) if v.node not in done)

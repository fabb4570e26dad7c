"""Regions: convex sets of primitives that one kernel may execute.

    Definition 1 (Korch): P' is convex iff no path leaves P' and enters it again.

`kernels/statistics` adds some that are not convex, and some that give a value which members alone
read: a kernel may compute again what it has the operands for.

Invariant: `nodes` is in topological order and holds no input or constant; `outputs` are values of
those nodes, each read outside or a graph output. `inputs` are what the nodes read from outside,
constants included, in order of first use. Two regions with equal `signature` are computed by the
same code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from fissile.ir.graph import Literal, Node, Value, attr_bits
from fissile.kernels.blend import few_terms


@dataclass(frozen=True, eq=False)
class Region:
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    @cached_property
    def members(self) -> frozenset[Node]:
        return frozenset(self.nodes)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Every value read from outside: tensors, parameters and scalar constants."""
        seen: dict[Value, None] = {}
        for node in self.nodes:
            seen.update((v, None) for v in node.inputs if v.node not in self.members)
        return tuple(seen)

    @cached_property
    def tensors(self) -> tuple[Value, ...]:
        """Inputs that are computed at run time: the tokens a candidate needs."""
        return tuple(v for v in self.inputs if not v.is_constant)

    @cached_property
    def parameters(self) -> tuple[Value, ...]:
        """Constant inputs that code reads through a pointer."""
        return tuple(v for v in self.inputs if v.is_constant and not is_scalar(v))

    @cached_property
    def signature(self) -> str:
        """Digest of the structure: types, attributes, wiring, values of scalar constants."""
        return hashlib.sha256("\n".join(self._lines()).encode()).hexdigest()[:32]

    def _lines(self) -> Iterator[str]:
        numbers: dict[Value, int] = {}
        for v in self.inputs:
            numbers[v] = len(numbers)
            yield _describe_input(v)
        for n in self.nodes:
            yield f"{_describe_node(n)} {[numbers[v] for v in n.inputs]}"
            for v in n.outputs:
                numbers[v] = len(numbers)
        yield f"-> {[numbers[v] for v in self.outputs]}"


# A node stands in many regions: what a signature says of it is written once.
_NODE_TEXT: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
_INPUT_TEXT: WeakKeyDictionary[Value, str] = WeakKeyDictionary()


def _describe_node(n: Node) -> str:
    """Primitive, attributes and types, without its operands."""
    if (text := _NODE_TEXT.get(n)) is None:
        attrs = [
            (k, a.digest if isinstance(a, Literal) else attr_bits(a)) for k, a in n.attrs.items()
        ]
        text = _NODE_TEXT[n] = f"{n.prim} {attrs} {n.types}"
    return text


def _describe_input(v: Value) -> str:
    """What code that reads a value depends on: its type; of a scalar constant, its bits; of a
    matrix, whether a row holds few non-zeros."""
    if (text := _INPUT_TEXT.get(v)) is None:
        what = "constant" if v.is_constant else "tensor"
        bits = v.array.tobytes().hex() if is_scalar(v) else ""
        if v.is_constant and v.rank == 2:
            bits = ",".join(str(few_terms(v, row)) for row in (0, 1)) + " terms"
        text = _INPUT_TEXT[v] = f"{what} {v.type} {bits}"
    return text


def is_scalar(v: Value) -> bool:
    """A constant of one element: printed into the code as a literal."""
    return v.is_constant and v.type.numel == 1

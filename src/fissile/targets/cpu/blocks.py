"""Which feature maps may lie with their channels in blocks, one vector a block.

It pays around windows that stay in their channel (depthwise convolutions): a block's rows are
neighbours there, so that a window meets a few lines of the first cache and its steps are constants.
So the operands and results of these, and what is joined to them element by element or by a pad,
have this third layout; convolutions read one layout and give another, so no adapter is needed
where the blocks end.
"""

from __future__ import annotations

from collections.abc import Collection

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import Kind, kind
from fissile.ir.types import F32


def blockable(graph: Graph, maps: Collection[Value], size: int) -> frozenset[Value]:
    """The feature maps that may lie in blocks of `size` channels."""
    found: set[Value] = set()
    todo: list[Value] = []

    def mark(*values: Value) -> None:
        for v in values:
            if v not in found and v in maps and _divides(v, size):
                found.add(v)
                todo.append(v)

    for n in graph.primitives:
        if is_depthwise(n):
            mark(n.inputs[0], n.value)
    while todo:
        v = todo.pop()
        for n in (v.node, *graph.users.get(v, ())):
            if kind(n) is Kind.ELEMENTWISE or n.prim == "pad" or _joins(n):
                mark(*n.inputs, *n.outputs)
    return frozenset(found - {*graph.inputs, *graph.outputs})


def is_depthwise(n: Node) -> bool:
    """A convolution of one channel a group, with a window."""
    return (
        n.prim == "conv"
        and n.inputs[0].rank == 4
        and 1 < n.attrs["groups"] == n.inputs[0].shape[1] == n.value.shape[1]
        and max(n.inputs[1].shape[2:]) > 1
    )


def _joins(n: Node) -> bool:
    return n.prim == "concat" and n.attrs["axis"] == 1


def _divides(v: Value, size: int) -> bool:
    return (
        v.rank == 4
        and not v.is_constant
        and v.type.dtype is F32
        and v.shape[1] % size == 0
        and v.shape[2] * v.shape[3] > 1
    )

"""Which layouts each value may have on a CPU.

A feature map (a value that convolutions, pools and what stands between them read or give) may lie
channels-first or channels-last; every other value is row-major. Where both orders are the same
memory, such as one channel or one pixel, there is one layout only, so that no adapter is ever paid
for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.layout import Layout, channels_last, row_major
from fissile.ir.prims import Kind, kind

_CARRIES = ("pad", "slice", "concat", "broadcast", "gather")


FIRST, LAST = "channels-first", "channels-last"


def layouts(graph: Graph, without: Collection[str] = ()) -> Mapping[Value, tuple[Layout, ...]]:
    """Row-major first, then channels-last where the value is a feature map. `without` may name one
    of the two, which then only inputs and outputs of the graph have."""
    maps = feature_maps(graph)
    values = [v for n in graph.nodes for v in n.outputs]
    found = {v: _of(v) if v in maps else (row_major(v.rank),) for v in values}
    borders = {*graph.inputs, *graph.outputs}
    if FIRST in without:
        found |= {v: options[-1:] for v, options in found.items() if v not in borders}
    if LAST in without:
        found = {v: options[:1] for v, options in found.items()}
    return found


def _of(v: Value) -> tuple[Layout, ...]:
    first, last = row_major(v.rank), channels_last(v.rank)

    def steps(layout: Layout) -> list[int]:
        return [s for s, e in zip(layout.strides(v.shape), v.shape, strict=True) if e > 1]

    return (first,) if steps(first) == steps(last) else (first, last)


def feature_maps(graph: Graph) -> frozenset[Value]:
    """Values joined to a convolution or pool by primitives that keep the meaning of axes."""
    found: set[Value] = set()
    todo: list[Value] = []

    def mark(*values: Value) -> None:
        for v in values:
            if v not in found and 3 <= v.rank <= 5 and not v.is_constant:
                found.add(v)
                todo.append(v)

    for n in graph.primitives:
        if n.prim == "conv" or kind(n) is Kind.WINDOW:
            mark(n.inputs[0], n.outputs[0])
    while todo:
        v = todo.pop()
        for n in (v.node, *graph.users.get(v, ())):
            if _carries(n):
                rank = n.outputs[0].rank
                mark(*(u for u in (*n.inputs, *n.outputs) if u.rank == rank))
    return frozenset(found)


def _carries(n: Node) -> bool:
    if kind(n) in (Kind.ELEMENTWISE, Kind.REDUCE) or n.prim in _CARRIES:
        return True
    return n.prim == "contract" and n.outputs[0].rank == n.inputs[0].rank >= 4 > n.inputs[1].rank

"""Which layouts each value may have on a CPU.

A feature map (a value that convolutions, pools and what stands between them read or give) may lie
channels-first, channels-last or in blocks of channels where `blocks` says so; matrices around
contractions may lie by columns where `matrices` says so; every other value is row-major. Where two
orders are the same memory, such as one channel or one pixel, there is one layout only, so that no
adapter is ever paid for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.layout import Layout, channels_blocked, channels_last, row_major, turned
from fissile.ir.prims import Kind, kind
from fissile.targets.cpu.blocks import blockable
from fissile.targets.cpu.matrices import turnable

_CARRIES = ("pad", "slice", "concat", "broadcast", "gather")


FIRST, LAST, COLUMNS = "channels-first", "channels-last", "columns"


def layouts(
    graph: Graph, without: Collection[str] = (), size: int = 0
) -> Mapping[Value, tuple[Layout, ...]]:
    """Row-major first, then channels-last, and blocks of `size` channels if asked, where the value
    is such a feature map, or by columns where it may be. `without` may name some of them; inputs
    and outputs of the graph are row-major always."""
    maps = feature_maps(graph)
    blocked = blockable(graph, maps, size) if size else frozenset()
    matrices = frozenset() if COLUMNS in without else turnable(graph)
    borders = {*graph.inputs, *graph.outputs}

    def of(v: Value) -> tuple[Layout, ...]:
        if v in maps:
            both = _apart(v, channels_last(v.rank))
            blocks = (channels_blocked(v.rank, size),) if v in blocked else ()
            if FIRST in without and v not in borders:
                return both[-1:] + blocks
            return (both[:1] if LAST in without else both) + blocks
        return _apart(v, turned(v.rank)) if v in matrices else (row_major(v.rank),)

    return {v: of(v) for n in graph.nodes for v in n.outputs}


def _apart(v: Value, last: Layout) -> tuple[Layout, ...]:
    """Row-major and another layout, where they differ."""
    first = row_major(v.rank)

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

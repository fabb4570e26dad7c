"""Which values may lie as transposed matrices: the last two axes exchanged.

That can pay in two places only, so that the search stays small (at most two layouts a value):

- a contraction of two computed operands that both end in the summed axis, [m, k] and [n, k]: the
  one that gives the result's innermost axis is read by columns;
- between two contractions of which the first reads, or the second feeds, such a transpose: what
  lies between them may stay the other way round.

What stands between a contraction and such an operand, element by element, follows it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import Kind, kind
from fissile.ir.semantics import split_spec
from fissile.ir.types import F32

MOST = 12  # elementwise primitives between two contractions


def turnable(graph: Graph) -> frozenset[Value]:
    """The values that may lie by columns."""
    found: set[Value] = set()
    for n in graph.primitives:
        if n.prim == "contract":
            found.update(_of_products(graph, n))
            found.update(_between(graph, n))
    return frozenset(found - {*graph.inputs, *graph.outputs})


def _of_products(graph: Graph, n: Node) -> Iterator[Value]:
    """Both operands end in the summed axis."""
    a, b = n.inputs
    if a.is_constant or b.is_constant:
        return
    left, right, out = split_spec(n.attrs["spec"])
    if left[-1] != right[-1] or left[-1] in out:
        return
    for v, labels in ((a, left), (b, right)):
        if len(labels) > 1 and labels[-2] == out[-1]:
            yield from _path(graph, v)


def _between(graph: Graph, n: Node) -> Iterator[Value]:
    for v in n.inputs:
        if v.is_constant:
            continue
        path = list(_path(graph, v))
        for first in (u.node for u in path if u.node.prim == "contract"):
            reads = any(exchanges(x.node) for x in first.inputs)
            if reads or any(exchanges(reader) for reader in _readers(graph, n.value)):
                yield from path


def _path(graph: Graph, v: Value) -> Iterator[Value]:
    """From a contraction to `v`, element by element; nothing where there is none, or where a
    reduction reads on the way, which wants its rows."""
    seen: dict[Value, None] = {}
    todo, starts = [v], False
    while todo and len(seen) <= MOST:
        u = todo.pop()
        if u in seen or not _is_matrix(u):
            continue
        if any(kind(n) is Kind.REDUCE for n in graph.users.get(u, ())):
            return
        if u.node.prim == "contract":
            seen[u], starts = None, True
        elif kind(u.node) is Kind.ELEMENTWISE:
            seen[u] = None
            todo += [x for x in u.node.inputs if x.shape == u.shape]
    if starts and not todo:
        yield from seen


def _readers(graph: Graph, v: Value) -> Iterator[Node]:
    """Who reads a value, or what is made of it element by element."""
    seen: set[Value] = set()
    todo = [v]
    while todo and len(seen) <= MOST:
        u = todo.pop()
        if u in seen:
            continue
        seen.add(u)
        for n in graph.users.get(u, ()):
            yield n
            if kind(n) is Kind.ELEMENTWISE and n.value.shape == v.shape:
                todo.append(n.value)


def exchanges(n: Node) -> bool:
    """A transpose of the last two axes."""
    if n.prim != "transpose":
        return False
    perm = tuple(n.attrs["perm"])
    rank = len(perm)
    return rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _is_matrix(v: Value) -> bool:
    return v.rank > 1 and v.type.dtype is F32 and min(v.shape[-2:]) > 1

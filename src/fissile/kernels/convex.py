"""Convex sets of primitives as bit masks.

    Definition 1 (Korch): S is convex iff no path leaves S and enters it again.

A set is a Python integer: bit i stands for `nodes[i]`, which are in topological order. Invariant of
`extends`: the set that it extends is convex.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fissile.ir.graph import Graph, Node


@dataclass(frozen=True, eq=False)
class Order:
    """A graph's primitives in topological order, and who depends on whom.

    `givers[i]` and `readers[i]` are the direct neighbours of node i, `above[i]` and `below[i]` the
    masks of all that it depends on and of all that depend on it. `far_above` and `far_below` leave
    out those that are joined to i by a single edge alone.
    """

    nodes: tuple[Node, ...]
    givers: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    above: tuple[int, ...]
    below: tuple[int, ...]
    far_above: tuple[int, ...]
    far_below: tuple[int, ...]

    def members(self, mask: int) -> tuple[Node, ...]:
        return tuple(self.nodes[i] for i in bits(mask))


def order_of(graph: Graph) -> Order:
    nodes = graph.primitives
    index = {node: i for i, node in enumerate(nodes)}
    givers = [
        tuple(dict.fromkeys(index[v.node] for v in n.inputs if v.node in index)) for n in nodes
    ]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, direct in enumerate(givers):
        for g in direct:
            readers[g].append(i)
    above, far_above = _reach(givers, range(len(nodes)))
    below, far_below = _reach(readers, range(len(nodes) - 1, -1, -1))
    return Order(
        nodes=nodes,
        givers=tuple(givers),
        readers=tuple(map(tuple, readers)),
        above=above,
        below=below,
        far_above=far_above,
        far_below=far_below,
    )


def _reach(
    direct: Iterable[Iterable[int]], sweep: Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Masks of all that is reached over `direct`, and of what is reached in two or more steps.
    `sweep` visits a node after those it reaches."""
    steps = list(direct)
    near, far = [0] * len(steps), [0] * len(steps)
    for i in sweep:
        for j in steps[i]:
            far[i] |= near[j]
            near[i] |= near[j] | 1 << j
    return tuple(near), tuple(far)


def bits(mask: int) -> Iterator[int]:
    """The indices in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def extends(order: Order, mask: int, i: int) -> bool:
    """Is `mask` with node i convex? `mask` is convex and does not hold i.

    Take a shortest path that leaves the larger set and enters it again: only its ends are members,
    and one of them is i, else `mask` were not convex. Say it ends at i, over the edge p -> i: p is
    outside and depends on `mask`. Such a p is enough, too. So looking at the direct neighbours of i
    decides; likewise for paths that start at i.
    """
    if order.far_above[i] & mask:
        for p in order.givers[i]:
            if order.above[p] & mask and not mask >> p & 1:
                return False
    if order.far_below[i] & mask:
        for q in order.readers[i]:
            if order.below[q] & mask and not mask >> q & 1:
                return False
    return True


def is_convex(order: Order, mask: int) -> bool:
    """Definition 1, for any set: nothing outside lies both below and above members."""
    above = below = 0
    for i in bits(mask):
        above |= order.above[i]
        below |= order.below[i]
    return not above & below & ~mask

"""Ways to choose worse on purpose, so that each part of the method can be measured without it.

    rewrites        the graph is taken as it was given
    joint           rewritten first, to the fewest operations, and fused after
    fusion          every primitive is a kernel of its own
    program         regions are fused greedily; the program chooses layouts and implementations only
    recomputation   every primitive is executed once (`select(..., once=True)`)
    channels-first, channels-last    values lie in the other order only (the target's layouts)
    columns         no matrix lies transposed

Greedy fusion takes the anchors (contractions and convolutions, pools, reductions, the rest) one
after another and gives each the largest region around it that some implementation computes, whose
members are free, and whose contraction leaves the graph without a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from fissile.ir.graph import Graph, Node
from fissile.ir.prims import Kind, kind
from fissile.kernels.candidate import Candidate

PARTS = (
    "rewrites",
    "joint",
    "fusion",
    "program",
    "recomputation",
    "channels-first",
    "channels-last",
    "columns",
    "channel-blocks",
)
_ANCHORS = (Kind.LINEAR, Kind.WINDOW, Kind.REDUCE)


def check_without(names: Collection[str], implementations: Collection[str]) -> None:
    """Raises ValueError where a name is neither a part of the method nor an implementation."""
    known = (*PARTS, *implementations)
    for name in names:
        if name not in known:
            raise ValueError(f"without names one of {', '.join(known)}, not {name!r}")
    if {"channels-first", "channels-last"} <= set(names):
        raise ValueError("without channels-first and channels-last there is no layout left")


def ablated(
    graph: Graph, candidates: Sequence[Candidate], without: Collection[str], slow: Collection[str]
) -> Sequence[Candidate]:
    """The candidates that the selection may see. `slow`: implementations that are a last resort,
    which greedy fusion does not count as a way to compute a region."""
    if "fusion" in without:
        return [c for c in candidates if len(c.region.nodes) <= 1]
    if "program" in without:
        groups = set(greedy(graph, candidates, slow))
        return [c for c in candidates if c.is_adapter or frozenset(c.region.nodes) in groups]
    return candidates


def greedy(
    graph: Graph, candidates: Sequence[Candidate], slow: Collection[str] = ()
) -> tuple[frozenset[Node], ...]:
    """A partition of the primitives into regions that candidates compute in full."""
    place = {n: i for i, n in enumerate(graph.primitives)}
    around: dict[Node, set[frozenset[Node]]] = {n: set() for n in place}
    for c in candidates:
        members = frozenset(c.region.nodes)
        if (len(members) == 1 or c.impl not in slow) and _gives_all(graph, c, members):
            for n in members:
                around[n].add(members)
    group: dict[Node, frozenset[Node]] = {}
    for anchor in sorted(place, key=lambda n: (_rank(n), place[n])):
        if anchor in group:
            continue
        for members in sorted(around[anchor], key=lambda s: _size_first(s, place)):
            if not members & group.keys() and not _makes_circle(graph, members, group):
                group.update(dict.fromkeys(members, members))
                break
    return tuple(dict.fromkeys(group[n] for n in place if n in group))


def _rank(n: Node) -> int:
    return _ANCHORS.index(kind(n)) if kind(n) in _ANCHORS else len(_ANCHORS)


def _size_first(members: frozenset[Node], place: Mapping[Node, int]) -> tuple[int, list[int]]:
    """Larger sets first; of equal ones that with the longer epilogue."""
    return -len(members), sorted(-place[n] for n in members)


def _gives_all(graph: Graph, c: Candidate, members: frozenset[Node]) -> bool:
    """Does it give every value of its members that anyone else reads?"""
    given = {t.value for t in c.gives}
    return all(
        v in given or (v not in graph.outputs and members.issuperset(graph.users.get(v, ())))
        for n in members
        for v in n.outputs
    )


def _makes_circle(
    graph: Graph, members: frozenset[Node], group: Mapping[Node, frozenset[Node]]
) -> bool:
    """Does some path leave the members and come back, groups being one node each?"""
    todo = [r for n in members for r in _readers(graph, n) if r not in members]
    seen: set[Node] = set()
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        together = group.get(n, frozenset((n,)))
        seen |= together
        for r in (r for m in together for r in _readers(graph, m)):
            if r in members:
                return True
            todo.append(r)
    return False


def _readers(graph: Graph, n: Node) -> Iterator[Node]:
    for v in n.outputs:
        yield from graph.users.get(v, ())

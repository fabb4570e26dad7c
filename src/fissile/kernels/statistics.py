"""Regions that take the statistics of what they compute.

    mean = sum(y) / n,   variance = sum((y - mean)^2) / n      over some axes of y

A normalisation needs both before it can begin, and takes them in passes of its own over y. The
kernel that gives y has each part of it near, and moments of parts combine without loss (Chan, Golub
and LeVeque 1983): with d = mean_b - mean_a,

    mean = mean_a + d n_b / n,   squares = squares_a + squares_b + d^2 n_a n_b / n.

Such a region holds y - mean and its square, which nobody stores: it gives y, although every reader
of y is a member. What comes after computes y - mean again, with the variance from outside: a region
that is not convex, and sound, as a kernel may execute whatever it has the operands for. Growth
(`identify`) finds neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import Kind, kind
from fissile.kernels.region import Region

MATHS = 8  # primitives on statistics that are computed along with them


@dataclass(frozen=True)
class Statistics:
    """`mean` and `variance` of `of`, taken by `nodes`: mean, difference, square, mean."""

    of: Value
    nodes: tuple[Node, Node, Node, Node]

    @property
    def mean(self) -> Value:
        return self.nodes[0].value

    @property
    def variance(self) -> Value:
        return self.nodes[3].value

    @property
    def apart(self) -> Node:
        """of - mean"""
        return self.nodes[1]

    @property
    def axes(self) -> tuple[int, ...]:
        return self.nodes[0].attrs["axes"]


Users = Mapping[Value, Sequence[Node]]


def with_statistics(graph: Graph, regions: Iterable[Region]) -> Iterator[Region]:
    """For values whose moments the graph takes: every region that has one convolution and gives one
    of them, with the moments and the maths on these; moments and maths alone; and every region that
    needs the difference from such a mean, with it."""
    regions = tuple(regions)
    convolved = [r for r in regions if _is_convolution(r)]
    found = (_taken(graph.users, y) for y in dict.fromkeys(r.outputs[0] for r in convolved))
    taken = {s.of: s for s in found if s and s.axes == tuple(range(2, s.of.rank))}
    again = tuple(_again(graph.users, regions, taken.values()))
    yield from again
    yield from (_extended(graph, Region((), ()), s) for s in taken.values())
    for region in (*convolved, *filter(_is_convolution, again)):
        if (s := taken.get(region.outputs[0])) is not None:
            yield _extended(graph, region, s)


def _is_convolution(region: Region) -> bool:
    """Does it give one map, which has the shape of its only convolution's?"""
    shapes = [n.value.shape for n in region.nodes if n.prim == "conv"]
    return shapes == [v.shape for v in region.outputs]


def _again(
    users: Users, regions: Iterable[Region], taken: Iterable[Statistics]
) -> Iterator[Region]:
    """Regions that need a difference and compute no statistics of it, with what computes it."""
    by_apart = {s.apart.value: (s.apart, {*s.nodes, *_maths(users, s)}) for s in taken}
    for region in regions:
        for v in region.tensors:
            if v in by_apart and region.members.isdisjoint(by_apart[v][1]):
                yield Region((by_apart[v][0], *region.nodes), region.outputs)


def statistics_of(region: Region) -> Statistics | None:
    """The moments that a region takes of a value that it gives."""
    users: dict[Value, list[Node]] = {}
    for n in region.nodes:
        for v in dict.fromkeys(n.inputs):
            users.setdefault(v, []).append(n)
    return next((s for y in region.outputs if (s := _taken(users, y))), None)


def without_statistics(region: Region) -> tuple[Node, ...]:
    """The members that a value is computed by whose moments the region takes; else all."""
    s = statistics_of(region)
    if s is None:
        return region.nodes
    needed = {s.of}
    for n in reversed(region.nodes):
        if needed.intersection(n.outputs):
            needed.update(n.inputs)
    return tuple(n for n in region.nodes if needed.intersection(n.outputs))


def _taken(users: Users, y: Value) -> Statistics | None:
    for mean in users.get(y, ()):
        if mean.prim != "reduce_mean":
            continue
        for apart in users.get(mean.value, ()):
            if apart.prim != "sub" or apart.inputs != (y, mean.value):
                continue
            for square in users.get(apart.value, ()):
                if square.prim != "mul" or square.inputs != (apart.value, apart.value):
                    continue
                for n in users.get(square.value, ()):
                    if n.prim == "reduce_mean" and n.attrs["axes"] == mean.attrs["axes"]:
                        return Statistics(y, (mean, apart, square, n))
    return None


def _extended(graph: Graph, region: Region, s: Statistics) -> Region:
    nodes = (*region.nodes, *s.nodes, *_maths(graph.users, s))
    members, inner = {*nodes}, {n.value for n in s.nodes[1:3]}
    full = {
        v.node for v in inner
        if v in graph.outputs or any(r not in members for r in graph.users.get(v, ()))
    }  # fmt: skip

    def is_read(v: Value) -> bool:
        readers = graph.users.get(v, ())
        return v in graph.outputs or any(r not in members or r in full for r in readers)

    small = [n.value for n in nodes[len(region.nodes) :] if n.value not in inner]
    return Region(nodes, (*region.outputs, *(v for v in small if is_read(v))))


def _maths(users: Users, s: Statistics) -> list[Node]:
    """Elementwise primitives that read nothing but statistics and constants, and do not grow."""
    known, found = [s.mean, s.variance], list[Node]()
    for v in known:
        for n in users.get(v, ()):
            reads = all(u.is_constant or u in known for u in n.inputs)
            same = kind(n) is Kind.ELEMENTWISE and n.value.shape == s.mean.shape
            if reads and same and n not in found and len(found) < MATHS:
                found.append(n)
                known.append(n.value)
    return found

"""What a region with reductions asks for: one domain, and stages between its reductions.

    level(input) = 0,   level(reduce(v)) = level(v) + 1,   level(f(v, w)) = max(level(v), level(w))

All reductions of the region run over the same axes R of the same shape D. A *row* is a point of
the kept axes K; its statistics have one element, its full values one for each point of R. Stage s
is a pass over a row that computes what is of level s and full, and ends the reductions over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fissile.ir.graph import Node, Value
from fissile.ir.prims import Kind, kind
from fissile.ir.types import F32
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.region import Region
from fissile.tiles.expr import Illegal, Point, forward
from fissile.tiles.index import const, reshape_index

OPS = {
    "reduce_sum": "sum", "reduce_mean": "sum", "reduce_max": "max", "reduce_min": "min",
    "reduce_prod": "prod",
}  # fmt: skip


@dataclass(frozen=True)
class Stages:
    region: Region
    reduces: tuple[Node, ...]
    level: dict[Value, int] = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """D."""
        return self.reduces[0].inputs[0].shape

    @property
    def axes(self) -> tuple[int, ...]:
        """R."""
        return self.reduces[0].attrs["axes"]

    @property
    def last(self) -> int:
        return max(self.level.values())

    def ended_by(self, stage: int) -> list[Node]:
        """The reductions whose operand is of this level."""
        return [n for n in self.reduces if self.level[n.inputs[0]] == stage]


def stages(region: Region) -> Stages:
    """Raises Illegal with the reason."""
    reduces = tuple(n for n in region.nodes if kind(n) is Kind.REDUCE)
    if not reduces:
        raise Illegal("no reduction in the region")
    for n in region.nodes:
        if kind_in_kernel(n) not in (Kind.REDUCE, Kind.ELEMENTWISE, Kind.LAYOUT, Kind.BROADCAST):
            raise Illegal(f"{n.prim} between the rows of a reduction")
        if kind(n) is Kind.REDUCE and n.prim not in OPS:
            raise Illegal(f"{n.prim} does not run by rows")
    first = reduces[0]
    for n in reduces:
        if n.attrs["axes"] != first.attrs["axes"]:
            raise Illegal(
                f"reductions over axes {list(first.attrs['axes'])} and {list(n.attrs['axes'])}"
            )
        if n.inputs[0].shape != first.inputs[0].shape:
            raise Illegal(f"reductions of {first.inputs[0].type} and {n.inputs[0].type}")
    if 0 in first.inputs[0].shape:
        raise Illegal("a reduction of nothing")
    if bad := [v for n in region.nodes for v in n.outputs if v.type.dtype.c is None]:
        raise Illegal(f"no C type for {bad[0].type.dtype}")
    return Stages(region, reduces, _levels(region))


def _levels(region: Region) -> dict[Value, int]:
    level = dict.fromkeys(region.inputs, 0)
    for n in region.nodes:
        below = max((level[v] for v in n.inputs), default=0)
        level[n.value] = below + (kind(n) is Kind.REDUCE)
    return level


@dataclass(frozen=True)
class Places:
    """Where the elements of values lie, as functions of a point of D: `full` has an element for
    each, `stats` one for each row."""

    full: dict[Value, Point]
    stats: dict[Value, Point]
    here: Point
    row: Point

    def is_plain(self, v: Value) -> bool:
        """Full, and at the point of D itself."""
        return self.full.get(v) == self.here

    def is_statistic(self, v: Value) -> bool:
        return v not in self.full and self.stats.get(v) == self.row


def places(s: Stages, here: Point) -> Places:
    """`here` is the point of D. Any map that gives each point of D its own element of a value will
    do: the walk back from there finds out whether it needs the statistics of another row."""
    row = tuple(const(0) if a in s.axes else i for a, i in enumerate(here))
    full: dict[Value, Point] = {}
    stats: dict[Value, Point] = {}
    for n in s.reduces:
        full = {**forward(s.region, n.inputs[0], here), **full}
        stats = {**forward(s.region, n.value, row), **stats}
    size = s.reduces[0].inputs[0].type.numel
    for n in s.region.nodes:
        v = n.value
        if v in full or v in stats:
            continue
        if v.shape == s.shape:
            full = {**forward(s.region, v, here), **full}
        elif s.level[v] == 0 and v.type.numel == size:
            full[v] = reshape_index(here, s.shape, v.shape)
    return Places(full, stats, here, row)


def border(s: Stages, p: Places, outputs: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """What one stage hands on: full values that a later stage reads, and maths on statistics whose
    result full values or outputs read."""
    inside = {n.value for n in s.region.nodes}
    full: dict[Value, None] = {}
    stats = {v: None for v in outputs if p.is_statistic(v)}
    for n in s.region.nodes:
        for v in n.inputs:
            if v not in inside or kind(n) is Kind.REDUCE:
                continue
            if p.is_plain(v) and s.level[v] < s.level[n.value]:
                full[v] = None
            if p.is_statistic(v) and not p.is_statistic(n.value):
                stats[v] = None
    order = {n.value: k for k, n in enumerate(s.region.nodes)}
    reduced = {n.value for n in s.reduces}
    return list(full), sorted((v for v in stats if v not in reduced), key=order.__getitem__)


@dataclass(frozen=True)
class Softmax:
    """What a region may do faster where it holds e = exp(x - max(x)) and sum(e).

    sums: such sums are NaN or at least 1, so that a division by them may be a product.
    maxima: their NaN need not propagate, as every result is divided by a sum that is NaN then.
    """

    sums: frozenset[Value]
    maxima: frozenset[Node]


def softmax(region: Region) -> Softmax:
    users: dict[Value, list[Node]] = {}
    for n in region.nodes:
        for v in n.inputs:
            users.setdefault(v, []).append(n)
    sums: set[Value] = set()
    maxima: set[Node] = set()
    for n in region.nodes:
        if n.prim != "reduce_sum" or (top := _maximum_below(n)) is None:
            continue
        sums.add(n.value)
        e, shifted = n.inputs[0], n.inputs[0].node.inputs[0]
        divided = [u for u in users[e] if u.prim == "div" and u.inputs == (e, n.value)]
        hidden = {top.value, shifted, e}.isdisjoint(region.outputs) and top in region.nodes
        alone = users.get(top.value) == [shifted.node] and users.get(shifted) == [e.node]
        if hidden and alone and divided and len(users[e]) == len(divided) + 1:
            maxima.add(top)
    return Softmax(frozenset(sums), frozenset(maxima))


def _maximum_below(total: Node) -> Node | None:
    """The node of max(x) where `total` is sum(exp(x - max(x))) over the same axes, in f32."""
    e = total.inputs[0].node
    shifted = e.inputs[0].node if e.prim == "exp" else e
    if shifted.prim != "sub" or total.value.type.dtype is not F32:
        return None
    x, top = shifted.inputs
    same = top.node.prim == "reduce_max" and top.node.inputs[0] is x
    return top.node if same and top.node.attrs["axes"] == total.attrs["axes"] else None

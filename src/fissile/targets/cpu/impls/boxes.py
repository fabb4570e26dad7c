"""The backward walk over a chain: which rows of an operand a row of a result is computed from.

    rows [a, b) of a result  <-  rows [step a + first, step (b - 1) + last + 1) of an operand

clipped to those that exist. A tensor of `images` images is cut, in memory order, into `lines` equal
rows each: lines of a feature map, or the rows of a matrix. The walk follows every element of a row
back to its loads; what it cannot follow it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from fissile.ir.graph import Node, Value
from fissile.ir.layout import Token
from fissile.ir.prims import Kind, kind
from fissile.ir.types import F32
from fissile.kernels.region import Region
from fissile.targets.cpu.impls.product import operands
from fissile.tiles.expr import EITHER, Builder, Expr, Illegal, Leaf, Load, Op, Point
from fissile.tiles.index import Index, Var, clamp, const, dot, unflatten, var

_SUMS = (Kind.LINEAR, Kind.WINDOW, Kind.REDUCE)


@dataclass(frozen=True)
class Reach:
    """Of a row: `step`, `first` and `last` as above."""

    step: int = 1
    first: int = 0
    last: int = 0

    @property
    def is_own(self) -> bool:
        """A row needs the row of its own number, and no other."""
        return self == Reach()

    @property
    def overlap(self) -> int:
        """Rows that two neighbours both need."""
        return max(0, self.last - self.first + 1 - self.step)

    def rows(self, count: int) -> int:
        """Rows that `count` neighbours need, where none is clipped."""
        return self.step * (count - 1) + self.last - self.first + 1

    def union(self, other: Reach) -> Reach:
        """Raises Illegal where they move apart."""
        if self.step != other.step:
            raise Illegal("a value is read by rows of two different steps")
        return Reach(self.step, min(self.first, other.first), max(self.last, other.last))


@dataclass(frozen=True)
class Cut:
    """A tensor in memory as images x lines x elements."""

    token: Token
    images: int
    lines: int

    @property
    def elements(self) -> int:
        return self.token.value.type.numel // (self.images * self.lines)

    @property
    def count(self) -> int:
        return self.images * self.lines

    def check(self) -> None:
        if self.token.value.type.numel % self.count:
            raise Illegal(f"{self.token.value.type} is not {self.count} equal rows")

    def point(self, n: Index, line: Index, rest: Index) -> Point:
        """The index of an element by its place in memory."""
        v, order = self.token.value, self.token.layout.order
        place = (n * self.lines + line) * self.elements + rest
        where = unflatten(place, tuple(v.shape[a] for a in order))
        point = [const(0)] * v.rank
        for a, i in zip(order, where, strict=True):
            point[a] = i
        return tuple(point)


def reach(region: Region, result: Cut, operand: Cut) -> Reach | None:
    """The rows of `operand`, an input of the region, that a row of `result` needs; None where it
    needs none. Raises Illegal where they are no such range."""
    result.check()
    operand.check()
    walk = _Walk(region, result, operand)
    found: Reach | None = None
    for address in walk.addresses:
        one = walk.rows(address)
        found = one if found is None else found.union(one)
    return found


def _other(point: Point) -> Expr:
    """An element of another input."""
    return Load("w", const(0), F32)


class _Walk:
    """`addresses`: of every load of the operand, as functions of n, h and other variables."""

    def __init__(self, region: Region, result: Cut, operand: Cut):
        self.operand = operand
        self.n, self.h = Var("n", 0, result.images - 1), Var("h", 0, result.lines - 1)
        self.names = (f"e{k}" for k in count())
        self.addresses: dict[Index, None] = {}
        leaves: dict[Value, Leaf] = dict.fromkeys(region.inputs, _other)
        leaves |= {n.value: self._sum(n) for n in region.nodes if kind(n) in _SUMS}
        self.builder = Builder(leaves | {operand.token.value: self._load}, EITHER)
        point = result.point(var(self.n), var(self.h), self._any(result.elements))
        self.builder.at(result.token.value, point)

    def rows(self, address: Index) -> Reach:
        elements, lines = self.operand.elements, self.operand.lines
        step, shift = divmod(address.coefficient(self.h), elements)
        rest = address - var(self.n) * (lines * elements) - var(self.h) * (step * elements)
        if shift or {self.n, self.h} & rest.vars:
            raise Illegal("the rows that a row needs are no range that moves along with it")
        return Reach(step, rest.lo // elements, rest.hi // elements)

    def _any(self, extent: int) -> Index:
        return var(Var(next(self.names), 0, extent - 1))

    def _load(self, point: Point) -> Expr:
        v, layout = self.operand.token.value, self.operand.token.layout
        own = {self.n, self.h}
        inside = [
            i if own & i.vars else clamp(i, 0, extent - 1)
            for i, extent in zip(point, v.shape, strict=True)
        ]
        address = dot(inside, layout.strides(v.shape))
        self.addresses[address] = None
        return Load("x", address, v.type.dtype)

    def _sum(self, node: Node) -> Leaf:
        """The result of an anchor as a function of all that it adds up."""

        def leaf(point: Point) -> Expr:
            args = [self.builder.at(v, at) for v, at in self._read(node, point)]
            return Op("add", (args[0], args[-1]), (), node.value.type.dtype)

        return leaf

    def _read(self, node: Node, point: Point) -> list[tuple[Value, Point]]:
        x = node.inputs[0]
        if kind(node) is Kind.REDUCE:
            axes = node.attrs["axes"]
            return [(x, tuple(self._any(x.shape[a]) if a in axes else i
                              for a, i in enumerate(point)))]  # fmt: skip
        if node.prim == "contract":
            a, b, out = operands(node)
            where = dict(zip(out, point, strict=True))
            for operand in (a, b):
                for label, extent in zip(operand.labels, operand.value.shape, strict=True):
                    where.setdefault(label, self._any(extent))
            return [(o.value, tuple(where[x] for x in o.labels)) for o in (a, b)]
        is_conv = node.prim == "conv"
        window = node.inputs[1].shape[2:] if is_conv else node.attrs["kernel"]
        steps = zip(point[2:], node.attrs["strides"], node.attrs["dilations"], window, strict=True)
        spatial = [i * stride + self._any(taps) * apart for i, stride, apart, taps in steps]
        channel = self._any(x.shape[1]) if is_conv and node.attrs["groups"] == 1 else point[1]
        if is_conv and 1 < node.attrs["groups"] != x.shape[1]:
            channel = self._any(x.shape[1])
        return [(x, (point[0], channel, *spatial))]

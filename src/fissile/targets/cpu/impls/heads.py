"""Attention in a region: which values are queries, keys, values and scores, and where their
elements lie.

    scores = contract(query, key)      logits = f(scores)      e = exp(logits - reduce_max(logits))
    shares = e / reduce_sum(e)         values = contract(shares, value)

The axes of the result are sorted as for any product (`product.py`), and the points of all operands
follow from there by the walk back. Layout primitives may stand between any two of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from fissile.ir.graph import Node, Value
from fissile.ir.prims import Kind, kind
from fissile.ir.semantics import split_spec
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate
from fissile.kernels.region import Region
from fissile.targets.cpu.impls.product import Product, product
from fissile.tiles.expr import Builder, Expr, Illegal, Leaf, Literal, Point
from fissile.tiles.index import Index, Var, const, substitute, unflatten, var

MOVES = ("transpose", "reshape")
WAY = 10  # primitives between the contractions


@dataclass(frozen=True)
class Parts:
    """The primitives of an attention; `nodes` are all from `scores` on, but for `values`."""

    scores: Node
    logits: Value
    shares: Value
    values: Node
    value: Value
    axes: tuple[int, ...]  # of the softmax
    nodes: frozenset[Node]


def parts_of(values: Node) -> Parts:
    """What stands above a second contraction. Raises Illegal with the reason."""
    for v, value in (values.inputs, values.inputs[::-1]):
        way: list[Node] = []
        while v.node.prim in MOVES:
            way.append(v.node)
            (v,) = v.node.inputs
        if v.node.prim == "div" and v.node.inputs[1].node.prim == "reduce_sum":
            return _parts(v, values, value, way)
    raise Illegal("no operand of the last contraction is divided by a sum")


def _parts(shares: Value, values: Node, value: Value, way: list[Node]) -> Parts:
    e, total = shares.node.inputs
    if e.node.prim != "exp" or (d := e.node.inputs[0]).node.prim != "sub":
        raise Illegal("what is summed is no exponential of a difference")
    logits, top = d.node.inputs
    same = total.node.inputs[0] is e and top.node.prim == "reduce_max"
    if not same or top.node.inputs[0] is not logits or top.node.attrs != total.node.attrs:
        raise Illegal("what is subtracted is not the maximum")
    above = _up_to_scores(logits, logits.type.numel)
    contractions = [n for n in above if kind(n) is Kind.LINEAR]
    if len(contractions) != 1:
        raise Illegal("the softmax is not of one contraction")
    nodes = {*way, shares.node, total.node, e.node, d.node, top.node, *above}
    (scores,), axes = contractions, total.node.attrs["axes"]
    return Parts(scores, logits, shares, values, value, axes, frozenset(nodes))


def _up_to_scores(v: Value, numel: int, most: int = WAY) -> frozenset[Node]:
    """The primitives on the ways from a contraction to `v` that keep every element apart."""
    n = v.node
    if v.type.numel != numel or not most:
        return frozenset()
    if n.prim == "contract":
        return frozenset({n})
    if kind(n) is not Kind.ELEMENTWISE and n.prim not in MOVES:
        return frozenset()
    found = frozenset[Node]().union(*(_up_to_scores(x, numel, most - 1) for x in n.inputs))
    return found | {n} if found else found


_ABOVE: WeakKeyDictionary[Node, frozenset[Node]] = WeakKeyDictionary()


def admits(nodes: Sequence[Node]) -> bool:
    """Parts of one attention that hold its second contraction, and what lays out its result:
    growth goes from there up to the first contraction, one convex set after the other."""
    linear = [n for n in nodes if kind(n) is Kind.LINEAR]
    if not linear:
        return False
    if (above := _ABOVE.get(values := linear[-1])) is None:
        try:
            above = parts_of(values).nodes if values.prim == "contract" else frozenset()
        except Illegal:
            above = frozenset()
        _ABOVE[values] = above
    return all(n is values or n in above or _lays_out(n, values) for n in nodes)


def _lays_out(n: Node, values: Node) -> bool:
    while n.prim in MOVES:
        n = n.inputs[0].node
    return n is values


@dataclass(frozen=True)
class Heads:
    """An attention with its points. Points are functions of query i, key j, place d in a head and
    column n of a value; `o` stands in them as it is."""

    parts: Parts
    p: Product
    query: Value
    key: Value
    size: int
    o: Var
    i: Var
    j: Var
    _logits: Point
    _score: Point
    _query: Point
    _key: Point
    _d: Var

    @property
    def scores(self) -> Node:
        return self.parts.scores

    @property
    def logits(self) -> Value:
        return self.parts.logits

    @property
    def values(self) -> Node:
        return self.parts.values

    @property
    def value(self) -> Value:
        return self.p.right.value

    @property
    def batches(self) -> int:
        return self.p.size(self.p.o)

    @property
    def queries(self) -> int:
        return self.p.size(self.p.m)

    @property
    def keys(self) -> int:
        return self.p.size(self.p.k)

    @property
    def columns(self) -> int:
        return self.p.size(self.p.n)

    def logits_point(self, i: Index, j: Index) -> Point:
        return _at(self._logits, {self.i: i, self.j: j})

    def score_point(self, i: Index, j: Index) -> Point:
        return _at(self._score, {self.i: i, self.j: j})

    def query_point(self, i: Index, d: Index) -> Point:
        return _at(self._query, {self.i: i, self._d: d})

    def key_point(self, d: Index, j: Index) -> Point:
        return _at(self._key, {self.j: j, self._d: d})

    def value_point(self, j: Index, n: Index) -> Point:
        return self.p.point(self.p.right.labels, o=var(self.o), k=j, n=n)

    def result_point(self, i: Index, n: Index) -> Point:
        return self.p.point(self.p.out, o=var(self.o), m=i, n=n)


def _at(point: Point, where: dict[Var, Index]) -> Point:
    return tuple(substitute(e, where.get) for e in point)


def heads_of(candidate: Candidate) -> Heads:
    """Raises Illegal where the region is no attention over one run of keys."""
    region = candidate.region
    if any(v.type.dtype is not F32 for n in region.nodes for v in n.outputs):
        raise Illegal("not f32")
    if not all(v.type.numel for n in region.nodes for v in n.inputs):
        raise Illegal("an attention to nothing")
    linear = [n for n in region.nodes if kind(n) is Kind.LINEAR]
    if len(linear) != 2:
        raise Illegal(f"{len(linear)} contractions, not two")
    parts = parts_of(linear[-1])
    if not parts.nodes <= region.members:
        raise Illegal("a part of the softmax is outside")
    p = product(candidate, parts.values, right=parts.value)
    o, i, j = (Var(x, 0, p.size(g) - 1) for x, g in (("o", p.o), ("i", p.m), ("j", p.k)))
    point = p.point(p.left.labels, o=var(o), m=var(i), k=var(j))
    logits = _point_of(region, parts.shares, p.left.value, point)
    for axis, at in enumerate(logits):
        if at.vars - {j} if axis in parts.axes else j in at.vars:
            raise Illegal("the softmax does not run over the keys")
    score = _point_of(region, parts.scores.value, parts.logits, logits)
    d, (query, at_query), (key, at_key) = _first_operands(parts.scores, score, i, j)
    return Heads(parts, p, query, key, d.extent, o, i, j, logits, score, at_query, at_key, d)


def _point_of(region: Region, target: Value, value: Value, point: Point) -> Point:
    """The one point of `target` that `value` at `point` is computed from."""
    found: set[Point] = set()

    def leaf(at: Point) -> Expr:
        found.add(at)
        return Literal(0.0, F32)

    beside = (*region.inputs, *(n.value for n in region.nodes if kind(n) is Kind.REDUCE))
    leaves: dict[Value, Leaf] = {v: lambda at: Literal(0.0, F32) for v in beside}
    leaves[target] = leaf
    Builder(leaves, {}).at(value, point)
    if len(found) != 1:
        raise Illegal("a score is computed from several products")
    return found.pop()


def _first_operands(
    node: Node, score: Point, i: Var, j: Var
) -> tuple[Var, tuple[Value, Point], tuple[Value, Point]]:
    """d, and the operands of the scores with their points: queries know no j, keys no i."""
    *sides, out = (tuple(labels) for labels in split_spec(node.attrs["spec"]))
    shared = [x for x in sides[0] if x in sides[1] and x not in out]
    extents: dict[str, int] = {}
    for labels, v in zip(sides, node.inputs, strict=True):
        extents.update(zip(labels, v.shape, strict=True))
    sizes = tuple(extents[x] for x in shared)
    d = Var("d", 0, math.prod(sizes) - 1)
    where = dict(zip((*out, *shared), (*score, *unflatten(var(d), sizes)), strict=True))
    if any(x not in where and s > 1 for x, s in extents.items()):
        raise Illegal("an axis of one operand alone is summed")
    points = [tuple(where.get(x, const(0)) for x in labels) for labels in sides]
    knows = [{v for at in point for v in at.vars} for point in points]
    (a, b), (pa, pb) = node.inputs, points
    if j not in knows[0] and i not in knows[1]:
        return d, (a, pa), (b, pb)
    if j not in knows[1] and i not in knows[0]:
        return d, (b, pb), (a, pa)
    raise Illegal("queries and keys stand in one operand")

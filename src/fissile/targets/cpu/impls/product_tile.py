"""What kernels of matrix products share: the operand that is packed when a model is built, and the
end of a tile of accumulators, columns in panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fissile.ir.graph import Node, Value
from fissile.ir.types import F32
from fissile.kernels.blend import linear_anchors
from fissile.kernels.candidate import Candidate
from fissile.targets.cpu.impls.product import Product, product
from fissile.targets.cpu.impls.writer import strides_of
from fissile.tiles.expr import Builder, Expr, Illegal, Leaf, Point, Register, forward
from fissile.tiles.index import Index, Var, dot
from fissile.tiles.lanes import vectorises
from fissile.tiles.tree import Store

UNROLLED = 10  # vector operations of an epilogue that is printed once for each accumulator


def anchor_of(candidate: Candidate) -> Node:
    linear = linear_anchors(candidate.region.nodes)
    if len(linear) != 1:
        raise Illegal(f"{len(linear)} contractions")
    if any(v.type.dtype is not F32 for n in candidate.region.nodes for v in n.outputs):
        raise Illegal("not f32")
    return linear[0]


def by_weights(candidate: Candidate) -> Product:
    """One product whose right operand is constant. Raises Illegal."""
    p = product(candidate, anchor_of(candidate))
    if p.right.value not in candidate.region.parameters:
        raise Illegal("the weights are computed at run time")
    if p.size(p.o) != 1:
        raise Illegal("a batch of contractions")
    return p


def stores_of(
    candidate: Candidate, p: Product, leaves: Mapping[Value, Leaf], point: Point, lane: Var,
    check: Callable[[Any, Index], None] = lambda token, at: None,
) -> list[Store]:  # fmt: skip
    """What is given, from the accumulators `s` at `point` of the product, for a vector along
    `lane`; `check` may refuse a token's address. Raises Illegal."""
    points = forward(candidate.region, p.node.value, point)
    leaves = {**leaves, p.node.value: accumulator(point)}
    stores: list[Store] = []
    for i, token in enumerate(candidate.gives):
        if token.value not in points:
            raise Illegal("an output is not computed from the contraction element by element")
        at = dot(points[token.value], strides_of(token))
        check(token, at)
        value = Builder(leaves, {}).at(token.value, points[token.value])
        stores.append(Store(f"y{i}", at, value))
    if not vectorises(stores, lane):
        raise Illegal("the epilogue cannot run on vectors")
    return stores


def accumulator(expected: Point) -> Leaf:
    """The accumulators in `s` as the value at the tile's own point."""

    def leaf(point: Point) -> Expr:
        if point != expected:
            raise Illegal("the epilogue reads the result at another place")
        return Register("s", F32, lanes=True)

    return leaf


def each_vector(columns: int, width: int, unroll: str, finish: str = "finish") -> list[str]:
    """`finish` for all vectors of a tile of panel n; the last panel may be narrower."""
    panels = -(-columns // width)
    rest = columns - (panels - 1) * width
    whole, last = (f"each_vector<{n}, {unroll}>(c, {finish});" for n in (width, rest))
    if rest == width or panels == 1:
        return [last]
    return [f"if (n < {panels - 1})", f"  {whole}", "else", f"  {last}"]

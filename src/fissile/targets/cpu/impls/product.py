"""A contraction, or a 1x1 convolution, as a product of two matrices: its axes sorted into groups.

    out[o, m, n] = sum_k left[o, m, k] right[o, k, n]

`right` owns the innermost axis of the result, so that n runs over vector lanes. m and n are runs of
axes that are neighbours in the memory of the result; every other axis of the result is in o.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.graph import Node, Value
from fissile.ir.semantics import split_spec
from fissile.kernels.candidate import Candidate
from fissile.targets.cpu.impls.writer import strides_of
from fissile.tiles.expr import Illegal, Point, forward
from fissile.tiles.index import Index, const, unflatten


@dataclass(frozen=True)
class Operand:
    """One side of the product: its value and one label per axis."""

    value: Value
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """The anchor of a region, with labels sorted into groups, each outermost first in memory."""

    node: Node
    left: Operand
    right: Operand
    out: tuple[str, ...]
    extents: dict[str, int]
    o: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    def size(self, group: Sequence[str]) -> int:
        return math.prod(self.extents[x] for x in group)

    def point(self, labels: Sequence[str], **flat: Index) -> Point:
        """The index of an operand whose groups stand at these flattened positions."""
        where: dict[str, Index] = {}
        for name, position in flat.items():
            group = getattr(self, name)
            where.update(
                zip(group, unflatten(position, tuple(self.extents[x] for x in group)), strict=True)
            )
        return tuple(where.get(x, const(0)) for x in labels)


def operands(node: Node) -> tuple[Operand, Operand, tuple[str, ...]]:
    """The einsum form of a contract node or of a convolution with a kernel of ones."""
    a, b = node.inputs
    if node.prim == "contract":
        left, right, out = split_spec(node.attrs["spec"])
        return Operand(a, tuple(left)), Operand(b, tuple(right)), tuple(out)
    spatial = tuple(f"s{i}" for i in range(a.rank - 2))
    ones = tuple(f"t{i}" for i in range(a.rank - 2))
    if node.attrs["groups"] != 1 or set(b.shape[2:]) - {1} or set(node.attrs["strides"]) - {1}:
        raise Illegal("a convolution with a window is no contraction")
    return Operand(a, ("n", "c", *spatial)), Operand(b, ("m", "c", *ones)), ("n", "m", *spatial)


def product(candidate: Candidate, node: Node, right: Value | None = None) -> Product:
    """Sort the labels. Raises Illegal where the region is no product of two matrices per o. `right`
    says which operand is to own n, whatever lies innermost."""
    if any(t.layout.tile for t in (*candidate.needs, *candidate.gives)):
        raise Illegal("channels in blocks are read by convolutions")
    a, b, out = operands(node)
    extents = {x: s for o in (a, b) for x, s in zip(o.labels, o.value.shape, strict=True)}
    real = {x for x, s in extents.items() if s > 1}
    in_a, in_b, in_out = ({x for x in ls if x in real} for ls in (a.labels, b.labels, out))
    if (in_a - in_b - in_out) or (in_b - in_a - in_out):
        raise Illegal("an axis of one operand alone is summed")
    order = _memory_labels(candidate, node, out)
    order = [x for x in order if x in real]
    if right is None and order and order[-1] in in_a and order[-1] in in_b:
        raise Illegal("the innermost axis of the result is a batch axis")
    if a.value is right or (right is None and (not order or order[-1] in in_a)):
        a, b, in_a, in_b = b, a, in_b, in_a
    n = _run(order, in_b & in_out - in_a, innermost=True)
    m = _run(order, in_a & in_out - in_b, innermost=False)
    o = tuple(x for x in order if x not in (*m, *n))
    return Product(
        node, a, b, out, extents, o, m, n, k=tuple(x for x in b.labels if x in in_a & in_b - in_out)
    )


def _run(order: Sequence[str], group: set[str], innermost: bool) -> tuple[str, ...]:
    """Labels of the group that are neighbours in memory: the innermost run, or the longest."""
    runs: list[list[str]] = [[]]
    for x in order:
        if x in group:
            runs[-1].append(x)
        elif runs[-1]:
            runs.append([])
    runs = [r for r in runs if r] or [[]]
    return tuple(runs[-1] if innermost else max(runs, key=len))


def _memory_labels(candidate: Candidate, node: Node, out: tuple[str, ...]) -> list[str]:
    """The labels of the result in the order of the first given token's memory: by the distance of
    the first step along each axis."""
    token, rank = candidate.gives[0], node.value.rank

    def place(axis: int | None) -> int:
        point = tuple(const(int(a == axis)) for a in range(rank))
        points = forward(candidate.region, node.value, point)
        if token.value not in points:
            raise Illegal("an output is not computed from the contraction element by element")
        return sum(
            i.constant * s for i, s in zip(points[token.value], strides_of(token), strict=True)
        )

    step = [place(a) - place(None) if s > 1 else 0 for a, s in enumerate(node.value.shape)]
    return [out[a] for a in sorted(range(rank), key=lambda a: -step[a])]

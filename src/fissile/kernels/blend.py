"""Blends: contractions with a constant matrix of few non-zeros in a row.

    y[.., z, ..] = sum_k w[z, k] x[.., k, ..] = sum_{r < terms} weight[z, r] x[.., place[z, r], ..]

Interpolation along one axis (a linear Resize has two terms) is the case that networks hold. Such a
contraction is no work for a matrix unit: a kernel reads `terms` elements and computes any other
expression with them, so it counts as a primitive that moves elements.

Order of the sum: by k, as in the contraction itself. The zeros between add nothing, so both give
the same bits for finite numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.prims import Kind, kind
from fissile.ir.semantics import split_spec
from fissile.ir.types import F32

MOST = 8  # terms that are written out
WORTH = 4  # a product of matrices does so many terms in the time of one that is gathered


@dataclass(frozen=True)
class Blend:
    """x: the operand that is read. axis: of x and of the result. weights: the matrix, whose rows
    (the axis `row`) give one result each."""

    x: Value
    axis: int
    weights: Value
    row: int
    terms: int


_KNOWN: WeakKeyDictionary[Node, tuple[Blend | None]] = WeakKeyDictionary()


def blend_of(node: Node) -> Blend | None:
    """The blend that a node is."""
    if node.prim != "contract":
        return None
    if node not in _KNOWN:
        _KNOWN[node] = (_blend_of(node),)
    return _KNOWN[node][0]


def kind_in_kernel(node: Node) -> Kind:
    """The class of a primitive, where a blend is one that moves elements."""
    return Kind.LAYOUT if blend_of(node) else kind(node)


def linear_anchors(nodes: Sequence[Node]) -> list[Node]:
    """The contractions and convolutions that a kernel is built around: one that is no blend, and a
    blend only where there is nothing else."""
    linear = [n for n in nodes if kind(n) is Kind.LINEAR]
    return [n for n in linear if not blend_of(n)] or linear


def _blend_of(node: Node) -> Blend | None:
    left, right, out = split_spec(node.attrs["spec"])
    for x, w, at, of in ((0, 1, left, right), (1, 0, right, left)):
        weights = node.inputs[w]
        if not weights.is_constant or weights.rank != 2 or weights.type.dtype is not F32:
            continue
        rows = [i for i, label in enumerate(of) if label in out and label not in at]
        if len(rows) != 1 or len(set(at)) < len(at):
            continue
        (row,) = rows
        k, z = of[1 - row], of[row]
        if k not in at or out != at.replace(k, z):
            continue
        if terms := few_terms(weights, row):
            return Blend(node.inputs[x], at.index(k), weights, row, terms)
    return None


_TERMS: WeakKeyDictionary[Value, tuple[int, int]] = WeakKeyDictionary()


def few_terms(weights: Value, row: int) -> int:
    """The most non-zeros in a row (a column, where `row` is 1) of a constant matrix; 0 where they
    are not few."""
    if weights not in _TERMS:
        a, b = (int(np.count_nonzero(weights.array, axis=1 - i).max(initial=0)) for i in (0, 1))
        _TERMS[weights] = (a, b)
    found, extent = _TERMS[weights][row], weights.shape[1 - row]
    return found if 0 < found <= MOST and found * WORTH <= extent else 0

"""Einsum labels: products of two and three operands over named axes.

A contraction names its axes, so that products reassociate, commute and absorb transposes by
renaming alone:

    y[out] = sum over all other labels of a[left] b[right]

Sums over products of three operands may be taken in any order of pairs, provided that a label is
summed where the last operand that has it joins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fissile.ir.graph import Node, Value
from fissile.ir.prims import contract, transpose
from fissile.ir.semantics import split_spec

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Named:
    """A value with a label for each axis."""

    value: Value
    labels: tuple[int, ...]

    def extents(self) -> dict[int, int]:
        return dict(zip(self.labels, self.value.shape, strict=True))


@dataclass(frozen=True)
class Product:
    """A contraction as sum over a[..] b[..]; labels are numbers, those of `out` first."""

    a: Named
    b: Named
    out: tuple[int, ...]

    @property
    def summed(self) -> frozenset[int]:
        return frozenset((*self.a.labels, *self.b.labels)) - frozenset(self.out)

    @property
    def shared(self) -> frozenset[int]:
        """Labels of both operands that are kept."""
        return frozenset(self.a.labels) & frozenset(self.b.labels) & frozenset(self.out)

    @property
    def swapped(self) -> Product:
        return Product(self.b, self.a, self.out)


def product(node: Node) -> Product:
    """The contraction that a node is. Labels of the result are 0, 1, ... by axis."""
    left, right, out = split_spec(node.attrs["spec"])
    names: dict[str, int] = {}
    for c in (*out, *left, *right):
        names.setdefault(c, len(names))
    a, b = (
        Named(v, tuple(names[c] for c in labels))
        for v, labels in zip(node.inputs, (left, right), strict=True)
    )
    return Product(a, b, tuple(range(len(out))))


def both_ways(node: Node) -> Iterator[Product]:
    """With either operand as the first."""
    p = product(node)
    yield p
    yield p.swapped


def renamed(inner: Product, outer: Named, first: int) -> Product:
    """`inner`, which gives outer.value, with the labels that its result has in `outer`; what it
    sums is labelled from `first` on."""
    names = dict(zip(inner.out, outer.labels, strict=True))
    for label in sorted(inner.summed):
        names[label] = first + len(names)
    a, b = (Named(x.value, tuple(names[i] for i in x.labels)) for x in (inner.a, inner.b))
    return Product(a, b, outer.labels)


def times(a: Named, b: Named, keep: Sequence[int] | frozenset[int]) -> Named:
    """The contraction of two; labels outside `keep` are summed. The result's axes lie as those of
    `a`, those of b alone where a's first summed label was, else at the end."""
    kept = frozenset(keep)
    extra = [i for i in b.labels if i in kept and i not in a.labels]
    out: list[int] = []
    for label in a.labels:
        if label in kept:
            out.append(label)
        elif extra and label in b.labels:
            out, extra = [*out, *extra], []
    out += extra
    return Named(multiply(a, b, out), tuple(out))


def multiply(a: Named, b: Named, out: Sequence[int]) -> Value:
    """The contraction with its result's axes as named."""
    return contract(a.value, b.value, spelt(a.labels, b.labels, out))


def spelt(left: Sequence[int], right: Sequence[int], out: Sequence[int]) -> str:
    """A specification in letters, by first appearance: equal contractions are spelt equally."""
    letters: dict[int, str] = {}
    for label in (*left, *right):
        letters.setdefault(label, LETTERS[len(letters)])
    parts = ["".join(letters[i] for i in labels) for labels in (left, right, out)]
    return f"{parts[0]},{parts[1]}->{parts[2]}"


@cache
def _plain_spec(spec: str) -> str:
    left, right, out = split_spec(spec)
    code = [[ord(c) for c in labels] for labels in (left, right, out)]
    return spelt(*code)


def plainly(node: Node) -> Mapping[str, Any]:
    """The attributes, a contraction's labels as `spelt` has them."""
    if node.prim != "contract" or (plain := _plain_spec(node.attrs["spec"])) == node.attrs["spec"]:
        return node.attrs
    return {"spec": plain}


def arranged(x: Named, labels: Sequence[int]) -> Value:
    """The value with its axes in the order of these labels."""
    return transpose(x.value, [x.labels.index(i) for i in labels])


def multiplications(*operands: Named) -> int:
    """Of a contraction of these: the product of all extents."""
    extents: dict[int, int] = {}
    for x in operands:
        extents |= x.extents()
    return math.prod(extents.values())

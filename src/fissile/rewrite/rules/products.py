"""Products: contractions reassociate, absorb views, and take over what is around them.

A contraction is one whatever operator it was: a 1x1 convolution, Gemm, MatMul, or a Resize along
one axis. All that follows is said of labels (`rewrite/labels`), not of operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fissile.ir.graph import Node, Value
from fissile.ir.prims import contract, conv, make, reshape, slice_, transpose
from fissile.rewrite.classes import Classes
from fissile.rewrite.labels import (
    Named,
    Product,
    both_ways,
    multiply,
    product,
    renamed,
    times,
)
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.views import groups
from fissile.rewrite.work import product_work

FRESH = 100  # labels from here on are free


# ---------------------------------------------------------------- three operands


def _three(d: Draw) -> Value:
    n, k, m, p = d.extents(4, 2, 6)
    x = contract(d.value(n, k), d.weights(k, m), "nk,km->nm")
    return d.any((
        contract(x, d.weights(m, p), "nm,mp->np"),
        contract(d.weights(p, n), x, "pn,nm->pm"),
    ))  # fmt: skip


@rule("(x v) w = x (v w) = (x w) v", "contract", example=_three, source="associativity")
def reassociate(c: Classes, node: Node) -> Found:
    """Products of three in any order of pairs that takes less multiplications, of linear maps also
    one that takes as many: constants compose, linear maps of different axes commute, and linear
    attention contracts keys first."""
    for p in both_ways(node):
        for inner in c.members(p.a.value, "contract"):
            q = renamed(product(inner), p.a, FRESH)
            now = product_work(c, q.a, q.b) + product_work(c, p.a, p.b)
            for x, v in ((q.a, q.b), (q.b, q.a)):
                yield _pairwise(c, x, v, p.b, p.out, now)


def _pairwise(
    c: Classes, x: Named, v: Named, w: Named, out: Sequence[int], now: float
) -> Value | No:
    """x (v w), where it costs no more than `now`. v and w have an axis in common: else what they
    make is larger than both."""
    if not set(v.labels) & set(w.labels):
        return No("two of the operands have no axis in common")
    first = times(v, w, frozenset((*x.labels, *out)))
    work = product_work(c, v, w) + product_work(c, x, first)
    plain = sum(c.is_fixed(y.value) for y in (x, v, w)) == 2  # linear maps of one value
    if work > now or (work == now and not plain):
        return No("it takes more multiplications")
    if c.is_fixed(first.value) and first.value.type.numel > 4 * _sizes(v, w):
        return No("the composed constant is too large")
    return multiply(x, first, out)


def _sizes(*operands: Named) -> int:
    return sum(x.value.type.numel for x in operands)


# ---------------------------------------------------------------- views


def _turned_operand(d: Draw) -> Value:
    n, k, m = d.extents(3)
    return contract(transpose(d.value(n, m, k), (2, 0, 1)), d.weights(n, m), "knm,nm->kn")


@rule(
    "transpose(x) w = x w, renamed",
    "contract",
    example=_turned_operand,
    source="labels",
    exact=True,
)
def turned_operand(c: Classes, node: Node) -> Found:
    for p in both_ways(node):
        for view in c.members(p.a.value, "transpose"):
            labels = [0] * len(p.a.labels)
            for i, axis in enumerate(view.attrs["perm"]):
                labels[axis] = p.a.labels[i]
            yield multiply(Named(view.inputs[0], tuple(labels)), p.b, p.out)


def _turned_result(d: Draw) -> Value:
    n, k, m = d.extents(3)
    return transpose(contract(d.value(n, k), d.weights(k, m), "nk,km->nm"), (1, 0))


@rule(
    "transpose(x w) = x w, renamed",
    "transpose",
    example=_turned_result,
    source="labels",
    exact=True,
)
def turned_result(c: Classes, node: Node) -> Found:
    for inner in c.members(node.inputs[0], "contract"):
        p = product(inner)
        yield multiply(p.a, p.b, [p.out[a] for a in node.attrs["perm"]])


def _shaped_operand(d: Draw) -> Value:
    n, a, b, k, m = d.extents(5, 2, 4)
    x = contract(d.value(n, a * b, 2), d.weights(2, k), "njk,km->njm")
    x = d.any((x, reshape(x, (n * a, b, k))))
    return contract(reshape(x, (n, a, b, k)), d.weights(k, m), "nabk,km->nabm")


@rule(
    "reshape(x) w = reshape(x w')",
    "contract",
    example=_shaped_operand,
    source="groups of axes",
    exact=True,
)
def shaped_operand(c: Classes, node: Node) -> Found:
    for p in both_ways(node):
        if not c.is_fixed(p.b.value):
            continue
        for view in c.members(p.a.value, "reshape"):
            if absorbs(c, view.inputs[0]):
                yield _Opened(view, p).result()


class _Opened:
    """A contraction whose first operand is seen through a reshape, without it: each group of axes
    is one label, or as many as it had before."""

    def __init__(self, view: Node, p: Product):
        self.view, self.p = view, p
        self.x = view.inputs[0]
        self.a: dict[int, int] = {}  # axis of x -> label
        self.merged: list[tuple[int, tuple[int, ...]]] = []  # label, of which the result has these
        self.split: list[tuple[int, tuple[int, ...]]] = []  # the result's label, made of these
        self.b = p.b

    def result(self) -> Value | No:
        if 0 in self.x.shape:
            return No("it has no elements")
        parts = groups(self.x.shape, self.view.value.shape)
        for number, group in enumerate(parts):
            if len(group.before) > 1 and len(group.after) > 1:
                return No("a group of axes has several on both sides")
            fault = self._enter(group.before, group.after, FRESH + 10 * number)
            if fault is not None:
                return fault
        ones = (i for i in range(self.x.rank) if i not in self.a)
        self.a |= {axis: 2 * FRESH + axis for axis in ones}
        return self._multiplied()

    def _enter(self, before: tuple[int, ...], after: tuple[int, ...], first: int) -> No | None:
        old = tuple(self.p.a.labels[axis] for axis in after)
        if len(before) == len(after) == 1:
            self.a[before[0]] = old[0]
            return None
        new = tuple(first + i for i in range(len(before)))
        if len(after) == 1:  # axes were joined: the other operand's are split
            self.a |= dict(zip(before, new, strict=True))
            if old[0] in self.b.labels:
                self._split_b(old[0], new, before)
            if old[0] in self.p.out:
                self.split.append((old[0], new))
            return None
        inside = [label in self.b.labels for label in old]  # an axis was split
        kept = [label in self.p.out for label in old]
        if any(inside) != all(inside) or any(kept) != all(kept):
            return No("parts of an axis are treated differently")
        self.a[before[0]] = new[0]
        if all(inside):
            self._merge_b(old, new[0])
        if all(kept):
            self.merged.append((new[0], old))
        return None

    def _split_b(self, label: int, new: tuple[int, ...], axes: tuple[int, ...]) -> None:
        at = self.b.labels.index(label)
        shape, sizes = self.b.value.shape, tuple(self.x.shape[a] for a in axes)
        value = reshape(self.b.value, (*shape[:at], *sizes, *shape[at + 1 :]))
        self.b = Named(value, (*self.b.labels[:at], *new, *self.b.labels[at + 1 :]))

    def _merge_b(self, old: tuple[int, ...], new: int) -> None:
        rest = [i for i in self.b.labels if i not in old]
        order = [self.b.labels.index(i) for i in (*rest, *old)]
        turned = transpose(self.b.value, order)
        shape = turned.shape[: len(rest)]
        value = reshape(turned, (*shape, math.prod(turned.shape[len(rest) :])))
        self.b = Named(value, (*rest, new))

    def _multiplied(self) -> Value:
        a = Named(self.x, tuple(self.a[i] for i in range(self.x.rank)))
        extents = self.p.a.extents() | self.p.b.extents()
        split, merged = dict(self.split), dict(self.merged)
        owner = {label: new for new, olds in self.merged for label in olds}
        labels: list[int] = []  # of the result in axes as x has them
        seen: list[int] = []  # of the result once split again
        for label in self.p.out:
            if label in split:
                labels += split[label]
                seen.append(label)
            elif label in owner:
                if owner[label] not in labels:
                    labels.append(owner[label])
                    seen += merged[owner[label]]
            elif label in a.labels or label in self.b.labels:
                labels.append(label)
                seen.append(label)
        y = multiply(a, self.b, labels)
        y = reshape(y, [extents[i] for i in seen])
        ones = [i for i in self.p.out if i not in seen]  # of extent 1, lost with the reshape
        final = [i for i in self.p.out if i in seen]
        y = transpose(y, [seen.index(i) for i in final])
        return reshape(y, [extents[i] for i in self.p.out]) if ones else y


# ---------------------------------------------------------------- pieces


def _pieces(d: Draw) -> Value:
    n, m = d.extents(2)
    parts = [d.extent() for _ in range(d.extent(2, 3))]
    first = contract(d.value(n, 2), d.weights(2, parts[0]), "nk,km->nm")
    whole = make("concat", [first, *(d.value(n, k) for k in parts[1:])], axis=1)[0]
    return contract(whole, d.weights(sum(parts), m), "nk,km->nm")


@rule("concat(x, y) w = x w1 + y w2", "contract", example=_pieces, source="blocks of matrices")
def summed_pieces(c: Classes, node: Node) -> Found:
    for p in both_ways(node):
        for join in c.members(p.a.value, "concat"):
            label = p.a.labels[join.attrs["axis"]]
            if label not in p.summed or label not in p.b.labels:
                continue
            if not any(absorbs(c, piece) for piece in join.inputs):
                yield No("no piece is linear in something")
                continue
            offset, total = 0, None
            for piece in join.inputs:
                size = piece.shape[join.attrs["axis"]]
                w = part(p.b, label, offset, size)
                term = multiply(Named(piece, p.a.labels), w, p.out)
                total = term if total is None else total + term
                offset += size
            assert total is not None
            yield total


DEEP = 4  # views and sums between two linear maps


def absorbs(c: Classes, v: Value, depth: int = DEEP) -> bool:
    """Is it a product, or a view or a sum with constants of one?"""
    if c.members(v, "contract", "conv"):
        return True
    if not depth:
        return False
    return any(
        absorbs(c, x, depth - 1)
        for n in c.members(v, "transpose", "reshape", "gather", "add", "sub", "mul")
        for x in n.inputs[:1] if n.prim in ("transpose", "reshape", "gather") or _one_loose(c, n)
    )  # fmt: skip


def _one_loose(c: Classes, node: Node) -> bool:
    return sum(not c.is_fixed(v) for v in node.inputs) == 1


def part(x: Named, label: int, start: int, size: int) -> Named:
    """A slice along one label."""
    at, rank = x.labels.index(label), x.value.rank
    begin = [start if a == at else 0 for a in range(rank)]
    sizes = [size if a == at else s for a, s in enumerate(x.value.shape)]
    return Named(slice_(x.value, begin, sizes), x.labels)


def _cut_result(d: Draw) -> Value:
    n, k, m = d.extent(), d.extent(), d.extent(3)
    y = contract(d.value(n, k), d.weights(k, m), "nk,km->nm")
    return slice_(y, (0, 1), (n, m - 2), (1, 1))


@rule(
    "(x w)[part] = x[part] w[part]",
    "slice",
    example=_cut_result,
    source="blocks of matrices",
    exact=True,
)
def cut_result(c: Classes, node: Node) -> Found:
    start, size, step = (node.attrs[k] for k in ("start", "size", "step"))
    y = node.inputs[0]
    if 2 * node.value.type.numel > y.type.numel and len(c.users(y)) > 1:
        yield No("most of it is computed anyway")
        return
    for inner in c.members(y, "contract"):
        p = product(inner)
        cut = {label: i for i, label in enumerate(p.out)}
        a, b = (_cut(x, cut, start, size, step) for x in (p.a, p.b))
        yield multiply(a, b, p.out)


def _cut(
    x: Named, cut: dict[int, int], start: Sequence[int], size: Sequence[int], step: Sequence[int]
) -> Named:
    at = [cut.get(label) for label in x.labels]
    value = slice_(
        x.value, [0 if i is None else start[i] for i in at],
        [s if i is None else size[i] for i, s in zip(at, x.value.shape, strict=True)],
        [1 if i is None else step[i] for i in at],
    )  # fmt: skip
    return Named(value, x.labels)


def _siblings(d: Draw) -> Value:
    n, k = d.extents(2)
    x = d.value(n, k)
    y, z = (contract(x, d.weights(k, d.extent()), "nk,km->nm") for _ in range(2))
    return make("concat", [y, z], axis=1)[0]


MOST_SIBLINGS = 8


@rule(
    "x v, x w = parts of x [v w]",
    "contract",
    example=_siblings,
    source="blocks of matrices",
    exact=True,
)
def siblings(c: Classes, node: Node) -> Found:
    """Contractions of one value with constants in the same way are one."""
    for p in both_ways(node):
        if c.is_fixed(p.a.value) or not c.is_fixed(p.b.value):
            continue
        own = [i for i in p.b.labels if i not in p.a.labels]
        if len(own) != 1 or own[0] not in p.out:
            continue
        found = dict.fromkeys(q.b for q in _alike(c, p))
        if 2 <= len(found) <= MOST_SIBLINGS and p.b in found:
            yield _merged(p, own[0], list(found))


def _alike(c: Classes, p: Product) -> Iterator[Product]:
    """Contractions that differ from this one in the constant alone."""
    for user in c.users(p.a.value, "contract"):
        for q in both_ways(user):
            if (
                c.same(q.a.value, p.a.value) and is_whole(c, q.b.value)
                and (q.a.labels, q.b.labels, q.out) == (p.a.labels, p.b.labels, p.out)
            ):  # fmt: skip
                yield q


def is_whole(c: Classes, w: Value) -> bool:
    """A constant of the graph, or a view of one: what was merged is not merged again."""
    node = c.find(w).node
    while node.prim in ("transpose", "reshape"):
        node = node.inputs[0].node
    return node.prim == "constant" and not c.members(w, "concat", "slice", "contract")


def _merged(p: Product, own: int, weights: Sequence[Named]) -> Value:
    axis = p.b.labels.index(own)
    whole = make("concat", [w.value for w in weights], axis=axis)[0]
    y = multiply(p.a, Named(whole, p.b.labels), p.out)
    offset = sum(w.value.shape[axis] for w in weights[: list(weights).index(p.b)])
    return part(Named(y, p.out), own, offset, p.b.value.shape[axis]).value


# ---------------------------------------------------------------- convolutions of one tap


def _one_tap(d: Draw) -> Value:
    x = d.value(d.extent(), d.extent(), d.extent(), d.extent())
    return conv(x, d.weights(d.extent(), x.shape[1], 1, 1), (1, 1), (1, 1))


@rule("conv 1x1 = contract", "conv", example=_one_tap, source="definition", exact=True)
def one_tap(c: Classes, node: Node) -> Found:
    """Strides leave elements out."""
    x, w = node.inputs
    if node.attrs["groups"] != 1 or any(k != 1 for k in w.shape[2:]):
        return
    strides = node.attrs["strides"]
    if set(strides) != {1}:
        x = slice_(x, (0,) * x.rank, (*x.shape[:2], *node.value.shape[2:]), (1, 1, *strides))
    labels = tuple(range(x.rank))
    out = (0, FRESH, *labels[2:])
    yield multiply(Named(x, labels), Named(reshape(w, w.shape[:2]), (FRESH, 1)), out)


def _as_conv(d: Draw) -> Value:
    n, k, m, h, w = d.extent(), *d.extents(4)
    spec, shape = d.any((
        ("nchw,mc->nmhw", (n, k, h, w)), ("nhwc,mc->nmhw", (n, h, w, k)), ("nlc,mc->ml", (1, h, k)),
    ))  # fmt: skip
    return contract(d.value(*shape), d.weights(m, k), spec)


@rule(
    "contract over channels = conv 1x1",
    "contract",
    example=_as_conv,
    source="definition",
    exact=True,
)
def as_conv(c: Classes, node: Node) -> Found:
    """Which targets and runtimes know best. Where the channels of x are not its second axis, a
    transpose moves them: of x and not of the result, which is larger or is asked for like that."""
    for p in both_ways(node):
        x, w = p.a, p.b
        if x.value.rank not in (3, 4, 5) or w.value.rank != 2 or not c.is_fixed(w.value):
            continue
        own = [i for i in w.labels if i not in x.labels]
        rest = [i for i in x.labels if i not in w.labels]
        if len(own) != 1 or len(rest) != x.value.rank - 1:
            continue
        extents = dict(zip(x.labels, x.value.shape, strict=True))
        kept = [i for i in (rest[0], own[0], *rest[1:]) if i in p.out or extents.get(i) != 1]
        if list(p.out) != kept:
            continue
        order = [rest[0], next(i for i in x.labels if i in w.labels), *rest[1:]]
        images = transpose(x.value, [x.labels.index(i) for i in order])
        matrix = w.value if w.labels[0] == own[0] else transpose(w.value, (1, 0))
        ones = (1,) * (x.value.rank - 2)
        y = conv(images, reshape(matrix, (*matrix.shape, *ones)), ones, ones)
        yield reshape(y, node.value.shape)


def _pixels_split(d: Draw) -> Value:
    n, k, m, h, w = d.extent(), *d.extents(4)
    y = conv(d.value(n, k, h * w), d.weights(m, k, 1), (1,), (1,))
    return reshape(y, (n, m, h, w))


@rule(
    "reshape(conv 1x1(x)) = conv 1x1(reshape(x)), of pixels",
    "reshape",
    example=_pixels_split,
    source="groups of axes",
    exact=True,
)
def pixels_split(c: Classes, node: Node) -> Found:
    """A line of pixels is a map: what knows convolutions knows those over two axes best."""
    if node.value.rank != 4:
        return
    for inner in c.members(node.inputs[0], "conv"):
        x, w = inner.inputs
        line = inner.value.rank == 3 and node.value.shape[:2] == inner.value.shape[:2]
        plain = inner.attrs["groups"] == 1 and inner.attrs["strides"] == (1,)
        if line and plain and w.shape[2:] == (1,):
            maps = reshape(x, (*x.shape[:2], *node.value.shape[2:]))
            yield conv(maps, reshape(w, (*w.shape, 1)), (1, 1), (1, 1))

"""Affine maps and divisions around products and convolutions.

    (x + b) w = x w + b w      (x s) w = x (s w)      (x w) s = x (w s)      (x / d) w = (x w) / d

with b and s constants that broadcast, d any value that is the same for all that a sum adds up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.prims import broadcast, contract, make, pad, reduce_sum, reshape, slice_
from fissile.ir.prims import transpose as turn
from fissile.rewrite.classes import Classes
from fissile.rewrite.labels import Named, Product, arranged, both_ways, multiply, product
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.rules.products import absorbs, part
from fissile.rewrite.views import padded

LARGE = 1 << 20  # elements of a constant that broadcasting may make


def fixed_operand(c: Classes, node: Node) -> tuple[Value, Value] | None:
    """(what is computed, the constant) of an elementwise primitive of two, where one is fixed and
    the other has the result's shape."""
    a, b = node.inputs
    for x, k in ((a, b), (b, a)):
        if c.is_fixed(k) and not c.is_fixed(x) and x.shape == node.value.shape:
            return x, k
    return None


def along(k: Value, labels: Sequence[int], wanted: Collection[int], shape: Sequence[int]) -> Named:
    """A broadcasting operand of `shape` over `labels`, its axes of extent 1 left out but for those
    wanted, along which it is repeated."""
    k = padded(k, len(labels))
    spread = [s if i in wanted else e for i, s, e in zip(labels, shape, k.shape, strict=True)]
    if tuple(spread) != k.shape:
        k = broadcast(k, spread)
    kept = [a for a, (i, e) in enumerate(zip(labels, spread, strict=True)) if e != 1 or i in wanted]
    return Named(reshape(k, [spread[a] for a in kept]), tuple(labels[a] for a in kept))


def placed(x: Named, out: Sequence[int]) -> Value:
    """For broadcasting against a result of these labels: axes that x lacks have extent 1."""
    extents = x.extents()
    order = [i for i in out if i in extents]
    y = turn(x.value, [x.labels.index(i) for i in order])
    return reshape(y, [extents.get(i, 1) for i in out])


def slim(c: Classes, k: Value) -> Value:
    """A constant without the axes along which it does not change."""
    if k.type.numel > LARGE or not k.type.numel:
        return k
    data = c.data(k)
    for axis, extent in enumerate(k.shape):
        if extent > 1 and np.all(data == data.take([0], axis)):
            k = slice_(k, (0,) * k.rank, [1 if a == axis else s for a, s in enumerate(k.shape)])
            data = data.take([0], axis)
    return k


# ---------------------------------------------------------------- sums


def _shifted(d: Draw) -> Value:
    n, k, m = d.extents(3)
    b = d.any((d.weights(k), d.weights(n, 1), d.weights(1, 1), d.weights(n, k)))
    x = contract(d.value(n, 2), d.weights(2, k), "nk,km->nm")
    return contract(x + b, d.weights(k, m), "nk,km->nm")


@rule("(x + b) w = x w + b w", "contract", example=_shifted, source="distributivity")
def shifted(c: Classes, node: Node) -> Found:
    """Where x is linear in something that w could compose with."""
    for p in both_ways(node):
        for inner in c.members(p.a.value, "add", "sub"):
            if (found := fixed_operand(c, inner)) is None or not c.is_fixed(p.b.value):
                continue
            x, b = found
            if not absorbs(c, x):
                yield No("nothing to compose with")
                continue
            wanted = {i for i in p.a.labels if i in p.summed or i in p.b.labels}
            b = along(b, p.a.labels, wanted, x.shape)
            kept = [i for i in p.out if i in b.labels or i in p.b.labels]
            k = placed(Named(multiply(b, p.b, kept), tuple(kept)), p.out)
            if k.type.numel > LARGE:
                yield No("the constant is too large")
                continue
            y, k = multiply(Named(x, p.a.labels), p.b, p.out), slim(c, k)
            yield _resumed(inner, x, y, k)


def _resumed(inner: Node, x: Value, y: Value, k: Value) -> Value:
    """x + b, x - b or b - x for the image y of x and k of b."""
    if inner.prim == "add":
        return y + k
    return y - k if inner.inputs[0] is x else k - y


def _both_sums(d: Draw) -> Value:
    n, k, m = d.extents(3)
    x, v = d.value(n, k), d.weights(k, m)
    return contract(x, v, "nk,km->nm") + contract(d.value(n, k), v, "nk,km->nm")


@rule("x w + y w = (x + y) w", "add", example=_both_sums, source="distributivity")
def one_product(c: Classes, node: Node) -> Found:
    a, b = node.inputs
    if a.shape != b.shape:
        return
    for one in c.members(a, "contract"):
        p = product(one)
        for two in c.members(b, "contract"):
            q = product(two)
            if one.attrs == two.attrs and c.same(p.b.value, q.b.value):
                yield multiply(Named(p.a.value + q.a.value, p.a.labels), p.b, p.out)


# ---------------------------------------------------------------- factors


def _scaled(d: Draw) -> Value:
    n, k, m = d.extents(3)
    s = d.any((d.weights(k), d.weights(n, 1), d.weights(1, 1)))
    return contract(d.value(n, k) * s, d.weights(k, m), "nk,km->nm")


@rule("(x s) w = x (s w)", "contract", example=_scaled, source="associativity")
def scaled(c: Classes, node: Node) -> Found:
    """Along axes that only x has, the factor comes after."""
    for p in both_ways(node):
        for inner in c.members(p.a.value, "mul"):
            if (found := fixed_operand(c, inner)) is None:
                continue
            x, s = found
            if _is_twice_gelu(c, x):
                yield No("a Gelu is known by its half, which is no work")
                continue
            s = along(s, p.a.labels, (), x.shape)
            own = [i for i in s.labels if i not in p.b.labels]
            if c.is_fixed(p.b.value) and not own:
                w = _times(p.b, s)
                yield multiply(Named(x, p.a.labels), w, p.out)
            elif all(i in p.out for i in s.labels):
                yield multiply(Named(x, p.a.labels), p.b, p.out) * placed(s, p.out)
            else:
                yield No("the factor belongs to axes of both operands")


def _is_twice_gelu(c: Classes, x: Value) -> bool:
    """x (1 + erf(x k))"""
    return any(
        c.members(v, "erf")
        for outer in c.members(x, "mul") for y in outer.inputs
        for inner in c.members(y, "add") for v in inner.inputs
    )  # fmt: skip


def _times(w: Named, s: Named) -> Named:
    return Named(w.value * placed(s, w.labels), w.labels)


def _rescaled(d: Draw) -> Value:
    n, k, m = d.extents(3)
    s = d.any((d.weights(m), d.weights(1, 1)))
    return contract(d.value(n, k), d.weights(k, m), "nk,km->nm") * s


@rule("(x w) s = x (w s)", "mul", example=_rescaled, source="associativity")
def rescaled(c: Classes, node: Node) -> Found:
    if (found := fixed_operand(c, node)) is None:
        return
    y, s = found
    for inner in c.members(y, "contract"):
        for p in both_ways(inner):
            factor = along(s, p.out, (), y.shape)
            if c.is_fixed(p.b.value) and all(i in p.b.labels for i in factor.labels):
                yield multiply(p.a, _times(p.b, factor), p.out)


def _divided(d: Draw) -> Value:
    n, k, m = d.extents(3)
    k += m
    x = make(d.any(("div", "mul")), [d.value(n, k), d.value(n, 1)])[0]
    return contract(x, d.value(k, m), "nk,km->nm")


@rule(
    "(x / d) w = (x w) / d",
    "contract",
    example=_divided,
    source="Korch, Fig. 2",
    ours=True,
)
def divided(c: Classes, node: Node) -> Found:
    """d is the same for all that a sum adds up, and the result is no larger than x. Runtimes have a
    Softmax, which this takes apart."""
    for p in both_ways(node):
        for inner in c.members(p.a.value, "div", "mul"):
            for x, d in _factors(inner):
                if c.is_fixed(d):
                    continue
                by = along(d, p.a.labels, (), x.shape)
                if not all(i in p.out for i in by.labels):
                    continue
                if node.value.type.numel > x.type.numel:
                    yield No("the result has more to divide")
                    continue
                y = multiply(Named(x, p.a.labels), p.b, p.out)
                yield make(inner.prim, [y, placed(by, p.out)])[0]


def _factors(inner: Node) -> list[tuple[Value, Value]]:
    """(x, d) of x / d or x d."""
    a, b = inner.inputs
    pairs = [(a, b), (b, a)] if inner.prim == "mul" else [(a, b)]
    return [(x, d) for x, d in pairs if x.shape == inner.value.shape and d.shape != x.shape]


# ---------------------------------------------------------------- sums as products


def _sum_beside(d: Draw) -> Value:
    h, n, k, m = d.extents(4)
    x = d.value(h, n, k)
    out = d.any(("hnm", "nhm", "mnh"))
    y = contract(x, d.any((d.value(h, k, m), d.weights(h, k, m))), f"hnk,hkm->{out}")
    return make(
        "concat", [reshape(y, (y.type.numel,)), reshape(reduce_sum(x, 2), (h * n,))], axis=0
    )[0]


@rule(
    "x w, sum(x) = parts of x [w 1]",
    "contract",
    "reduce_sum",
    example=_sum_beside,
    source="Korch, Fig. 9",
    ours=True,
)
def sum_beside(c: Classes, node: Node) -> Found:
    """The sum is one more column, of ones, which a padding adds."""
    products = [node] if node.prim == "contract" else c.users(node.inputs[0], "contract")
    for found in products:
        for p in both_ways(found):
            if _is_widened(c, p.b.value):
                continue
            own = [i for i in p.b.labels if i not in p.a.labels]
            sums = [r for r in c.users(p.a.value, "reduce_sum") if _is_over(r, p.a, p.summed)]
            if len(own) != 1 or not sums or not p.summed <= set(p.b.labels):
                continue
            wide = _with_ones(p, own[0])
            size = p.b.extents()[own[0]]
            if node is found:
                yield part(wide, own[0], 0, size).value
            elif node in sums:
                kept = [i for i in p.a.labels if i not in p.summed]
                total = arranged(part(wide, own[0], size, 1), [*kept, own[0]])
                yield reshape(total, node.value.shape)


def _is_widened(c: Classes, w: Value) -> bool:
    """May it be what this rule made, or a part of it?"""
    parts = (n.inputs[0] for n in c.members(w, "slice"))
    return bool(c.members(w, "pad")) or any(c.members(v, "pad") for v in parts)


def _is_over(node: Node, x: Named, summed: Collection[int]) -> bool:
    return {x.labels[a] for a in node.attrs["axes"]} == set(summed)


def _with_ones(p: Product, own: int) -> Named:
    """The product with one more column, which sums."""
    rank, at = p.b.value.rank, p.b.labels.index(own)
    hi = [1 if a == at else 0 for a in range(rank)]
    w = pad(p.b.value, [0] * rank, hi, "constant", 1)
    return Named(multiply(p.a, Named(w, p.b.labels), p.out), p.out)


def _summed_product(d: Draw) -> Value:
    n, k, m = d.extents(3)
    y = contract(d.value(n, k), d.weights(k, m), "nk,km->nm")
    return make(d.any(("reduce_sum", "reduce_mean")), [y], axes=d.any(((0,), (1,), (0, 1))))[0]


@rule(
    "sum(x w) = sum(x) w = x sum(w)",
    "reduce_sum",
    "reduce_mean",
    example=_summed_product,
    source="linearity",
)
def summed_product(c: Classes, node: Node) -> Found:
    """Along axes of one operand alone."""
    for inner in c.members(node.inputs[0], "contract"):
        p = product(inner)
        over = {p.out[a] for a in node.attrs["axes"]}
        if over & p.shared:
            yield No("both operands have an axis that is summed")
            continue
        a, b = (_reduced(node.prim, x, over) for x in (p.a, p.b))
        yield multiply(a, b, p.out)


def _reduced(prim: str, x: Named, over: Collection[int]) -> Named:
    axes = tuple(a for a, i in enumerate(x.labels) if i in over)
    return Named(make(prim, [x.value], axes=axes)[0], x.labels) if axes else x


def _padded_operand(d: Draw) -> Value:
    n, k, m = d.extents(3)
    return contract(pad(d.value(n, k), (0, 1), (0, 2)), d.weights(k + 3, m), "nk,km->nm")


def _padded_beside(d: Draw) -> Value:
    n, k, m = d.extents(3)
    return contract(pad(d.value(n, k), (1, 0), (2, 0)), d.weights(k, m), "nk,km->nm")


@rule(
    "pad(x, 0) w = pad(x w, 0), along another axis",
    "contract",
    example=_padded_beside,
    source="maps of different axes commute",
    exact=True,
)
def padded_beside(c: Classes, node: Node) -> Found:
    for p in both_ways(node):
        for border in c.members(p.a.value, "pad"):
            a = border.attrs
            sides = dict(zip(p.a.labels, zip(a["lo"], a["hi"], strict=True), strict=True))
            padded_ = {label for label, ends in sides.items() if any(ends)}
            if a["mode"] != "constant" or a["value"] != 0 or not padded_ <= set(p.out):
                continue
            if padded_ & set(p.b.labels):
                continue
            y = multiply(Named(border.inputs[0], p.a.labels), p.b, p.out)
            lo, hi = ([sides.get(i, (0, 0))[end] for i in p.out] for end in (0, 1))
            yield pad(y, lo, hi, "constant", 0)


@rule("pad(x, 0) w = x w[inside]", "contract", example=_padded_operand, source="blocks of matrices")
def padded_operand(c: Classes, node: Node) -> Found:
    """Zeros add nothing."""
    for p in both_ways(node):
        for border in c.members(p.a.value, "pad"):
            a = border.attrs
            at = [i for i, (m, n) in enumerate(zip(a["lo"], a["hi"], strict=True)) if m or n]
            labels = [p.a.labels[i] for i in at]
            if a["mode"] != "constant" or a["value"] != 0 or not set(labels) <= p.summed:
                continue
            w, x = p.b, border.inputs[0]
            if not set(labels) <= set(w.labels):
                continue
            for i, label in zip(at, labels, strict=True):
                w = part(w, label, a["lo"][i], x.shape[i])
            yield multiply(Named(x, p.a.labels), w, p.out)

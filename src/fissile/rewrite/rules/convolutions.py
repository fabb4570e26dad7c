"""Convolutions: factors and shifts join their weights, pieces of channels and 1x1 convolutions
around them compose. Those of one tap are contractions, and treated as such.
"""

from __future__ import annotations

from fissile.ir.graph import Node, Value
from fissile.ir.prims import contract, conv, make, pad, reduce_sum, reshape, slice_
from fissile.rewrite.classes import Classes
from fissile.rewrite.labels import Named, both_ways, multiply
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.rules.linear import fixed_operand
from fissile.rewrite.rules.products import FRESH, absorbs, is_whole
from fissile.rewrite.views import padded


def _channels(k: Value, rank: int) -> Value | None:
    """A constant per channel of [n, c, spatial...] as a vector; of extent 1 where it is one
    number."""
    k = padded(k, rank)
    return reshape(k, (k.shape[1],)) if k.type.numel == k.shape[1] else None


def is_one_tap(node: Node) -> bool:
    """A contraction, and treated as one."""
    return node.attrs["groups"] == 1 and all(k == 1 for k in node.inputs[1].shape[2:])


def _convolved(d: Draw, x: Value, m: int) -> Value:
    kernel = [d.extent(1, min(3, s)) for s in x.shape[2:]]
    groups = d.any((1, x.shape[1]))
    w = d.weights(m * groups, x.shape[1] // groups, *kernel)
    return conv(x, w, (d.extent(1, 2), 1), (1, 1), groups)


def _map(d: Draw) -> Value:
    return d.value(d.extent(1, 2), d.extent(), d.extent(3), d.extent(3))


def _scaled_after(d: Draw) -> Value:
    y = _convolved(d, _map(d), d.extent())
    return y * d.any((d.weights(y.shape[1], 1, 1), d.weights(1)))


@rule("conv(x, w) s = conv(x, w s)", "mul", example=_scaled_after, source="linearity", always=True)
def scaled_after(c: Classes, node: Node) -> Found:
    if (found := fixed_operand(c, node)) is None:
        return
    y, s = found
    for inner in c.members(y, "conv"):
        x, w = inner.inputs
        factor = _channels(s, y.rank)
        if factor is not None and c.is_fixed(w):
            factor = reshape(factor, (factor.type.numel, *[1] * (w.rank - 1)))
            yield make("conv", [x, w * factor], **inner.attrs)[0]


def _scaled_before(d: Draw) -> Value:
    x = _map(d)
    x = x * d.any((d.weights(x.shape[1], 1, 1), d.weights(1)))
    x = pad(x, (0, 0, 1, 0), (0, 0, 0, 1)) if d.any((True, False)) else x
    return _convolved(d, x, d.extent())


@rule("conv(x s, w) = conv(x, s w)", "conv", example=_scaled_before, source="linearity")
def scaled_before(c: Classes, node: Node) -> Found:
    """Also through a padding with zeros."""
    x, w = node.inputs
    if is_one_tap(node) or not c.is_fixed(w):
        return
    for inner, border in _behind_pad(c, x, "mul"):
        if (found := fixed_operand(c, inner)) is None:
            continue
        y, s = found
        factor = _channels(s, x.rank)
        if factor is not None:
            yield make("conv", [_bordered(border, y), _per_input(node, w, factor)], **node.attrs)[0]


def _behind_pad(c: Classes, x: Value, *prims: str) -> list[tuple[Node, Node | None]]:
    """(member, the padding of the map with zeros that it is seen through)."""
    found: list[tuple[Node, Node | None]] = [(n, None) for n in c.members(x, *prims)]
    for border in c.members(x, "pad"):
        a = border.attrs
        if a["mode"] == "constant" and a["value"] == 0 and not any((*a["lo"][:2], *a["hi"][:2])):
            found += [(n, border) for n in c.members(border.inputs[0], *prims)]
    return found


def _bordered(border: Node | None, x: Value) -> Value:
    return x if border is None else make("pad", [x], **border.attrs)[0]


def _per_input(node: Node, w: Value, factor: Value) -> Value:
    """Weights [m, c / groups, kernel...] times a factor for each input channel."""
    groups, m = node.attrs["groups"], w.shape[0]
    ones = [1] * (w.rank - 2)
    if factor.type.numel == 1:
        return w * reshape(factor, ())
    split = reshape(w, (groups, m // groups, *w.shape[1:]))
    return reshape(split * reshape(factor, (groups, 1, w.shape[1], *ones)), w.shape)


def _shifted_before(d: Draw) -> Value:
    x = contract(y := _map(d), d.weights(d.extent(), y.shape[1]), "nchw,mc->nmhw")
    return _convolved(d, x + d.any((d.weights(x.shape[1], 1, 1), d.weights(1))), d.extent())


@rule(
    "conv(x + b, w) = conv(x, w) + sum(b w)",
    "conv",
    example=_shifted_before,
    source="distributivity",
)
def shifted_before(c: Classes, node: Node) -> Found:
    """Not through a padding: the border would lack the shift."""
    x, w = node.inputs
    if is_one_tap(node) or not c.is_fixed(w):
        return
    for inner in c.members(x, "add"):
        if (found := fixed_operand(c, inner)) is None:
            continue
        y, b = found
        if (shift := _channels(b, x.rank)) is None:
            continue
        if not absorbs(c, y):
            yield No("nothing to compose with")
            continue
        each = reduce_sum(_per_input(node, w, shift), tuple(range(1, w.rank)))
        k = reshape(each, (w.shape[0], *[1] * (x.rank - 2)))
        yield make("conv", [y, w], **node.attrs)[0] + k


def _convolved_pieces(d: Draw) -> Value:
    n, h = d.extent(), d.extent(2)
    parts = [d.extent() for _ in range(2)]
    first = contract(d.value(n, 2, h, h), d.weights(parts[0], 2), "nchw,mc->nmhw")
    x = make("concat", [first, d.value(n, parts[1], h, h)], axis=1)[0]
    x = pad(x, (0, 0, 1, 0), (0, 0, 0, 1)) if d.any((True, False)) else x
    return conv(x, d.weights(d.extent(), sum(parts), 2, 2), (1, 1), (1, 1))


@rule(
    "conv(concat(x, y), w) = conv(x, w1) + conv(y, w2)",
    "conv",
    example=_convolved_pieces,
    source="blocks of matrices",
)
def convolved_pieces(c: Classes, node: Node) -> Found:
    x, w = node.inputs
    if is_one_tap(node) or node.attrs["groups"] != 1:
        return
    for join, border in _behind_pad(c, x, "concat"):
        if join.attrs["axis"] != 1:
            continue
        if not any(absorbs(c, piece) for piece in join.inputs):
            yield No("no piece is linear in something")
            continue
        offset, total = 0, None
        for piece in join.inputs:
            size = piece.shape[1]
            begin = [offset if a == 1 else 0 for a in range(w.rank)]
            cut = slice_(w, begin, (w.shape[0], size, *w.shape[2:]))
            term = make("conv", [_bordered(border, piece), cut], **node.attrs)[0]
            total, offset = term if total is None else total + term, offset + size
        assert total is not None
        yield total


def _both_convolved(d: Draw) -> Value:
    x = d.value(d.extent(), d.extent(), 4, 4)
    ys = [conv(x, d.weights(d.extent(), x.shape[1], 2, 2), (1, 1), (1, 1)) for _ in range(2)]
    return make("concat", ys, axis=1)[0]


@rule(
    "conv(x, v), conv(x, w) = parts of conv(x, [v w])",
    "conv",
    example=_both_convolved,
    source="TASO",
    exact=True,
)
def both_convolved(c: Classes, node: Node) -> Found:
    x, w = node.inputs
    if is_one_tap(node) or node.attrs["groups"] != 1 or not c.is_fixed(w):
        return
    alike = [
        u.inputs[1] for u in c.users(x, "conv")
        if u.attrs == node.attrs and is_whole(c, u.inputs[1]) and c.same(u.inputs[0], x)
        and u.inputs[1].shape[2:] == w.shape[2:]
    ]  # fmt: skip
    alike = list(dict.fromkeys(alike))
    if not 2 <= len(alike) <= 8 or w not in alike:
        return
    whole = make("conv", [x, make("concat", alike, axis=0)[0]], **node.attrs)[0]
    start = sum(v.shape[0] for v in alike[: alike.index(w)])
    begin = [start if a == 1 else 0 for a in range(whole.rank)]
    yield slice_(whole, begin, node.value.shape)


# ---------------------------------------------------------------- convolutions and 1x1


def _one_after(d: Draw) -> Value:
    y = _convolved(d, _map(d), 2)
    return contract(y, d.weights(d.extent(), y.shape[1]), "nchw,mc->nmhw")


@rule("v conv(x, w) = conv(x, v w)", "contract", example=_one_after, source="associativity")
def one_after(c: Classes, node: Node) -> Found:
    """A 1x1 convolution behind a larger one of one group, where that is less work."""
    for p in both_ways(node):
        if p.a.value.rank < 3 or p.b.value.rank != 2 or not c.is_fixed(p.b.value):
            continue
        for inner in c.members(p.a.value, "conv"):
            x, w = inner.inputs
            channels = p.a.labels[1]
            own = [i for i in p.b.labels if i != channels]
            if channels not in p.summed or channels not in p.b.labels or not c.is_fixed(w):
                continue
            if inner.attrs["groups"] != 1 or p.out != (p.a.labels[0], own[0], *p.a.labels[2:]):
                continue
            m, n = w.shape[0], p.b.extents()[own[0]]
            taps = w.type.numel // m
            if n * taps > m * taps + n * m:
                yield No("it takes more multiplications")
                continue
            labels = (channels, *range(FRESH, FRESH + w.rank - 1))
            v = multiply(p.b, Named(w, labels), (own[0], *labels[1:]))
            yield make("conv", [x, v], **inner.attrs)[0]


def _one_before(d: Draw) -> Value:
    x = _map(d)
    y = contract(x, d.weights(d.extent(), x.shape[1]), "nchw,mc->nmhw")
    y = pad(y, (0, 0, 1, 0), (0, 0, 0, 1)) if d.any((True, False)) else y
    return conv(y, d.weights(d.extent(), y.shape[1], 2, 2), (1, 1), (1, 1))


@rule("conv(v x, w) = conv(x, w v)", "conv", example=_one_before, source="associativity")
def one_before(c: Classes, node: Node) -> Found:
    """A 1x1 convolution before a larger one, where that is less work; also through a padding with
    zeros."""
    y, w = node.inputs
    if is_one_tap(node) or node.attrs["groups"] != 1 or not c.is_fixed(w):
        return
    for inner, border in _behind_pad(c, y, "contract"):
        for p in both_ways(inner):
            if p.b.value.rank != 2 or not c.is_fixed(p.b.value) or p.a.value.rank != y.rank:
                continue
            own = [i for i in p.b.labels if i not in p.a.labels]
            if len(own) != 1 or p.out != (p.a.labels[0], own[0], *p.a.labels[2:]):
                continue
            channels = p.a.labels[1]
            if channels not in p.b.labels:
                continue
            taps, size = w.type.numel // w.shape[1], p.a.value.shape[1]
            if taps * size > taps * w.shape[1] + w.shape[1] * size:
                yield No("it takes more multiplications")
                continue
            labels = (FRESH, own[0], *range(FRESH + 1, FRESH + w.rank - 1))
            v = multiply(Named(w, labels), p.b, (FRESH, channels, *labels[2:]))
            yield make("conv", [_bordered(border, p.a.value), v], **node.attrs)[0]

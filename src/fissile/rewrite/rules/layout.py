"""Layout primitives: chains collapse, and views move through elementwise primitives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fissile.ir.graph import Node, Value
from fissile.ir.infer import broadcast_shapes
from fissile.ir.prims import (
    PRIMS,
    Kind,
    broadcast,
    concat,
    make,
    pad,
    reshape,
    slice_,
    transpose,
)
from fissile.rewrite.classes import Classes
from fissile.rewrite.rule import Draw, Found, No, rule
from fissile.rewrite.views import carried, groups, inverse, padded, seen_as

ELEMENTWISE = tuple(n for n, p in PRIMS.items() if p.kind is Kind.ELEMENTWISE)
VIEWS = ("transpose", "reshape")
AFFINE = ("add", "sub", "mul", "div")


# ---------------------------------------------------------------- one after another


def _turned_twice(d: Draw) -> Value:
    rank = d.extent(2, 4)
    return transpose(transpose(d.value(*d.extents(rank)), _moves(d, rank)), _moves(d, rank))


def _moves(d: Draw, rank: int) -> tuple[int, ...]:
    """A permutation that is not the identity."""
    perm = d.permutation(rank)
    return perm if perm != tuple(range(rank)) else tuple(reversed(perm))


@rule(
    "transpose(transpose(x)) = transpose(x)",
    "transpose",
    example=_turned_twice,
    source="axes",
    exact=True,
    replaces=True,
)
def turned_twice(c: Classes, node: Node) -> Found:
    perm = node.attrs["perm"]
    for inner in c.members(node.inputs[0], "transpose"):
        first = inner.attrs["perm"]
        yield transpose(inner.inputs[0], [first[p] for p in perm])


def _shaped_twice(d: Draw) -> Value:
    a, b, k = d.extent(2), d.extent(2), d.extent(2)
    return reshape(reshape(d.value(a * b, k), (a, b, k)), (a, b * k))


@rule(
    "reshape(reshape(x)) = reshape(x)",
    "reshape",
    example=_shaped_twice,
    source="order",
    exact=True,
    replaces=True,
)
def shaped_twice(c: Classes, node: Node) -> Found:
    for inner in c.members(node.inputs[0], "reshape"):
        yield reshape(inner.inputs[0], node.attrs["shape"])


@rule(
    "transpose(x) = reshape(x), where only axes of extent 1 move",
    "transpose",
    example=lambda d: transpose(d.value(d.extent(2), 1, d.extent(2)), (1, 0, 2)),
    source="order",
    exact=True,
    replaces=True,
)
def turned_in_place(c: Classes, node: Node) -> Found:
    x = node.inputs[0]
    moved = [a for a in node.attrs["perm"] if x.shape[a] != 1]
    if moved == sorted(moved):
        yield reshape(x, node.value.shape)


def _reshaped_and_turned(d: Draw) -> Value:
    a, b, k = d.extent(2), d.extent(2), d.extent(2)
    return transpose(reshape(d.value(a * b, k), (a, b, k)), (2, 0, 1))


@rule(
    "transpose(reshape(x)) = reshape(transpose(x))",
    "transpose",
    example=_reshaped_and_turned,
    source="groups of axes",
    exact=True,
)
def turned_below(c: Classes, node: Node) -> Found:
    """Each group of the reshape moves as a whole."""
    perm = node.attrs["perm"]
    for view in c.members(node.inputs[0], "reshape"):
        x, shape = view.inputs[0], view.value.shape
        parts = groups(x.shape, shape)
        if len(parts) < 2 or 0 in x.shape:
            continue
        place = {a: i for i, g in enumerate(parts) for a in g.after}
        moved = [a for a in perm if shape[a] != 1]
        runs = list(dict.fromkeys(place[a] for a in moved))
        if moved != [a for i in runs for a in parts[i].after]:
            yield No("the transpose takes a group of axes apart")
            continue
        first = [a for i in runs for a in parts[i].before]
        ones = [a for a, s in enumerate(x.shape) if s == 1]
        yield reshape(transpose(x, [*ones, *first]), node.value.shape)


def _turned_and_reshaped(d: Draw) -> Value:
    a, b, k = d.extent(2), d.extent(2), d.extent(2)
    return reshape(transpose(d.value(a, b, k), (2, 0, 1)), (k, a * b))


@rule(
    "reshape(transpose(x)) = transpose(reshape(x))",
    "reshape",
    example=_turned_and_reshaped,
    source="groups of axes",
    exact=True,
)
def shaped_below(c: Classes, node: Node) -> Found:
    """Each group of the reshape is a run of axes before the transpose, too."""
    for view in c.members(node.inputs[0], "transpose"):
        x, perm = view.inputs[0], view.attrs["perm"]
        if 0 in x.shape:
            continue
        parts = groups(view.value.shape, node.value.shape)
        sources = [[perm[a] for a in g.before] for g in parts]
        real = [a for a, s in enumerate(x.shape) if s != 1]
        order = sorted(range(len(parts)), key=lambda i: sources[i][0])
        if [a for i in order for a in sources[i]] != real or len(parts) < 2:
            yield No("the reshape joins axes that are not neighbours before the transpose")
            continue
        extents = [[node.value.shape[a] for a in parts[i].after] for i in order]
        flat = reshape(x, [s for run in extents for s in run])
        starts = {i: sum(map(len, extents[:n])) for n, i in enumerate(order)}
        axes = [starts[i] + k for i, g in enumerate(parts) for k in range(len(g.after))]
        yield reshape(transpose(flat, axes), node.value.shape)


# ---------------------------------------------------------------- slices, pads, concatenations


def _cut_twice(d: Draw) -> Value:
    x = slice_(d.value(9, d.extent()), (1, 0), (4, 1), (2, 1))
    return slice_(x, (3, 0), (2, 1), (-2, 1))


@rule(
    "slice(slice(x)) = slice(x)",
    "slice",
    example=_cut_twice,
    source="affine maps",
    exact=True,
    replaces=True,
)
def cut_twice(c: Classes, node: Node) -> Found:
    start, size, step = (node.attrs[k] for k in ("start", "size", "step"))
    for inner in c.members(node.inputs[0], "slice"):
        first, by = inner.attrs["start"], inner.attrs["step"]
        begin = [f + b * s for f, b, s in zip(first, by, start, strict=True)]
        yield slice_(inner.inputs[0], begin, size, [b * s for b, s in zip(by, step, strict=True)])


def _cut_piece(d: Draw) -> Value:
    n = d.extent()
    both = concat([d.value(n, 4), d.value(n, 5)], 1)
    return slice_(both, (0, d.any((0, 1, 4, 5))), (n, 3), (1, 1))


@rule(
    "slice(concat(x, y)) = slice(x)",
    "slice",
    example=_cut_piece,
    source="pieces",
    exact=True,
    replaces=True,
)
def cut_piece(c: Classes, node: Node) -> Found:
    start, size, step = (node.attrs[k] for k in ("start", "size", "step"))
    for join in c.members(node.inputs[0], "concat"):
        axis = join.attrs["axis"]
        if not size[axis]:
            continue
        ends = sorted((start[axis], start[axis] + (size[axis] - 1) * step[axis]))
        offset = 0
        for piece in join.inputs:
            if offset <= ends[0] and ends[1] < offset + piece.shape[axis]:
                begin = [b - offset * (a == axis) for a, b in enumerate(start)]
                yield slice_(piece, begin, size, step)
            offset += piece.shape[axis]


@rule(
    "concat(concat(x, y), z) = concat(x, y, z)",
    "concat",
    example=lambda d: concat([concat([d.value(2, 3), d.value(1, 3)], 0), d.value(4, 3)], 0),
    source="pieces",
    exact=True,
    replaces=True,
)
def joined_twice(c: Classes, node: Node) -> Found:
    axis = node.attrs["axis"]
    for i, piece in enumerate(node.inputs):
        for inner in c.members(piece, "concat"):
            if inner.attrs["axis"] == axis:
                yield concat([*node.inputs[:i], *inner.inputs, *node.inputs[i + 1 :]], axis)


def _halves(d: Draw) -> Value:
    n, k = d.extent(), d.extent(2)
    x = d.value(n, 2 * k)
    return concat([slice_(x, (0, 0), (n, k)), slice_(x, (0, k), (n, k))], 1)


@rule("concat(x[:k], x[k:]) = x", "concat", example=_halves, source="pieces", exact=True)
def neighbours(c: Classes, node: Node) -> Found:
    """Adjacent slices of one value are one slice."""
    axis = node.attrs["axis"]
    for i, (a, b) in enumerate(zip(node.inputs, node.inputs[1:], strict=False)):
        for one in c.members(a, "slice"):
            for two in c.members(b, "slice"):
                if (whole := _together(c, one, two, axis)) is not None:
                    yield concat([*node.inputs[:i], whole, *node.inputs[i + 2 :]], axis)


def _together(c: Classes, one: Node, two: Node, axis: int) -> Value | None:
    """Two slices side by side as one."""
    steps = one.attrs["step"]
    if not c.same(one.inputs[0], two.inputs[0]) or steps != two.attrs["step"]:
        return None
    first, next_ = list(one.attrs["start"]), list(two.attrs["start"])
    size = list(one.attrs["size"])
    first[axis] += size[axis] * steps[axis]
    rest = [s for a, s in enumerate(two.attrs["size"]) if a != axis]
    if first != next_ or rest != [s for a, s in enumerate(size) if a != axis]:
        return None
    size[axis] += two.attrs["size"][axis]
    return slice_(one.inputs[0], one.attrs["start"], size, steps)


def _padded_twice(d: Draw) -> Value:
    x = d.value(d.extent(), d.extent())
    return pad(pad(x, (1, 0), (0, 2)), (0, 3), (1, 1))


@rule(
    "pad(pad(x)) = pad(x)",
    "pad",
    example=_padded_twice,
    source="borders",
    exact=True,
    replaces=True,
)
def padded_twice(c: Classes, node: Node) -> Found:
    a = node.attrs
    if a["mode"] != "constant":
        return
    for inner in c.members(node.inputs[0], "pad"):
        b = inner.attrs
        if b["mode"] == "constant" and _same_number(a["value"], b["value"]):
            lo = [m + n for m, n in zip(a["lo"], b["lo"], strict=True)]
            hi = [m + n for m, n in zip(a["hi"], b["hi"], strict=True)]
            yield pad(inner.inputs[0], lo, hi, "constant", a["value"])


def _same_number(a: float, b: float) -> bool:
    """With equal signs of zero."""
    return a == b and math.copysign(1, a) == math.copysign(1, b)


def _cut_inside(d: Draw) -> Value:
    return slice_(pad(d.value(5, d.extent()), (2, 0), (1, 0)), (3, 0), (3, 1), (1, 1))


@rule(
    "slice(pad(x)) = slice(x), away from the border",
    "slice",
    example=_cut_inside,
    source="borders",
    exact=True,
    replaces=True,
)
def cut_inside(c: Classes, node: Node) -> Found:
    start, size, step = (node.attrs[k] for k in ("start", "size", "step"))
    if 0 in size:
        return
    for border in c.members(node.inputs[0], "pad"):
        x, lo = border.inputs[0], border.attrs["lo"]
        begin = [b - low for b, low in zip(start, lo, strict=True)]
        last = [b + (n - 1) * s for b, n, s in zip(begin, size, step, strict=True)]
        ends = zip(begin, last, x.shape, strict=True)
        if all(min(b, e) >= 0 and max(b, e) < s for b, e, s in ends):
            yield slice_(x, begin, size, step)


# ---------------------------------------------------------------- through elementwise primitives


def _operand(d: Draw, shape: Sequence[int]) -> Value:
    """Weights that broadcast against a shape."""
    return d.weights(*(s if d.any((True, False)) else 1 for s in shape))


def _below(d: Draw) -> Value:
    x = d.value(*d.extents(3)) * 2.0
    view = d.any((transpose(x, (1, 2, 0)), reshape(x, (x.shape[0], x.shape[1] * x.shape[2]))))
    return view * _operand(d, view.shape)


@rule(
    "f(view(x), k) = view(f(x, k'))", *AFFINE, example=_below, source="groups of axes", exact=True
)
def below(c: Classes, node: Node) -> Found:
    """A view waits until an affine map is done; the operands that it does not come from are
    constants, or seen through the same view. Not so behind other functions: nothing composes
    through them."""
    for i, x in enumerate(node.inputs):
        if x.shape != node.value.shape or c.is_fixed(x):
            continue
        for view in c.members(x, *VIEWS):
            if not c.members(view.inputs[0], "contract", "conv", *AFFINE):
                yield No("x is no linear map")
                continue
            inputs = [_unseen(c, view, v, j == i) for j, v in enumerate(node.inputs)]
            if None in inputs:
                yield No("another operand is not seen through the same view")
                continue
            yield seen_as(view, make(node.prim, inputs, **node.attrs)[0])  # type: ignore


def _unseen(c: Classes, view: Node, v: Value, is_it: bool) -> Value | None:
    """An operand on the other side of a view."""
    if is_it:
        return view.inputs[0]
    if c.is_fixed(v) or v.type.numel == 1:
        return carried(view, v, back=True)
    if v.shape != view.value.shape:
        return None
    same = (m for m in c.members(v, view.prim) if m.attrs == view.attrs)
    found = next((m.inputs[0] for m in same if m.inputs[0].shape == view.inputs[0].shape), None)
    return found


def _above(d: Draw) -> Value:
    x = transpose(d.value(*d.extents(3)), (2, 1, 0))
    y = x + _operand(d, x.shape)
    return d.any((transpose(y, (1, 2, 0)), reshape(y, (x.shape[0], x.shape[1] * x.shape[2]))))


@rule("view(f(x, k)) = f(view(x), k')", *VIEWS, example=_above, source="groups of axes", exact=True)
def above(c: Classes, node: Node) -> Found:
    """So that what gives x can absorb the view. Refused where nothing would."""
    for inner in c.members(node.inputs[0], *AFFINE):
        loose = [v for v in inner.inputs if not c.is_fixed(v) and v.type.numel > 1]
        if len(loose) != 1 or loose[0].shape != inner.value.shape:
            continue
        if not c.members(loose[0], "contract", *VIEWS, *AFFINE):
            yield No("nothing above would absorb the view")
            continue
        inputs = [seen_as(node, v) if v is loose[0] else carried(node, v) for v in inner.inputs]
        if None not in inputs:
            yield make(inner.prim, inputs, **inner.attrs)[0]  # type: ignore


def _cut_below(d: Draw) -> Value:
    x = d.value(6, d.extent())
    return slice_(x * _operand(d, x.shape), (1, 0), (3, x.shape[1]), (2, 1))


@rule(
    "slice(f(x, y)) = f(slice(x), slice(y))",
    "slice",
    example=_cut_below,
    source="elements",
    exact=True,
)
def cut_above(c: Classes, node: Node) -> Found:
    """Less is computed, unless others read the rest."""
    x, shape = node.inputs[0], node.inputs[0].shape
    start, size, step = (node.attrs[k] for k in ("start", "size", "step"))
    if 2 * node.value.type.numel > x.type.numel and len(c.users(x)) > 1:
        yield No("most of it is computed anyway")
        return
    for inner in c.members(x, *ELEMENTWISE):
        inputs: list[Value] = []
        for v in inner.inputs:
            v, whole = padded(v, x.rank), (0,) * x.rank
            cut = [s != 1 or t == 1 for s, t in zip(v.shape, shape, strict=True)]
            inputs.append(slice_(
                v, [b if k else w for b, w, k in zip(start, whole, cut, strict=True)],
                [n if k else 1 for n, k in zip(size, cut, strict=True)],
                [s if k else 1 for s, k in zip(step, cut, strict=True)],
            ))  # fmt: skip
        if inner.value.shape == tuple(broadcast_shapes([v.shape for v in inner.inputs])):
            yield make(inner.prim, inputs, **inner.attrs)[0]


@rule(
    "slice(transpose(x)) = transpose(slice(x))",
    "slice",
    example=lambda d: slice_(transpose(d.value(4, 5, 2), (2, 0, 1)), (0, 1, 2), (2, 2, 3)),
    source="axes",
    exact=True,
)
def cut_turned(c: Classes, node: Node) -> Found:
    for view in c.members(node.inputs[0], "transpose"):
        back = inverse(view.attrs["perm"])
        parts = ([node.attrs[k][a] for a in back] for k in ("start", "size", "step"))
        yield transpose(slice_(view.inputs[0], *parts), view.attrs["perm"])


@rule(
    "f(broadcast(x), y) = f(x, y)",
    *ELEMENTWISE,
    example=lambda d: broadcast(d.value(1, 3), (4, 3)) + d.value(4, 3),
    source="broadcasting",
    exact=True,
    replaces=True,
)
def spread_for_nothing(c: Classes, node: Node) -> Found:
    for i, x in enumerate(node.inputs):
        for wide in c.members(x, "broadcast"):
            inputs = [*node.inputs[:i], wide.inputs[0], *node.inputs[i + 1 :]]
            if broadcast_shapes([v.shape for v in inputs]) == node.value.shape:
                yield make(node.prim, inputs, **node.attrs)[0]


# ---------------------------------------------------------------- reductions of views


def _summed_view(d: Draw) -> Value:
    x = d.value(*d.extents(3, 2))
    view = d.any((transpose(x, (1, 2, 0)), reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))))
    return make("reduce_max", [view], axes=(0,))[0]


@rule(
    "reduce(view(x)) = view(reduce(x))",
    "reduce_sum",
    "reduce_mean",
    "reduce_max",
    "reduce_min",
    example=_summed_view,
    source="groups of axes",
    exact=True,
)
def reduced_view(c: Classes, node: Node) -> Found:
    """Groups are reduced as a whole or not at all."""
    axes = set(node.attrs["axes"])
    for view in c.members(node.inputs[0], *VIEWS):
        x = view.inputs[0]
        over = list(_sources(view, axes))
        if None in over or 0 in x.shape:
            yield No("a group of axes is reduced in part")
            continue
        taken = tuple(sorted(a for a in over if a is not None))
        if taken:
            yield reshape_or_turn(view, make(node.prim, [x], axes=taken)[0], node.value.shape)


def _sources(view: Node, axes: set[int]) -> Iterator[int | None]:
    """The axes before a view that lie in these behind it; None where that is not all of one."""
    x, y = view.inputs[0], view.value
    if view.prim == "transpose":
        yield from (view.attrs["perm"][a] for a in axes)
        return
    for group in groups(x.shape, y.shape):
        inside = axes & set(group.after)
        if inside and len(inside) < len(group.after):
            yield None
        elif inside:
            yield from group.before


def reshape_or_turn(view: Node, x: Value, shape: Sequence[int]) -> Value:
    """The view of something that has extent 1 along some axes."""
    return transpose(x, view.attrs["perm"]) if view.prim == "transpose" else reshape(x, shape)

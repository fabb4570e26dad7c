"""The kernel that always exists: plain loops around one contraction, convolution, window or
reduction.

    y[o] = epilogue(sum over k of prologue(a)[o, k] * prologue(b)[o, k])
    or max, min, prod, argmax, argmin of prologue(a)[o, k]

Every element type that C++ has. Half precision accumulates in float and rounds once; integers
wrap. What stands before the anchor is computed where it is read, pads and concats as a choice at
each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.graph import Node, Value
from fissile.ir.layout import Token
from fissile.ir.prims import Kind, kind
from fissile.ir.semantics import split_spec
from fissile.ir.types import F32, DType
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region
from fissile.targets.cpu.impls import opaque
from fissile.targets.cpu.impls.stages import OPS
from fissile.targets.cpu.impls.sums import SCALARS, declared, in_blocks, neutral
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.targets.cpu.machine import Machine
from fissile.tiles.cpp import Printer, compute_type, literal
from fissile.tiles.expr import (
    EITHER,
    Builder,
    Expr,
    Illegal,
    Leaf,
    Literal,
    Op,
    Point,
    Register,
    forward,
)
from fissile.tiles.index import Index, Var, const, floordiv, text, unflatten, var
from fissile.tiles.nest import loop
from fissile.tiles.tree import Accumulate, Define, Do, For, Raw, Store, Tree

TILES = 64  # enough for any number of threads
ANCHORS = (Kind.LINEAR, Kind.WINDOW, Kind.REDUCE)


def lower(candidate: Candidate, machine: Machine | None = None) -> Kernel | No:
    """The kernel of a region with exactly one primitive that is neither elementwise nor layout, or
    that is one opaque primitive."""
    if any(kind(n) is Kind.OPAQUE for n in candidate.region.nodes):
        return opaque.lower(candidate)
    writer = Writer(candidate)
    try:
        anchor = _anchor(candidate.region)
        if not anchor.value.type.numel:
            return writer.kernel([], 0)
        tiles, trees = _trees(candidate, writer, anchor)
    except Illegal as reason:
        return reason.no
    return writer.kernel(list(writer.printer.trees(trees, indent=2)), tiles)


def _anchor(region: Region) -> Node:
    for n in region.nodes:
        for v in (*n.inputs, *n.outputs):
            if v.type.dtype.c is None:
                raise Illegal(f"{n.prim}: C++ has no type for {v.type.dtype}")
        if kind(n) not in (*ANCHORS, Kind.ELEMENTWISE, Kind.LAYOUT, Kind.BROADCAST):
            raise Illegal(f"{n.prim} is {kind(n).value}: no loops around it")
    found = [n for n in region.nodes if kind_in_kernel(n) in ANCHORS]
    found = found or [n for n in region.nodes if kind(n) in ANCHORS]
    if len(found) != 1:
        named = ", ".join(n.prim for n in found) or "none"
        raise Illegal(
            f"plain loops stand around one contraction, window or reduction, here: {named}"
        )
    return found[0]


def _trees(candidate: Candidate, writer: Writer, anchor: Node) -> tuple[int, list[Tree]]:
    loops = {a: loop(f"i{a}", n) for a, n in enumerate(anchor.value.shape) if n > 1}
    here = tuple(var(loops[a]) if a in loops else const(0) for a in range(anchor.value.rank))
    points = forward(candidate.region, anchor.value, here)
    for t in candidate.gives:
        if t.value not in points:
            raise Illegal(
                f"{t.value.node.prim} gives {t.value.type}, not one value for each of {anchor.prim}"
            )
    leaves = writer.leaves(dense=anchor)
    body = _body(anchor, here, Builder(leaves, EITHER), writer.printer)
    after = Builder({**leaves, anchor.value: _result(anchor, here)}, EITHER)
    body.append(
        Do(tuple(_store(i, t, points[t.value], after) for i, t in enumerate(candidate.gives)))
    )
    order = [a for a in _order(anchor, candidate.gives[0]) if a in loops]
    outer, inner = _split([loops[a] for a in order])
    for v in reversed(inner):
        body = [For(v, tuple(body))]
    return math.prod(v.extent for v in outer), [*_opening(outer), *body]


def _order(anchor: Node, token: Token) -> Sequence[int]:
    """Axes of the anchor, outermost first; as the output lies in memory where it has the same."""
    same = token.value.shape == anchor.value.shape
    return token.layout.order if same else range(anchor.value.rank)


def _split(loops: Sequence[Var]) -> tuple[Sequence[Var], Sequence[Var]]:
    """Outer loops that the tiles run over, and the others."""
    tiles, at = 1, 0
    while at < len(loops) and tiles < TILES:
        tiles, at = tiles * loops[at].extent, at + 1
    return loops[:at], loops[at:]


def _opening(outer: Sequence[Var]) -> list[Tree]:
    """The values of the outer loops' variables in tile t."""
    if not outer:
        return []
    t = var(Var("t", 0, math.prod(v.extent for v in outer) - 1))
    parts = zip(outer, unflatten(t, tuple(v.extent for v in outer)), strict=True)
    shown = ", ".join(f"{v.name} = {text(i)}" for v, i in parts)
    return [Raw((f"const int64_t {shown};",))]


def _store(i: int, token: Token, point: Point, builder: Builder) -> Store:
    address = const(0)
    for p, stride in zip(point, strides_of(token), strict=True):
        address = address + p * stride
    return Store(f"y{i}", address, builder.at(token.value, point))


def _result(anchor: Node, here: Point) -> Leaf:
    def leaf(point: Point) -> Expr:
        if point != here:
            raise Illegal(
                f"the result of {anchor.prim} is read at another point than it is computed at"
            )
        return Register("v", anchor.value.type.dtype, lanes=False)

    return leaf


# -- the anchor at one point


@dataclass(frozen=True)
class _Sum:
    """v = fold of `value` over `loops`."""

    op: str
    loops: tuple[Var, ...]
    value: Expr


def _body(anchor: Node, here: Point, builder: Builder, printer: Printer) -> list[Tree]:
    """Lines that end with the anchor's value in v."""
    if anchor.prim in ("argmax", "argmin"):
        return _argument(anchor, here, builder, printer)
    s = _SUMS[anchor.prim if anchor.prim in _SUMS else "reduce"](anchor, here, builder)
    dtype = anchor.value.type.dtype
    wide = _accumulator(dtype)
    trees: list[Tree] = [Do((Accumulate("a", s.op, s.value),))]
    for v in reversed(s.loops):
        trees = [For(v, tuple(trees))]
    steps = math.prod(v.extent for v in s.loops)
    if steps == 0:
        trees = []
    long = wide.is_float and steps > SCALARS and s.op in ("sum", "prod")
    found = in_blocks(trees, {"a": (s.op, wide)}) if long else [declared("a", s.op, wide), *trees]
    return [*found, Do((Define("v", _ended(anchor, steps)),))]


def _accumulator(dtype: DType) -> DType:
    return F32 if dtype.name in ("f16", "bf16") else dtype


def _ended(anchor: Node, steps: int) -> Expr:
    """What the accumulator becomes."""
    dtype = anchor.value.type.dtype
    a = Register("a", _accumulator(dtype), lanes=False)
    if anchor.prim == "reduce_mean":
        return Op("div", (a, Literal(steps, dtype)), (), dtype)
    return a if a.dtype == dtype else Op("cast", (a,), (("to", dtype.name),), dtype)


def _contract(n: Node, here: Point, builder: Builder) -> _Sum:
    left, right, out = split_spec(n.attrs["spec"])
    a, b = n.inputs
    where: dict[str, Index] = dict(zip(out, here, strict=True))
    summed: list[Var] = []
    for label, extent in [*zip(left, a.shape, strict=True), *zip(right, b.shape, strict=True)]:
        if label not in where:
            v = loop(f"k{label}", extent)
            where[label] = var(v)
            summed.append(v)
    points = [tuple(where[x] for x in labels) for labels in (left, right)]
    return _Sum("sum", tuple(summed), _product(builder, (a, b), points))


def _conv(n: Node, here: Point, builder: Builder) -> _Sum:
    x, w = n.inputs
    per_group, kernel = w.shape[1], w.shape[2:]
    group = floordiv(here[1], w.shape[0] // n.attrs["groups"])
    c, taps = loop("kc", per_group), [loop(f"k{a}", k) for a, k in enumerate(kernel)]
    inner = _window_point(n, here, taps)
    points = [(here[0], group * per_group + var(c), *inner), (here[1], var(c), *map(var, taps))]
    return _Sum("sum", (c, *taps), _product(builder, (x, w), points))


def _product(builder: Builder, operands: Sequence[Value], points: Sequence[Point]) -> Expr:
    a, b = (builder.at(v, point) for v, point in zip(operands, points, strict=True))
    return Op("mul", (a, b), (), _accumulator(operands[0].type.dtype))


def _window(n: Node, here: Point, builder: Builder) -> _Sum:
    taps = [loop(f"k{a}", k) for a, k in enumerate(n.attrs["kernel"])]
    point = (*here[:2], *_window_point(n, here, taps))
    return _Sum(
        "max" if n.prim == "window_max" else "sum", tuple(taps), builder.at(n.inputs[0], point)
    )


def _window_point(n: Node, here: Point, taps: Sequence[Var]) -> Point:
    """Where a tap of the window at `here` lies along the spatial axes."""
    steps = zip(here[2:], n.attrs["strides"], taps, n.attrs["dilations"], strict=True)
    return tuple(o * s + var(k) * d for o, s, k, d in steps)


def _reduce(n: Node, here: Point, builder: Builder) -> _Sum:
    loops = {a: loop(f"k{a}", n.inputs[0].shape[a]) for a in n.attrs["axes"]}
    point = tuple(var(loops[a]) if a in loops else i for a, i in enumerate(here))
    return _Sum(OPS[n.prim], tuple(loops.values()), builder.at(n.inputs[0], point))


_SUMS = {
    "contract": _contract, "conv": _conv, "window_max": _window, "window_sum": _window,
    "reduce": _reduce,
}  # fmt: skip


def _argument(n: Node, here: Point, builder: Builder, printer: Printer) -> list[Tree]:
    """The index of the first or last extreme; a NaN is beyond every number."""
    (axis,), (x,) = n.attrs["axes"], n.inputs
    k = loop("k", x.shape[axis])
    point = (*here[:axis], var(k), *here[axis + 1 :])
    at, beyond = compute_type(x.type.dtype), ">" if n.prim == "argmax" else "<"
    worst = literal(neutral("max" if n.prim == "argmax" else "min", x.type.dtype), x.type.dtype)
    better = (
        f"x {beyond}= best || x != x"
        if n.attrs["last"]
        else f"x {beyond} best || (x != x && best == best)"
    )
    read = printer.expr(builder.at(x, point), None, {})
    step = f"if ({better}) best = x, v = k;"
    return [
        Raw((f"{at} best = {worst};", "int64_t v = 0;")),
        For(k, (Raw(("FISSILE_NO_MASKS;", f"const {at} x = {read};", step)),)),
    ]

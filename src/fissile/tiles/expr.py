"""From a value at an index to an expression over memory: the backward walk of a region.

`Builder.at(value, index)` walks from a value to the leaves of the region and composes the index map
of every layout primitive on its way (Korch's O[x] = I[L(x)]), so that transposes, reshapes, slices,
pads, concats and gathers cost no storage. A pad or concat asks on which side of a bound the index
lies; where ranges do not tell, `Undecided` asks the caller to split a loop there, or to branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fissile.ir.graph import Value
from fissile.ir.layout import Layout
from fissile.ir.prims import PRIMS, Kind, kind
from fissile.ir.types import F32, DType
from fissile.kernels.blend import blend_of
from fissile.kernels.candidate import No
from fissile.kernels.region import Region, is_scalar
from fissile.tiles.index import (
    Index,
    clamp,
    const,
    dot,
    floordiv,
    mod,
    reflect,
    reshape_index,
    table,
)
from fissile.tiles.place import place

Point = tuple[Index, ...]


@dataclass(frozen=True)
class Literal:
    value: Any
    dtype: DType


@dataclass(frozen=True)
class Load:
    pointer: str
    address: Index
    dtype: DType


@dataclass(frozen=True)
class Register:
    """A value that code already holds, such as an accumulator or a row statistic. `lanes` tells
    whether it differs from lane to lane."""

    text: str
    dtype: DType
    lanes: bool


@dataclass(frozen=True)
class Op:
    prim: str
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, Any], ...]
    dtype: DType


@dataclass(frozen=True)
class Choose:
    """`less` where index < bound, else `other`; only where no loop could be split."""

    index: Index
    bound: int
    less: Expr
    other: Expr
    dtype: DType


# operations of expressions that are no primitives: how they are printed, and what they cost
FORMS = {
    "fma": ("fma({0}, {1}, {2})", 1.0),
    "at_least": ("at_least({0}, {1})", 1.0),
    "at_most": ("at_most({0}, {1})", 1.0),
    "greatest": ("greatest({0}, {1})", 1.0),
    "exp_below": ("exp_below({0})", 13.0),
    "erf_plus_one": ("erf_plus_one({0})", 16.0),
    "silu": ("silu({0})", 13.0),
}

Expr = Literal | Load | Register | Op | Choose


class Undecided(Exception):
    """Is `index` less than `bound`? The caller splits a loop or branches."""

    def __init__(self, index: Index, bound: int):
        super().__init__()
        self.index, self.bound = index, bound


class Either(dict):  # type: ignore[type-arg]
    """Decides nothing: every question becomes a choice in the expression."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: object) -> None:
        return None


EITHER: Mapping[tuple[Index, int], bool | None] = Either()
OPEN: Mapping[tuple[Index, int], bool | None] = Either()  # for `nest.probing` alone


class Illegal(Exception):
    """The region cannot be computed this way. The text is the reason."""

    @property
    def no(self) -> No:
        return No(str(self))


Leaf = Callable[[Point], Expr]


def memory(pointer: str, value: Value, layout: Layout, origin: Point | None = None) -> Leaf:
    """A dense tensor in memory."""
    if not layout.tile:
        return strided(pointer, layout.strides(value.shape), value.type.dtype, origin)
    if origin is not None:
        raise Illegal("a part of a tiled tensor")
    return lambda point: Load(pointer, place(layout, point, value.shape), value.type.dtype)


def strided(
    pointer: str, strides: tuple[int, ...], dtype: DType, origin: Point | None = None
) -> Leaf:
    """Elements at sum (index - origin) * stride."""

    def load(point: Point) -> Expr:
        if origin is not None:
            point = tuple(i - o for i, o in zip(point, origin, strict=True))
        return Load(pointer, dot(point, strides), dtype)

    return load


@dataclass(frozen=True)
class Rows:
    """The matrix of a blend as a leaf: [row][weights, then places of the terms]. Positions of
    `extent` elements."""

    pointer: str
    terms: int
    extent: int

    def __call__(self, point: Point) -> Expr:
        raise Illegal("a matrix of few terms is read as a whole one")

    def term(self, row: Index, r: int) -> tuple[Expr, Index]:
        """The weight of term r, and where it reads."""
        at = row * (2 * self.terms) + r
        return Load(self.pointer, at, F32), table(self.pointer, at + self.terms, self.extent)


class Builder:
    """Expressions over `leaves`. `decided` holds what the caller assumes about undecided
    comparisons: True, False, or None for a choice in the expression."""

    def __init__(
        self, leaves: Mapping[Value, Leaf], decided: Mapping[tuple[Index, int], bool | None]
    ):
        self.leaves, self.decided = leaves, decided
        self.memo: dict[tuple[Value, Point], Expr] = {}

    def at(self, value: Value, point: Point) -> Expr:
        key = (value, point)
        if key not in self.memo:
            self.memo[key] = self._at(value, point)
        return self.memo[key]

    def _at(self, value: Value, point: Point) -> Expr:
        if value in self.leaves:
            return self.leaves[value](point)
        if is_scalar(value):
            return Literal(value.array.reshape(-1)[0], value.type.dtype)
        node = value.node
        if kind(node) is Kind.ELEMENTWISE:
            args = tuple(self.at(v, narrow(point, v.shape)) for v in node.inputs)
            return simplified(Op(node.prim, args, tuple(node.attrs.items()), value.type.dtype))
        move = _MOVES.get(node.prim)
        if move is None:
            raise Illegal(f"{node.prim} cannot be computed element by element here")
        return move(self, value, point)

    def less(self, index: Index, bound: int) -> bool | None:
        if index.hi < bound:
            return True
        if index.lo >= bound:
            return False
        if (index, bound) in self.decided:
            return self.decided[index, bound]
        raise Undecided(index, bound)

    def choose(
        self, index: Index, bound: int, less: Callable[[], Expr], other: Callable[[], Expr]
    ) -> Expr:
        answer = self.less(index, bound)
        if answer is None:
            yes = less()
            return Choose(index, bound, yes, other(), yes.dtype)
        return less() if answer else other()

    def contract(self, value: Value, point: Point) -> Expr:
        """A blend: a few terms that are gathered."""
        blend = blend_of(value.node)
        rows = self.leaves.get(blend.weights) if blend else None
        if blend is None or not isinstance(rows, Rows):
            raise Illegal("contract cannot be computed element by element here")
        total: Expr = Literal(0.0, F32)  # as a product begins: no zero becomes a negative one
        for r in range(blend.terms):
            weight, place = rows.term(point[blend.axis], r)
            at = (*point[: blend.axis], place, *point[blend.axis + 1 :])
            total = Op("fma", (self.at(blend.x, at), weight, total), (), F32)
        return total

    # -- the index maps of layout primitives

    def broadcast(self, value: Value, point: Point) -> Expr:
        (x,) = value.node.inputs
        return self.at(x, narrow(point, x.shape))

    def transpose(self, value: Value, point: Point) -> Expr:
        (x,), perm = value.node.inputs, value.node.attrs["perm"]
        source = [const(0)] * x.rank
        for axis, i in zip(perm, point, strict=True):
            source[axis] = i
        return self.at(x, tuple(source))

    def reshape(self, value: Value, point: Point) -> Expr:
        (x,) = value.node.inputs
        return self.at(x, reshape_index(point, value.shape, x.shape))

    def slice(self, value: Value, point: Point) -> Expr:
        (x,), a = value.node.inputs, value.node.attrs
        return self.at(
            x, tuple(i * d + b for i, b, d in zip(point, a["start"], a["step"], strict=True))
        )

    def gather(self, value: Value, point: Point) -> Expr:
        (x, indices), axis = value.node.inputs, value.node.attrs["axis"]
        if self.decided is OPEN and not (indices in self.leaves or is_scalar(indices)):
            raise Illegal("gather with indices that may hang on questions")
        where = self.at(indices, point[axis : axis + indices.rank])
        if isinstance(where, Literal):
            entry = const(int(where.value) % x.shape[axis])
        elif isinstance(where, Load):
            entry = table(where.pointer, where.address, x.shape[axis])
        else:
            raise Illegal("gather with indices that are computed in the same kernel")
        return self.at(x, (*point[:axis], entry, *point[axis + indices.rank :]))

    def concat(self, value: Value, point: Point) -> Expr:
        axis, parts = value.node.attrs["axis"], [v for v in value.node.inputs if v.type.numel]
        return self._part(parts, axis, point, 0)

    def _part(self, parts: list[Value], axis: int, point: Point, start: int) -> Expr:
        first = parts[0]
        here = (*point[:axis], point[axis] - start, *point[axis + 1 :])
        if len(parts) == 1:
            return self.at(first, here)
        end = start + first.shape[axis]
        return self.choose(
            point[axis], end,
            lambda: self.at(first, here), lambda: self._part(parts[1:], axis, point, end),
        )  # fmt: skip

    def pad(self, value: Value, point: Point) -> Expr:
        (x,), a = value.node.inputs, value.node.attrs
        inner = tuple(i - lo for i, lo in zip(point, a["lo"], strict=True))
        if a["mode"] == "constant":
            return self._inside(x, inner, Literal(a["value"], x.type.dtype), 0)
        move = {
            "reflect": lambda i, n: reflect(i, n),
            "edge": lambda i, n: clamp(i, 0, n - 1),
            "wrap": lambda i, n: mod(i + n * -floordiv(i, n).lo, n) if i.lo < 0 else mod(i, n),
        }[a["mode"]]
        for i, n in zip(inner, x.shape, strict=True):  # loops split where the border begins
            if i.lo < 0 <= i.hi:
                self.less(i, 0)
            if i.lo < n <= i.hi:
                self.less(i, n)
        return self.at(x, tuple(move(i, n) for i, n in zip(inner, x.shape, strict=True)))

    def _inside(self, x: Value, point: Point, fill: Expr, axis: int) -> Expr:
        if axis == x.rank:
            return self.at(x, point)
        i, n = point[axis], x.shape[axis]
        if n == 0:
            return fill
        return self.choose(
            i, 0, lambda: fill,
            lambda: self.choose(i, n, lambda: self._inside(x, point, fill, axis + 1), lambda: fill),
        )  # fmt: skip


_MOVES: dict[str, Callable[[Builder, Value, Point], Expr]] = {
    "broadcast": Builder.broadcast,
    "transpose": Builder.transpose,
    "reshape": Builder.reshape,
    "slice": Builder.slice,
    "gather": Builder.gather,
    "concat": Builder.concat,
    "pad": Builder.pad,
    "contract": Builder.contract,
}


def narrow(point: Point, shape: tuple[int, ...]) -> Point:
    """The index into an operand that is broadcast: aligned right, extent 1 stays at 0."""
    tail = point[len(point) - len(shape) :]
    return tuple(const(0) if s == 1 else i for i, s in zip(tail, shape, strict=True))


def operations(expr: Expr) -> float:
    """Vector operations that an expression costs, shared parts once."""
    seen: set[int] = set()
    stack, total = [expr], 0.0
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if isinstance(e, Op):
            total += FORMS[e.prim][1] if e.prim in FORMS else PRIMS[e.prim].flops
            stack.extend(e.args)
        elif isinstance(e, Choose):
            stack += [e.less, e.other]
    return total


# x f(x) in one function: its product keeps a NaN, so the bounds on x need not
_TIMES = {"sigmoid": "silu"}
_ROUNDING = ("exp", "tanh", "erf", "sigmoid", "softplus", "log", "sin", "cos")


def simplified(e: Op) -> Expr:
    """The same value in fewer instructions, for f32:

    max(x, c) -> at_least(x, c), min and clip likewise: no test for NaN on the constant's side
    erf(x) + 1 in one polynomial, as what erf knows of numbers near 0 is lost in the sum
    x sigmoid(x) -> silu(x)
    f(x / c) -> f(x (1 / c)) where f rounds its argument as much as the product does
    """
    if e.dtype is not F32:
        return e
    if e.prim in ("max", "min"):
        x, bound = e.args if isinstance(e.args[1], Literal) else e.args[::-1]
        return _bounded(x, "at_least" if e.prim == "max" else "at_most", bound) or e
    if e.prim == "clip":
        least = _bounded(e.args[0], "at_least", e.args[1])
        return (_bounded(least, "at_most", e.args[2]) if least else None) or e
    if e.prim == "add":
        for f, one in (e.args, e.args[::-1]):
            if isinstance(f, Op) and f.prim == "erf" and _is_one(one):
                return Op("erf_plus_one", f.args, (), F32)
    if e.prim == "mul":
        for x, f in (e.args, e.args[::-1]):
            if isinstance(f, Op) and f.prim in _TIMES and f.args[0] is x:
                return Op(_TIMES[f.prim], f.args, (), F32)
    if e.prim in _ROUNDING and isinstance(x := e.args[0], Op) and x.prim == "div":
        factor = _inverse(x.args[1])
        return replace(e, args=(Op("mul", (x.args[0], factor), (), F32),)) if factor else e
    return e


def _bounded(x: Expr, prim: str, bound: Expr) -> Op | None:
    known = isinstance(bound, Literal) and not np.isnan(bound.value)
    return Op(prim, (x, bound), (), F32) if known else None


def _is_one(e: Expr) -> bool:
    return isinstance(e, Literal) and e.value == 1


def _inverse(e: Expr) -> Literal | None:
    """1 / c where neither is denormal."""
    if not isinstance(e, Literal) or not 2.0**-126 <= abs(float(e.value)) <= 2.0**126:
        return None
    return Literal(np.float32(1) / np.float32(e.value), F32)


def forward(region: Region, start: Value, point: Point) -> dict[Value, Point]:
    """Where the element of `start` at `point` ends up in each later value of the region that is
    computed from it one to one: through elementwise primitives of its own shape, transposes and
    reshapes."""
    points = {start: point}
    for node in region.nodes:
        known = [v for v in node.inputs if v in points]
        if not known or node is start.node:
            continue
        x, y = known[0], node.outputs[0]
        if kind(node) is Kind.ELEMENTWISE and x.shape == y.shape:
            points[y] = points[x]
        elif node.prim == "transpose":
            points[y] = tuple(points[x][a] for a in node.attrs["perm"])
        elif node.prim == "reshape":
            points[y] = reshape_index(points[x], x.shape, y.shape)
    return points

"""How a kernel walks over the rows of a reduction: which loops, which lanes, which rows belong to
one tile.

Rows are numbered along the kept axes in memory order. A block is `width` rows: neighbours that run
side by side in lanes, or, where the elements of a row do, a few short ones whose passes take turns,
so that the end of one reduction does not wait for another. Block b holds the rows  width * b + c. A
tile is `per_tile` blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fissile.ir.graph import Value
from fissile.ir.types import F32
from fissile.targets.cpu.impls.stages import Stages
from fissile.tiles.change import expressions
from fissile.tiles.expr import EITHER, Builder, Illegal, Leaf, Load, Point
from fissile.tiles.index import Index, Var, const, flatten, substitute, unflatten, var
from fissile.tiles.nest import Env, loop

TILE_ELEMENTS = 4096
WIDTH = 64  # rows side by side that use whole cache lines
RESIDENT_BYTES = 1 << 18  # a block that is read more than once should stay in cache
GROUP = 16  # rows that take turns: their statistics fill vectors
KEEPING = 2560  # elements of a group that is read, kept and written in the first cache
SEVERAL = (
    4096  # elements up to which two or four groups hide the latency of each other's statistics
)
GROUP_ELEMENTS = 6144  # which should stay in the first cache; of another number of rows, half


@dataclass(frozen=True)
class Walk:
    """`kept` and `reduced`: axes of more than one step, outermost first in memory. `here` is the
    point of D as a function of `blocks`, `abreast` and a loop i<a> for each reduced axis."""

    shape: tuple[int, ...]
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    width: int
    lanes: tuple[Var, ...]
    turns: tuple[Var, ...]
    blocks: Var
    per_tile: int
    here: Point
    row: Index
    is_ordered: bool = True  # the elements of a row are neighbours in memory

    @property
    def abreast(self) -> tuple[Var, ...]:
        """The loop over the rows of a block, of which at most one kind exists."""
        return self.lanes or self.turns

    @property
    def tiles(self) -> int:
        return -(-self.blocks.extent // self.per_tile)

    @property
    def length(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[a] for a in self.reduced)

    def row_at(self, point: Point) -> Index:
        """The number of the row that a point of D lies in."""
        return flatten(tuple(point[a] for a in self.kept), tuple(self.shape[a] for a in self.kept))

    def place_in_row(self, point: Point) -> Index:
        return flatten(
            tuple(point[a] for a in self.reduced), tuple(self.shape[a] for a in self.reduced)
        )


def walk_of(
    s: Stages,
    leaves: Mapping[Value, Leaf],
    asked: int | None = None,
    parts: int = 1,
    keeps: bool = False,
) -> Walk:
    """`asked` replaces the default width. Blocks do not cross the borders of `parts` equal parts of
    the rows. `keeps`: values are kept from stage to stage. Raises Illegal where a width does not
    divide."""
    order = _memory_order(s, leaves)
    kept = tuple(a for a in order if a not in s.axes)
    reduced = tuple(a for a in order if a in s.axes)
    length = math.prod(s.shape[a] for a in reduced)
    width = _width(s, order, length, asked)
    rows = math.prod(s.shape[a] for a in kept)
    lanes = (loop("c", width),) if width > 1 else ()
    if not lanes:
        width = _group(s, rows // parts, length, keeps)
    group = (loop("g", width),) if width > 1 and not lanes else ()
    blocks = loop("r" if width == 1 else "b", rows // width)
    row = sum((var(v) for v in lanes or group), var(blocks) * width)
    here = [const(0)] * len(s.shape)
    for a, i in zip(kept, unflatten(row, tuple(s.shape[a] for a in kept)), strict=True):
        here[a] = i
    for a in reduced:
        here[a] = var(loop(f"i{a}", s.shape[a]))
    per_tile = min(max(1, -(-TILE_ELEMENTS // (width * length))), blocks.extent)
    ordered = order == [*kept, *reduced]
    return Walk(
        s.shape, kept, reduced, width, lanes, group, blocks, per_tile, tuple(here), row, ordered
    )


def _group(s: Stages, rows: int, length: int, keeps: bool) -> int:
    """Rows that take turns: a divisor of `rows`, or 1."""
    if any(n.value.type.dtype is not F32 for n in s.reduces):
        return 1
    if rows % GROUP == 0 and GROUP * length <= (KEEPING if keeps else GROUP_ELEMENTS):
        several = [k for k in (4, 2) if rows % (k * GROUP) == 0 and not keeps]
        return next((k for k in several if k * GROUP * length <= SEVERAL), 1) * GROUP
    # exponentials hide the latency of reductions themselves
    most = 0 if keeps else min(GROUP, GROUP_ELEMENTS // 2 // length)
    return max((d for d in range(4, most + 1) if rows % d == 0), default=1)


def _memory_order(s: Stages, leaves: Mapping[Value, Leaf]) -> list[int]:
    """Axes of D of more than one step as the operand that fills most of D lies in memory."""
    loops = {a: loop(f"i{a}", n) for a, n in enumerate(s.shape) if n > 1}
    point = tuple(var(loops[a]) if a in loops else const(0) for a in range(len(s.shape)))
    whole = Builder(leaves, EITHER).at(s.reduces[0].inputs[0], point)
    loads = [e.address for e in expressions(whole) if isinstance(e, Load)]
    main = max(loads, key=lambda address: len(address.vars), default=const(0))
    if not main.is_affine or len(main.vars) < len(loops):
        return list(loops)
    return sorted(loops, key=lambda a: -abs(main.coefficient(loops[a])))


def _width(s: Stages, order: Sequence[int], length: int, asked: int | None) -> int:
    """Rows side by side: a divisor of the run of kept axes that lie innermost, or 1."""
    run: list[int] = []
    for a in reversed(order):
        if a in s.axes:
            break
        run.append(s.shape[a])
    whole = math.prod(run)
    if whole < 4 or any(n.value.type.dtype is not F32 for n in s.reduces):
        return 1
    if asked is not None:
        if asked < 2 or whole % asked:
            raise Illegal(f"{asked} rows side by side do not divide a run of {whole}")
        return asked
    inner = run[0]
    fits = [d for d in range(4, whole + 1) if whole % d == 0 and (inner % d == 0 or d % inner == 0)]
    lines = [d for d in fits if d % 16 == 0 and d >= min(WIDTH, whole)] or fits
    resident = [d for d in lines if d * length * 4 <= RESIDENT_BYTES] or lines[:1]
    return next((d for d in resident if d * length >= TILE_ELEMENTS), resident[-1])


@dataclass(frozen=True)
class Piece:
    """A part of R: loops around it, loops inside, and each i<a> as a function of them."""

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    index: dict[str, Index]

    def env(self, env: Env) -> Env:
        return {
            **env,
            **{name: substitute(i, lambda v: env.get(v.name)) for name, i in self.index.items()},
        }


def pieces_of(walk: Walk, limit: int | None) -> list[Piece]:
    """R whole, or in parts whose inner loops make at most `limit` steps."""
    loops = [loop(f"i{a}", walk.shape[a]) for a in walk.reduced]
    if limit is None or walk.length <= limit:
        return [Piece((), tuple(loops), {})]
    inner, steps = [], 1
    while loops and steps * loops[-1].extent <= limit:
        inner.insert(0, loops.pop())
        steps *= inner[0].extent
    v = loops.pop()
    size = max((d for d in range(1, limit // steps + 1) if v.extent % d == 0), default=1)
    if size * steps * 8 < limit:  # the extent has no divisor to speak of
        size = limit // steps
    count, rest = divmod(v.extent, size)
    o, i = loop(f"{v.name}b", count), loop(v.name, size)
    pieces = [Piece((*loops, o), (i, *inner), {v.name: var(o) * size + var(i)})]
    if rest:
        i = loop(v.name, rest)
        pieces.append(Piece(tuple(loops), (i, *inner), {v.name: var(i) + count * size}))
    return pieces

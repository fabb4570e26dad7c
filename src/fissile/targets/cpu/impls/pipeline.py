"""Three stages of a reduction by rows, over three blocks at once.

    stage 0 of block b + 1,   stage 1 of block b,   stage 2 of block b - 1        in one loop

The first reads memory, the last writes it, and the middle one computes: side by side they take the
time of the longest. Stage s works on block b + 1 - s; what it keeps for later stages lies in
buffers that blocks take in turn. At the ends of a range of blocks the index stays within it: what
the last stage writes before its time is written again when it is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fissile.tiles.change import exchange, expressions, rewrite
from fissile.tiles.expr import Load
from fissile.tiles.index import Index, Var, substitute, var
from fissile.tiles.tree import (
    Do,
    For,
    Lanes,
    Raw,
    Scope,
    Statement,
    Store,
    Tree,
    mapped,
    statements,
)

BLOCKS = ("bn", "b", "bp")  # next, now, previous: the block of stages 0, 1, 2


@dataclass(frozen=True)
class Stage:
    """Registers before the loops, the loops, and what ends the sums; statistics from them."""

    opening: tuple[Tree, ...]
    loops: tuple[Tree, ...]
    closing: tuple[Tree, ...]
    ends: tuple[Tree, ...]


def stage_of(passes: Sequence[Tree], ends: Sequence[Tree]) -> Stage:
    if len(passes) == 1 and isinstance(scope := passes[0], Scope):
        return Stage(scope.body[:1], scope.body[1:-1], scope.body[-1:], tuple(ends))
    return Stage((), tuple(passes), (), tuple(ends))


@dataclass(frozen=True)
class Pipeline:
    """`kept`: elements of a block in each buffer, by name, and the stage that fills it; `known`:
    the statistics that each stage ends, by name, of `width` rows."""

    stages: tuple[Stage, Stage, Stage]
    block: Var
    kept: Mapping[str, tuple[int, int]]
    known: tuple[Sequence[str], Sequence[str]]
    width: int

    def trees(self, per_tile: int) -> list[Tree] | None:
        """All blocks of tiles [begin, end). None where the loops of the stages differ."""
        count, (early, later) = self.block.extent, self.known
        read = _loaded(self.stages[2].loops)
        late = [name for name in early if name in read]
        first, now, last = (self._at(s, late) for s in range(3))
        if (together := merged(first.loops, now.loops, last.loops)) is None:
            return None
        begin, end = (f"{per_tile} * {t}" if per_tile > 1 else t for t in ("begin", "end"))
        end = end if count % per_tile == 0 else f"min({end}, int64_t({count}))"
        opening = [f"const int64_t first = {begin}, last = {end};"]
        opening += [f"alignas(64) float {_before(n)}[{self.width}] = {{}};" for n in late]
        opening += [f"zero_fill({n}, {self.width});" for n in later if n in read]
        copies = [
            f"for (int64_t i = 0; i < {self.width}; ++i) {_before(n)}[i] = {n}[i];" for n in late
        ]
        place = "const int64_t bn = min(b + 1, last - 1), bp = max(b - 1, first);"
        buffers = [line for s in range(3) for line in self._buffers(s, "b")]
        return [
            Raw(tuple(opening)),
            Scope((
                Raw(("const int64_t bn = first;", *self._buffers(0, "first - 1"))),
                *first.opening, *first.loops, *first.closing, *first.ends,
            )),
            Raw(("for (int64_t b = first; b < last; ++b)",)),
            Scope((
                Raw((place, *buffers)),
                *first.opening, *now.opening, *together,
                *now.closing, *now.ends, Raw(tuple(copies)), *first.closing, *first.ends,
            )),
            Scope((Raw(("const int64_t bp = last - 1;", *self._buffers(2, "last"))), *last.loops)),
        ]  # fmt: skip

    def _at(self, s: int, late: Sequence[str]) -> Stage:
        """Stage s at its own block; the last finds `late` statistics where they were put aside."""
        stage, late = self.stages[s], late if s == 2 else ()
        parts = (stage.opening, stage.loops, stage.closing, stage.ends)
        return Stage(*(self._placed(part, s, late) for part in parts))

    def _placed(self, trees: Sequence[Tree], s: int, late: Sequence[str]) -> tuple[Tree, ...]:
        """A stage at its own block, with the buffers of that block."""
        names = {e: f"{e}{BLOCKS[s]}" for e in self.kept} | {n: _before(n) for n in late}

        block = var(Var(BLOCKS[s], self.block.lo, self.block.hi))

        def index(i: Index) -> Index:
            return substitute(i, lambda v: block if v == self.block else None)

        def moved(given: Sequence[Statement]) -> tuple[Statement, ...]:
            there = exchange(rewrite(given, index), lambda e: (
                replace(e, pointer=names[e.pointer])
                if isinstance(e, Load) and e.pointer in names else None))  # fmt: skip
            return tuple(
                replace(t, pointer=names.get(t.pointer, t.pointer)) if isinstance(t, Store) else t
                for t in there
            )

        return tuple(mapped(t, moved, index) for t in trees)

    def _buffers(self, s: int, b: str) -> list[str]:
        """Where stage s finds what is kept of its block, b + 1 - s."""
        found: list[str] = []
        for name, (size, filled) in self.kept.items():
            last = max(
                s for s, t in enumerate(self.stages) if s == filled or name in _loaded(t.loops)
            )
            if filled <= s <= last:
                n = last - filled + 1
                place = f"({b} + {1 - s + n}) % {n}"
                found.append(f"float* {name}{BLOCKS[s]} = {name} + {size} * ({place});")
        return found


def _before(name: str) -> str:
    return f"{name}p"


def _loaded(trees: Sequence[Tree]) -> set[str]:
    parts = (e for s in statements(trees) for e in expressions(s.value))
    return {e.pointer for e in parts if isinstance(e, Load)}


def merged(*several: Sequence[Tree]) -> list[Tree] | None:
    """Loops that are the same but for what stands in them, as one."""
    if len({len(trees) for trees in several}) != 1:
        return None
    found: list[Tree] = []
    for trees in zip(*several, strict=True):
        if all(isinstance(t, Do) for t in trees):
            found += trees
        elif len({(type(t), t.var) if isinstance(t, For | Lanes) else None for t in trees}) == 1:
            loops = [t for t in trees if isinstance(t, For | Lanes)]
            if not loops or (body := merged(*(t.body for t in loops))) is None:
                return None
            found.append(replace(_whole(loops), body=tuple(body)))
        else:
            return None
    return found


def _whole(loops: Sequence[For | Lanes]) -> For | Lanes:
    """One loop that begins and folds the sums of all."""
    lanes = [t for t in loops if isinstance(t, Lanes)]
    if not lanes:
        return loops[0]
    opens, abreast = any(t.opens for t in lanes), any(t.abreast for t in lanes)
    rows = tuple(row for t in lanes for row in t.rows)
    return replace(lanes[0], opens=opens, rows=rows, abreast=abreast)

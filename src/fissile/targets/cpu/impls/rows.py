"""Regions with reductions, row by row: softmax, normalisations, pooling over whole maps, and what
stands around.

    for each block of rows, each stage s:  a pass over R that ends the reductions of level s + 1

Lanes run along the row where an axis of R is innermost in memory; a statistic is then one
register. Where an axis of K is innermost, lanes run over neighbouring rows; a statistic is then a
small array with one element for each. What a later stage reads is kept if it is dear, and computed
again if it is cheap.

The order of a sum follows from shapes and layouts alone. Along the lanes, vectors go to four
accumulators in turn, and blocks of `BLOCK` elements are folded and added in order; across rows,
blocks of `SERIES` are. Squares of differences from a mean that the kernel computes are added up in
the same pass as that where rows are long (`squares`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fissile.ir.graph import Node
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.impls.lines import plus
from fissile.targets.cpu.impls.pipeline import Pipeline, stage_of
from fissile.targets.cpu.impls.row_values import FEW, Statements, Values, moved
from fissile.targets.cpu.impls.squares import Squares, in_one_pass, mean_below
from fissile.targets.cpu.impls.stages import OPS
from fissile.targets.cpu.impls.sums import added, in_blocks, in_registers, neutral
from fissile.targets.cpu.impls.walk import GROUP, SEVERAL, Piece, Walk, pieces_of
from fissile.targets.cpu.impls.writer import Range, Writer, range_of
from fissile.targets.cpu.machine import Machine
from fissile.tiles.change import expressions
from fissile.tiles.cpp import start
from fissile.tiles.expr import (
    Builder,
    Expr,
    Illegal,
    Literal,
    Load,
)
from fissile.tiles.index import const, text, var
from fissile.tiles.nest import Env, loop
from fissile.tiles.tree import (
    Accumulate,
    Do,
    For,
    Lanes,
    Raw,
    Scope,
    Statement,
    Store,
    Tree,
)

SERIES = 512  # elements across the lanes that are added up at a time
LARGE_BYTES = 1 << 16  # of a row that memory is too slow to begin with
NEAR_BYTES = 1 << 17  # of a block of which several should stay in the second cache
SHORT = 64  # elements of rows whose vectors stay in registers until they are folded


def lower(candidate: Candidate, machine: Machine | None = None) -> Kernel | No:
    """The kernel of a region with reductions over the same axes of one shape. The parameter "width"
    asks for that many rows side by side where rows are neighbours in memory: fewer than by default
    make more tiles."""
    writer = Writer(candidate)
    try:
        rows = _Rows(candidate, writer)
        if rows.is_pipeline():
            if pipelined := _pipelined(rows, writer):
                return pipelined
            writer = Writer(candidate)  # the other has the pipeline's buffers
            rows = _Rows(candidate, writer)
        body = list(writer.printer.trees(rows.trees(), indent=3))
    except Illegal as reason:
        return reason.no
    if (asked := range_of(candidate)) is not None:
        return writer.kernel(_range(rows.walk, asked, body), asked.count)
    return writer.kernel(_tile(rows.walk, body), rows.walk.tiles)


def _pipelined(rows: _Rows, writer: Writer) -> Kernel | None:
    """All blocks in one pipeline. None where the loops of its stages differ."""
    if (trees := rows.pipeline()) is None:
        return None
    body = ["  if (begin >= end) return;", *writer.printer.trees(trees)]
    return writer.finish([*(f"  {line}" for line in writer.scratch_lines), *body], rows.walk.tiles)


def _range(walk: Walk, asked: Range, body: list[str]) -> list[str]:
    """The blocks of rows that belong to rows [begin, end) of the output."""
    each, b = walk.blocks.extent // asked.count, walk.blocks.name
    start, end = plus((each, "begin")), plus((each, "end"))
    return [f"    for (int64_t {b} = {start}; {b} < {end}; ++{b}) {{", *body, "    }"]


def _tile(walk: Walk, body: list[str]) -> list[str]:
    """The blocks of rows that belong to tile t."""
    n, count, b = walk.per_tile, walk.blocks.extent, walk.blocks.name
    if n == 1:
        return [f"    const int64_t {b} = t;", *(line[2:] for line in body)]
    end = f"{n} * t + {n}" if count % n == 0 else f"min({n} * t + {n}, int64_t({count}))"
    return [f"    for (int64_t {b} = {n} * t; {b} < {end}; ++{b}) {{", *body, "    }"]


class _Rows(Values):
    """Writes one block of rows."""

    def trees(self) -> list[Tree]:
        found: list[Tree] = []
        for stage in range(self.stages.last + 1):
            passes, ends = self._stage(stage)
            found += [*passes, *ends]
        given = [(i, t) for i, t in enumerate(self.gives) if t.value not in self.places.full]
        if given:
            found += self._nest(
                self.walk.abreast, lambda b, env: [self._give(b, env, i, t) for i, t in given]
            )
        return found

    def is_pipeline(self) -> bool:
        """Are there three stages of which the first reads memory and the last writes it?"""
        level, walk, last = self.stages.level, self.walk, self.stages.last
        return (
            range_of(self.candidate) is None
            and last == 2
            and all(self.stages.ended_by(s) for s in (0, 1))
            and all(t.value in self.places.full and level[t.value] == last for t in self.gives)
            and bool(walk.lanes or (walk.turns and self.softmax.sums))
            and walk.width <= FEW
            and walk.width * walk.length * 4 <= NEAR_BYTES
            and walk.blocks.extent >= 4
        )

    def pipeline(self) -> list[Tree] | None:
        """All blocks of rows. None where the loops of the stages differ."""
        self.pipelined = True
        if self.walk.lanes:  # whose elements are far apart in memory
            first = [n.inputs[0] for n in self.stages.ended_by(0)]
            self.far = [v for v in first if self.places.is_plain(v)]
        a, b, c = (stage_of(*self._stage(s)) for s in range(3))
        ended = self.ended[0], self.ended[1]
        pipeline = Pipeline((a, b, c), self.walk.blocks, self.buffers, ended, self.walk.width)
        return pipeline.trees(self.walk.per_tile)

    def _stage(self, stage: int) -> tuple[list[Tree], list[Tree]]:
        level, full = self.stages.level, self.places.full
        sums = {n: f"a{self.stages.reduces.index(n)}" for n in self.stages.ended_by(stage)}
        given = [
            (i, t) for i, t in enumerate(self.gives) if t.value in full and level[t.value] == stage
        ]
        stored = {t.value for _, t in given if self.places.is_plain(t.value)}
        kept = [v for v in self.full if level[v] == stage and v not in stored and self._is_dear(v)]
        kept += [v for v in self.far if stage == 0 and v not in kept]
        buffers = {v: self._buffer(f"e{len(self.buffers)}", v, stage) for v in kept}
        taken = {n: self.squares[n] for n in sums if n in self.squares}
        left = {n: a for n, a in sums.items() if n not in taken}

        def pass_over(b: Builder, env: Env, into: dict[Node, str]) -> list[Statement]:
            here = moved(self.walk.here, env)
            done = [self._give(b, env, i, t) for i, t in given]
            done += [
                Store(name, self._in_block(here, env), b.at(v, here)) for v, name in buffers.items()
            ]
            return [
                *done,
                *(self._add(n, a, b.at(n.inputs[0], here), env) for n, a in into.items()),
            ]

        found: list[Tree] = []
        if left or given or kept:
            found = (
                self._across(left, pass_over) if self.walk.lanes else self._along(left, pass_over)
            )
        found += [Raw((squares.about(mean),)) for squares, mean in taken.values()]
        self._learn(stage, given, buffers)
        ends: list[Tree] = []
        for n, register in sums.items():
            ends += self._end(n, register)
        for v in self.maths:
            if level[v] == stage + 1 and not (self.walk.abreast and v.type.dtype is not F32):
                ends += self._define(
                    f"m{self.maths.index(v)}", v, lambda b, env, v=v: b.at(v, self._row(env))
                )
        return found, ends

    # -- passes

    def _along(
        self, sums: dict[Node, str], pass_over: Callable[..., list[Statement]]
    ) -> list[Tree]:
        """Lanes along the row; accumulators are registers. Where rows take turns, they end in
        arrays."""
        (piece,) = pieces_of(self.walk, None)
        if self.walk.turns:
            return [self._in_turns(sums, pass_over, piece)]
        if self._is_large() and (found := self._in_one_pass(sums, pass_over, piece)):
            return found
        trees = self._nest(piece.inner, lambda b, env: pass_over(b, env, sums))
        ops = {a: (self._op(n), n.value.type.dtype) for n, a in sums.items()}
        if not sums and self._is_large() and not self.squares:
            trees = [
                replace(t, body=(*self._ahead(t, "fetch_later"), *t.body))
                if isinstance(t, Lanes)
                else t
                for t in trees
            ]
        return in_blocks(trees, ops)

    def _is_large(self) -> bool:
        """Is memory too slow to read a row more often than needed?"""
        return self.walk.length * 4 >= LARGE_BYTES

    def _in_one_pass(
        self, sums: dict[Node, str], pass_over: Callable[..., list[Statement]], piece: Piece
    ) -> list[Tree] | None:
        """A pass that also adds up squares of differences from means that it ends. None where there
        are none, or the loop along the row is not whole."""
        squares: dict[Node, tuple[Node, Squares]] = {}
        for n in self.stages.reduces:
            if (mean := mean_below(n, self.candidate.region.nodes)) in sums:
                register = f"a{self.stages.reduces.index(n)}"
                squares[n] = mean, Squares(sums[mean], register, self.walk.length)
        if not squares:
            return None

        def value(b: Builder, env: Env, n: Node) -> Expr:
            return b.at(n.inputs[0], moved(self.walk.here, env))

        def both(b: Builder, env: Env) -> list[Statement]:
            more = (s.added(value(b, env, mean)) for mean, s in squares.values())
            return [*pass_over(b, env, sums), *(st for each in more for st in each)]

        def alone(mean: Node) -> Statements:
            return lambda b, env: [Accumulate(sums[mean], "sum", value(b, env, mean))]

        means = [mean for mean, _ in squares.values()]
        whole = _lanes(self._nest(piece.inner, both))
        first = {sums[m]: _lanes(self._nest(piece.inner, alone(m))) for m in means}
        known = {a: lanes for a, lanes in first.items() if lanes is not None}
        if whole is None or len(known) < len(first):
            return None
        for n, (_, s) in squares.items():
            self.squares[n] = s, s.total.replace("a", "r")
        ops = {a: (self._op(n), n.value.type.dtype) for n, a in sums.items()}
        return in_one_pass(whole, known, ops, [s for _, s in squares.values()])

    def _in_turns(
        self, sums: dict[Node, str], pass_over: Callable[..., list[Statement]], piece: Piece
    ) -> Tree:
        """A pass over rows that take turns, `GROUP` at a time where their sums fold together."""
        (g,) = self.walk.turns
        parts = {n: a.replace("a", "s") for n, a in sums.items()}
        width, groups, at = self.walk.width, None, var(g)
        if sums and width > GROUP and width % GROUP == 0:
            width, groups = GROUP, loop(f"{g.name}b", width // GROUP)
            at = var(groups) * GROUP + var(loop(g.name, GROUP))
            piece = replace(piece, index={**piece.index, g.name: at})
        trees = self._nest(piece.inner, lambda b, env: pass_over(b, env, parts), piece)
        trees = in_blocks(trees, {a: (self._op(n), n.value.type.dtype) for n, a in parts.items()})
        for name in sums.values():
            self._statistics(name)
        row = loop(g.name, width)
        if len(trees) == 1 and isinstance(lanes := trees[0], Lanes) and lanes.opens:
            rows = tuple((parts[n], f"{a}v[{g.name}]") for n, a in sums.items())
            first = (GROUP, groups.name) if groups else 0
            folds = [f"h{self._op(n)}_rows({plus(a, first)}, {a}v);" for n, a in sums.items()]
            exponentials = any(n.value in self.softmax.sums for n in sums)
            near = self.walk.width * self.walk.length <= SEVERAL
            again = exponentials or (near and bool(self.ended[0]))  # arithmetic on what is near
            ahead = self._ahead(lanes) if again and not self.pipelined else []
            few = self.walk.length <= SHORT and not self.softmax.sums
            unroll = [Raw((f"#pragma GCC unroll {width}",))] * few
            body = (
                Raw(tuple(f"Rows<{width}> {a}v;" for a in sums.values())),
                *unroll,
                For(row, (replace(lanes, rows=rows, body=(*ahead, *lanes.body)),)),
                Raw(tuple(folds)),
            )
            return For(groups, body) if groups else Scope(body)
        ends = [f"{a}[{text(at)}] = {parts[n]};" for n, a in sums.items()]
        one = For(row, (*trees, *([Raw(tuple(ends))] if ends else [])))
        return For(groups, (one,)) if groups else one

    def _ahead(self, lanes: Lanes, fetch: str = "__builtin_prefetch") -> list[Tree]:
        """Ask for what the next block reads of memory."""
        b = self.walk.blocks
        statements = [s for t in lanes.body if isinstance(t, Do) for s in t.statements]
        loads = [e for s in statements for e in expressions(s.value) if isinstance(e, Load)]
        found = {
            plus(e.pointer, text(e.address + e.address.coefficient(b))): None
            for e in loads
            if e.pointer.startswith("x") and e.address.is_affine
            if b in e.address.vars and e.address.coefficient(lanes.var) == 1
        }
        return [Raw((f"{fetch}({place});",)) for place in found]

    def _across(
        self, sums: dict[Node, str], pass_over: Callable[..., list[Statement]]
    ) -> list[Tree]:
        """Lanes across rows; accumulators end in arrays, and so do the parts of long sums."""
        lanes, long = self.walk.lanes, any(OPS[n.prim] in ("sum", "prod") for n in sums)
        pieces = pieces_of(self.walk, SERIES if long else None)
        parts = {n: f"{a}p" for n, a in sums.items()} if long and pieces[0].outer else sums
        for name in dict.fromkeys([*sums.values(), *parts.values()]):
            self._statistics(name)
        found: list[Tree] = []
        if parts is not sums:
            found += self._nest(lanes, lambda b, env: self._clear(sums, env))
        for piece in pieces:
            trees = self._abreast(parts, pass_over, piece)
            if trees is None:
                trees = self._nest(lanes, lambda b, env: self._clear(parts, env)) if parts else []
                loops = (*piece.inner, *lanes)
                trees += self._nest(loops, lambda b, env: pass_over(b, env, parts), piece)
            if parts is not sums:
                trees += self._nest(lanes, lambda b, env: self._total(sums, parts, env))
            for v in reversed(piece.outer):
                trees = [For(v, tuple(trees))]
            found += trees
        return found

    def _abreast(
        self, sums: dict[Node, str], pass_over: Callable[..., list[Statement]], piece: Piece
    ) -> list[Tree] | None:
        """A pass over a piece of R with accumulators in registers, for so many rows at a time. None
        where there are none, or the loop over rows is not whole."""
        width, (c,) = self.walk.width, self.walk.lanes
        most = [d for d in range(16, FEW + 1, 16) if width % d == 0]
        step = width if width <= FEW else max(most, default=0)
        if not sums or not step:
            return None
        over, rows, first = loop(f"{c.name}b", width // step), loop(c.name, step), const(0)
        index = dict(piece.index)
        if over.extent > 1:
            first = var(over) * step
            index[c.name] = first + var(rows)
        trees = self._nest(
            (*piece.inner, rows),
            lambda b, env: pass_over(b, env, sums),
            replace(piece, index=index),
        )
        ops = {a: self._op(n) for n, a in sums.items()}
        whole = [in_registers(t, ops, step) for t in trees]
        if any(t is None for t in whole):
            return None
        inside = [t for t in whole if t is not None]
        opening = Raw(tuple(f"Abreast<{step}> {a}v({start(op)});" for a, op in ops.items()))
        closing = Raw(tuple(f"{a}v.store({plus(a, text(first))});" for a in ops))
        body = (opening, *inside, closing)
        return [For(over, body)] if over.extent > 1 else [Scope(body)]

    def _op(self, n: Node) -> str:
        return "greatest" if n in self.softmax.maxima else OPS[n.prim]

    def _clear(self, sums: dict[Node, str], env: Env) -> list[Statement]:
        at = self._lane(env)
        return [Store(a, at, Literal(neutral(self._op(n), F32), F32)) for n, a in sums.items()]

    def _total(self, sums: dict[Node, str], parts: dict[Node, str], env: Env) -> list[Statement]:
        at = self._lane(env)
        return [self._add(n, a, Load(parts[n], at, F32), env) for n, a in sums.items()]

    def _add(self, n: Node, register: str, value: Expr, env: Env) -> Statement:
        op, at = self._op(n), self._lane(env)
        if not self.walk.lanes:
            return Accumulate(register, op, value)
        return Store(register, at, added(op, Load(register, at, F32), value))


def _lanes(trees: Sequence[Tree]) -> Lanes | None:
    """The one vector loop that these are."""
    return trees[0] if len(trees) == 1 and isinstance(trees[0], Lanes) else None

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

from fissile.ir.graph import Node, Value
from fissile.ir.layout import Token
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.impls.lines import plus
from fissile.targets.cpu.impls.pipeline import Pipeline, stage_of
from fissile.targets.cpu.impls.squares import Squares, in_one_pass, mean_below
from fissile.targets.cpu.impls.stages import OPS, border, places, softmax, stages
from fissile.targets.cpu.impls.sums import added, in_blocks, in_registers, neutral
from fissile.targets.cpu.impls.walk import GROUP, SEVERAL, Piece, Walk, pieces_of, walk_of
from fissile.targets.cpu.impls.writer import Range, Writer, range_of, strides_of
from fissile.targets.cpu.machine import Machine
from fissile.tiles.cpp import compute_type, start
from fissile.tiles.expr import (
    EITHER,
    Builder,
    Expr,
    Illegal,
    Leaf,
    Literal,
    Load,
    Op,
    Point,
    Register,
    operations,
)
from fissile.tiles.index import Index, Var, const, substitute, text, var
from fissile.tiles.nest import Decided, Env, addresses, exchange, expressions, loop, nest
from fissile.tiles.tree import (
    Accumulate,
    Define,
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
DEAR = 8.0  # operations and loads from which on a value is kept for later stages
KEPT_BYTES = 1 << 20  # no buffer for kept values is larger
LARGE_BYTES = 1 << 16  # of a row that memory is too slow to begin with
NEAR_BYTES = 1 << 17  # of a block of which several should stay in the second cache
FEW = 64  # rows whose statistics may lie in registers
SHORT = 64  # elements of rows whose vectors stay in registers until they are folded
LINE = 16  # floats in a cache line
FAR = 1 << 40  # the address of another row's statistic: such an address is no place in memory

Statements = Callable[[Builder, Env], list[Statement]]
Known = Callable[[Env], Leaf]  # how code reads a value that it has computed


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


class _Rows:
    """Writes one block of rows. `known` grows as the code comes to hold values."""

    def __init__(self, candidate: Candidate, writer: Writer):
        self.writer, self.gives, self.candidate = writer, candidate.gives, candidate
        self.pipelined, self.far = False, list[Value]()
        self.buffers: dict[str, tuple[int, int]] = {}  # name -> elements of a block, stage
        self.ended: dict[int, list[str]] = {0: [], 1: []}  # statistics by the stage that ends them
        self.stages = stages(candidate.region)
        self.memory = writer.leaves()
        asked = range_of(candidate)
        parts = asked.count if asked is not None else 1
        self.softmax = softmax(candidate.region)
        keeps, width = bool(self.softmax.sums), candidate.param.get("width")
        self.walk = walk_of(self.stages, self.memory, width, parts, keeps)
        self.places = places(self.stages, self.walk.here)
        for v in candidate.region.outputs:
            if v not in self.places.full and v not in self.places.stats:
                raise Illegal(f"{v.node.prim} gives {v.type}, neither rows nor statistics of them")
        self.full, self.maths = border(self.stages, self.places, candidate.region.outputs)
        if asked is not None:
            self._check(asked)
        self.known: dict[Value, Known] = {}
        self.registers: set[str] = set()
        self.tops: set[str] = set()  # names of the maxima of a softmax
        self.squares: dict[Node, tuple[Squares, str]] = {}  # added up in one pass, and their mean
        self.inverse: dict[str, str] = {}  # a statistic's name -> that of its reciprocal

    def _check(self, asked: Range) -> None:
        """Are the rows of a stage whole blocks, one after another in memory?"""
        rows = self.walk.blocks.extent * self.walk.width
        if not self.walk.is_ordered or self.walk.blocks.extent % asked.count:
            raise Illegal(f"{rows} rows are not {asked.count} equal parts of memory")
        for t in self.gives:
            if t.value not in self.places.full:
                raise Illegal("a chain gives no statistics")
            at = _address(self.places.full[t.value], strides_of(t))
            asked.check(t, at, self.walk.row, rows)

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
            here = _moved(self.walk.here, env)
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
            return b.at(n.inputs[0], _moved(self.walk.here, env))

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

    def _give(self, b: Builder, env: Env, i: int, t: Token) -> Statement:
        full, stats = self.places.full, self.places.stats
        at = _moved(full[t.value] if t.value in full else stats[t.value], env)
        return Store(f"y{i}", _address(at, strides_of(t)), b.at(t.value, at))

    def _nest(
        self, loops: Sequence[Var], statements: Statements, piece: Piece | None = None
    ) -> list[Tree]:
        def make(env: Env, decided: Decided) -> list[Statement]:
            env = piece.env(env) if piece else env
            return statements(Builder(self._leaves(env), decided), env)

        return list(nest(loops, make, settled=self._settled))

    def _settled(self, loops: Sequence[Var], statements: list[Statement]) -> list[Statement]:
        for address in addresses(statements):
            if any(abs(c) >= FAR // 2 for c in (address.constant, *(c for _, c in address.terms))):
                raise Illegal("a value needs the statistics of another row")
        statements = exchange(statements, self._as_product)
        statements = exchange(statements, self._as_below)
        return exchange(statements, lambda e: (
            Register(e.pointer, e.dtype, lanes=False)
            if isinstance(e, Load) and e.pointer in self.registers else None))  # fmt: skip

    def _as_product(self, e: Expr) -> Expr | None:
        """x / s as x (1 / s) where the reciprocal of s is known."""
        if not (isinstance(e, Op) and e.prim == "div" and isinstance(s := e.args[1], Load)):
            return None
        if s.pointer not in self.inverse:
            return None
        return Op("mul", (e.args[0], replace(s, pointer=self.inverse[s.pointer])), (), F32)

    def _as_below(self, e: Expr) -> Expr | None:
        """exp(x - max(x)), whose argument is not above zero."""
        if not (isinstance(e, Op) and e.prim == "exp" and isinstance(d := e.args[0], Op)):
            return None
        if d.prim != "sub" or not isinstance(top := d.args[1], Load):
            return None
        return Op("exp_below", e.args, (), F32) if top.pointer in self.tops else None

    # -- values that the code holds

    def _leaves(self, env: Env) -> dict[Value, Leaf]:
        return {**self.memory, **{v: known(env) for v, known in self.known.items()}}

    def _is_dear(self, v: Value) -> bool:
        """Is it worth memory to keep a value from stage to stage?"""
        if self.walk.length * self.walk.width * 4 > KEPT_BYTES:
            return False
        e = Builder(self._leaves({}), EITHER).at(v, self.walk.here)
        lane = self.walk.lanes[0] if self.walk.lanes else _innermost(self.walk)
        loads = [p.address for p in expressions(e) if isinstance(p, Load)]
        scattered = [
            a for a in loads if lane is not None and lane in a.vars and a.coefficient(lane) != 1
        ]
        return operations(e) + len(loads) + DEAR * len(scattered) >= DEAR

    def _buffer(self, name: str, v: Value, stage: int) -> str:
        elements = self._kept_row() * self.walk.width
        self.buffers[name] = elements, stage
        many = 3 - stage if self.pipelined else 1
        return self.writer.local(name, many * elements, compute_type(v.type.dtype))

    def _kept_row(self) -> int:
        """Elements between rows of a buffer: whole cache lines where rows take turns."""
        return -(-self.walk.length // LINE) * LINE if self.walk.turns else self.walk.length

    def _learn(self, stage: int, given: list[tuple[int, Token]], buffers: dict[Value, str]) -> None:
        """What was stored in this stage is read back in later ones."""
        for v, name in buffers.items():
            self.known[v] = lambda env, v=v, name=name: lambda point: Load(
                name, self._in_block(point, env), v.type.dtype)  # fmt: skip
        for i, t in given:
            if self.places.is_plain(t.value):
                self.known[t.value] = lambda env, i=i, t=t: (
                    lambda point: Load(
                        f"y{i}",
                        _address(point, strides_of(t)) + self._distance(point, env),
                        t.value.type.dtype,
                    )
                )

    def _end(self, n: Node, register: str) -> list[Tree]:
        """The reduction's result, once its pass is over."""
        dtype, count = n.value.type.dtype, self.walk.length
        self._hold(n.value, register)
        if n in self.softmax.maxima:
            self.tops.add(register)
        if n.value in self.softmax.sums:
            return self._invert(n.value, register)
        if n.prim != "reduce_mean" and dtype.name not in ("f16", "bf16"):
            return []

        def value(b: Builder, env: Env) -> Expr:
            total = b.at(n.value, self._row(env))
            if n.prim == "reduce_mean":
                return Op("div", (total, Literal(count, dtype)), (), dtype)
            return Op("cast", (total,), (("to", dtype.name),), dtype)

        return self._define(register.replace("a", "r"), n.value, value)

    def _invert(self, v: Value, register: str) -> list[Tree]:
        """The reciprocal of a sum that many values are divided by."""
        name = register.replace("a", "q")

        def value(b: Builder, env: Env) -> Expr:
            return Op("div", (Literal(1.0, F32), b.at(v, self._row(env))), (), F32)

        found = self._define(name, v, value)
        self._hold(v, register)
        self.inverse[register] = name
        return found

    def _define(self, name: str, v: Value, value: Callable[[Builder, Env], Expr]) -> list[Tree]:
        """A statistic: one constant, or one element of an array for each row of the block."""
        if self.walk.abreast:
            self._statistics(name)
            found: list[Tree] = self._nest(
                self.walk.abreast, lambda b, env: [Store(name, self._lane(env), value(b, env))]
            )
        else:
            define = Define(name, value(Builder(self._leaves({}), EITHER), {}))
            found = [Do(tuple(self._settled((), [define])))]
        self._hold(v, name)
        return found

    def _statistics(self, name: str) -> None:
        """An array with one element for each row of the block."""
        if self.walk.width <= FEW:
            self.writer.array(name, self.walk.width)
        else:
            self.writer.local(name, self.walk.width)

    def _hold(self, v: Value, name: str) -> None:
        self.ended.setdefault(self.stages.level[v] - 1, []).append(name)
        if not self.walk.abreast:
            self.registers.add(name)
        self.known[v] = lambda env: lambda point: Load(
            name, self._lane(env) + self._distance(point, env), v.type.dtype)  # fmt: skip

    def _row(self, env: Env) -> Point:
        return _moved(self.places.row, env)

    def _lane(self, env: Env) -> Index:
        """The row's place in its block."""
        return next((env.get(v.name, var(v)) for v in self.walk.abreast), const(0))

    def _distance(self, point: Point, env: Env) -> Index:
        """0 in the row that the code is at, else no address at all."""
        (row,) = _moved((self.walk.row,), env)
        return (self.walk.row_at(point) - row) * FAR

    def _in_block(self, point: Point, env: Env) -> Index:
        place, row = self.walk.place_in_row(point), self._lane(env)
        if self.walk.turns:
            return row * self._kept_row() + place + self._distance(point, env)
        return place * self.walk.width + row + self._distance(point, env)


def _moved(point: Point, env: Env) -> Point:
    return tuple(substitute(i, lambda v: env.get(v.name)) for i in point)


def _address(point: Point, strides: Sequence[int]) -> Index:
    total = const(0)
    for i, stride in zip(point, strides, strict=True):
        total = total + i * stride
    return total


def _lanes(trees: Sequence[Tree]) -> Lanes | None:
    """The one vector loop that these are."""
    return trees[0] if len(trees) == 1 and isinstance(trees[0], Lanes) else None


def _innermost(walk: Walk) -> Var | None:
    """The loop along a row that lanes may run over."""
    return (
        Var(f"i{walk.reduced[-1]}", 0, walk.shape[walk.reduced[-1]] - 1) if walk.reduced else None
    )

"""What the code of a row kernel holds: where values lie, which of them are kept from stage to
stage, and statistics once their pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fissile.ir.graph import Node, Value
from fissile.ir.layout import Token
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate
from fissile.targets.cpu.impls.squares import Squares
from fissile.targets.cpu.impls.stages import border, places, softmax, stages
from fissile.targets.cpu.impls.walk import Piece, Walk, walk_of
from fissile.targets.cpu.impls.writer import Range, Writer, range_of, strides_of
from fissile.tiles.change import addresses, exchange, expressions
from fissile.tiles.cpp import compute_type
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
from fissile.tiles.index import Index, Var, const, substitute, var
from fissile.tiles.nest import Decided, Env, nest
from fissile.tiles.tree import Define, Do, Statement, Store, Tree

DEAR = 8.0  # operations and loads from which on a value is kept for later stages
KEPT_BYTES = 1 << 20  # no buffer for kept values is larger
LINE = 16  # floats in a cache line
FAR = 1 << 40  # the address of another row's statistic: such an address is no place in memory
FEW = 64  # rows whose statistics may lie in registers

Statements = Callable[[Builder, Env], list[Statement]]
Known = Callable[[Env], Leaf]  # how code reads a value that it has computed


class Values:
    """The code of one block of rows holds `known`, which grows."""

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
            at = address_of(self.places.full[t.value], strides_of(t))
            asked.check(t, at, self.walk.row, rows)

    def _give(self, b: Builder, env: Env, i: int, t: Token) -> Statement:
        full, stats = self.places.full, self.places.stats
        at = moved(full[t.value] if t.value in full else stats[t.value], env)
        return Store(f"y{i}", address_of(at, strides_of(t)), b.at(t.value, at))

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

    # -- what is known

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
                        address_of(point, strides_of(t)) + self._distance(point, env),
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
        return moved(self.places.row, env)

    def _lane(self, env: Env) -> Index:
        """The row's place in its block."""
        return next((env.get(v.name, var(v)) for v in self.walk.abreast), const(0))

    def _distance(self, point: Point, env: Env) -> Index:
        """0 in the row that the code is at, else no address at all."""
        (row,) = moved((self.walk.row,), env)
        return (self.walk.row_at(point) - row) * FAR

    def _in_block(self, point: Point, env: Env) -> Index:
        place, row = self.walk.place_in_row(point), self._lane(env)
        if self.walk.turns:
            return row * self._kept_row() + place + self._distance(point, env)
        return place * self.walk.width + row + self._distance(point, env)


def moved(point: Point, env: Env) -> Point:
    return tuple(substitute(i, lambda v: env.get(v.name)) for i in point)


def address_of(point: Point, strides: Sequence[int]) -> Index:
    total = const(0)
    for i, stride in zip(point, strides, strict=True):
        total = total + i * stride
    return total


def _innermost(walk: Walk) -> Var | None:
    """The loop along a row that lanes may run over."""
    return (
        Var(f"i{walk.reduced[-1]}", 0, walk.shape[walk.reduced[-1]] - 1) if walk.reduced else None
    )

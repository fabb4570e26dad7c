"""Attention in one kernel: two contractions and the softmax between them, without scores in memory.

    x[o, i, j] = f(sum_d query[o, i, d] key[o, j, d])          f: scale, mask, anything elementwise
    y[o, i, n] = sum_j e^(x - max_j x) value[o, j, n] / sum_j e^(x - max_j x)

o are the axes that both sides of the result have (batch, heads), i queries, j keys, d the size of a
head, n that of a value. A tile is a block of queries of one o. Keys and values are packed into
panels when the tile's o is another than the last tile's, prologues included; `runtime/attention.h`
does the rest, a register tile of queries at a time. Keys go by in blocks whose scores stay in the
second cache, with a running maximum where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fissile.ir.graph import Value
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.impls.heads import Heads, heads_of
from fissile.targets.cpu.impls.product_tile import accumulator
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.targets.cpu.machine import Machine
from fissile.tiles.change import exchange
from fissile.tiles.cpp import literal
from fissile.tiles.expr import Builder, Expr, Illegal, Literal, Load, Op, Point, Undecided, forward
from fissile.tiles.index import Index, Var, const, dot, text, var
from fissile.tiles.lanes import fits_lanes
from fissile.tiles.nest import Decided, Env, loop, nest
from fissile.tiles.tree import Define, Store, Tree

LOG2_E = 1.4426950408889634
TILES = 4  # of one thread, at least: they share the work evenly
PACKED_BYTES = 1 << 26


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one attention; f32 only. The parameter "keys" asks for blocks of
    that many keys, in whole panels."""
    try:
        return _Attention(candidate, machine, heads_of(candidate)).kernel()
    except Undecided:
        return No("a border crosses the scores")
    except Illegal as refusal:
        return refusal.no


@dataclass(frozen=True)
class _Queries:
    """Where the micro-kernel reads query i: pointer text, steps between queries and along d."""

    pointer: str
    row: int
    step: int
    packs: bool = False


class _Attention:
    def __init__(self, candidate: Candidate, machine: Machine, h: Heads):
        self.candidate, self.w, self.h = candidate, Writer(candidate), h
        # measured: few queries at a time leave room for keys and values in the first cache
        self.machine, most = machine, 4 if machine.registers >= 32 else 2
        vectors = [min(most, -(-count // machine.vl)) for count in (h.keys, h.columns)]
        self.widths = vectors[0] * machine.vl, vectors[1] * machine.vl
        self.mr = min((machine.registers - max(vectors) - 1) // max(vectors), 14, h.queries)
        self.block = self._block()
        self.leaves = self.w.leaves()
        if 4 * h.keys * (h.size + h.columns) > PACKED_BYTES:
            raise Illegal(f"{h.keys} keys and their values do not fit a buffer")

    def _block(self) -> int:
        """Keys whose scores are held at a time."""
        most = self.candidate.param.get("keys") or self.machine.l2_bytes // 8 // (4 * self.mr)
        most = max(most // self.widths[0], 1) * self.widths[0]
        return min(most, self.h.keys)

    def kernel(self) -> Kernel:
        h, vl, (width, values) = self.h, self.machine.vl, self.widths
        columns = -(-h.columns // values) * values
        self.w.local("k", -(-h.keys // width) * width * h.size)
        self.w.local("v", columns * h.keys)
        self.w.local("p", self.mr * (-(-self.block // vl) + 1) * vl)
        if self.block < h.keys:
            self.w.local("sums", self.mr * columns)
        blocks = _blocks(h.batches, h.queries, TILES * self.machine.threads)
        rows = -(-h.queries // blocks)
        blocks = -(-h.queries // rows)
        queries = self._queries(rows)
        shape = f"{h.keys}, {self.block}, {h.size}, {h.columns}"
        self.w.scratch_lines += [
            f'static_assert(VL == {vl}, "written for another vector length");',
            f"typedef Attention<{shape}, {width // vl}, {values // vl}> A;",
            "int64_t packed = -1;",
        ]
        body = [
            f"const int64_t o = t / {blocks}, i0 = t % {blocks} * {rows};",
            "if (o != packed) {",
            *self._pack("k", h.key, h.key_point, h.keys, h.size, width),
            *self._pack("v", h.value, h.value_point, h.columns, h.keys, values),
            "  packed = o;",
            "}",
            "auto attend = [&](auto mr, int64_t m) {",
            *("  " + line for line in self._attend(queries)),
            "};",
            *self._all_rows(queries, rows, h.queries - (blocks - 1) * rows, blocks),
        ]
        return self.w.kernel([f"    {line}" for line in body], h.batches * blocks)

    def _all_rows(self, q: _Queries, rows: int, rest: int, blocks: int) -> list[str]:
        """`attend` for the queries of a tile: `rows`, and `rest` of them in the last of an o."""

        def some(count: int, start: Index) -> list[str]:
            pack = self._pack_queries(count, start) if q.packs else []
            return [*pack, f"for_rows<{self.mr}, {count}>(attend);"]

        last = self.h.queries - rest
        if blocks == 1:
            return some(rest, const(0))
        if rest == rows:
            return some(rows, var(Var("i0", 0, last)))
        whole, end = some(rows, var(Var("i0", 0, last - rows))), some(rest, const(last))
        return [f"if (i0 < {last}) {{", *("  " + x for x in whole),
                "} else {", *("  " + x for x in end), "}"]  # fmt: skip

    # -- operands

    def _queries(self, rows: int) -> _Queries:
        """In place where their address is a plain sum, else packed block by block."""
        h, d = self.h, Var("d", 0, self.h.size - 1)
        i = h.i
        try:
            e = Builder(self.leaves, {}).at(h.query, h.query_point(var(i), var(d)))
        except Undecided:
            e = None
        if isinstance(e, Load) and e.dtype is F32:
            nonlinear = any(e.address.depends_nonlinearly(v) for v in (i, d))
            row, step = e.address.coefficient(i), e.address.coefficient(d)
            if not nonlinear and step <= 1:
                base = e.address - var(i) * row - var(d) * step
                return _Queries(f"{e.pointer} + {text(base)} + {row} * (i0 + m)", row, step)
        self.w.local("q", rows * h.size)
        return _Queries(f"q + {h.size} * m", h.size, 1, packs=True)

    def _pack_queries(self, rows: int, start: Index) -> list[str]:
        h = self.h

        def make(env: Env, decided: Decided) -> list[Store]:
            point = h.query_point(start + env["m"], env["d"])
            value = Builder(self.leaves, decided).at(h.query, point)
            return [Store("q", env["m"] * h.size + env["d"], value)]

        return self._print(nest([loop("m", rows), loop("d", h.size)], make))

    def _pack(
        self, name: str, value: Value, point: Callable[[Index, Index], Point],
        wide: int, deep: int, width: int,
    ) -> list[str]:  # fmt: skip
        """name[panel][deep][width] = value, the last panel ended with zeros."""
        full, rest = divmod(wide, width)

        def panels(first: int, count: int, columns: int) -> list[str]:
            def make(env: Env, decided: Decided) -> list[Store]:
                n, k, j = env["n"] + first, env["k0"], env["j"]
                e = Builder(self.leaves, decided).at(value, point(k, n * width + j))
                return [Store(name, (n * deep + k) * width + j, e)]

            loops = [loop("n", count), loop("k0", deep), loop("j", columns)]
            return self._print(nest(loops, make))

        lines = panels(0, full, width) if full else []
        if rest:
            start = full * deep * width
            lines += [f"zero_fill({name} + {start}, {deep * width});", *panels(full, 1, rest)]
        return ["  " + line for line in lines]

    # -- what stands between and after the contractions

    def _attend(self, q: _Queries) -> list[str]:
        """The lambda's body: a register tile of queries."""
        sums = "sums" if self.block < self.h.keys else "nullptr"
        where = f"{q.pointer}, {q.row}, {q.step}, k, v, p, {sums}"
        rate, score = self._score()
        call = f"A::rows<mr.value>({where}, {literal(rate, F32)}, score, finish);"
        return [*score, *self._finish(), call]

    def _score(self) -> tuple[float, list[str]]:
        """r and the lambda of x: shares are 2^(r x) over their sum."""
        h = self.h
        point = h.score_point(var(h.i), var(h.j))
        leaves = {**self.leaves, h.scores.value: accumulator(point)}
        x = Builder(leaves, {}).at(h.logits, h.logits_point(var(h.i), var(h.j)))
        rate, x = _rate(_cheap(x))
        statements = [Define("x", x)]
        if not fits_lanes(statements, h.j):
            raise Illegal("what stands before the softmax cannot run on vectors")
        lines = self.w.printer.statements(statements, h.j)
        return rate, ["auto score = [&](auto l, vf s, int r, int64_t j) FISSILE_BODY {",
                "  const int64_t i = i0 + m + r;", *("  " + x for x in lines),
                "  return x;", "};"]  # fmt: skip

    def _finish(self) -> list[str]:
        h = self.h
        n = Var("n", 0, h.columns - 1)
        point = h.result_point(var(h.i), var(n))
        points = forward(self.candidate.region, h.values.value, point)
        leaves = {**self.leaves, h.values.value: accumulator(point)}
        stores: list[Store] = []
        for k, token in enumerate(self.candidate.gives):
            if token.value not in points:
                raise Illegal("an output is not computed from the values element by element")
            at = points[token.value]
            value = Builder(leaves, {}).at(token.value, at)
            stores.append(Store(f"y{k}", dot(at, strides_of(token)), value))
        if not fits_lanes(stores, n):
            raise Illegal("the epilogue cannot run on vectors")
        return ["auto finish = [&](auto l, vf s, int r, int64_t n) FISSILE_BODY {",
                "  const int64_t i = i0 + m + r;",
                *("  " + x for x in self.w.printer.statements(stores, n)), "};"]  # fmt: skip

    def _print(self, tree: Sequence[Tree]) -> list[str]:
        return list(self.w.printer.trees(tree, indent=0))


def _blocks(batches: int, queries: int, tiles: int) -> int:
    """Blocks of queries for each o: enough tiles, of one size if that is near."""
    least = max(1, min(-(-tiles // batches), queries // 32))
    return next((b for b in range(least, 2 * least) if queries % b == 0), least)


def _rate(x: Expr) -> tuple[float, Expr]:
    """(r, z) with e^x = 2^(r z): a scale that stands last costs nothing."""
    if isinstance(x, Op) and x.prim == "mul":
        for z, scale in (x.args, x.args[::-1]):
            if isinstance(scale, Literal) and 1e-10 < float(scale.value) < 1e10:
                return float(scale.value) * LOG2_E, z
    return LOG2_E, x


def _cheap(x: Expr) -> Expr:
    """A product in place of a quotient by a constant, which would take longer than the rest of the
    score."""

    def other(e: Expr) -> Expr | None:
        if not isinstance(e, Op) or e.prim != "div" or e.dtype is not F32:
            return None
        a, b = e.args
        if not isinstance(b, Literal) or not 1e-30 < abs(float(b.value)) < 1e30:
            return None
        return Op("mul", (_cheap(a), Literal(1.0 / float(b.value), F32)), (), F32)

    return exchange([Define("x", x)], other)[0].value

"""Contractions: matrix products in einsum form, and 1x1 convolutions, on the register-tiled
micro-kernel.

    out[o, m, n] = sum_k left[o, m, k] right[o, k, n]

The labels fall into four groups: o is in both operands and the result, m and n in one operand and
the result, k in both operands only. The operand that owns the innermost axis of the result is
`right`: its n runs over vector lanes. A constant right operand is packed into panels when the model
is built; another is read in place or packed panel by panel, which is where a prologue is computed.
The left operand is read in place where its address is a plain sum, else packed. The epilogue is an
expression on the accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fissile.ir.layout import Token
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.impls.ahead import LEAST_TERMS, fetch, places
from fissile.targets.cpu.impls.lines import plus
from fissile.targets.cpu.impls.product import Operand, Product, product
from fissile.targets.cpu.impls.product_tile import UNROLLED, anchor_of, each_vector, stores_of
from fissile.targets.cpu.impls.writer import Range, Writer, range_of
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import (
    Builder,
    Illegal,
    Load,
    Undecided,
    operations,
)
from fissile.tiles.index import Index, Var, const, flatten, text, var
from fissile.tiles.nest import Decided, Env, loop, nest
from fissile.tiles.tree import Store, Tree

SHARES = 4  # tiles for each thread, where one more or less makes threads wait


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one contraction or 1x1 convolution. f32 only."""
    reason = No("no tile fits the registers")
    try:
        anchor = anchor_of(candidate)
        p = product(candidate, anchor)
    except Illegal as refusal:
        return refusal.no
    at_once = p.size(p.m)
    if (asked := range_of(candidate)) is not None:
        at_once = -(-at_once * asked.most // asked.count)
    shapes = tile_shapes(at_once, p.size(p.n), p.size(p.k), machine)
    if asked is None and streams(p, machine):
        shapes = _streaming(shapes, p, machine)
    for shape in shapes:
        try:
            return _Contraction(candidate, machine, p, shape).kernel()
        except Illegal as refusal:
            reason = refusal.no
    return reason


@cache
def tile_shapes(m: int, n: int, k: int, machine: Machine) -> tuple[tuple[int, int], ...]:
    """Rows and vectors of the accumulator tile, best first, one for each number of vectors.

    Least arithmetic, counting idle lanes, chains too short to fill the units (8 accumulators do)
    and loads. Rows of the left operand that lie a multiple of a page apart share the sets of the
    first cache: more than about 8 of them evict each other. Measured: 12 rows of 4 KB reach 90 % of
    8 rows' speed, 28 rows 20 %.
    """
    sets = max(1, 4096 // math.gcd(4 * k, 4096))

    def cost(mr: int, nv: int) -> float:
        full, rest = divmod(m, mr)
        tiles = [mr] * (full > 0) + [rest] * (rest > 0)
        each = [max(rows * nv, 8) + 0.15 * (rows + nv) for rows in tiles]
        crowd = max(1.0, -(-mr // sets) / 8) ** 2
        panels = -(-n // (nv * machine.vl))
        return panels * crowd * (each[0] * (full or 1) + (each[1] if len(each) > 1 else 0))

    ranked: list[tuple[float, int, int]] = []
    for nv in (1, 2, 3, 4):
        rows = [mr for mr in range(1, min(m, 28) + 1) if mr * nv + nv + 1 <= machine.registers]
        ranked += [min((cost(mr, nv), -mr, nv) for mr in rows)] if rows else []
    return tuple((-mr, nv) for _, mr, nv in sorted(ranked))


STREAMED_ROWS = 112  # of a block, which the next panels find near
STREAMED = 256  # terms of a sum, up to which a row is read faster than it is used
DEEP = 32  # terms, above which a second panel costs less than a lower tile


def streams(p: Product, machine: Machine) -> bool:
    """Do rows come from beyond the second cache, and are they used for so short that reading them
    ahead matters?"""
    m, n, k = p.size(p.m), p.size(p.n), p.size(p.k)
    return 4 * m * (n + k) > machine.l2_bytes and 16 <= k <= STREAMED and n > 2 * machine.vl


def _streaming(
    shapes: Sequence[tuple[int, int]], p: Product, machine: Machine
) -> Sequence[tuple[int, int]]:
    """Four vectors first, where they divide the columns and are the only panel, or the sums are
    short: whole lines of rows are written, and few rows read, at once."""
    n, k = p.size(p.n), p.size(p.k)
    wide = n % (4 * machine.vl) == 0 and (n == 4 * machine.vl or k <= DEEP)
    return sorted(shapes, key=lambda shape: not (wide and shape[1] == 4))


class _Contraction:
    def __init__(self, candidate: Candidate, machine: Machine, p: Product, shape: tuple[int, int]):
        self.candidate, self.machine, self.w, self.p = candidate, machine, Writer(candidate), p
        self.O, self.M, self.N, self.K = p.size(p.o), p.size(p.m), p.size(p.n), p.size(p.k)
        if not self.O * self.M * self.N * self.K:
            raise Illegal("an empty contraction")
        self.mr, self.nv = shape
        self.nw = self.nv * machine.vl
        self.panels = -(-self.N // self.nw)
        self.o, self.m, self.n = (
            Var("o", 0, self.O - 1),
            Var("i", 0, self.M - 1),
            Var("n", 0, self.panels - 1),
        )
        self.k = Var("k", 0, self.K - 1)
        self.leaves = self.w.leaves(dense=p.node)
        self.range = range_of(candidate)
        self.streams = self.range is None and streams(p, machine)

    def kernel(self) -> Kernel:
        right, left = self._right(), self._left()
        if self.range is not None:
            return self._range(left, right, self.range)
        # A in place or packed by blocks of rows that stay in L2 while panels of B pass
        rows = max(self.mr, (self.machine.l2_bytes // 2 // (4 * self.K)) // self.mr * self.mr)
        self.streams = self.streams and not (left.packs or right.packs) and left.step == 1
        if right.packs:
            return self._by_panels(left, right)
        if self.streams:
            rows = min(rows, STREAMED_ROWS // self.mr * self.mr)
        return self._by_rows(left, right, min(rows, self.M))

    # -- where the operands lie

    def _plain(self, operand: Operand, **flat: Var) -> Load | None:
        """The load of an element, where that is all there is and its address is a plain sum."""
        point = self.p.point(operand.labels, **{group: var(v) for group, v in flat.items()})
        try:
            e = Builder(self.leaves, {}).at(operand.value, point)
        except Undecided:  # a border: it has to be packed
            return None
        if not isinstance(e, Load) or e.dtype is not F32:
            return None
        inner = [v for group, v in flat.items() if group != "o"]
        return None if any(e.address.depends_nonlinearly(v) for v in inner) else e

    def _left(self) -> Side:
        e = self._plain(self.p.left, o=self.o, m=self.m, k=self.k)
        if e is None or (self.K > 1 and e.address.coefficient(self.k) > 64):
            if self.p.left.value in self.candidate.region.parameters:
                return self._constant_left()
            return Side("a", self.K, 1, packs=True)
        base = (
            e.address
            - var(self.m) * e.address.coefficient(self.m)
            - var(self.k) * e.address.coefficient(self.k)
        )
        return Side(
            f"{e.pointer} + {text(base)}",
            e.address.coefficient(self.m),
            e.address.coefficient(self.k),
        )

    def _constant_left(self) -> Side:
        """By rows, laid out when the model is built."""
        p = self.p
        own = tuple(x for x in p.o if x in p.left.labels)
        axes = tuple(tuple(p.left.labels.index(x) for x in g) for g in (own, p.m, p.k))
        size = self.M * self.K
        pointer = self.w.packed(p.left.value, "panels", (*axes, self.K), p.size(own) * size)
        del self.leaves[p.left.value]  # who else reads it would find it packed
        at = flatten(p.point(own, o=var(self.o)), tuple(p.extents[x] for x in own)) * size
        return Side(f"{pointer} + {text(at)}", self.K, 1)

    def _right(self) -> Side:
        p = self.p
        if p.right.value in self.candidate.region.parameters:
            own = tuple(x for x in p.o if x in p.right.labels)
            axes = tuple(tuple(p.right.labels.index(x) for x in g) for g in (own, p.k, p.n))
            stride = self.panels * self.K * self.nw
            pointer = self.w.packed(p.right.value, "panels", (*axes, self.nw), p.size(own) * stride)
            del self.leaves[p.right.value]  # who else reads it would find it packed
            at = flatten(p.point(own, o=var(self.o)), tuple(p.extents[x] for x in own)) * stride
            return Side(f"{pointer} + {text(at + var(self.n) * (self.K * self.nw))}", self.nw, 1)
        j = Var("jj", 0, self.N - 1)
        e = self._plain(p.right, o=self.o, k=self.k, n=j)
        if (
            e is not None
            and self.N % self.nw == 0
            and e.address.coefficient(j) == 1
            and 6 * self.mr > self.M
        ):
            base = e.address - var(j) - var(self.k) * e.address.coefficient(self.k)
            return Side(
                f"{e.pointer} + {text(base)} + {self.nw} * n", e.address.coefficient(self.k), 1
            )
        return Side("b", self.nw, 1, packs=True)

    # -- loops around the micro-kernel

    def _by_rows(self, left: Side, right: Side, rows: int) -> Kernel:
        """Tile: o, a block of rows, and, where there are few rows, a block of panels."""
        rows = self._rows_of_block(rows, left.packs)
        blocks, least = -(-self.M // rows), SHARES * self.machine.threads
        even = self.machine.threads > 1 and blocks * self.O % self.machine.threads == 0
        spans = 1 if blocks * self.O >= least or left.packs or even else min(self.panels, least)
        span = -(-self.panels // spans)
        spans = -(-self.panels // span)
        last = f"m0 + {rows} < {self.M} ? {rows} : {self.M} - m0" if self.M % rows else str(rows)
        body = [
            f"const int64_t o = t / {blocks * spans}, m0 = t / {spans} % {blocks} * {rows};",
            f"const int64_t rows = {last};",
        ]
        if left.packs:
            self.w.local("a", rows * self.K)
            body += self._pack_left(rows, "m0")
        last = f"(t % {spans} + 1) * {span}"
        stop = f"{last} < {self.panels} ? {last} : {self.panels}" if self.panels % span else last
        body += [f"for (int64_t n = t % {spans} * {span}, n_end = {stop}; n < n_end; ++n) {{",
                 *self._rows_of_panel(left, right, rows, offset="m0"), "}"]  # fmt: skip
        return self._done(body, self.O * blocks * spans)

    def _rows_of_block(self, most: int, packs: bool) -> int:
        """At most `most`; so that threads find equal shares. A block that is packed divides M."""
        threads = self.machine.threads
        if packs:
            sizes = [r for r in range(1, min(most, self.M) + 1) if self.M % r == 0]
            shared = [r for r in sizes if self.O * (self.M // r) % threads == 0 and r >= self.mr]
            return max(shared or sizes)
        blocks = -(-self.M // most)
        if blocks * self.O >= SHARES * threads or (threads > 1 and self.O % threads == 0):
            return most
        share = threads if threads > 1 else SHARES
        if 2 * self.mr * share > self.M:
            return most
        blocks = -(-blocks // share) * share
        return -(-self.M // blocks // self.mr) * self.mr

    def _range(self, left: Side, right: Side, asked: Range) -> Kernel:
        """Rows [begin, end) of `asked`, each a part of m."""
        if left.packs or right.packs:
            raise Illegal("an operand needs packing within a chain")
        if self.O > 1 or self.M % asked.count:
            raise Illegal(f"{self.O} x {self.M} rows are not {asked.count} equal parts")
        unit = self.M // asked.count
        body = [
            f"const int64_t m0 = {plus((unit, 'begin'))}, rows = {plus((unit, '(end - begin)'))};",
            f"for (int64_t n = 0; n < {self.panels}; ++n) {{",
            *self._rows_of_panel(left, right, None, offset="m0"),
            "}",
        ]
        return self._done(body, asked.count)

    def _by_panels(self, left: Side, right: Side) -> Kernel:
        """Tile: o and a block of panels of B, each packed once and used for all rows."""
        threads = self.machine.threads
        even = SHARES * threads <= self.O or (self.O >= SHARES and self.O % threads == 0)
        spans = 1 if even else min(self.panels, 8)
        span = -(-self.panels // spans)
        spans = -(-self.panels // span)
        self.w.local("b", self.K * self.nw)
        body = [f"const int64_t o = t / {spans};"]
        if left.packs:
            if self.M * self.K > 1 << 21:
                raise Illegal("both operands need packing and the left one is large")
            self.w.local("a", self.M * self.K)
            body += self._pack_left(self.M, "0")
        last = f"(t % {spans} + 1) * {span}"
        stop = f"{last} < {self.panels} ? {last} : {self.panels}" if self.panels % span else last
        body += [f"for (int64_t n = t % {spans} * {span}, n_end = {stop}; n < n_end; ++n) {{"]
        body += ["  " + line for line in self._pack_right()]
        body += [*self._rows_of_panel(left, right, self.M, offset=""), "}"]
        return self._done(body, self.O * spans)

    def _done(self, body: list[str], tiles: int) -> Kernel:
        return self.w.kernel([f"    {line}" for line in body], tiles)

    def _pack_left(self, rows: int, m0: str) -> list[str]:
        """a[m][k] = left, prologue included; `rows` divides M."""
        start = const(0) if m0 == "0" else var(Var(m0, 0, self.M - rows))
        row = loop("r", rows)

        def make(env: Env, decided: Decided) -> list[Store]:
            k = self._k(env)
            point = self.p.point(self.p.left.labels, o=var(self.o), m=start + env["r"], k=k)
            value = Builder(self.leaves, decided).at(self.p.left.value, point)
            return [Store("a", env["r"] * self.K + k, value)]

        return self._print(nest([row, *self._k_loops()], make))

    def _pack_right(self) -> list[str]:
        """b[k][j] = right, prologue included; the last panel ends in zeros."""
        rest = self.N - (self.panels - 1) * self.nw
        whole = self._packed_panel(self.nw)
        if rest == self.nw:
            return whole
        partial = [f"zero_fill(b, {self.K * self.nw});", *self._packed_panel(rest)]
        if self.panels == 1:
            return partial
        return [f"if (n < {self.panels - 1}) {{", *("  " + x for x in whole), "} else {",
                *("  " + x for x in partial), "}"]  # fmt: skip

    def _packed_panel(self, width: int) -> list[str]:
        j = loop("j", width)
        last = self.panels - 1
        n = Var("n", 0, last - 1) if width == self.nw and last and self.N % self.nw else self.n
        n = const(last) if width < self.nw else var(n)

        def make(env: Env, decided: Decided) -> list[Store]:
            k = self._k(env)
            at = n * self.nw + env["j"]
            point = self.p.point(self.p.right.labels, o=var(self.o), k=k, n=at)
            return [
                Store(
                    "b",
                    k * self.nw + env["j"],
                    Builder(self.leaves, decided).at(self.p.right.value, point),
                )
            ]

        return self._print(nest([*self._k_loops(), j], make))

    def _k_loops(self) -> list[Var]:
        return [loop(f"k{i}", self.p.extents[x]) for i, x in enumerate(self.p.k)] or [loop("k0", 1)]

    def _k(self, env: Env) -> Index:
        extents = tuple(self.p.extents[x] for x in self.p.k)
        return flatten(tuple(env[f"k{i}"] for i in range(len(extents))), extents)

    def _print(self, tree: Sequence[Tree]) -> list[str]:
        return list(self.w.printer.trees(tree, indent=0))

    # -- the micro-kernel and its epilogue

    def _rows_of_panel(self, left: Side, right: Side, rows: int | None, offset: str) -> list[str]:
        fixed = rows is not None and self.M % rows == 0
        call = f"for_rows<{self.mr}, {rows}>([&](auto mr, int64_t m) {{" if fixed else (
            f"for_rows<{self.mr}>(rows, [&](auto mr, int64_t m) {{")  # fmt: skip
        row = f"{offset} + m" if offset else "m"
        start = "m" if left.packs else row
        a = f"{left.pointer} + {left.row} * ({start})"
        tile = f"mr.value, {self.nv}"
        operands = f"{a}, {left.row}, {left.step}, {right.pointer}, {right.row}"
        product = f"contract<{tile}>(c, {self.K}, {operands});"
        stores = self._stores()
        if self.streams:
            ahead = f"contract_ahead<{tile}>(c, {self.K}, {a}, {left.row}, {right.pointer});"
            product = ahead if self.panels == 1 else f"if (n == 0) {ahead} else {product}"
        lines = [f"vf c[mr.value][{self.nv}];", "zero(c);", *self._fetch(stores, row), product]
        lines += self._epilogue(stores, row)
        return [f"  {call}", *("    " + x for x in lines), "  });"]

    def _fetch(self, stores: Sequence[Store], row: str) -> list[str]:
        """What the epilogue reads and writes of tokens, asked for before the product."""
        if self.K < LEAST_TERMS:
            return []
        where = [f"const int64_t i = {row} + r, j = int64_t(v) * VL;"]
        at = places(self.candidate, stores, (self.m,))
        return fetch(f"mr.value, {self.nv}", "int r, int v", where, at)

    def _stores(self) -> list[Store]:
        j = Var("j", 0, self.nw - 1)
        columns = var(self.n) * self.nw + var(j)
        point = self.p.point(self.p.out, o=var(self.o), m=var(self.m), n=columns)

        def check(token: Token, at: Index) -> None:
            if self.range is not None:
                idle = self.panels * self.nw - self.N
                self.range.check(token, at, var(self.m), self.M, idle)

        return stores_of(self.candidate, self.p, self.leaves, point, j, check)

    def _epilogue(self, stores: Sequence[Store], row: str) -> list[str]:
        j = Var("j", 0, self.nw - 1)
        short = all(operations(s.value) <= UNROLLED for s in stores)
        lines = ["auto finish = [&](auto l, vf s, int r, int v) FISSILE_BODY {",
                 f"  const int64_t i = {row} + r, j = int64_t(v) * VL;",
                 *("  " + x for x in self.w.printer.statements(stores, j)), "};"]  # fmt: skip
        return [*lines, *each_vector(self.N, self.nw, "true" if short else "false")]


@dataclass(frozen=True)
class Side:
    """How the micro-kernel reads an operand: pointer text, step between rows, step along k
    (left)."""

    pointer: str
    row: int
    step: int
    packs: bool = False

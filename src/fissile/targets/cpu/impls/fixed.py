"""Contractions by constant weights in block fixed point, where the processor multiplies pairs of
16-bit numbers at the rate at which it multiplies single f32: twice the speed for an error of 1e-4.

    y[m, n] = s[m] t[n] sum_k p[m, k] q[k, n],    x ~ s p,  w ~ t q,  p and q in int16

A block of rows is computed, prologue included, and rounded to 16 bits with a scale for each row;
the weights are so rounded, with a scale for each column, when the model is built. The sums over
blocks of at most 64 terms are exact in int32, and added in f32.           (runtime/fixed.h)

Source of block fixed point: J. Wilkinson, Rounding Errors in Algebraic Processes (1963), ch. 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fissile.cost.model import flops
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region
from fissile.targets.cpu.impls.ahead import fetch, places
from fissile.targets.cpu.impls.contractions import tile_shapes
from fissile.targets.cpu.impls.implementation import Params
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.product_tile import UNROLLED, by_weights, each_vector, stores_of
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Builder, Illegal, operations
from fissile.tiles.index import Var, flatten, var
from fissile.tiles.nest import Decided, Env, loop, nest
from fissile.tiles.tree import Store

TERMS = 64  # of a block, at most: the fewer, the more bits the weights may have
LEAST_TERMS, LEAST_COLUMNS = 16, 16  # where rounding the rows costs less than it saves
LEAST = 1 << 18  # multiplications, likewise
ROUNDING = 1.5e-4  # relative rms error on normal data, measured
SHARES = 4  # tiles for each thread


def takes(region: Region) -> bool:
    """One contraction of some size; `lower` looks at the rest."""
    large = [n for n in region.nodes if n.prim in ("contract", "conv") and flops(n) >= 2 * LEAST]
    return len(large) == 1


def error(candidate: Candidate) -> float:
    """That of 14-bit numbers, whatever the sum's length."""
    return ROUNDING


def saving(candidate: Candidate) -> float:
    """Two multiplications for one."""
    return 2.0


def blocks_of(terms: int) -> tuple[int, int]:
    """(blocks, pairs of terms in each) of a sum."""
    pairs = -(-terms // 2)
    count = -(-2 * pairs // TERMS)
    return count, -(-pairs // count)


def variants(candidate: Candidate, machine: Machine) -> Iterable[Params]:
    """None where the processor has no such instruction."""
    return ((),) if machine.pairs else ()


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one contraction or 1x1 convolution by constant weights. f32
    only."""
    try:
        return _Fixed(candidate, machine).kernel()
    except Illegal as refusal:
        return refusal.no


class _Fixed:
    def __init__(self, candidate: Candidate, machine: Machine):
        self.candidate, self.w = candidate, Writer(candidate)
        p = self.p = by_weights(candidate)
        self.M, self.N, self.K = p.size(p.m), p.size(p.n), p.size(p.k)
        if self.K < LEAST_TERMS or self.N < LEAST_COLUMNS:
            raise Illegal("too few multiplications for each number that is rounded")
        if not np.isfinite(p.right.value.array).all():
            raise Illegal("weights are NaN or infinite: fixed point does not hold them")
        self.blocks, self.pairs = blocks_of(self.K)
        room = 2 * self.blocks * self.pairs
        self.room = -(-room // machine.vl) * machine.vl  # of a row, in numbers
        self.row = self.room // 2 + 16  # in pairs: apart from a multiple of a page
        self.rows = self._rows(machine)
        self.mr, self.nv = tile_shapes(self.rows, self.N, self.K, machine)[0]
        self.nw = self.nv * machine.vl
        self.panels = -(-self.N // self.nw)
        self.leaves = self.w.leaves()

    def _rows(self, machine: Machine) -> int:
        """Of a block: half of the second cache holds them, and threads find shares."""
        fits = max(32, machine.l2_bytes // 2 // (4 * self.row))
        count = -(-self.M // fits)
        if machine.threads > 1:
            count = -(-count // machine.threads) * machine.threads
            if 32 * count > self.M:
                count = -(-self.M // fits)
        return -(-self.M // count)

    def kernel(self) -> Kernel:
        size = self.nw * (1 + self.blocks * self.pairs)  # of a panel, in floats
        k, n = (tuple(self.p.right.labels.index(x) for x in g) for g in (self.p.k, self.p.n))
        args = (k, n, self.nw, self.pairs)
        weights = self.w.packed(self.p.right.value, "fixed_panels", args, self.panels * size)
        del self.leaves[self.p.right.value]  # who else reads it would find it packed
        self.w.local("x", self.room)
        self.w.local("s", self.rows)
        self.w.local("q", self.mr * self.nw)
        self.w.local("p", self.rows * self.row)
        self.w.scratch_lines.append("int64_t packed = -1;")
        count, spans = -(-self.M // self.rows), self._spans()
        last = str(self.rows)
        if self.M % self.rows:
            last = f"m0 + {self.rows} < {self.M} ? {self.rows} : {self.M} - m0"
        body = [
            f"const int64_t block = t / {spans}, m0 = {self.rows} * block, rows = {last};",
            *block("if (packed != block) {", [*self._pack(), "packed = block;"]),
            f"const int64_t span = t % {spans}, n_end = (span + 1) * {self.panels} / {spans};",
            *block(
                f"for (int64_t n = span * {self.panels} / {spans}; n < n_end; ++n) {{",
                self._panel(f"{weights} + n * {size}"),
            ),
        ]
        return self.w.kernel([f"    {line}" for line in body], count * spans)

    def _spans(self) -> int:
        """Parts of the columns, where there are few blocks of rows."""
        return 1 if -(-self.M // self.rows) >= SHARES else min(SHARES, self.panels)

    def _pack(self) -> list[str]:
        """Rows of pairs and their scales, prologue included."""
        i = Var("i", 0, self.M - 1)
        extents = tuple(self.p.extents[x] for x in self.p.k)
        over = [loop(f"k{a}", extent) for a, extent in enumerate(extents)]

        def make(env: Env, decided: Decided) -> Sequence[Store]:
            k = flatten(tuple(env[v.name] for v in over), extents)
            point = self.p.point(self.p.left.labels, m=var(i), k=k)
            return [Store("x", k, Builder(self.leaves, decided).at(self.p.left.value, point))]

        lines = list(self.w.printer.trees(nest(over, make), indent=0))
        place = plus("p", (self.row, "r"))
        row = f"s[r] = fixed_row((int16_t*)({place}), x, {self.K}, {self.room});"
        head = "for (int64_t r = 0; r < rows; ++r) {"
        return block(head, ["const int64_t i = m0 + r;", *lines, row])

    def _panel(self, weights: str) -> list[str]:
        stores, tile = self._stores(), f"mr.value, {self.nv}"
        moving, where = (
            Var("i", 0, self.M - 1),
            "const int64_t i = m0 + m + r, j = int64_t(v) * VL;",
        )
        rows = f"(const int32_t*)p + {self.row} * m, {self.row}, s + m"
        short = all(operations(s.value) <= UNROLLED for s in stores)
        ahead = fetch(tile, "int r, int v", [where], places(self.candidate, stores, (moving,)))
        finish = block(
            "const auto finish = [&](auto l, vf s, int r, int v) FISSILE_BODY {",
            [where, *self.w.printer.statements(stores, Var("j", 0, self.nw - 1))],
            "};",
        )
        body = [
            f"vf c[mr.value][{self.nv}];",
            *ahead,
            f"contract_fixed<{tile}>(c, q, {self.blocks}, {self.pairs}, {rows}, b);",
            *finish,
            *each_vector(self.N, self.nw, "true" if short else "false"),
        ]
        call = f"for_rows<{self.mr}>(rows, [&](auto mr, int64_t m) {{"
        if self.M % self.rows == 0:
            call = f"for_rows<{self.mr}, {self.rows}>([&](auto mr, int64_t m) {{"
        return [f"const float* b = {weights};", *block(call, body, "});")]

    def _stores(self) -> list[Store]:
        j = Var("j", 0, self.nw - 1)
        columns = var(Var("n", 0, self.panels - 1)) * self.nw + var(j)
        point = self.p.point(self.p.out, m=var(Var("i", 0, self.M - 1)), n=columns)
        return stores_of(self.candidate, self.p, self.leaves, point, j)

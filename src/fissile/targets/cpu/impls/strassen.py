"""Contractions by one level of Strassen's multiplication: seven half-sized products, not eight.

    C = A B,   A: rows and k halved,   B: k and columns halved            (runtime/strassen.h)

For large contractions with constant weights, whose direct form is at the peak of the machine: the
sums of B cost nothing at run time, those of A a few operations for every element of A, and the sums
of C stay in registers. The rows are cut into blocks whose seven left factors stay in cache; a
block's halves may overlap by a row or two, which are then computed twice. The results round
otherwise than one chain of fma would, by a factor of about two. A row's error is relative to the
larger of it and the row that it is paired with, and a NaN in one is a NaN in both: so no block
holds rows of two samples of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fissile.cost.model import flops
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region
from fissile.targets.cpu.impls.ahead import Places, fetch, places
from fissile.targets.cpu.impls.contractions import tile_shapes
from fissile.targets.cpu.impls.implementation import Params
from fissile.targets.cpu.impls.lines import block
from fissile.targets.cpu.impls.product import Product, product
from fissile.targets.cpu.impls.product_tile import (
    UNROLLED,
    anchor_of,
    by_weights,
    each_vector,
    stores_of,
)
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Builder, Expr, Illegal, Op, operations
from fissile.tiles.index import Index, Var, flatten, var
from fissile.tiles.nest import Decided, Env, loop, nest
from fissile.tiles.tree import Store

LEAST = 1 << 22  # multiplications below which the sums cost more than they save
LEAST_ROWS, LEAST_SIDE = 32, 64
PARTS = 7


def takes(region: Region) -> bool:
    """One contraction of some size; `lower` looks at the rest."""
    large = [n for n in region.nodes if n.prim in ("contract", "conv") and flops(n) >= 2 * LEAST]
    return len(large) == 1


def variants(candidate: Candidate, machine: Machine) -> Iterable[Params]:
    """Blocks of rows that stay in the second cache and, where that is more than one, all in one."""
    try:
        p = product(candidate, anchor_of(candidate))
    except Illegal:
        return
    samples = _samples(p)
    blocks = _resident(p.size(p.m) // samples, p.size(p.k) // 2, machine)
    for count in {blocks: None, 1: None}:
        yield (("blocks", samples * count),)


def _samples(p: Product) -> int:
    """Parts of the rows that must not mix: those of axis 0, if there are rows within."""
    return p.extents[p.m[0]] if len(p.m) > 1 and p.m[0] == p.out[0] else 1


def _resident(rows: int, half_k: int, machine: Machine) -> int:
    """Blocks of rows whose seven left factors take half of the second cache."""
    fits = max(16, machine.l2_bytes // 2 // (4 * PARTS * max(half_k, 1)))
    return -(-rows // (2 * fits))


def saving(candidate: Candidate) -> float:
    """Multiplications of the definition over those of seven products."""
    return 8 / 7


def extra_bytes(candidate: Candidate) -> int:
    """Seven quarters of the weights are stored, not four."""
    weights = (v.type.size_bytes for v in anchor_of(candidate).inputs if v.is_constant)
    return sum(weights) * 3 // 4


def error(candidate: Candidate) -> float:
    """Measured on normal data: 4.0e-8 sqrt(K), beyond 1.8e-8 sqrt(K) of one chain of fma."""
    node = anchor_of(candidate)
    return 3.6e-8 * math.sqrt(flops(node) / node.outputs[0].type.numel / 2)


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one contraction or 1x1 convolution by constant weights. f32 only.
    `params` may hold the number of blocks of rows."""
    try:
        return _Strassen(candidate, machine).kernel()
    except Illegal as refusal:
        return refusal.no


class _Strassen:
    def __init__(self, candidate: Candidate, machine: Machine):
        self.candidate, self.w = candidate, Writer(candidate)
        p = self.p = by_weights(candidate)
        self.M, self.N, self.K = p.size(p.m), p.size(p.n), p.size(p.k)
        samples = _samples(p)
        if self.M // samples < LEAST_ROWS or min(self.N, self.K) < LEAST_SIDE or self._is_small():
            raise Illegal("too small to gain from seven products instead of eight")
        if p.extents[p.k[0]] % 2 or self.N % 2:
            raise Illegal("an odd extent cannot be halved")
        self.half_k, self.half_n = self.K // 2, self.N // 2
        rows = self.M // samples
        blocks = candidate.param.get("blocks", 0) // samples
        blocks = blocks or _resident(rows, self.half_k, machine)
        self.blocks = samples * min(blocks, max(1, rows // 2))  # none without a pair of rows
        self.pairs = (-(-self.M // self.blocks) + 1) // 2  # of the largest block
        self.mr, self.nv = tile_shapes(self.pairs, self.half_n, self.half_k, machine)[0]
        self.nw = self.nv * machine.vl
        self.panels = -(-self.half_n // self.nw)
        self.row = self.half_k + 16  # apart from a multiple of a page, whose rows share cache sets
        self.leaves = self.w.leaves()
        self.far: list[Places] = []
        self.spans = 1 if self.blocks >= 4 else min(4, self.panels)

    def _is_small(self) -> bool:
        return self.M * self.N * self.K < LEAST

    def kernel(self) -> Kernel:
        size = PARTS * self.half_k * self.nw
        args = (
            tuple(self.p.right.labels.index(x) for x in self.p.k),
            tuple(self.p.right.labels.index(x) for x in self.p.n),
            self.nw,
        )
        weights = self.w.packed(self.p.right.value, "strassen_panels", args, self.panels * size)
        del self.leaves[self.p.right.value]  # who else reads it would find it packed
        self.w.local("a", PARTS * self.pairs * self.row)
        self.w.local("q", 3 * self.mr * self.nw)
        self.w.scratch_lines.append("int64_t packed = -1;")
        start = f"block * {self.M} / {self.blocks}" if self.blocks > 1 else "0"
        stop = f"(block + 1) * {self.M} / {self.blocks}" if self.blocks > 1 else str(self.M)
        body = [
            f"const int64_t block = t / {self.spans}, m0 = {start}, m1 = {stop} - {self.pairs};",
            *block("if (packed != block) {", [*self._pack(), "packed = block;"]),
            f"const int64_t span = t % {self.spans};",
            f"const int64_t n_end = (span + 1) * {self.panels} / {self.spans};",
            *block(
                f"for (int64_t n = span * {self.panels} / {self.spans}; n < n_end; ++n) {{",
                self._panel(f"{weights} + n * {size}"),
            ),
        ]
        return self.w.kernel([f"    {line}" for line in body], self.blocks * self.spans)

    def _pack(self) -> list[str]:
        """The seven left factors, prologue included."""
        top, bottom = Var("m0", 0, self.M - self.pairs), Var("m1", 0, self.M - self.pairs)
        over = [loop("r", self.pairs), *self._k_loops()]

        def make(env: Env, decided: Decided) -> Sequence[Store]:
            builder, k = Builder(self.leaves, decided), self._k(env)

            def a(m: Var, half: int) -> Expr:
                at = self.p.point(self.p.left.labels, m=var(m) + env["r"], k=k + half * self.half_k)
                return builder.at(self.p.left.value, at)

            a11, a12, a21, a22 = a(top, 0), a(top, 1), a(bottom, 0), a(bottom, 1)
            s1 = _op("add", a21, a22)
            s2 = _op("sub", s1, a11)
            parts = (a11, s2, _op("sub", a11, a21), a22, a12, s1, _op("sub", a12, s2))
            place = env["r"] * self.row + k
            return [
                Store("a", place + i * self.pairs * self.row, part) for i, part in enumerate(parts)
            ]

        return list(self.w.printer.trees(nest(over, make), indent=0))

    def _k_loops(self) -> list[Var]:
        first, *rest = (self.p.extents[x] for x in self.p.k)
        return [loop(f"k{i}", extent) for i, extent in enumerate((first // 2, *rest))]

    def _k(self, env: Env) -> Index:
        extents = tuple(v.extent for v in self._k_loops())
        return flatten(tuple(env[f"k{i}"] for i in range(len(extents))), extents)

    def _panel(self, weights: str) -> list[str]:
        tile = f"q, {self.half_k}, a + {self.row} * r, {self.row}, {self.pairs * self.row}, b"
        ends = ", ".join(f"end{m}{n}" for m in (1, 2) for n in (1, 2))
        body = [
            "constexpr int MR = mr.value;",
            *(line for n in (0, 1) for line in self._epilogue(n)),
            *(line for m in (1, 2) for n in (1, 2) for line in self._end(m, n)),
            *self._fetch(),
            f"strassen<MR, {self.nv}>({tile}, {ends}, fetch);",
        ]
        rows = f"for_rows<{self.mr}, {self.pairs}>([&](auto mr, int64_t r) {{"
        return [f"const float* b = {weights};", *block(rows, body, "});")]

    def _epilogue(self, half: int) -> list[str]:
        """What ends a vector of the left or right half of the columns."""
        i, n, j = Var("i", 0, self.M - 1), Var("n", 0, self.panels - 1), Var("j", 0, self.nw - 1)
        columns = var(n) * self.nw + var(j) + half * self.half_n
        point = self.p.point(self.p.out, m=var(i), n=columns)
        stores = stores_of(self.candidate, self.p, self.leaves, point, j)
        self.far.append(places(self.candidate, stores, (i,)))
        self.unroll = "true" if all(operations(s.value) <= UNROLLED for s in stores) else "false"
        name = ("left", "right")[half]
        lines = ["const int64_t i = top + r, j = int64_t(v) * VL;"]
        return block(
            f"const auto {name} = [&](auto l, vf s, int64_t top, int r, int v) FISSILE_BODY {{",
            [*lines, *self.w.printer.statements(stores, j)],
            "};",
        )

    def _fetch(self) -> list[str]:
        """fetch(m, n) asks for what the end of tile C_mn reads and writes."""
        where = ["const int64_t i = top + p, j = int64_t(v) * VL;"]
        left, right = (
            fetch(f"MR, {self.nv}", "int p, int v", where, at) or ["(void)top;"] for at in self.far
        )
        body = ["const int64_t top = (m == 1 ? m0 : m1) + r;"]
        body += [*block("if (n == 1) {", left), *block("else {", right)]
        return block("const auto fetch = [&](int m, int n) FISSILE_BODY {", body, "};")

    def _end(self, m: int, n: int) -> list[str]:
        """The lambda that stores tile C_mn; the last panel may be narrower."""
        top, name = f"m{m - 1} + r", ("left", "right")[n - 1]
        each = f"[&](auto l, vf s, int p, int v) {{ {name}(l, s, {top}, p, v); }}"
        body = each_vector(self.half_n, self.nw, self.unroll, each)
        return block(f"const auto end{m}{n} = [&](const vf (&c)[MR][{self.nv}]) {{", body, "};")


def _op(prim: str, a: Expr, b: Expr) -> Expr:
    return Op(prim, (a, b), (), F32)

"""Contractions by a library's matrix product, then a pass over the result for what follows.

    y[o, m, n] = epilogue(sum_k left[o, m, k] right[o, k, n])

The operands are read where they lie if one of their two axes is contiguous, else packed. The
product is written into the first given token, and the epilogue reads it there. A tile is one o and
one block of rows or of columns. Blocks are chosen when the kernel is written and a call runs in one
thread, so bits are equal for any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fissile.ir.graph import Node
from fissile.ir.prims import Kind, kind
from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region
from fissile.targets.cpu.impls.implementation import Params
from fissile.targets.cpu.impls.product import Operand, Product, product
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.targets.cpu.libraries import found
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Builder, Expr, Illegal, Leaf, Load, Point, Undecided, forward
from fissile.tiles.index import Index, Var, dot, substitute, text, var
from fissile.tiles.nest import Decided, Env, loop, nest
from fissile.tiles.tree import Store

LEAST = 1 << 18  # multiply-adds of a call: below, its price is the call
BLOCKS, BLOCK = 8, 256  # most blocks of a product, least rows or columns of one
MEMBERS = 6  # primitives beside the contraction: the rest would be a kernel of its own anyway
PACKED_BYTES = 16 << 20


def takes(region: Region) -> bool:
    """One contraction in f32, of layout primitives alone before it."""
    linear = [n for n in region.nodes if kind(n) is Kind.LINEAR]
    if len(linear) != 1 or len(region.nodes) > MEMBERS + 1:
        return False
    if linear[0].prim == "conv" and set(linear[0].inputs[1].shape[2:]) - {1}:
        return False
    before = region.nodes[: region.nodes.index(linear[0])]
    return all(kind(n) is Kind.LAYOUT for n in before)


def variants(candidate: Candidate, machine: Machine) -> Iterable[Params]:
    """In blocks for several threads, whole for one. The version of the library is part of what was
    measured."""
    if (there := found(candidate.impl)) is None:
        return ()
    return ((("version", there.version), ("most", BLOCKS if machine.threads > 1 else 1)),)


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one contraction or 1x1 convolution, by the library that the
    candidate's implementation is called after. f32 only."""
    try:
        p = product(candidate, _contraction(candidate.region))
        return _Product(candidate, p).kernel()
    except Illegal as refusal:
        return refusal.no


def _contraction(region: Region) -> Node:
    linear = [n for n in region.nodes if kind(n) is Kind.LINEAR]
    if len(linear) != 1:
        raise Illegal(f"{len(linear)} contractions")
    if any(v.type.dtype is not F32 for n in region.nodes for v in (*n.inputs, *n.outputs)):
        raise Illegal("not f32")
    return linear[0]


@dataclass(frozen=True)
class Matrix:
    """An operand as the library reads it: pointer text, and whether its rows are columns in
    memory."""

    pointer: str
    transposed: bool
    lead: int
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Blocks:
    """`count` equal blocks of the rows or of the columns of the result."""

    count: int
    of_rows: bool
    m: int
    n: int


def blocks_of(m: int, n: int, k: int, o: int, most: int = BLOCKS) -> Blocks:
    """The longer axis in up to `most` equal blocks: every block reads the whole other operand
    again."""
    of_rows = m >= n
    extent = m if of_rows else n
    most = min(most, extent // BLOCK, m * n * k // LEAST) if o < most else 1
    count = next((c for c in range(max(1, most), 1, -1) if extent % c == 0), 1)
    return Blocks(count, of_rows, m // count if of_rows else m, n if of_rows else n // count)


class _Product:
    def __init__(self, candidate: Candidate, p: Product):
        self.candidate, self.p, self.w = candidate, p, Writer(candidate)
        self.O, self.K = p.size(p.o), p.size(p.k)
        most = candidate.param.get("most", BLOCKS)
        self.blocks = b = blocks_of(p.size(p.m), p.size(p.n), self.K, self.O, most)
        if b.m * b.n * self.K < LEAST:
            raise Illegal("too little work for a call")
        self.leaves = self.w.leaves()
        self.o, self.b = var(Var("o", 0, self.O - 1)), var(Var("b", 0, b.count - 1))
        self.m0 = self.b * (b.m if b.of_rows else 0)
        self.n0 = self.b * (0 if b.of_rows else b.n)

    def kernel(self) -> Kernel:
        b, p = self.blocks, self.p
        i, j, k = Var("i", 0, b.m - 1), Var("j", 0, b.n - 1), Var("k", 0, self.K - 1)
        left = self._operand("a", p.left, i, k, {"m": self.m0 + var(i), "k": var(k)})
        right = self._operand("b_", p.right, k, j, {"k": var(k), "n": self.n0 + var(j)})
        result, lines = self._result(i, j)
        flags = ", ".join("true" if x.transposed else "false" for x in (left, right))
        extents = f"{b.m}, {b.n}, {self.K}"
        where = ", ".join(f"{x.pointer}, {x.lead}" for x in (left, right, result))
        head = [f"const int64_t o = t / {b.count}, b = t % {b.count};", "(void)o, (void)b;"]
        call = f"{self.candidate.impl}_product({flags}, {extents}, {where});"
        body = [*head, *left.lines, *right.lines, call, *lines]
        kernel = self.w.kernel([f"    {line}" for line in body], self.O * b.count)
        return replace(kernel, libraries=(self.candidate.impl,))

    def _operand(
        self, name: str, operand: Operand, row: Var, column: Var, at: dict[str, Index]
    ) -> Matrix:
        """In place where one of its axes is contiguous, else packed by rows."""
        point = self.p.point(operand.labels, o=self.o, **at)
        try:
            e = Builder(self.leaves, {}).at(operand.value, point)
        except Undecided:  # a border
            return self._packed(name, operand, row, column, point)
        if isinstance(e, Load) and (found := _matrix(e.pointer, e.address, row, column)):
            return found
        return self._packed(name, operand, row, column, point)

    def _packed(self, name: str, operand: Operand, row: Var, column: Var, point: Point) -> Matrix:
        if 4 * row.extent * column.extent > PACKED_BYTES:
            raise Illegal("an operand needs packing and is large")
        self.w.local(name, row.extent * column.extent)
        loops = [loop(v.name, v.extent) for v in (row, column)]

        def make(env: Env, decided: Decided) -> list[Store]:
            here = tuple(
                _replaced(x, {row: env[row.name], column: env[column.name]}) for x in point
            )
            value = Builder(self.leaves, decided).at(operand.value, here)
            place = env[row.name] * column.extent + env[column.name]
            return [Store(name, place, value)]

        lines = list(self.w.printer.trees(nest(loops, make), indent=0))
        return Matrix(name, False, column.extent, lines)

    def _result(self, i: Var, j: Var) -> tuple[Matrix, list[str]]:
        """Where the product goes, and the pass over it."""
        gives, anchor = self.candidate.gives, self.p.node.value
        _, points = self._points(self.m0 + var(i), self.n0 + var(j))
        if any(t.value not in points for t in gives):
            raise Illegal("an output is not computed from the contraction element by element")
        address = dot(points[gives[0].value], strides_of(gives[0]))
        found = _matrix("y0", address, i, j)
        if found is None or found.transposed:
            raise Illegal("the result's rows are not contiguous")

        def make(env: Env, decided: Decided) -> list[Store]:
            here, at = self._points(self.m0 + env["i"], self.n0 + env["j"])
            product = Load("y0", dot(at[gives[0].value], strides_of(gives[0])), F32)
            builder = Builder({**self.leaves, anchor: _only_at(here, product)}, decided)
            stores = [
                Store(f"y{k}", dot(at[t.value], strides_of(t)), builder.at(t.value, at[t.value]))
                for k, t in enumerate(gives)
            ]
            # what the product is read from is written last, and not at all where it is the result
            return [*stores[1:], *(stores[:1] if stores[0].value != product else [])]

        if len(gives) == 1 and gives[0].value in _moved_only(self.candidate.region, anchor):
            return found, []
        loops = [loop("i", i.extent), loop("j", j.extent)]
        return found, list(self.w.printer.trees(nest(loops, make), indent=0))

    def _points(self, m: Index, n: Index) -> tuple[Point, dict]:
        start = self.p.point(self.p.out, o=self.o, m=m, n=n)
        return start, forward(self.candidate.region, self.p.node.value, start)


def _moved_only(region: Region, anchor: object) -> set:
    """Values that are the contraction's result, element for element, moved at most."""
    same = {anchor}
    for n in region.nodes:
        if n.prim in ("reshape", "transpose") and n.inputs[0] in same:
            same.add(n.value)
    return same


def _only_at(expected: Point, product: Expr) -> Leaf:
    def leaf(point: Point) -> Expr:
        if point != expected:
            raise Illegal("the epilogue reads the result at another place")
        return product

    return leaf


def _replaced(e: Index, new: dict[Var, Index]) -> Index:
    return substitute(e, new.get)


def _matrix(pointer: str, address: Index, row: Var, column: Var) -> Matrix | None:
    """Rows and columns at plain steps, one of which is 1."""
    if address.depends_nonlinearly(row) or address.depends_nonlinearly(column):
        return None
    r, c = address.coefficient(row), address.coefficient(column)
    base = address - var(row) * r - var(column) * c
    where = f"{pointer} + {text(base)}" if base.terms or base.constant else pointer
    if (c == 1 or column.extent == 1) and (r >= column.extent or row.extent == 1):
        return Matrix(where, False, r if row.extent > 1 else column.extent)
    if (r == 1 or row.extent == 1) and (c >= row.extent or column.extent == 1):
        return Matrix(where, True, c if column.extent > 1 else row.extent)
    return None

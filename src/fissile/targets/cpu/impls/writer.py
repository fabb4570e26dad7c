"""From a candidate to the text of its kernel: names of pointers, leaves, the function around the
tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fissile.ir.graph import Node, Value
from fissile.ir.layout import Token, row_major
from fissile.kernels.blend import blend_of
from fissile.kernels.candidate import Candidate, Kernel, Packing, Param
from fissile.tiles.cpp import Printer
from fissile.tiles.expr import Illegal, Leaf, Rows, memory
from fissile.tiles.index import Index


@dataclass(frozen=True)
class Range:
    """What a stage of a chain computes at once: rows [begin, end) of an output that is cut into
    `count` equal rows in memory order, `most` of them in a call. It replaces the tiles."""

    most: int
    count: int

    def check(self, token: Token, at: Index, row: Index, rows: int, idle: int = 0) -> None:
        """Does an element that is computed in `row` of `rows` lie in that part of the token's
        memory? The range of its address `at` counts `idle` lanes that store nothing. Raises
        Illegal."""
        step = token.value.type.numel // rows
        rest = at - row * step
        if rest.lo < 0 or rest.hi >= step + idle:
            raise Illegal("the rows of an output do not lie one after another")


def range_of(candidate: Candidate) -> Range | None:
    """The rows that the candidate is asked to compute in one go: its parameter "range"."""
    asked = candidate.param.get("range")
    return None if asked is None else Range(*asked)


@dataclass
class Writer:
    """Collects what one kernel needs. Pointers: x0.. are needed tokens, w0.. constants, y0.. given
    tokens, work what all tiles share. `closing`: lines that run when all tiles are done."""

    candidate: Candidate
    printer: Printer = field(default_factory=Printer)
    packings: dict[int, tuple[Packing, int]] = field(default_factory=dict)
    scratch_bytes: int = 0
    scratch_lines: list[str] = field(default_factory=list)
    work_elements: int = 0
    closing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"k_{self.candidate.key}"

    def pointer(self, token: Token, role: str) -> str:
        tokens = self.candidate.needs if role == "need" else self.candidate.gives
        return f"{'x' if role == 'need' else 'y'}{tokens.index(token)}"

    def leaves(self, dense: Node | None = None) -> dict[Value, Leaf]:
        """Where the inputs of the region lie: tokens in their layouts, parameters row-major, and
        the matrices of blends by rows. `dense` is a blend that is computed as a product."""
        leaves = {
            t.value: memory(f"x{i}", t.value, t.layout) for i, t in enumerate(self.candidate.needs)
        }
        for i, v in enumerate(self.candidate.region.parameters):
            if i not in self.packings:
                leaves[v] = memory(f"w{i}", v, row_major(v.rank))
        return leaves | self._blends(dense)

    def _blends(self, dense: Node | None) -> dict[Value, Leaf]:
        """The matrices that blends alone read, all along the same axis."""
        region = self.candidate.region
        readers = {v: [n for n in region.nodes if v in n.inputs] for v in region.parameters}
        found: dict[Value, Leaf] = {}
        for v, nodes in readers.items():
            blends = [None if n is dense else blend_of(n) for n in nodes]
            rows = {(b.weights, b.row, b.terms) if b else None for b in blends}
            if len(rows) == 1 and (row := rows.pop()) and row[0] is v:
                _, axis, terms = row
                size = 2 * terms * v.shape[axis]
                pointer = self.packed(v, "blend_rows", (axis, terms), size)
                found[v] = Rows(pointer, terms, v.shape[1 - axis])
        return found

    def packed(
        self, value: Value, packer: str, args: tuple[object, ...], elements: int,
        opening: bool = False,
    ) -> str:  # fmt: skip
        """The pointer to a constant that is laid out for this kernel when the model is built, or
        opened."""
        index = self.candidate.region.parameters.index(value)
        self.packings[index] = (Packing(packer, args, opening), elements)
        return f"w{index}"

    def local(self, name: str, elements: int, ctype: str = "float") -> str:
        """A buffer in the scratch memory of the thread."""
        offset, size = self.scratch_bytes, 8 if ctype in ("double", "int64_t", "uint64_t") else 4
        self.scratch_bytes += -(-(elements * size + 64) // 64) * 64  # one vector of slack
        where = f"scratch + {offset}" if offset else "scratch"
        self.scratch_lines.append(f"{ctype}* {name} = ({ctype}*)({where});")
        return name

    def array(self, name: str, elements: int) -> None:
        """A few floats that the compiler may keep in registers."""
        self.scratch_lines.append(f"alignas(64) float {name}[{elements}];")

    def kernel(self, body: Sequence[str], tiles: int) -> Kernel:
        """`body` computes tile t; it is indented by two."""
        lines = [f"  {line}" for line in self.scratch_lines]
        chooses = any(" ? " in line for line in body)
        whole = range_of(self.candidate) is not None
        if self.closing:
            closing = ["if (begin == " + str(tiles) + ") {", *self.closing, "  return;", "}"]
            lines += ["  " + line for line in closing]
        head = "if (begin < end) {" if whole else "for (int64_t t = begin; t < end; ++t) {"
        lines += [f"  {head}", *["    FISSILE_NO_MASKS;"] * chooses]
        lines += [*body, "  }"]
        return self.finish(lines, tiles)

    def finish(self, lines: Iterable[str], tiles: int) -> Kernel:
        params = tuple(self._params())
        shown = [f"{p.ctype} __restrict {p.name}" for p in params]
        shown += ["char* scratch", "int64_t begin", "int64_t end"]
        head = f"static void {self.name}({', '.join(shown)}) {{"
        source = "\n".join([head, *lines, "}", ""])
        closes = bool(self.closing)
        return Kernel(self.name, source, params, tiles, self.scratch_bytes, closes=closes)

    def _params(self) -> Iterable[Param]:
        for i, t in enumerate(self.candidate.needs):
            yield Param(f"x{i}", f"const {t.value.type.dtype.c}*", "need", i, t.elements)
        for i, v in enumerate(self.candidate.region.parameters):
            packing, elements = self.packings.get(i, (None, v.type.numel))
            ctype = "float" if packing else str(v.type.dtype.c)
            yield Param(f"w{i}", f"const {ctype}*", "constant", i, elements, packing)
        for i, t in enumerate(self.candidate.gives):
            yield Param(f"y{i}", f"{t.value.type.dtype.c}*", "give", i, t.elements)
        if self.work_elements:
            yield Param("work", "float*", "work", 0, self.work_elements)


def strides_of(token: Token) -> tuple[int, ...]:
    """Raises Illegal where an axis lies in blocks."""
    if token.layout.tile:
        raise Illegal(f"a tensor in blocks: {token.layout!r}")
    return token.layout.strides(token.value.shape)


def block_of(extent: int, inner: int, least: int, unit: int = 1) -> int:
    """The smallest divisor b of extent with b * inner >= least, or the extent; whole units where
    some divisor is, else at least one."""
    fits = [b for b in range(1, extent + 1) if extent % b == 0 and b >= unit and b * inner >= least]
    return next((b for b in fits if b % unit == 0), fits[0] if fits else max(extent, 1))

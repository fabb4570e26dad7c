"""Winograd's convolution: 3x3, with m x m outputs for fewer multiplications than 9 m^2: (m + 2)^2
at stride 1, m = 2 or 4, and 49 at stride 2, m = 3.

    y = A^T [ sum_c (G g G^T) o (B^T d B) ] A                                  (runtime/winograd.h)

A tile of the kernel is a band of rows of m x m output tiles, or several small images, and a share
of the panels of output channels. It transforms the inputs of the band, v[tap][tile][c]; then, for
each panel, one contraction for each tap over the channels give u[tap][tile][channel], which are
transformed back while they are near, and end in the epilogue. The transformed weights pass once for
each tile of the kernel: deep layers of a batch have more weights than inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fissile.ir.graph import Node
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region, is_scalar
from fissile.kernels.statistics import statistics_of
from fissile.targets.cpu.impls.anchor import (
    CHANNELS,
    Epilogue,
    Slide,
    epilogue,
    find,
    lanes_of,
    slide,
)
from fissile.targets.cpu.impls.bands import Input, Tiling, whole
from fissile.targets.cpu.impls.implementation import Params, one_anchor
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.moments import band_moments
from fissile.targets.cpu.impls.shape import FROM_L3, LaneSplit, cover, step
from fissile.targets.cpu.impls.tiled import UNROLLED, blocks, done, share_of
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Illegal
from fissile.tiles.index import Index, text

LINE = 16  # floats in a cache line
FEW = 16  # tiles in a band
AHEAD = 2  # tiles between the fetch of a line and its store
WORTHWHILE = 1.15  # modelled cycles of the direct convolution over ours
SIDE = {2: 4, 3: 7, 4: 6}  # inputs along an axis of a tile of m outputs
FORMS = {1: (2, 4), 2: (3,)}  # m by stride
INPUT = {2: 60.0, 3: 180.0, 4: 260.0}  # cycles to transform a tile's vector
OUTPUT = {2: 50.0, 3: 130.0, 4: 200.0}
OUTPUT_OF = "auto l, vf a, int y, int x, int v"
FROM_L2 = 1 / 32  # cycles for a byte


def takes(region: Region) -> bool:
    """One 3x3 convolution of stride 1 or 2, dilation 1, one group, constant weights."""
    nodes = [n for n in region.nodes if n.prim == "conv"]
    return len(nodes) == 1 and fits(nodes[0]) and one_anchor(region.nodes)


def fits(node: Node) -> bool:
    k, a = node.inputs[1], node.attrs
    steps = set(a["strides"])
    plain = a["groups"] == 1 and set(a["dilations"]) == {1} and steps in ({1}, {2})
    return plain and k.shape[2:] == (3, 3) and k.is_constant and not is_scalar(k)


def variants(candidate: Candidate, machine: Machine) -> Iterator[Params]:
    """The tile sizes that could be faster than the direct convolution. Where a band has few tiles,
    the weights come from afar for little arithmetic: panels of two vectors may suit that better.
    Images together save weights and lose inputs that were near."""
    (node,) = (n for n in candidate.region.nodes if n.prim == "conv")
    s = slide(node, CHANNELS, (3, 3), node.inputs[1].shape[0], 1)
    direct = s.n * s.oh * s.ow * s.m * s.c * 9 / machine.vl
    for m in FORMS[s.sh]:
        best = cut(s, m, machine, {})
        if direct < WORTHWHILE * best.cycles:
            continue
        yield (("m", m),)
        if best.together > 1:
            yield (("m", m), ("together", 1))
        tiles = best.tiling.rows // m * -(-s.ow // m)
        if tiles <= FEW and best.lanes.nv == 1 and s.m > machine.vl:
            yield (("m", m), ("nv", 2))


def saving(candidate: Candidate) -> float:
    """Multiplications of the definition over those of a tile of m^2 outputs."""
    m = candidate.param["m"]
    return 9 * m * m / SIDE[m] ** 2


def opened_bytes(candidate: Candidate) -> int:
    """A weight for each tap of a tile is made of each 9."""
    (node,) = (n for n in candidate.region.nodes if n.prim == "conv")
    return node.inputs[1].type.size_bytes * SIDE[candidate.param["m"]] ** 2 // 9


def error(candidate: Candidate) -> float:
    """Measured on normal data beyond the error of a plain sum over 9 C terms, 5.4e-8 sqrt(C); its
    own is 3.2e-8 sqrt(C) for m = 2 and 2.8e-8 sqrt(C) for m = 3, whose sums are shorter, and
    1.35e-7 sqrt(C) for m = 4 (docs/decisions/007-winograd-points.md)."""
    (node,) = (n for n in candidate.region.nodes if n.prim == "conv")
    return {2: 1e-8, 3: 1e-8, 4: 1.24e-7}[candidate.param["m"]] * math.sqrt(node.inputs[1].shape[1])


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one 3x3 convolution, channels-last. f32 only. `params` holds
    m."""
    try:
        node = find(candidate, ("conv",))
        if not fits(node):
            raise Illegal("no 3x3 convolution of stride 1 or 2 in one group with constant weights")
        if lanes_of(candidate, node) != CHANNELS:
            raise Illegal("the channels of the output are not innermost")
        s = slide(node, CHANNELS, (3, 3), node.inputs[1].shape[0], 1)
        m = candidate.param.get("m", FORMS[s.sh][-1])
        if m not in FORMS[s.sh]:
            raise Illegal(f"no tile of {m} x {m} outputs at stride {s.sh}")
        return _Winograd(candidate, machine, s, m).kernel()
    except Illegal as reason:
        return reason.no


# ---------------------------------------------------------------- how the work is cut


@dataclass(frozen=True)
class Cut:
    """Bands of `tiling.rows` output rows, panels of `lanes.nv` vectors, `mr` tiles in registers,
    `together` images at once, each of `tiling.images` times."""

    m: int
    mr: int
    lanes: LaneSplit
    tiling: Tiling
    together: int
    cycles: float

    @property
    def taps(self) -> int:
        return SIDE[self.m] ** 2


def cut(s: Slide, m: int, machine: Machine, asked: Mapping[str, Any]) -> Cut:
    """The cut of least modelled cycles; `asked` may fix mr, nv, rows, splits and together."""
    cuts = _cuts(s.n, s.c, s.m, s.oh, s.ow, m, machine)
    fits = [c for c in cuts if _is_as_asked(c, asked)]
    if not fits:
        raise Illegal(f"no cut fits {dict(asked)}")
    return min(fits, key=lambda c: c.cycles)


def _is_as_asked(c: Cut, asked: Mapping[str, Any]) -> bool:
    own = {"mr": c.mr, "nv": c.lanes.nv, "rows": c.tiling.rows, "splits": c.tiling.splits,
           "together": c.together}  # fmt: skip
    return all(asked.get(k, v) == v for k, v in own.items())


@cache
def _cuts(n: int, c: int, k: int, oh: int, ow: int, m: int, machine: Machine) -> tuple[Cut, ...]:
    """`k` output channels. Every way worth a thought."""
    high, found = -(-oh // m), list[Cut]()
    for nv in (1, 2, 3, 4):
        lanes = LaneSplit(k, nv, machine.vl)
        splits = [p for p in range(1, min(lanes.count, 16) + 1) if lanes.count % p == 0]
        for tiles, rows, together in _bands(n, high, -(-ow // m)):
            mr = _rows_in_registers(tiles[0], lanes, machine)
            for p in splits if nv * machine.vl < k else [1]:
                tiling = Tiling(n // together, oh, m * rows, p)
                cycles = _cycles(c, k, m, mr, lanes, tiling, tiles, machine)
                found.append(Cut(m, mr, lanes, tiling, together, cycles))
    return tuple(found)


def _bands(n: int, high: int, wide: int) -> Iterator[tuple[list[int], int, int]]:
    """(m x m tiles of each band, rows of them in one, images at once) of a map of high x wide."""
    for rows in sorted({-(-high // b) for b in range(1, high + 1)}):
        rest = [high % rows * wide] if high % rows else []
        yield [rows * wide] * (high // rows) + rest, rows, 1
    for together in (k for k in range(2, n + 1) if n % k == 0):
        yield [high * wide * together], high, together


def _rows_in_registers(tiles: int, lanes: LaneSplit, machine: Machine) -> int:
    most = max(1, (machine.registers - 1 - lanes.nv) // lanes.nv - (lanes.nv == 1) * 2)
    sizes = range(1, most + 1)
    return min(sizes, key=lambda mr: (_steps(tiles, mr, lanes, machine), -mr))


def _steps(tiles: int, mr: int, lanes: LaneSplit, machine: Machine) -> float:
    """Cycles of one term of the sums of all outputs of one tap."""
    return sum(
        many * a * step(p, v, machine) for many, v, _ in lanes.kinds for a, p in cover(tiles, mr)
    )


def _cycles(
    c: int, k: int, m: int, mr: int, lanes: LaneSplit, tiling: Tiling, tiles: list[int],
    machine: Machine,
) -> float:  # fmt: skip
    """Contractions and transforms; the transformed inputs, which every panel reads, from the second
    cache or the third; the weights, once for each band; threads that wait for the last tile."""
    taps, vl, total = SIDE[m] ** 2, machine.vl, sum(tiles)
    contractions = taps * c * sum(_steps(t, mr, lanes, machine) for t in tiles)
    inputs = total * tiling.splits * -(-c // vl) * INPUT[m]
    outputs = total * -(-k // vl) * OUTPUT[m]
    band = 4 * taps * tiles[0] * (c + lanes.width)
    far = FROM_L3 if band > machine.l2_bytes * 0.8 else FROM_L2
    reads = 4 * taps * total * c * lanes.count * far
    weights = 4 * taps * c * k
    stays = weights / tiling.splits <= machine.l2_bytes / 4
    stream = weights * (1 if stays else len(tiles)) * FROM_L3 / 2
    count = tiling.count
    waves = -(-count // machine.threads) * machine.threads / count
    return tiling.images * (contractions + inputs + outputs + reads + stream) * waves


# ---------------------------------------------------------------- the kernel


class _Winograd:
    def __init__(self, candidate: Candidate, machine: Machine, s: Slide, m: int):
        self.candidate, self.machine, self.s, self.m = candidate, machine, s, m
        alone = {"together": 1} if statistics_of(candidate.region) else {}
        self.cut = cut(s, m, machine, {**alone, **candidate.param})
        self.writer = Writer(candidate)
        self.wide = -(-s.ow // m)
        self.high, self.together = self.cut.tiling.rows // m, self.cut.together
        self.row = _apart(s.c, machine.vl)
        most = self.together * self.high * self.wide
        self.plane = _odd_lines(most * self.row)
        self.products = _odd_lines(most * self.cut.lanes.width)

    def kernel(self) -> Kernel:
        writer, s, lanes = self.writer, self.s, self.cut.lanes
        taps, tiling = self.cut.taps, self.cut.tiling
        arguments = (self.m, lanes.width, self.machine.vl)
        size = taps * s.c * lanes.width
        elements = lanes.count * size
        weights = writer.packed(
            s.node.inputs[1], "winograd_panels", arguments, elements, opening=True
        )
        source = whole(self.candidate, writer, s, tiling.rows)
        writer.local("v", taps * self.plane)
        writer.local("u", taps * self.products)
        share = block(f"{share_of('j', lanes.count, tiling)} {{", blocks("panel", lanes, "j", "j"))
        panel = [*self._panel(weights, size), *share]
        if self.together > 1:
            first = plus((self.together, "n")) if tiling.images > 1 else "0"
            head = [
                f"constexpr int64_t T = {self.high * self.wide};",
                f"const int64_t n0 = {first};",
            ]
            inputs = self._each_image([*source.lines, *self._inputs(source)])
            return done(writer, self.machine, tiling, [*head, *inputs, *panel])
        head = f"constexpr int64_t T = {plus((self.wide, 'high.value'))};"
        lines = [head, *self._inputs(source), *panel]
        body = block("const auto tiles = [&](auto high) {", lines, "};")
        return done(writer, self.machine, tiling, [*source.lines, *body, *self._calls()])

    def _each_image(self, lines: list[str]) -> list[str]:
        """Lines for each of the images of a tile, with its number n."""
        if self.together == 1:
            return lines
        head = f"for (int64_t g = 0; g < {self.together}; ++g) {{"
        return block(head, ["const int64_t n = n0 + g;", *lines])

    @property
    def _first(self) -> str:
        """The first tile of an image among those of all."""
        return "g * T + i" if self.together > 1 else "i"

    def _calls(self) -> list[str]:
        """The last band may be lower."""
        full, rest = f"tiles(Int<{self.high}>());", -(-self.s.oh // self.m) % self.high
        if not rest:
            return [full]
        return [f"if (h1 - h0 == {self.cut.tiling.rows}) {full}", f"else tiles(Int<{rest}>());"]

    # -- inputs

    def _inputs(self, x: Input) -> list[str]:
        m, s = self.m, self.s
        y = plus((m * s.sh, f"(i / {self.wide})"))
        left = plus((m * s.sw, f"(i % {self.wide})"))
        corner = plus("in", (x.row, "y"), (x.pixel, "left"))
        high, wide = s.sh * (s.oh - 1) + 3, s.sw * (s.ow - 1) + 3  # what outputs reach
        tile = f"{x.row}, {x.pixel}, {s.c}, {high} - {plus((s.sh, 'h0'))} - y, {wide} - left"
        place = plus("v", (self.row, self._first))
        return block(
            "for (int64_t i = 0; i < T; ++i) {",
            [
                f"const int64_t y = {y}, left = {left};",
                f"winograd_input<{m}>({place}, {self.plane}, {corner}, {tile});",
            ],
        )

    # -- contractions and outputs

    def _panel(self, weights: str, size: int) -> list[str]:
        c = self.s.c
        rows = block(
            f"for_rows<{self.cut.mr}, {self._count}>([&](auto mr, int64_t first) {{",
            [
                "vf c[mr.value][NV];",
                "zero(c);",
                f"contract(c, {c}, {plus('v', (self.plane, 'tap'), (self.row, 'first'))}, "
                f"{self.row}, 1, k + tap * ({c} * NV * VL));",
                f"store_tile({plus('u', (self.products, 'tap'))} + first * (NV * VL), NV * VL, c);",
            ],
            "});",
        )
        contractions = block(f"for (int64_t tap = 0; tap < {self.cut.taps}; ++tap) {{", rows)
        return block(
            "const auto panel = [&](auto vectors, auto channels, int64_t j) {",
            [
                "constexpr int NV = vectors.value, N = channels.value;",
                f"const float* k = {plus(weights, (size, 'j'))};",
                f"const int64_t m0 = {plus((self.cut.lanes.width, 'j'))};",
                *contractions,
                *self._outputs(),
                *band_moments(self.candidate, self.writer, self.s, self.cut.tiling),
            ],
            "};",
        )

    @property
    def _count(self) -> str:
        return f"{self.together} * T" if self.together > 1 else "T"

    def _outputs(self) -> list[str]:
        m, end = self.m, epilogue(self.candidate, self.writer, self.s)
        unroll = "true" if end.operations <= UNROLLED else "false"
        place = self._first if self.together == 1 else f"({self._first})"
        tile = f"u + {place} * (NV * VL), {self.products}, h1 - top, {self.s.ow} - left"
        head = f"winograd_output<{m}, N, {unroll}>({tile}, [&]({OUTPUT_OF}) {{"
        where = "const int64_t h = top + y, w = left + x, m = m0 + v * VL;"
        tiles = block(
            "for (int64_t i = 0; i < T; ++i) {",
            [
                *self._ahead(end),
                f"const int64_t top = {self._top('i')}, left = {self._left('i')};",
                *block(head, [where, *end.lines], "});"),
            ],
        )
        return self._each_image(tiles)

    def _ahead(self, end: Epilogue) -> list[str]:
        """Fetch what the outputs of a later tile are stored to."""
        i = f"(i + {AHEAD})"
        lines = [f"const int64_t h = {self._top(i)}, w = {self._left(i)}, m = m0;"]
        for pointer, at in end.stored:
            row, pixel = (_step(at, name) for name in ("h", "w"))
            place = plus(pointer, f"({text(at)})")
            lines.append(f"fetch_outputs<{self.m}, N>({place}, {row}, {pixel});")
        return block(f"if (i + {AHEAD} < T) {{", lines)

    def _top(self, tile: str) -> str:
        return plus("h0", (self.m, f"({tile} / {self.wide})"))

    def _left(self, tile: str) -> str:
        return plus((self.m, f"({tile} % {self.wide})"))


def _step(at: Index, name: str) -> int:
    """Elements between neighbours along a variable; 0 where it does not occur."""
    return next((at.coefficient(v) for v in at.vars if v.name == name), 0)


def _apart(c: int, vl: int) -> int:
    """Elements between the rows of a contraction: whole vectors, and never so that more than a few
    rows fall into one set of the first cache."""
    row = -(-c // vl) * vl
    return row + LINE if row % (16 * LINE) == 0 else row


def _odd_lines(size: int) -> int:
    """Planes an odd number of cache lines apart, as one tile is read or written in all of them."""
    return (-(-size // LINE) | 1) * LINE

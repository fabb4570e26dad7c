"""Windows that stay in their channel: depthwise convolution, maximum and sum.

    y[n, m, h, w] = fold_{i, j} x[n, m, h sh + i dh, w sw + j dw] (* k[m, i, j])

Channels-last: a tile is PX pixels of one row and NV vectors of channels. Where the prologue is no more than a pad
with the neutral element, nothing is copied: windows are cut at the border instead. Channels-first: a tile is
PY rows and NV vectors of columns of one plane.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.impls.anchor import CHANNELS, Epilogue, Slide, block, epilogue
from fissile.targets.cpu.impls.bands import Input, Tiling, plane_of, whole
from fissile.targets.cpu.impls.shape import LaneSplit, cover
from fissile.targets.cpu.impls.tiled import blocks, done, each_vector, share_of
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.targets.cpu.machine import Machine

UNROLLED_TAPS = 25  # windows of more taps are loops
LEAST = 16384  # results of one tile
TILES = 8  # where the work allows


@dataclass(frozen=True)
class Fold:
    """`call` is the prefix of the micro-kernels, `start` what the accumulators begin with."""

    call: str
    start: str
    neutral: float


DEPTHWISE = Fold("depthwise", "zero(c);", 0.0)
MAXIMUM = Fold("max_pool", "fill(c, -__builtin_inff());", -math.inf)
SUM = Fold("sum_pool", "zero(c);", 0.0)


def per_channel(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    """Raises Illegal."""
    return (_last if s.lanes == CHANNELS else _first)(candidate, machine, s, fold)


# ---------------------------------------------------------------- channels-last


@dataclass(frozen=True)
class Border:
    """The input without its pad: `top` rows and `left` columns are missing before it, h x w exist.
    Output columns from `first` to `last` have whole windows."""

    token: Token
    top: int
    left: int
    h: int
    w: int
    first: int
    last: int


@dataclass(frozen=True)
class Walk:
    """What the lines of a channels-last kernel are made of. `kernel` points to weights [tap][width]."""

    s: Slide
    fold: Fold
    source: Input
    end: Epilogue
    kernel: str
    width: int
    px: int

    @property
    def steps(self) -> str:
        """pixel, line, row, tap of the micro-kernels."""
        x, s = self.source, self.s
        return f"{x.pixel * s.sw}, {x.row * s.sh}, {x.row * s.dh}, {x.pixel * s.dw}"

    def weights(self, place: str = "") -> str:
        return f", k{place}, {self.width}" if self.kernel else ""

    def call(self, window: str, tile: str, x: str, weights: str, looped: bool) -> str:
        if looped:
            return f"{self.fold.call}_last_any<{tile}>(c, {x}, {window}, {self.steps}{weights});"
        return f"{self.fold.call}_last<{window}, {tile}>(c, {x}, {self.steps}{weights});"

    def finish(self, w: str) -> list[str]:
        return each_vector("N", self.end, [f"const int64_t w = {w}, m = m0 + v * VL;"])


def _last(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    writer, (px, split) = Writer(candidate), _pixels_shape(s, machine, candidate.param)
    ragged = s.c % machine.vl != 0
    border = None if ragged else _border(candidate, s, fold)
    rows = candidate.param.get("rows") or _rows(s, copies=border is None)
    few = border is not None and s.n * -(-s.oh // rows) < TILES
    tiling = Tiling(s.n, s.oh, rows, _divisor(split.count, TILES) if few else 1)
    kernel, width = "", -(-s.m // machine.vl) * machine.vl
    if fold is DEPTHWISE:
        kernel = writer.packed(s.node.inputs[1], "depthwise_taps", (machine.vl,), s.taps * width)
    if border:
        source = _unpadded(candidate, s, border)
    else:
        source = whole(candidate, writer, s, rows, split.width if ragged else 0)
    walk = Walk(s, fold, source, epilogue(candidate, writer, s), kernel, width, px)
    panel = block(
        "const auto panel = [&](auto vectors, auto channels, int64_t h, int64_t m0) {",
        ["constexpr int NV = vectors.value, N = channels.value;",
         *(_cut(walk, border) if border else _plain(walk))], "};",
    )  # fmt: skip
    loop = block(
        "for (int64_t h = h0; h < h1; ++h) {",
        block(f"{share_of('j', split.count, tiling)} {{",
              blocks("panel", split, "j", f"h, {split.width} * j")),
    )  # fmt: skip
    return done(writer, machine, tiling, [*source.lines, *panel, *loop])


def _pixels_shape(s: Slide, machine: Machine, asked: Mapping[str, Any]) -> tuple[int, LaneSplit]:
    """Pixels and vectors of a tile: half of the registers are accumulators."""
    most = machine.registers // 2
    px = asked.get("px") or cover(s.ow, min(s.ow, most // 2))[0][1]
    nv = asked.get("nv") or max(1, min(-(-s.c // machine.vl), most // px, 8))
    return px, LaneSplit(s.c, nv, machine.vl)


def _divisor(parts: int, most: int) -> int:
    return max(k for k in range(1, min(parts, most) + 1) if parts % k == 0)


def _rows(s: Slide, copies: bool) -> int:
    """Rows of a tile: enough work, some tiles, and few rows that are copied twice."""
    work = -(-LEAST // (s.ow * s.m))
    halo = 2 * (s.reach_h - s.sh) if copies else 1
    rows = max(1, halo, min(work, -(-s.oh * s.n // TILES)))
    return -(-s.oh // max(1, s.oh // rows))


def _border(candidate: Candidate, s: Slide, fold: Fold) -> Border | None:
    """Where windows may be cut: a needed token in channels-last, as it is or behind a neutral pad."""
    x, lo = s.x, (0,) * s.x.rank
    if x.node.prim == "pad" and x.node in candidate.region.members:
        a = x.node.attrs
        if a["mode"] != "constant" or a["value"] != fold.neutral or any(a["lo"][:2] + a["hi"][:2]):
            return None
        x, lo = x.node.inputs[0], a["lo"]
    token = next((t for t in candidate.needs if t.value is x), None)
    if token is None or (x.shape[1] > 1 and strides_of(token)[1] != 1):
        return None
    w, left = (x.shape[3], lo[3]) if x.rank == 4 else (1, 0)
    first = min(-(-left // s.sw), s.ow)
    last = min((w + left - (s.kw - 1) * s.dw - 1) // s.sw + 1, s.ow)
    return Border(token, lo[2], left, x.shape[2], w, first, max(first, last))


def _unpadded(candidate: Candidate, s: Slide, border: Border) -> Input:
    strides = strides_of(border.token)
    start = f"const float* in = x{candidate.needs.index(border.token)} + {strides[0]} * n;"
    return Input([start], strides[2], strides[3] if s.x.rank == 4 else 0, 1)


def _plain(walk: Walk) -> list[str]:
    """Output row h from a band that holds the pad."""
    s, x = walk.s, walk.source
    where = f"in + {x.row * s.sh} * (h - h0) + {x.pixel * s.sw} * left + m0"
    call = walk.call(f"{s.kh}, {s.kw}", "PX, NV", where, walk.weights(), s.taps > UNROLLED_TAPS)
    weights = [f"const float* k = {walk.kernel} + m0;"] if walk.kernel else []
    tile = ["constexpr int PX = px.value;", "vf c[PX][NV];", walk.fold.start, call,
            *walk.finish("left + p")]  # fmt: skip
    return [*weights, *block(f"for_rows<{walk.px}, {s.ow}>([&](auto px, int64_t left) {{", tile, "});")]


def _cut(walk: Walk, b: Border) -> list[str]:
    """Output row h from the input itself: kernel rows i0 to i1 lie on it."""
    s, x = walk.s, walk.source
    shift = f" - {b.top}" if b.top else ""
    lines = [
        f"const int64_t i0 = taps_before({b.top} - {s.sh} * h, {s.dh}, {s.kh});",
        f"const int64_t i1 = taps_before({b.top + b.h} - {s.sh} * h, {s.dh}, {s.kh});",
        f"const float* x = in + {x.row} * ({s.sh} * h{shift} + {s.dh} * i0) + m0;",
    ]
    if walk.kernel:
        lines.append(f"const float* k = {walk.kernel} + {s.kw * walk.width} * i0 + m0;")
    edges = [(0, b.first), (b.last, s.ow)]
    if b.first or b.last < s.ow:
        lines += _edge(walk, b)
        lines += [f"for (int64_t w = {lo}; w < {hi}; ++w) edge(w);" for lo, hi in edges if lo < hi]
    if b.first < b.last:
        lines += _inside(walk, b)
    return lines


def _edge(walk: Walk, b: Border) -> list[str]:
    """One output column whose window hangs over the left or right border: kernel columns j0 to j1."""
    s, x = walk.s, walk.source
    call = walk.call(
        "1, j1 - j0", "1, NV", f"at + {x.row * s.dh} * i",
        walk.weights(f" + {walk.width} * ({s.kw} * i + j0)"), looped=True,
    )  # fmt: skip
    return block(
        "const auto edge = [&](int64_t w) {",
        [f"const int64_t j0 = taps_before({b.left} - {s.sw} * w, {s.dw}, {s.kw});",
         f"const int64_t j1 = taps_before({b.left + b.w} - {s.sw} * w, {s.dw}, {s.kw});",
         f"const float* at = x + {x.pixel} * ({s.sw} * w - {b.left} + {s.dw} * j0);",
         "vf c[1][NV];", walk.fold.start, f"for (int64_t i = 0; i < i1 - i0; ++i) {call}",
         *each_vector("N", walk.end, ["const int64_t m = m0 + v * VL;"])], "};",
    )  # fmt: skip


def _inside(walk: Walk, b: Border) -> list[str]:
    s, x = walk.s, walk.source
    start = x.pixel * (s.sw * b.first - b.left)
    where = f"x + {x.pixel * s.sw} * left" + (f" + {start}" if start else "")
    looped = walk.call(f"i1 - i0, {s.kw}", "PX, NV", where, walk.weights(), looped=True)
    if s.taps <= UNROLLED_TAPS:
        whole = walk.call(f"{s.kh}, {s.kw}", "PX, NV", where, walk.weights(), looped=False)
        calls = [f"if (i1 - i0 == {s.kh}) {whole}", f"else {looped}"] if s.h != b.h else [whole]
    else:
        calls = [looped]
    tile = ["constexpr int PX = px.value;", "vf c[PX][NV];", walk.fold.start, *calls,
            *walk.finish(f"left + p + {b.first}" if b.first else "left + p")]  # fmt: skip
    count = b.last - b.first
    return block(f"for_rows<{min(walk.px, count)}, {count}>([&](auto px, int64_t left) {{", tile, "});")


# ---------------------------------------------------------------- channels-first


def _first(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    writer = Writer(candidate)
    vectors = -(-s.ow // machine.vl)
    nv = candidate.param.get("nv") or min(vectors, 4)
    split = LaneSplit(s.ow, nv, machine.vl)
    plane = 4 * s.h * s.w
    tall = plane > machine.l2_bytes // 4
    rows = candidate.param.get("rows") or (_rows(s, copies=True) if tall else s.oh)
    tiling = Tiling(s.n, s.oh, rows, _divisor(s.m, 64 // max(1, min(s.n, 8))))
    py = cover(rows, max(1, min(rows, machine.registers // 2 // nv, 4)))[0][1] if tiling.is_even else 1
    slack = 0 if s.sw == 1 and s.ow % machine.vl == 0 else split.width * (s.sw + 1)
    source = plane_of(candidate, writer, s, rows, slack)
    x = f"in + {source.row * s.sh} * (top - h0) + {s.sw} * left"
    steps = f"{source.row * s.sh}, {source.row * s.dh}, {s.dw}"
    k = ""
    if fold is DEPTHWISE:
        index = candidate.region.parameters.index(s.node.inputs[1])
        k = f", w{index} + {s.taps} * m"
    if s.taps <= UNROLLED_TAPS:
        call = f"{fold.call}_first<{s.kh}, {s.kw}, {s.sw}, NV, PY>(c, {x}, {steps}{k});"
    else:
        call = f"{fold.call}_first_any<{s.sw}, NV, PY>(c, {x}, {s.kh}, {s.kw}, {steps}{k});"
    where = ["const int64_t h = top + p, w = left + v * VL;"]
    end = epilogue(candidate, writer, s)
    columns = block(
        "const auto columns = [&](auto vectors, auto width, auto tall, int64_t top, int64_t left) {",
        ["constexpr int NV = vectors.value, N = width.value, PY = tall.value;",
         "vf c[PY][NV];", fold.start, call, *each_vector("N", end, where)], "};",
    )  # fmt: skip
    inner = _column_blocks(s, split)
    if tiling.is_even:
        loops = block(f"for_rows<{py}, {rows}>([&](auto py, int64_t row) {{", inner("py", "h0 + row"), "});")
    else:
        loops = block("for (int64_t h = h0; h < h1; ++h) {", inner("Int<1>()", "h"))
    body = [*source.lines, *columns, *loops]
    return done(writer, machine, tiling, block(f"{share_of('m', s.m, tiling)} {{", body))


def _column_blocks(s: Slide, split: LaneSplit):
    def lines(rows: str, top: str) -> list[str]:
        return block(
            f"for (int64_t left = 0; left < {s.ow}; left += {split.width}) {{",
            blocks("columns", split, f"left / {split.width}", f"{rows}, {top}, left"),
        )

    return lines

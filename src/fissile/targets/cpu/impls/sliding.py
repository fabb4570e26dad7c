"""Windows that stay in their channel: depthwise convolution, maximum and sum.

    y[n, m, h, w] = fold_{i, j} x[n, m, sh h + dh i, sw w + dw j] (* k[m, i, j])

Channels-last: a tile is PX pixels of one row and NV vectors of channels. Where the prologue is no
more than a pad with the neutral element nothing is copied: windows are cut at the border instead.
Channels-first: see `planes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.impls.anchor import CHANNELS, Epilogue, Slide, epilogue
from fissile.targets.cpu.impls.bands import Input, Tiling, ranged, whole
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.planes import (
    DEPTHWISE,
    TILES,
    UNROLLED_TAPS,
    Fold,
    by_planes,
    divisor,
    rows_of,
)
from fissile.targets.cpu.impls.shape import LaneSplit, cover
from fissile.targets.cpu.impls.tiled import blocks, done, each_vector, share_of
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.targets.cpu.machine import Machine


def per_channel(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    """Raises Illegal."""
    if s.lanes == CHANNELS:
        return _by_pixels(candidate, machine, s, fold)
    return by_planes(candidate, machine, s, fold)


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
    """What the lines of a kernel are made of. `kernel` points to weights [tap][width]."""

    s: Slide
    fold: Fold
    source: Input
    end: Epilogue
    kernel: str
    width: int
    px: int

    def call(self, looped: bool, window: str, tile: str, x: str, place: str = "") -> str:
        """The micro-kernel at x, with weights from `place` on."""
        s, source = self.s, self.source
        steps = f"{source.pixel * s.sw}, {source.row * s.sh}, {source.row * s.dh}"
        steps += f", {source.pixel * s.dw}"
        if self.kernel:
            steps += f", k{place}, {self.width}"
        if looped:
            return f"{self.fold.call}_last_any<{tile}>(c, {x}, {window}, {steps});"
        return f"{self.fold.call}_last<{window}, {tile}>(c, {x}, {steps});"

    def pixels(self, count: int, first: int, calls: list[str]) -> list[str]:
        """Blocks of `count` output columns from `first` on."""
        where = f"const int64_t w = {plus('left', 'p', first)}, m = m0 + v * VL;"
        return block(
            f"for_rows<{min(self.px, count)}, {count}>([&](auto px, int64_t left) {{",
            [
                "constexpr int PX = px.value;",
                "vf c[PX][NV];",
                self.fold.start,
                *calls,
                *each_vector("N", self.end, [where]),
            ],
            "});",
        )


def _by_pixels(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    writer, (px, split) = Writer(candidate), _shape(s, machine, candidate.param)
    ragged = s.c % machine.vl != 0  # vectors would read behind the input
    border = None if ragged else _border(candidate, s, fold)
    rows = candidate.param.get("rows") or rows_of(s, copies=border is None)
    few = border is not None and s.n * -(-s.oh // rows) < TILES
    tiling = ranged(candidate, s) or Tiling(
        s.n, s.oh, rows, divisor(split.count, TILES) if few else 1
    )
    kernel, width = "", -(-s.m // machine.vl) * machine.vl
    if fold is DEPTHWISE:
        packing = ("depthwise_taps", (machine.vl,))
        kernel = writer.packed(s.node.inputs[1], *packing, s.taps * width)
    if border:
        source = _unpadded(candidate, s, border)
    else:
        source = whole(candidate, writer, s, tiling.rows, split.width if ragged else 0)
    walk = Walk(s, fold, source, epilogue(candidate, writer, s), kernel, width, px)
    panel = block(
        "const auto panel = [&](auto vectors, auto channels, int64_t h, int64_t m0) {",
        ["constexpr int NV = vectors.value, N = channels.value;",
         *(_cut_windows(walk, border) if border else _whole_windows(walk))],
        "};",
    )  # fmt: skip
    calls = blocks("panel", split, "j", f"h, {plus((split.width, 'j'))}")
    panels = block(f"{share_of('j', split.count, tiling)} {{", calls)
    loop = block("for (int64_t h = h0; h < h1; ++h) {", panels)
    return done(writer, machine, tiling, [*source.lines, *panel, *loop])


def _shape(s: Slide, machine: Machine, asked: Mapping[str, Any]) -> tuple[int, LaneSplit]:
    """Pixels and vectors of a tile: half of the registers are accumulators."""
    most = machine.registers // 2
    px = asked.get("px") or cover(s.ow, min(s.ow, most // 2))[0][1]
    nv = asked.get("nv") or max(1, min(-(-s.c // machine.vl), most // px, 8))
    return px, LaneSplit(s.c, nv, machine.vl)


def _border(candidate: Candidate, s: Slide, fold: Fold) -> Border | None:
    """Where windows may be cut: a needed channels-last token, as it is or behind a neutral pad."""
    x, lo = s.x, (0,) * s.x.rank
    if x.node.prim == "pad" and x.node in candidate.region.members:
        a = x.node.attrs
        neutral = a["mode"] == "constant" and a["value"] == fold.neutral
        if not neutral or any(a["lo"][:2] + a["hi"][:2]):
            return None
        x, lo = x.node.inputs[0], a["lo"]
    token = next((t for t in candidate.needs if t.value is x), None)
    if token is None or (x.shape[1] > 1 and strides_of(token)[1] != 1):
        return None
    w, left = (x.shape[3], lo[3]) if x.rank == 4 else (1, 0)
    first = min(-(-left // s.sw), s.ow)
    last = min((w + left - (s.kw - 1) * s.dw - 1) // s.sw + 1, s.ow)
    return Border(token, lo[2], left, x.shape[2], w, first, max(first, last))


def _unpadded(candidate: Candidate, s: Slide, b: Border) -> Input:
    strides = strides_of(b.token)
    start = plus(f"x{candidate.needs.index(b.token)}", (strides[0] if s.n > 1 else 0, "n"))
    return Input([f"const float* in = {start};"], strides[2], strides[3] if s.x.rank == 4 else 0, 1)


def _whole_windows(walk: Walk) -> list[str]:
    """Output row h from a band that holds the pad."""
    s, x = walk.s, walk.source
    where = plus("in", (x.row * s.sh, "(h - h0)"), (x.pixel * s.sw, "left"), "m0")
    call = walk.call(s.taps > UNROLLED_TAPS, f"{s.kh}, {s.kw}", "PX, NV", where)
    weights = [f"const float* k = {walk.kernel} + m0;"] if walk.kernel else []
    return [*weights, *walk.pixels(s.ow, 0, [call])]


def _cut_windows(walk: Walk, b: Border) -> list[str]:
    """Output row h from the input itself: kernel rows i0 to i1 lie on it."""
    s, x = walk.s, walk.source
    row = plus((s.sh, "h"), -b.top, (s.dh, "i0"))
    lines = [
        f"const int64_t i0 = taps_before({plus(b.top, (-s.sh, 'h'))}, {s.dh}, {s.kh});",
        f"const int64_t i1 = taps_before({plus(b.top + b.h, (-s.sh, 'h'))}, {s.dh}, {s.kh});",
        f"const float* x = {plus('in', (x.row, f'({row})'), 'm0')};",
    ]
    if walk.kernel:
        k = plus(walk.kernel, (s.kw * walk.width, "i0"), "m0")
        lines.append(f"const float* k = {k};")
    edges = [(lo, hi) for lo, hi in ((0, b.first), (b.last, s.ow)) if lo < hi]
    if edges:
        lines += _edge(walk, b)
        lines += [f"for (int64_t w = {lo}; w < {hi}; ++w) edge(w);" for lo, hi in edges]
    if b.first < b.last:
        lines += walk.pixels(b.last - b.first, b.first, _inside(walk, b))
    return lines


def _edge(walk: Walk, b: Border) -> list[str]:
    """One output column whose window hangs over a border: kernel columns j0 to j1."""
    s, x = walk.s, walk.source
    column = plus((s.sw, "w"), -b.left, (s.dw, "j0"))
    place = " + " + plus((walk.width, f"({plus((s.kw, 'i'), 'j0')})"))
    call = walk.call(True, "1, j1 - j0", "1, NV", plus("at", (x.row * s.dh, "i")), place)
    return block(
        "const auto edge = [&](int64_t w) {",
        [
            f"const int64_t j0 = taps_before({plus(b.left, (-s.sw, 'w'))}, {s.dw}, {s.kw});",
            f"const int64_t j1 = taps_before({plus(b.left + b.w, (-s.sw, 'w'))}, {s.dw}, {s.kw});",
            f"const float* at = {plus('x', (x.pixel, f'({column})'))};",
            "vf c[1][NV];",
            walk.fold.start,
            f"for (int64_t i = 0; i < i1 - i0; ++i) {call}",
            *each_vector("N", walk.end, ["const int64_t m = m0 + v * VL;"]),
        ],
        "};",
    )


def _inside(walk: Walk, b: Border) -> list[str]:
    """The micro-kernel for windows that only the top or bottom may cut."""
    s, x = walk.s, walk.source
    where = plus("x", (x.pixel * s.sw, "left"), x.pixel * (s.sw * b.first - b.left))
    looped = walk.call(True, f"i1 - i0, {s.kw}", "PX, NV", where)
    if s.taps > UNROLLED_TAPS:
        return [looped]
    whole_ = walk.call(False, f"{s.kh}, {s.kw}", "PX, NV", where)
    return [f"if (i1 - i0 == {s.kh}) {whole_}", f"else {looped}"] if s.h != b.h else [whole_]

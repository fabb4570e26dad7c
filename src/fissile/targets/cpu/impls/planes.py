"""Windows that stay in their channel, channels-first: a tile is PY rows and NV vectors of columns.

One plane (n, m) after another; its rows are read in place, or the prologue fills scratch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.impls.anchor import Slide, epilogue
from fissile.targets.cpu.impls.bands import Input, Tiling, plane_of, ranged
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.shape import LaneSplit
from fissile.targets.cpu.impls.tiled import (
    COLUMNS_OF,
    column_blocks,
    done,
    each_vector,
    share_of,
)
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine

UNROLLED_TAPS = 25  # windows of more taps are loops
LEAST = 16384  # results of one tile
TILES = 8  # where the work allows


@dataclass(frozen=True)
class Fold:
    """`call` is the prefix of the micro-kernels and `struct` their operation, `start` what the
    accumulators begin with."""

    call: str
    struct: str
    start: str
    neutral: float


DEPTHWISE = Fold("depthwise", "Weighted", "zero(c);", 0.0)
MAXIMUM = Fold("max_pool", "Maximum", "fill(c, -__builtin_inff());", -math.inf)
SUM = Fold("sum_pool", "Sum", "zero(c);", 0.0)


def by_planes(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    """Raises Illegal."""
    writer = Writer(candidate)
    nv = candidate.param.get("nv") or min(-(-s.ow // machine.vl), 4)
    split = LaneSplit(s.ow, nv, machine.vl)
    tiling = ranged(candidate, s) or _tiling(candidate, machine, s)
    exact = s.sw == 1 and s.ow % machine.vl == 0
    source = plane_of(candidate, writer, s, tiling.rows, 0 if exact else split.width * (s.sw + 1))
    columns = block(
        f"const auto columns = [&]({COLUMNS_OF}) {{",
        [
            "constexpr int NV = vectors.value, N = width.value, PY = rows.value;",
            "vf c[PY][NV];",
            fold.start,
            _call(candidate, s, fold, source),
            *each_vector("N", epilogue(candidate, writer, s),
                         ["const int64_t h = top + p, w = left + v * VL;"]),
        ],
        "};",
    )  # fmt: skip
    py = min(tiling.rows, max(1, machine.registers // 2 // nv), 4) if tiling.is_even else 1
    body = [*source.lines, *columns, *column_blocks(s, split, tiling, py)]
    return done(writer, machine, tiling, block(f"{share_of('m', s.m, tiling)} {{", body))


def _tiling(candidate: Candidate, machine: Machine, s: Slide) -> Tiling:
    """Whole planes, unless they are large."""
    tall = 4 * s.h * s.w > machine.l2_bytes // 4
    rows = candidate.param.get("rows") or (rows_of(s, copies=True) if tall else s.oh)
    return Tiling(s.n, s.oh, rows, divisor(s.m, 64 // min(s.n, 8)))


def _call(candidate: Candidate, s: Slide, fold: Fold, source: Input) -> str:
    x = plus("in", (source.row * s.sh, "(top - h0)"), (s.sw, "left"))
    steps = f"{source.row * s.sh}, {source.row * s.dh}, {s.dw}"
    if fold is DEPTHWISE:
        k = candidate.region.parameters.index(s.node.inputs[1])
        steps += f", {plus(f'w{k}', (s.taps, 'm'))}"
    if s.taps <= UNROLLED_TAPS:
        return f"{fold.call}_first<{s.kh}, {s.kw}, {s.sw}, NV, PY>(c, {x}, {steps});"
    return f"{fold.call}_first_any<{s.sw}, NV, PY>(c, {x}, {s.kh}, {s.kw}, {steps});"


def divisor(parts: int, most: int) -> int:
    """The largest divisor of `parts` up to `most`."""
    return max(k for k in range(1, min(parts, max(most, 1)) + 1) if parts % k == 0)


def rows_of(s: Slide, copies: bool) -> int:
    """Rows of a tile: enough work, some tiles, and few rows that are copied twice."""
    work = -(-LEAST // (s.ow * s.m))
    halo = 2 * (s.reach_h - s.sh) if copies else 1
    rows = max(1, halo, min(work, -(-s.oh * s.n // TILES)))
    return -(-s.oh // max(1, s.oh // rows))

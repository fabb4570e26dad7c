"""The shape of the register tile, and how the work is cut into tiles: least modelled cycles.

    step(p, v) = max(p v, 8) + loads(p, v)      one term of the sum for p pixels x v vectors

Fewer than eight accumulators leave the units waiting. The loads were fitted to measurements: where
fma broadcasts an operand from memory itself (AVX-512), one vector of weights for 28 pixels runs at
98 % of the peak, and every further vector costs more than it saves; elsewhere a broadcast is an
instruction, which two vectors share best. A cover of an extent by blocks follows `for_rows` of the
run time: the fewest blocks, of two sizes that differ by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fissile.targets.cpu.impls.anchor import Slide
from fissile.targets.cpu.impls.bands import Tiling
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Illegal

FILL = 0.25  # cycles for an element of a band
FROM_L3 = 1 / 16  # cycles for a byte of weights that the second cache does not hold
UNALIGNED = 5  # cycles for a vector of columns: most loads cross a cache line
PENDING = 8  # accumulators that keep the units busy


Ranked = Sequence[tuple[float, dict[str, int]]]  # (cycles, parameters)


@dataclass(frozen=True)
class LaneSplit:
    """An axis that lanes run over, in blocks of `nv` vectors; the last one may be narrower."""

    extent: int
    nv: int
    vl: int

    @property
    def width(self) -> int:
        return self.nv * self.vl

    @property
    def full(self) -> int:
        return self.extent // self.width

    @property
    def rest(self) -> int:
        return self.extent % self.width

    @property
    def count(self) -> int:
        return self.full + (self.rest > 0)

    @property
    def kinds(self) -> list[tuple[int, int, int]]:
        """(how many, vectors, lanes) of whole blocks and of the last one."""
        kinds = [(self.full, self.nv, self.width), (1, -(-self.rest // self.vl), self.rest)]
        return [k for k in kinds if k[0] and k[2]]


@dataclass(frozen=True)
class Shape:
    """A register tile of py x px pixels (or px output channels) by `lanes.nv` vectors."""

    px: int
    py: int
    lanes: LaneSplit
    tiling: Tiling


@cache
def cover(extent: int, size: int) -> tuple[tuple[int, int], ...]:
    """(how many, size) of the blocks of for_rows<size, extent>."""
    blocks = -(-extent // size)
    low, high = divmod(extent, blocks)
    return tuple((n, b) for n, b in ((high, low + 1), (blocks - high, low)) if n)


def step(p: int, v: int, machine: Machine) -> float:
    """Cycles, in units of one fma."""
    loads = 2.3 * v - 1.8 if machine.broadcasts else 0.25 * p + 0.6 * v
    return max(p * v, PENDING) + loads


def pixels_shape(s: Slide, machine: Machine, asked: Mapping[str, Any]) -> Shape:
    """Lanes over the channels of one group. `asked` may fix px, py, nv, rows, splits."""
    per_group = s.m // s.groups
    best = _best(_pixel_tiles(per_group, s.oh, s.ow, machine), asked)
    split = LaneSplit(per_group, best["nv"], machine.vl)
    tiling = _tiling(s, machine, asked, s.groups * split.count, best["py"])
    return Shape(best["px"], best["py"], split, tiling)


@cache
def _pixel_tiles(per_group: int, oh: int, ow: int, machine: Machine) -> Ranked:
    ranked: list[tuple[float, dict[str, int]]] = []
    for nv in (1, 2, 3, 4):
        kinds, room = LaneSplit(per_group, nv, machine.vl).kinds, _room(nv, machine)
        for px in _sizes(ow, room):
            for py in range(1, min(oh, room // px, 8) + 1):
                cycles = sum(
                    k * a * b * step(p * q, v, machine)
                    for k, v, _ in kinds
                    for a, p in cover(ow, px)
                    for b, q in cover(oh, py)
                )
                ranked.append((cycles, {"px": px, "py": py, "nv": nv}))
    return ranked


def columns_shape(s: Slide, machine: Machine, asked: Mapping[str, Any]) -> Shape:
    """Lanes over the columns of a row; px counts output channels of one group."""
    per_group = s.m // s.groups
    tall = min(4, s.oh) if s.sh == s.dh == 1 else 1  # rows that may share their input
    best = _best(_column_tiles(per_group, s.ow, tall, s.kh, s.sw, machine), asked)
    shares = [k for k in range(1, per_group + 1) if per_group % k == 0]
    parts = max((k for k in shares if per_group // k >= best["px"]), default=1)
    tiling = _tiling(s, machine, asked, parts, best["py"])
    return Shape(best["px"], best["py"], LaneSplit(s.ow, best["nv"], machine.vl), tiling)


@cache
def _column_tiles(per_group: int, ow: int, tall: int, kh: int, sw: int, machine: Machine) -> Ranked:
    ranked: list[tuple[float, dict[str, int]]] = []
    for nv in range(1, min(12, -(-ow // machine.vl)) + 1):
        kinds = LaneSplit(ow, nv, machine.vl).kinds
        for mr in _sizes(per_group, _room(nv, machine)):
            for py in range(1, min(tall, _room(nv, machine) // mr) + 1):
                more = 8 * (py - 1) / kh  # input rows that only some of the output rows use
                cycles = sum(
                    k * a * (max(step(p * py, v, machine), UNALIGNED * sw * v) + more) / py
                    for k, v, _ in kinds
                    for a, p in cover(per_group, mr)
                )
                ranked.append((cycles, {"px": mr, "py": py, "nv": nv}))
    return ranked


def _room(nv: int, machine: Machine) -> int:
    """Pixels whose accumulators fit the registers beside nv weights and a broadcast."""
    return max(1, (machine.registers - 1 - nv) // nv - (nv == 1) * 2)


def _sizes(extent: int, most: int) -> list[int]:
    """Block sizes that give different covers."""
    return sorted({-(-extent // k) for k in range(-(-extent // most), extent + 1)})


def _best(
    ranked: Sequence[tuple[float, dict[str, int]]], asked: Mapping[str, Any]
) -> dict[str, int]:
    """The choice of least cycles among those that `asked` allows, the first of equals."""
    fits = [r for r in ranked if all(asked.get(k, v) == v for k, v in r[1].items())]
    if not fits:
        raise Illegal(f"no tile fits {dict(asked)}")
    return min(fits, key=lambda r: r[0])[1]


def _tiling(s: Slide, machine: Machine, asked: Mapping[str, Any], parts: int, py: int) -> Tiling:
    """Rows of a band, and splits of `parts` equal shares of the channels."""
    ranked: list[tuple[float, dict[str, int]]] = []
    for rows in sorted({-(-s.oh // b) for b in range(1, s.oh + 1)}, reverse=True):
        if py > 1 and (s.oh % rows or rows < py):
            continue
        for splits in [k for k in range(1, min(parts, 16) + 1) if parts % k == 0]:
            cycles = _cycles(s, machine, Tiling(s.n, s.oh, rows, splits))
            ranked.append((cycles, {"rows": rows, "splits": splits}))
    best = _best(ranked, asked)
    return Tiling(s.n, s.oh, best["rows"], best["splits"])


def _cycles(s: Slide, machine: Machine, tiling: Tiling) -> float:
    """Arithmetic, slower where a band leaves the second cache; filling bands; weights from the
    third cache, once for each band where a split's share does not stay in the second; and threads
    that wait for the last tile."""
    arithmetic = s.n * s.oh * s.ow * s.m * s.c // s.groups * s.taps / machine.vl
    weights = 4 * s.m * s.c // s.groups * s.taps
    band = ((tiling.rows - 1) * s.sh + s.reach_h) * s.w * s.c
    spill = 0.05 * max(0.0, 4 * band / (machine.l2_bytes / 3) - 1)
    few = 0.03 * max(0, 8 - tiling.count) / 8
    stays = weights / tiling.splits <= machine.l2_bytes / 2
    stream = weights * (1 if stays else tiling.images * tiling.bands) * FROM_L3
    waves = -(-tiling.count // machine.threads) * machine.threads / tiling.count
    work = arithmetic * (1 + spill) * (1 + few)
    return (work + tiling.count * band * FILL + stream) * waves

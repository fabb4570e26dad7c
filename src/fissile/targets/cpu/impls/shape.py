"""The shape of the register tile, and how the work is cut into tiles: least modelled cycles.

    step(p, v) = max(p v, 8) + loads(p, v)      one term of the sum for p pixels x v vectors

Fewer than eight accumulators leave the units waiting. The loads were fitted to measurements: where
fma broadcasts an operand from memory itself (AVX-512), one vector of weights for 28 pixels runs at
98 % of the peak, and every further vector costs more than it saves; elsewhere a broadcast is an
instruction, which two vectors share best. A cover of an extent by blocks follows `for_rows` of the
run time: the fewest blocks, of two sizes that differ by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fissile.targets.cpu.impls.anchor import Slide
from fissile.targets.cpu.impls.bands import Tiling
from fissile.targets.cpu.machine import Machine

FILL = 0.25  # cycles for an element of a band
FROM_L3 = 1 / 16  # cycles for a byte of weights that the second cache does not hold
PENDING = 8  # accumulators that keep the units busy


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


def cover(extent: int, size: int) -> list[tuple[int, int]]:
    """(how many, size) of the blocks of for_rows<size, extent>."""
    blocks = -(-extent // size)
    low, high = divmod(extent, blocks)
    return [(n, b) for n, b in ((high, low + 1), (blocks - high, low)) if n]


def step(p: int, v: int, machine: Machine) -> float:
    """Cycles, in units of one fma."""
    loads = 2.3 * v - 1.8 if machine.broadcasts else 0.25 * p + 0.6 * v
    return max(p * v, PENDING) + loads


def pixels_shape(s: Slide, machine: Machine, asked: Mapping[str, Any]) -> Shape:
    """Lanes over the channels of one group. `asked` may fix px, py, nv, rows, splits."""
    per_group = s.m // s.groups
    ranked: list[tuple[float, int, int, int]] = []
    for nv in (1, 2, 3, 4):
        split = LaneSplit(per_group, nv, machine.vl)
        for px in _sizes(s.ow, _room(nv, machine)):
            for py in range(1, min(s.oh, _room(nv, machine) // px, 8) + 1):
                cycles = sum(
                    k * a * b * step(p * q, v, machine)
                    for k, v, _ in split.kinds
                    for a, p in cover(s.ow, px)
                    for b, q in cover(s.oh, py)
                )
                ranked.append((cycles, px, py, nv))
    _, px, py, nv = min(r for r in ranked if _agrees(asked, px=r[1], py=r[2], nv=r[3]))
    split = LaneSplit(per_group, nv, machine.vl)
    return Shape(px, py, split, _tiling(s, machine, asked, s.groups * split.count, py))


def columns_shape(s: Slide, machine: Machine, asked: Mapping[str, Any]) -> Shape:
    """Lanes over the columns of a row; px counts output channels of one group."""
    per_group = s.m // s.groups
    ranked: list[tuple[float, int, int]] = []
    for nv in range(1, 13):
        split = LaneSplit(s.ow, nv, machine.vl)
        if nv > 1 and split.nv > -(-s.ow // machine.vl):
            break
        for mr in _sizes(per_group, _room(nv, machine)):
            cycles = sum(
                k * a * (step(p, v, machine) + v)
                for k, v, _ in split.kinds
                for a, p in cover(per_group, mr)
            )
            ranked.append((cycles, mr, nv))
    _, mr, nv = min(r for r in ranked if _agrees(asked, px=r[1], nv=r[2]))
    tiling = _tiling(s, machine, asked, _divisors(per_group, mr), 1)
    return Shape(mr, 1, LaneSplit(s.ow, nv, machine.vl), tiling)


def _divisors(extent: int, least: int) -> int:
    """The most equal parts of an extent that hold at least `least`."""
    return max(k for k in range(1, extent + 1) if extent % k == 0 and extent // k >= least)


def _room(nv: int, machine: Machine) -> int:
    """Pixels whose accumulators fit the registers beside nv weights and a broadcast."""
    return max(1, (machine.registers - 1 - nv) // nv - (nv == 1) * 2)


def _sizes(extent: int, most: int) -> list[int]:
    """Block sizes that give different covers."""
    return sorted({-(-extent // k) for k in range(-(-extent // most), extent + 1)})


def _agrees(asked: Mapping[str, Any], **have: int) -> bool:
    return all(asked.get(k, v) == v for k, v in have.items())


def _tiling(s: Slide, machine: Machine, asked: Mapping[str, Any], parts: int, py: int) -> Tiling:
    """Rows of a band, and splits of `parts` equal shares of the channels."""
    flops = s.n * s.oh * s.ow * s.m * s.c // s.groups * s.taps / machine.vl
    weights = 4 * s.m * s.c // s.groups * s.taps
    ranked: list[tuple[float, int, int]] = []
    rows_choice = sorted({-(-s.oh // b) for b in range(1, s.oh + 1)}, reverse=True)
    for rows in rows_choice:
        if py > 1 and (s.oh % rows or rows < py):
            continue
        band = ((rows - 1) * s.sh + s.reach_h) * s.w * s.c
        for splits in [k for k in range(1, min(parts, 16) + 1) if parts % k == 0]:
            tiling = Tiling(s.n, s.oh, rows, splits)
            fill = tiling.count * band * FILL
            cold = weights / splits > machine.l2_bytes / 2
            stream = (tiling.count / splits if cold else 1) * weights * FROM_L3
            spill = flops * 0.05 * max(0.0, band * 4 / (machine.l2_bytes / 3) - 1)
            waves = -(-tiling.count // machine.threads) * machine.threads / tiling.count
            few = 1 + 0.03 * max(0, 8 - tiling.count) / 8
            ranked.append((((flops + spill) * few + fill + stream) * waves, -rows, splits))
    _, rows, splits = min(r for r in ranked if _agrees(asked, rows=-r[1], splits=r[2]))
    return Tiling(s.n, s.oh, -rows, splits)

"""What a machine can do at best: the constants of the roofline.

    time >= max(flops / peak, bytes / bandwidth) + launch

Measured once per machine by the target, kept as JSON below FISSILE_HOME. Rates are the best of many
repetitions, so that the bound stays admissible.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fissile.cost.store import home

VERSION = 2


@dataclass(frozen=True)
class Rate:
    """GB/s while moving data within `working_set_bytes`, the better of reading and copying
    (a copy counts the bytes read and the bytes written)."""

    working_set_bytes: int
    gb_per_s: float


@dataclass(frozen=True)
class Calibration:
    """`where`: processor, compiler and flags. `launch_us`: one launch at `threads` beyond its work.
    `peak_gflops` and `rates` are of all threads together; a fused multiply-add counts two."""

    where: str
    threads: int
    peak_gflops: float
    rates: tuple[Rate, ...]
    launch_us: float
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    def gb_per_s(self, working_set_bytes: int) -> float:
        """The best rate at which so much data moves: never less than any larger working set's."""
        larger = [r.gb_per_s for r in self.rates if r.working_set_bytes >= working_set_bytes]
        smaller = [r for r in self.rates if r.working_set_bytes <= working_set_bytes]
        here = max(smaller, key=lambda r: r.working_set_bytes).gb_per_s if smaller else 0.0
        return max([*larger, here])

    def bound_us(self, flops: float, moved_bytes: int) -> float:
        """The roofline: no kernel is faster."""
        compute = flops / self.peak_gflops * 1e-3
        return max(compute, moved_bytes / self.gb_per_s(moved_bytes) * 1e-3) + self.launch_us


def calibration(where: str, threads: int, measure: Callable[[], Calibration]) -> Calibration:
    """The kept calibration of this machine, else a new one, kept if the disk allows."""
    digest = hashlib.sha256(f"{VERSION} {where} {threads}".encode()).hexdigest()[:16]
    path = home() / "calibration" / f"{digest}.json"
    return _read(path, where, threads) or _write(path, measure())


def _read(path: Path, where: str, threads: int) -> Calibration | None:
    """None where it is missing, damaged or another machine's."""
    try:
        data = json.loads(path.read_text())
        rates = tuple(Rate(**r) for r in data.pop("rates"))
        found = Calibration(rates=rates, **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    is_ours = (found.where, found.threads) == (where, threads)
    return found if is_ours and _is_sound(found) else None


def _is_sound(found: Calibration) -> bool:
    """Are all figures what a measurement can give?"""
    sizes = [found.l1_bytes, found.l2_bytes, found.l3_bytes]
    sizes += [r.working_set_bytes for r in found.rates]
    speeds = [found.peak_gflops, *(r.gb_per_s for r in found.rates)]
    return (
        len(found.rates) > 0
        and all(type(n) is int and 0 < n < 1 << 63 for n in sizes)
        and all(_is_number(x) and x > 0 for x in speeds)
        and _is_number(found.launch_us)
        and found.launch_us >= 0
    )


def _is_number(x: Any) -> bool:
    return type(x) in (int, float) and abs(x) < 1e15 and math.isfinite(x)


def _write(path: Path, found: Calibration) -> Calibration:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(asdict(found), indent=1))
        os.replace(part, path)
    return found

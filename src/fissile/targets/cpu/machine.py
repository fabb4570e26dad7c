"""What code generation must know of a CPU: vector length, registers, caches. Read from the system once."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """`vl` floats fill a vector register; `registers` of them exist; sizes in bytes; `threads` cores."""

    vl: int
    registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    threads: int


def _cache_bytes(level: int, otherwise: int) -> int:
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((index / "level").read_text()) == level and "I" not in (index / "type").read_text():
                size = (index / "size").read_text().strip()
                return int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
        except (OSError, ValueError):
            continue
    return otherwise


def _flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return {w for line in text.splitlines() if line.startswith("flags") for w in line.split()}


@cache
def this_machine() -> Machine:
    """The machine that runs this. Unknown systems get 4 floats and cautious caches."""
    flags, arm = _flags(), platform.machine() in ("aarch64", "arm64")
    wide = {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags
    vl = 16 if wide else 8 if "avx" in flags else 4
    return Machine(
        vl=vl,
        registers=32 if wide or arm else 16,
        l1_bytes=_cache_bytes(1, 32 << 10),
        l2_bytes=_cache_bytes(2, 512 << 10),
        l3_bytes=_cache_bytes(3, 8 << 20),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )

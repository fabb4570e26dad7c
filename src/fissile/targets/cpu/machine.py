"""What generated code is fitted to: vector length, registers, caches, threads; how it is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fissile.targets.cpu.host import cpu_flags, usable_threads

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Machine:
    """`vl` is the number of floats in a vector: VL of runtime/vec.h, which kernels assert."""

    vl: int = 8
    registers: int = 16
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20
    threads: int = 1
    pairs: bool = False  # products of pairs of 16-bit numbers, as fast as those of f32

    @property
    def broadcasts(self) -> bool:
        """Arithmetic takes an operand from memory and repeats it in every lane (AVX-512)."""
        return self.vl == 16


@cache
def this_machine() -> Machine:
    """The processor that this process runs on; a modest one where the system does not say."""
    flags = cpu_flags() or frozenset[str]()
    vl, registers = _vectors(flags)
    found, plain = _caches(CACHES), Machine()
    return Machine(
        vl,
        registers,
        found.get(1, plain.l1_bytes),
        found.get(2, plain.l2_bytes),
        found.get(3, plain.l3_bytes),
        usable_threads(),
        {8: "avx_vnni", 16: "avx512_vnni"}.get(vl) in flags,
    )


def _vectors(flags: frozenset[str]) -> tuple[int, int]:
    """(vector length, registers): what runtime/vec.h chooses from the compiler's macros."""
    if {"avx512f", "avx512dq"} <= flags:
        return 16, 32
    if "avx" in flags:
        return 8, 16
    return 4, 32 if "asimd" in flags else 16


def _caches(folder: Path) -> dict[int, int]:
    """level -> bytes of the data or unified cache."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            names = ("type", "level", "size")
            kind, level, size = ((index / name).read_text().strip() for name in names)
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KMG")) * _UNITS.get(size[-1:], 1)
        except (OSError, ValueError):
            continue
    return sizes

"""The machine that this process runs on: its processor, the instructions it has, its usable
threads."""

from __future__ import annotations

import operator
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from fissile.errors import shown

CPUINFO = Path("/proc/cpuinfo")
MOST_THREADS = 1024  # of one model; its `create` in template.py refuses more too

# compiler macro -> flag of the processor, as the kernel names it
ISA = {
    "__SSE4_2__": "sse4_2", "__AVX__": "avx", "__F16C__": "f16c", "__FMA__": "fma",
    "__AVX2__": "avx2", "__BMI2__": "bmi2", "__AVXVNNI__": "avx_vnni",
    "__AVX512F__": "avx512f", "__AVX512DQ__": "avx512dq", "__AVX512BW__": "avx512bw",
    "__AVX512VL__": "avx512vl", "__AVX512CD__": "avx512cd", "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BF16__": "avx512_bf16", "__AVX512FP16__": "avx512_fp16",
    "__AVX512VBMI__": "avx512vbmi", "__AVX512VBMI2__": "avx512_vbmi2",
    "__AVX512IFMA__": "avx512ifma",
    "__ARM_NEON": "asimd", "__ARM_FEATURE_DOTPROD": "asimddp", "__ARM_FEATURE_SVE": "sve",
}  # fmt: skip


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's rows of /proc/cpuinfo; empty where there is none."""
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        return {}
    rows = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in rows}


def cpu_model() -> str:
    """Name, family, model and stepping: equal on machines whose measurements may be shared."""
    rows = _cpuinfo()
    name = rows.get("model name") or platform.processor() or platform.machine()
    numbers = [rows[k] for k in ("cpu family", "model", "stepping") if k in rows]
    return " ".join([name, "/".join(numbers)]).strip()


def cpu_flags() -> frozenset[str] | None:
    """What the processor can execute; None where the system does not say."""
    rows = _cpuinfo()
    flags = rows.get("flags") or rows.get("Features")
    return frozenset(flags.split()) if flags else None


def usable_threads() -> int:
    """Processors that this process may run on, as many as a model may use."""
    if hasattr(os, "sched_getaffinity"):
        return min(max(1, len(os.sched_getaffinity(0))), MOST_THREADS)
    return min(os.cpu_count() or 1, MOST_THREADS)


def checked_threads(threads: Any) -> int | None:
    """A number of threads that a user gave; None stands for one per processor. Raises TypeError
    where it is no whole number, ValueError where it is out of range."""
    if threads is None:
        return None
    wanted = f"threads is a whole number from 1 to {MOST_THREADS}, or None for one per processor"
    try:
        count = operator.index(threads)
    except TypeError:
        count = None
    if count is None or isinstance(threads, bool):
        raise TypeError(f"{wanted}, not {shown(repr(threads))}")
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(f"{wanted}, not {count}")
    return count


def missing_flags(needed: list[str] | tuple[str, ...]) -> list[str]:
    """The instructions that a library needs and this processor lacks."""
    flags = cpu_flags()
    return [] if flags is None else sorted(set(needed) - flags)

"""Latency of several engines in one run, interleaved.

Times on a shared machine drift by tens of percent, so only ratios within one run count: every round
runs each engine once, in an order that rotates, and a ratio is the median over rounds of the
quotient of the two times of that round.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime


@dataclass(frozen=True)
class Compared:
    """Milliseconds by engine (medians), and for each the ratio to the first with its quartiles."""

    ms: Mapping[str, float]
    ratio: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    rounds: int


def interleave(
    engines: Mapping[str, Callable[[], object]], seconds: float = 5.0, least: int = 9
) -> Compared:
    """Run all engines in turn for about `seconds`, at least `least` rounds, after two rounds of
    warm-up."""
    names = list(engines)
    times: dict[str, list[float]] = {n: [] for n in names}
    for _ in range(2):
        for n in names:
            engines[n]()
    start, rounds = time.perf_counter(), 0
    while rounds < least or (time.perf_counter() - start < seconds and rounds < 2000):
        for i in range(len(names)):
            n = names[(i + rounds) % len(names)]
            begin = time.perf_counter()
            engines[n]()
            times[n].append(time.perf_counter() - begin)
        rounds += 1
    first = times[names[0]]
    quotients = {n: sorted(t / f for t, f in zip(times[n], first, strict=True)) for n in names}
    return Compared(
        {n: 1e3 * median(t) for n, t in times.items()},
        {n: median(q) for n, q in quotients.items()},
        {n: q[len(q) // 4] for n, q in quotients.items()},
        {n: q[3 * len(q) // 4] for n, q in quotients.items()},
        rounds,
    )


def onnxruntime_session(model: Path | bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def where() -> str:
    """What a table was measured on."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        rows = [
            r for r in Path("/proc/cpuinfo").read_text().splitlines() if r.startswith("model name")
        ]
        name = rows[0].split(":")[1].strip() if rows else name
    packages = ("fissile", "onnx", "onnxruntime", "numpy", "highspy")
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{name}, {os.cpu_count()} processors, {system}, {versions}"


def feeds(inputs: Sequence, seed: int = 0) -> list[np.ndarray]:
    """Random arrays for (name, type) inputs of an Executable."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(t.type.shape).astype(t.type.dtype.numpy) if t.type.dtype.is_float
        else rng.integers(0, 2, t.type.shape).astype(t.type.dtype.numpy)
        for t in inputs
    ]  # fmt: skip

"""Compare engines fairly: interleaved, the same inputs and threads.

Times on a shared machine drift by tens of percent, so only ratios within one run count: every round
calls each engine once, in an order that rotates, and a ratio is the median over rounds of the
quotient of the two times of that round; the quartiles of the quotients are its spread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from fissile.artifact.executable import Executable
from fissile.artifact.manifest import Tensor
from fissile.peers import Call, Feeds

WARM_UP = 2  # rounds that do not count
LEAST, MOST = 9, 2000  # rounds
SHOWN_S = 0.5  # between two signs of progress, whose display takes time itself


@dataclass(frozen=True)
class Latency:
    """Microseconds of one call, and the time over the first engine's in the same round (above 1:
    the first is faster); `low` and `high` are quartiles."""

    median_us: float
    mean_us: float
    least_us: float
    ratio: float
    low: float
    high: float
    calls: int


def random_feeds(inputs: Sequence[Tensor], seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats; integers and truth values are 0 or 1, which any index allows."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for t in inputs:
        floats = t.type.dtype.is_float or t.type.dtype.kind == "complex"
        data = rng.standard_normal(t.shape) if floats else rng.integers(0, 2, t.shape)
        feeds[t.name] = np.asarray(data).astype(t.dtype)
    return feeds


def ours(exe: Executable, feeds: Feeds) -> Call:
    """A compiled model as an engine."""
    arrays = [feeds[t.name] for t in exe.inputs]

    def call() -> Sequence[Any]:
        results = exe(*arrays)
        return results if isinstance(results, tuple) else (results,)

    return call


def interleaved(
    engines: Mapping[str, Callable[[], Any]],
    seconds: float = 4.0,
    least: int = LEAST,
    progress: Callable[[str, float, float], None] | None = None,
) -> dict[str, Latency]:
    """Time all engines in turns: at least `least` rounds, then until `seconds` have passed."""
    names = list(engines)
    for name in names * WARM_UP:
        engines[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    start = shown = time.perf_counter()
    rounds = 0
    with _uncollected():
        while rounds < least or (time.perf_counter() - start < seconds and rounds < MOST):
            turn = rounds % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(_timed_us(engines[name]))
            rounds += 1
            if progress and time.perf_counter() - shown > SHOWN_S:
                shown = time.perf_counter()
                spent = shown - start
                left = max(seconds - spent, spent / rounds * (least - rounds), 0.0)
                progress(f"timing {', '.join(names)}", spent / (spent + left), left)
    first = times[names[0]]
    return {name: _latency(us, first) for name, us in times.items()}


def _latency(us: Sequence[float], first: Sequence[float]) -> Latency:
    quotients = sorted(t / f for t, f in zip(us, first, strict=True))
    n = len(quotients)
    return Latency(
        median(us),
        fmean(us),
        min(us),
        median(quotients),
        quotients[n // 4],
        quotients[3 * n // 4],
        n,
    )


def _timed_us(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


@contextmanager
def _uncollected():
    """No garbage collection falls into one engine's turn."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()

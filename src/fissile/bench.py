"""Compare a compiled model with other engines, fairly: interleaved, the same inputs and threads.

Engines take turns in blocks of a few calls; the first call of a block, which finds the caches as
another engine left them, is not counted. Medians, spread and the ratio of medians are reported.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fissile.artifact.executable import Executable
from fissile.artifact.manifest import Tensor
from fissile.errors import ToolchainError

BLOCK_S = 0.05
MOST_CALLS = 50  # in a block
Call = Callable[[], Any]


@dataclass(frozen=True)
class Latency:
    """Microseconds of one call: median, least, and the distance between the quartiles over the
    median."""

    median_us: float
    least_us: float
    spread: float
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


def interleaved(
    engines: Mapping[str, Call],
    seconds: float = 4.0,
    rounds: int = 5,
    progress: Callable[[str, float, float], None] | None = None,
) -> dict[str, Latency]:
    """Time all engines in turns: at least `rounds` rounds, then until `seconds` have passed."""
    for call in engines.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in engines}
    start, done = time.monotonic(), 0
    while done < rounds or time.monotonic() - start < seconds:
        for name, call in engines.items():
            times[name] += _block(call)
        done += 1
        if progress:
            spent = time.monotonic() - start
            left = max(seconds - spent, spent / done * (rounds - done))
            progress(
                "timing " + ", ".join(engines), spent / (spent + max(left, 0.0)), max(left, 0.0)
            )
    return {name: _latency(us) for name, us in times.items()}


def _block(call: Call) -> list[float]:
    """Microseconds of the calls of one block, the first left out."""
    first = _timed(call)
    again = _timed(call)
    count = int(BLOCK_S * 1e6 / max(min(first, again), 1.0))
    return [again, *(_timed(call) for _ in range(min(MOST_CALLS, count)))]


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _latency(us: list[float]) -> Latency:
    median = statistics.median(us)
    low, _, high = statistics.quantiles(us, n=4)
    return Latency(median, min(us), (high - low) / median, len(us))


def ours(exe: Executable, feeds: Mapping[str, np.ndarray]) -> Call:
    return lambda: exe.run(feeds)


def onnxruntime(model: Any, feeds: Mapping[str, np.ndarray], threads: int) -> Call:
    """ONNX Runtime's CPU provider with its defaults. Raises ToolchainError where it is not
    installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise ToolchainError("onnxruntime is not installed: `pip install onnxruntime`")
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.run(None, dict(feeds))
    except Exception as error:
        raise ToolchainError(f"onnxruntime cannot run this model: {str(error)[:300]}") from None
    return lambda: session.run(None, feeds)


PEERS: dict[str, Callable[[Any, Mapping[str, np.ndarray], int], Call]] = {
    "onnxruntime": onnxruntime
}

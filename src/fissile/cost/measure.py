"""Measured times of kernels: what the store knows, and the rest from a target's bench.

Kernels are measured in the order given, a round at a time, and every round is stored when it ends:
a killed run resumes where it was. Processes that share the store take different rounds, and each
other's results. The bench (a target's) compiles and times one round; a kernel
that does not compile or crashes gets a `Timing` with its fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from fissile.cost.store import Store, Timing
from fissile.kernels.candidate import Kernel

Keyed = tuple[str, Kernel]  # (candidate.key, kernel)
WAIT_S = 0.1  # for what others are measuring
Progress = Callable[[int, int, float], None]  # kernels done, kernels in all, seconds left


class Bench(Protocol):
    @property
    def round_size(self) -> int:
        """How many kernels are compiled side by side and then timed together."""
        ...

    def time(
        self, kernels: Sequence[Keyed], limits: Mapping[str, float] = MappingProxyType({})
    ) -> Mapping[str, Timing]:
        """A timing for every key, without a time nor a fault where the machine did not allow one;
        above `limits` (microseconds, by key) a rough one will do. Raises
        ToolchainError where nothing can be compiled at all."""
        ...


def measure(
    kernels: Sequence[Keyed],
    bench: Bench,
    store: Store,
    budget_s: float | None = None,
    progress: Progress | None = None,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Timing]:
    """Timings by key, known ones first; those that the budget leaves out are missing.

    A round starts only where the ones before say that it ends within the budget; the first always
    runs, smaller where the budget is short.
    """
    left = dict(kernels)
    found: dict[str, Timing] = {}
    start, done, total = time.monotonic(), 0, 0
    while True:
        fresh = store.get(left)  # others measure too
        found.update(fresh)
        left = {key: kernel for key, kernel in left.items() if key not in fresh}
        spent = time.monotonic() - start
        size = _round(bench.round_size, done, spent, budget_s)
        if not left or not size:
            break
        mine = store.claim(list(left), size)
        if not mine:
            time.sleep(WAIT_S)
            if budget_s is not None and spent > budget_s:
                break
            continue
        timings = bench.time([(key, left[key]) for key in mine], limits)
        store.put(timings)
        found.update(timings)
        done, total = done + len(mine), done + len(left)
        left = {key: kernel for key, kernel in left.items() if key not in mine}
        if progress:
            progress(done, total, (time.monotonic() - start) / done * (total - done))
    return found


def _round(most: int, done: int, spent_s: float, budget_s: float | None) -> int:
    """How many kernels to measure next."""
    if budget_s is None:
        return most
    if not done:
        return min(most, max(1, int(budget_s * 4)))
    fits = int((budget_s - spent_s) / max(spent_s / done, 1e-6))
    return max(0, min(most, fits))

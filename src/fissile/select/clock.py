"""Seconds of this thread's work, not of others'.

On a machine that others use too, a limit in seconds on the wall would end a solution before its
first relaxation, and with it what prices the next measurements. So a limit counts processor time,
and at most CROWDED times as much on the wall.
"""

from __future__ import annotations

import time

CROWDED = 4.0


class Clock:
    """Runs from its making."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.wall, self.work = time.monotonic(), time.thread_time()

    @property
    def left_s(self) -> float:
        """Seconds on the wall that are left, as crowded as it was so far; at least 0."""
        wall, work = time.monotonic() - self.wall, time.thread_time() - self.work
        crowded = min(max(wall / max(work, 1e-3), 1.0), CROWDED)
        return max(0.0, min((self.limit_s - work) * crowded, CROWDED * self.limit_s - wall))

    @property
    def is_late(self) -> bool:
        return self.left_s <= 0.0

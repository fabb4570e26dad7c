"""Offsets of buffers in one arena.

    minimise  max_i (offset_i + size_i)    such that buffers alive at the same time share no byte

Greedy placements (by size, by lifetime, by area, by first use), each at the lowest offset that
fits, then a local search that places first what reaches the top. The live-set bound proves the
result when reached. Sizes are multiples of the alignment, hence so are offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SEARCH_PLACEMENTS = 20_000  # buffers placed by the local search, in all


@dataclass(frozen=True)
class Span:
    """Bytes that are needed during the steps [first, last]."""

    size_bytes: int
    first: int
    last: int


def live_bound(spans: Sequence[Span]) -> int:
    """The largest sum of sizes alive at one step: no placement is smaller."""
    change: dict[int, int] = {}
    for s in spans:
        change[s.first] = change.get(s.first, 0) + s.size_bytes
        change[s.last + 1] = change.get(s.last + 1, 0) - s.size_bytes
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """An offset for every span, and the size of the arena."""
    if not spans:
        return [], 0
    bound = live_bound(spans)
    keys = (
        lambda i: (-spans[i].size_bytes, spans[i].first),
        lambda i: (spans[i].first - spans[i].last, -spans[i].size_bytes, spans[i].first),
        lambda i: (-spans[i].size_bytes * (spans[i].last - spans[i].first + 1), spans[i].first),
        lambda i: (spans[i].first, -spans[i].size_bytes),
    )
    best: tuple[int, list[int], list[int]] | None = None
    for key in keys:
        order = sorted(range(len(spans)), key=key)
        offsets, size = _fit(spans, order)
        if best is None or size < best[0]:
            best = (size, order, offsets)
        if size == bound:
            break
    assert best is not None
    size, offsets = _search(spans, best, bound)
    return offsets, size


def _fit(spans: Sequence[Span], order: Sequence[int]) -> tuple[list[int], int]:
    """Place in this order, each at the lowest offset that is free while it lives."""
    count = len(spans)
    first = np.array([s.first for s in spans])
    last = np.array([s.last for s in spans])
    sizes = np.array([s.size_bytes for s in spans], dtype=np.int64)
    start = np.full(count, -1, dtype=np.int64)
    for i in order:
        if not sizes[i]:
            start[i] = 0
            continue
        clash = (start >= 0) & (sizes > 0) & (first <= last[i]) & (first[i] <= last)
        begins, ends = start[clash], (start + sizes)[clash]
        rank = np.argsort(begins, kind="stable")
        begins = begins[rank]
        tops = np.maximum.accumulate(np.concatenate([[0], ends[rank]]))
        room = np.concatenate([begins - tops[:-1], [np.iinfo(np.int64).max]]) >= sizes[i]
        start[i] = tops[int(np.argmax(room))]
    return [int(s) for s in start], int((start + sizes).max())


def _search(
    spans: Sequence[Span], best: tuple[int, list[int], list[int]], bound: int
) -> tuple[int, list[int]]:
    """Move the span that reaches the top, and those that it rests on, to the front; keep what
    helps."""
    size, order, offsets = best
    rounds = min(400, _SEARCH_PLACEMENTS // len(spans))
    rng = np.random.default_rng(0)
    current = order
    for _ in range(rounds):
        if size == bound:
            break
        tops = [i for i in current if offsets[i] + spans[i].size_bytes == size]
        i = tops[0]
        rivals = [
            j
            for j in current
            if spans[j].first <= spans[i].last and spans[i].first <= spans[j].last
        ]
        moved = i if rng.random() < 0.5 else rivals[int(rng.integers(len(rivals)))]
        rest = [j for j in current if j != moved]
        to = int(rng.integers(max(1, len(rest) // 4 + 1)))
        trial = [*rest[:to], moved, *rest[to:]]
        placed, reach = _fit(spans, trial)
        if reach <= size:
            size, current, offsets = reach, trial, placed
    return size, offsets

"""What a target is: data only. Shared code asks what a target can do, never which one it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    name: str
    size_bytes: int
    bytes_per_cycle: float
    scope: str  # element, core, chip, off-chip


@dataclass(frozen=True)
class Target:
    name: str
    memories: tuple[Memory, ...]
    units: tuple[tuple[str, float], ...]
    layouts: tuple[str, ...]
    dtypes: tuple[str, ...]

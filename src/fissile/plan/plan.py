"""The plan: what runs, in which order, on which memory.

Invariant: `steps` are in an order in which every slot is written before it is read, and two buffers
whose lifetimes overlap never share bytes of the arena, except aliases of one root.
"""

from __future__ import annotations

from dataclasses import dataclass

from fissile.ir.graph import Value
from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate, Kernel, Packing


@dataclass(frozen=True)
class Slot:
    """A place: arena, weights or opened (byte offset), input or output (index; then a byte offset
    inside)."""

    space: str  # arena, weights, opened, input, output
    index: int
    offset: int


@dataclass(frozen=True)
class Launch:
    """One kernel call. `slots` follow kernel.params."""

    candidate: Candidate
    kernel: Kernel
    slots: tuple[Slot, ...]
    us: float


@dataclass(frozen=True)
class Transfer:
    """A plain copy, for an output that is an input, a constant, an alias of another or given
    twice."""

    source: Slot
    target: Slot
    size_bytes: int


@dataclass(frozen=True)
class Buffer:
    """The memory of one token that is not an alias; steps [first, last] keep it alive. None: what
    the tiles of one kernel share."""

    token: Token | None
    slot: Slot
    size_bytes: int
    first: int
    last: int
    aliases: tuple[Token, ...]


@dataclass(frozen=True)
class Weight:
    """A packed constant in weights.bin."""

    value: Value
    packing: Packing | None
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Opened:
    """A constant that is packed when the artifact is opened: from `source`, to an offset in the
    memory for such."""

    value: Value
    packing: Packing
    source: Slot
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    steps: tuple[Launch | Transfer, ...]
    buffers: tuple[Buffer, ...]
    weights: tuple[Weight, ...]
    opened: tuple[Opened, ...]
    arena_bytes: int
    arena_bound_bytes: int  # the largest live set: no plan in this order can need less
    scratch_bytes: int  # per thread

    @property
    def weights_bytes(self) -> int:
        """Of the file of constants."""
        return max((w.offset + w.size_bytes for w in self.weights), default=0)

    @property
    def opened_bytes(self) -> int:
        """Of the memory for constants that are packed when the artifact is opened."""
        return max((w.offset + w.size_bytes for w in self.opened), default=0)

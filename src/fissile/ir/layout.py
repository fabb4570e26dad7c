"""How a value lies in memory, and tokens.

    A token is (value, layout).  A candidate needs tokens and gives tokens.      (design, section 1)

`order` lists the axes from outermost to innermost. `tile` splits axes into blocks, given as (axis,
size) pairs whose inner parts follow the order innermost: channels in blocks of 16 are order (n, c,
h, w) with the tile (c, 16), in memory [n][c / 16][h][w][c % 16]. The last block of an axis is as
long as the others: memory beyond the extent is never read. `spread` names the axes that lie across
processing elements; the CPU has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fissile.ir.graph import Value


@dataclass(frozen=True)
class Dim:
    """One loop over memory: the part (index // block) of an axis, or index % block of it where
    `inner`. `stride` is in elements."""

    axis: int
    block: int
    inner: bool
    extent: int
    stride: int


@dataclass(frozen=True)
class Layout:
    order: tuple[int, ...]
    tile: tuple[tuple[int, int], ...] = ()
    spread: tuple[int, ...] = ()

    def __repr__(self) -> str:
        tiled = {a for a, _ in self.tile}
        axes = (chr(ord("A" if a in tiled else "a") + a) for a in self.order)
        return "".join([*axes, *(f"{b}{chr(ord('a') + a)}" for a, b in self.tile)]) or "scalar"

    @property
    def is_row_major(self) -> bool:
        return not self.tile and self.order == tuple(range(len(self.order)))

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Element strides, by logical axis, of a dense tensor of this shape. A tiled layout has
        none: see `dims`."""
        if self.tile:
            raise ValueError(f"layout {self!r} has no strides")
        strides, step = [0] * len(shape), 1
        for axis in reversed(self.order):
            strides[axis] = step
            step *= shape[axis]
        return tuple(strides)

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """Memory from outermost to innermost: an element lies at the sum of its parts' strides."""
        blocks = dict(self.tile)
        parts = [(a, blocks.get(a, 1), False) for a in self.order]
        parts += [(a, b, True) for a, b in self.tile]
        dims: list[Dim] = []
        step = 1
        for axis, block, inner in reversed(parts):
            extent = block if inner else -(-shape[axis] // block)
            dims.append(Dim(axis, block, inner, extent, step))
            step *= extent
        return tuple(reversed(dims))

    def elements(self, shape: tuple[int, ...]) -> int:
        """What a tensor of this shape takes, the ends of last blocks included."""
        if not self.tile:
            return math.prod(shape)
        return math.prod(d.extent for d in self.dims(shape))


def row_major(rank: int) -> Layout:
    return Layout(tuple(range(rank)))


def channels_last(rank: int) -> Layout:
    """[n, c, spatial...] with the channels innermost."""
    return Layout((0, *range(2, rank), 1))


def channels_blocked(rank: int, size: int) -> Layout:
    """[n, c, spatial...] with blocks of `size` channels innermost."""
    return Layout(tuple(range(rank)), ((1, size),))


def turned(rank: int) -> Layout:
    """Matrices by columns: the last two axes exchanged."""
    return Layout((*range(rank - 2), rank - 1, rank - 2))


@dataclass(frozen=True)
class Token:
    value: Value
    layout: Layout

    def __repr__(self) -> str:
        return f"{self.value!r}@{self.layout!r}"

    @property
    def elements(self) -> int:
        return self.layout.elements(self.value.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.value.type.dtype.size_bytes

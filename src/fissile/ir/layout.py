"""How a value lies in memory, and tokens.

    A token is (value, layout).  A candidate needs tokens and gives tokens.      (design, section 1)

`order` lists the axes from outermost to innermost. `tile` splits axes into blocks, given as (axis,
size) pairs whose inner parts follow the order innermost; `spread` names the axes that lie across
processing elements. The CPU uses `order` alone so far.
"""

from __future__ import annotations

from dataclasses import dataclass

from fissile.ir.graph import Value


@dataclass(frozen=True)
class Layout:
    order: tuple[int, ...]
    tile: tuple[tuple[int, int], ...] = ()
    spread: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return "".join(chr(ord("a") + a) for a in self.order) or "scalar"

    @property
    def is_row_major(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Element strides, by logical axis, of a dense tensor of this shape."""
        strides, step = [0] * len(shape), 1
        for axis in reversed(self.order):
            strides[axis] = step
            step *= shape[axis]
        return tuple(strides)


def row_major(rank: int) -> Layout:
    return Layout(tuple(range(rank)))


def channels_last(rank: int) -> Layout:
    """[n, c, spatial...] with the channels innermost."""
    return Layout((0, *range(2, rank), 1))


@dataclass(frozen=True)
class Token:
    value: Value
    layout: Layout

    def __repr__(self) -> str:
        return f"{self.value!r}@{self.layout!r}"

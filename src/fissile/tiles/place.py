"""Where an element lies in memory, for any layout.

    place(token's layout, point, shape) = sum over dims of part(point[axis]) * stride

with part(i) = i // block or i % block of a tiled axis: the index algebra turns both into plain sums
where loops run over blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.layout import Layout, Token
from fissile.tiles.index import Index, const, dot, floordiv, mod


def place(layout: Layout, point: Sequence[Index], shape: tuple[int, ...]) -> Index:
    """The address, in elements, of the element at `point` of a dense tensor."""
    if not layout.tile:
        return dot(point, layout.strides(shape))
    total = const(0)
    for d in layout.dims(shape):
        i = point[d.axis]
        part = mod(i, d.block) if d.inner else floordiv(i, d.block)
        total = total + part * d.stride
    return total


def place_of(token: Token, point: Sequence[Index]) -> Index:
    """The address of the element of a token at `point`."""
    return place(token.layout, point, token.value.shape)

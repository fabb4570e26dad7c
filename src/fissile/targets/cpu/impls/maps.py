"""Elementwise and layout regions: one pass over the output, every intermediate in a register.

Also the adapters between layouts (an empty region is the identity) and aliases: a region of layout
primitives whose index map is the identity on memory costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.graph import Value
from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.impls.writer import Writer, block_of
from fissile.targets.cpu.machine import Machine
from fissile.tiles.change import expressions
from fissile.tiles.expr import EITHER, Builder, Illegal, Load
from fissile.tiles.index import Index, Var, const, var
from fissile.tiles.nest import Decided, Env, Make, divisions, loop, nest
from fissile.tiles.place import place_of
from fissile.tiles.tree import Store, Tree, statements

TILE_ELEMENTS = 4096
SQUARE = 16  # a transpose moves whole squares of that side
Parts = list[tuple[tuple[str | Var, int], ...]]


@dataclass(frozen=True)
class Walked:
    """A loop over memory; its variable stands in the index of `axis` times `scale`."""

    name: str
    axis: int
    scale: int
    extent: int


def lower(candidate: Candidate, machine: Machine | None = None) -> Kernel | No:
    """The kernel of an elementwise or layout region, or of an adapter."""
    writer = Writer(candidate)
    try:
        tiles, tree = _trees(candidate, writer, far=_is_far(candidate, machine or Machine()))
    except Illegal as reason:
        return reason.no
    return writer.kernel(list(writer.printer.trees(tree, indent=2)), tiles)


def alias_offset(candidate: Candidate) -> int | No:
    """Bytes from the needed token's memory to the given one's, where both are the same elements in
    order."""
    (need,), (_,) = candidate.needs, candidate.gives
    try:
        _, tree = _trees(candidate, Writer(candidate), whole=True)
    except Illegal as reason:
        return reason.no
    stores = [s for s in statements(tree) if isinstance(s, Store)]
    if (
        len(stores) != 1
        or not isinstance(stores[0].value, Load)
        or not stores[0].value.pointer.startswith("x")
    ):
        return No("the output is more than one piece of the input")
    offset = stores[0].value.address - stores[0].address
    if not offset.is_constant:
        return No("the elements lie in another order")
    return offset.constant * need.value.type.dtype.size_bytes


def _is_far(candidate: Candidate, machine: Machine) -> bool:
    """Do its tensors not lie in the second cache?"""
    return 4 * sum(t.elements for t in (*candidate.needs, *candidate.gives)) > machine.l2_bytes


def _trees(
    candidate: Candidate, writer: Writer, whole: bool = False, far: bool = False
) -> tuple[int, tuple[Tree, ...]]:
    first = candidate.gives[0]
    if any(t.value.shape != first.value.shape for t in candidate.gives):
        raise Illegal("outputs of different shapes")
    leaves = writer.leaves()

    def statements(point: Parts) -> Make:
        def make(env: Env, decided: Decided) -> list[Store]:
            builder = Builder(leaves, decided)
            at = tuple(_at(p, env) for p in point)
            return [
                Store(f"y{i}", place_of(token, at), builder.at(_source(candidate, token), at))
                for i, token in enumerate(candidate.gives)
            ]

        return make

    dims = _dims(first)
    loops, point = _loops(first.value, dims)
    if whole or first.value.type.numel <= TILE_ELEMENTS or not dims:
        return min(1, first.value.type.numel), nest(loops, statements(point), lanes=not whole)
    inner = divisions(loops, statements(point)).get(loops[0].name, 1)
    unit = SQUARE if _turns(loops, statements(point)) else 1
    loops, point, tiles = _tiled(first.value, dims, inner, unit)
    return tiles, nest(loops, statements(point), far=far)


def _turns(loops: Sequence[Var], make: Make) -> bool:
    """Is the outermost axis the one that lies innermost in an input, as in a transpose?"""
    stores = make({v.name: var(v) for v in loops}, EITHER)
    return any(
        isinstance(e, Load) and e.address.coefficient(loops[0]) == 1
        for s in stores
        for e in expressions(s.value)
    )


def _source(candidate: Candidate, token: Token) -> Value:
    return candidate.needs[0].value if candidate.is_adapter else token.value


def _at(parts: tuple[tuple[str | Var, int], ...], env: Env) -> Index:
    total = const(0)
    for name, scale in parts:
        total = total + (env[name] if isinstance(name, str) else var(name)) * scale
    return total


def _dims(token: Token) -> list[Walked]:
    """What loops run over, outermost first in memory: axes of more than one step, and the two parts
    of those that lie in whole blocks."""
    value = token.value
    whole = {a: b for a, b in token.layout.tile if value.shape[a] % b == 0}
    found = [
        Walked(f"{'j' if d.inner else 'i'}{d.axis}", d.axis, 1 if d.inner else d.block, d.extent)
        if d.axis in whole
        else Walked(f"i{d.axis}", d.axis, 1, value.shape[d.axis])
        for d in token.layout.dims(value.shape)
        if d.axis in whole or not d.inner
    ]
    return [d for d in found if d.extent > 1]


def _loops(value: Value, dims: Sequence[Walked]) -> tuple[list[Var], Parts]:
    """A loop for each, and the output index as sums of (variable, scale)."""
    point: list[tuple[tuple[str | Var, int], ...]] = [()] * value.rank
    for d in dims:
        point[d.axis] = (*point[d.axis], (d.name, d.scale))
    return [loop(d.name, d.extent) for d in dims], point


def _tiled(
    value: Value, dims: Sequence[Walked], part: int, unit: int
) -> tuple[list[Var], Parts, int]:
    """The loops of one tile, which is a block of the outermost axis. That axis is a merged one with
    inner extent `part`: blocks hold whole parts, so that its index needs no division, and about
    `unit` steps at least."""
    first, extent = dims[0], dims[0].extent // part
    inner = part * math.prod(d.extent for d in dims[1:])
    block = block_of(extent, inner, TILE_ELEMENTS, -(-unit // part))
    t, a, b = Var("t", 0, extent // block - 1), loop(first.name, block), loop("p", part)
    loops, point = _loops(value, dims[1:])
    mine = [(t, block * part), (a.name, part), *([("p", 1)] if part > 1 else [])]
    scaled = tuple((name, scale * first.scale) for name, scale in mine)
    point[first.axis] = (*scaled, *point[first.axis])
    return [a, *([b] if part > 1 else []), *loops], point, extent // block

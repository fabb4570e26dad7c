"""What the end of a register tile reads and writes of tokens, asked for before its sums.

A store waits until its line is there, and what a kernel writes was last used long ago, so its lines
lie in the third cache or in memory: a few cycles for each are hidden by the sums, hundreds are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fissile.kernels.candidate import Candidate
from fissile.targets.cpu.impls.lines import block
from fissile.tiles.change import expressions
from fissile.tiles.expr import Load
from fissile.tiles.index import Index, Var, text
from fissile.tiles.tree import Store

LEAST_TERMS = 16  # of a sum that takes longer than to ask
NEAR_BYTES = 16384  # of a token that the first cache keeps
LARGE_BYTES = 1 << 20  # of one that comes from memory

READ, WRITTEN, LARGE = range(3)  # LARGE: written, and large
Places = Mapping[str, int]  # address -> which of them


def places(candidate: Candidate, stores: Iterable[Store], moving: Iterable[Var]) -> Places:
    """Addresses of what the stores read and write of tokens that may be far away, where they move
    with one of `moving`."""
    far, over = _far(candidate), set(moving)
    large = {f"y{i}" for i, t in enumerate(candidate.gives) if t.size_bytes >= LARGE_BYTES}
    found: dict[tuple[str, Index], int] = {}
    for s in stores:
        loads = (e for e in expressions(s.value) if isinstance(e, Load))
        found |= {(e.pointer, e.address): READ for e in loads if e.pointer in far}
        if s.pointer in far:
            found[s.pointer, s.address] = LARGE if s.pointer in large else WRITTEN
    return {
        f"{pointer} + {text(at)}": how
        for (pointer, at), how in found.items()
        if over & set(at.vars)
    }


def _far(candidate: Candidate) -> frozenset[str]:
    """Pointers to tokens of some size, but for those that a chain keeps near."""
    ends = (("x", candidate.needs), ("y", candidate.gives))
    large = {
        f"{name}{i}"
        for name, tokens in ends
        for i, t in enumerate(tokens)
        if t.size_bytes > NEAR_BYTES and not t.layout.tile
    }
    return frozenset(large.difference(candidate.param.get("near", ())))


def fetch(tile: str, arguments: str, where: Sequence[str], at: Places) -> list[str]:
    """Lines that ask for `at`, for every vector of a tile of accumulators; `where` declares what
    the addresses use from the two arguments."""
    if not at:
        return []
    # large results into the second cache, which waits for more lines at a time than the first
    asks = [
        f"fetch_later({place});" if how == LARGE else f"__builtin_prefetch({place}, {how});"
        for place, how in at.items()
    ]
    return block(f"each_place<{tile}>([&]({arguments}) FISSILE_BODY {{", [*where, *asks], "});")

"""What every derivation must have done: landmarks of tokens and columns, as bit masks.

Columns carry marks (bit e of `marks[k]`: column k performs event e).  An event is a landmark of a
token when the token cannot be derived from the free tokens without a column that performs it.  The
greatest fixed point of

    L(t) = intersection over columns k that give t of  (marks[k] + union over needs n of k of L(n))

with L(free) = {} is exactly that relation (Keyder, Richter, Helmert 2010, for delete-free planning,
which this program is).  A token that cannot be derived has every landmark: the mask -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class Derivation(Protocol):
    """A column, as far as derivations care."""

    @property
    def needs(self) -> frozenset[int]: ...
    @property
    def gives(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True)
class Landmarks:
    """`of_token[t]`: events before t is there; `of_needs[k]`: events before column k can run."""

    of_token: tuple[int, ...]
    of_needs: tuple[int, ...]


def bits(mask: int) -> Iterator[int]:
    """The set bits of a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def derivation_order(
    columns: Sequence[Derivation], free: frozenset[int], among: Sequence[int] | None = None
) -> list[int]:
    """The columns that can run at all, each after columns that give what it needs."""
    chosen = range(len(columns)) if among is None else among
    waiting: dict[int, list[int]] = {}
    missing: dict[int, int] = {}
    ready: list[int] = []
    for k in chosen:
        needs = columns[k].needs - free
        missing[k] = len(needs)
        for token in needs:
            waiting.setdefault(token, []).append(k)
        if not needs:
            ready.append(k)
    there = set(free)
    for k in ready:  # grows while it is walked: breadth first, hence deterministic
        for token in sorted(columns[k].gives):
            if token not in there:
                there.add(token)
                for j in waiting.get(token, ()):
                    missing[j] -= 1
                    if not missing[j]:
                        ready.append(j)
    return ready


def find_landmarks(
    columns: Sequence[Derivation], free: frozenset[int], tokens: int, marks: Sequence[int]
) -> Landmarks:
    """The fixed point above."""
    of_token = [-1] * tokens
    for token in free:
        of_token[token] = 0
    order = derivation_order(columns, free)
    plain = [(marks[k], tuple(columns[k].needs), tuple(columns[k].gives - free)) for k in order]
    changed = True
    while changed:
        changed = False
        for mask, needs, gives in plain:
            for token in needs:
                mask |= of_token[token]
            for token in gives:
                narrowed = of_token[token] & mask
                if narrowed != of_token[token]:
                    of_token[token] = narrowed
                    changed = True
    of_needs: list[int] = []
    for column in columns:
        mask = 0
        for token in column.needs:
            mask |= of_token[token]
        of_needs.append(mask)
    return Landmarks(tuple(of_token), tuple(of_needs))

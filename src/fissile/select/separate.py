"""Cuts for a fractional point: the rows `needs` it violates, and landmarks by growth.

Let S be a set of tokens, none of them free.  Whatever derives a token of S runs, first of all, a
column that gives a token of S and needs none of S.  Hence

    sum_{j gives a token of S, needs none of S} x_j >= 1      if S holds an output      (landmark)
    sum_{j gives a token of S, needs none of S} x_j >= x_k    if k needs a token of S   (founded)

in every solution without idle columns.  All rows `sum >= 1` of the program have this form (`cover`
of p: S is every token that requires p), and all such rows together describe the problem exactly, so
what remains is to find violated ones.  Growth starts from such an S and adds, one by one, the token
that lowers the left side most, a few times also at no gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fissile.select.landmarks import bits, find_landmarks
from fissile.select.program import Problem, Row, givers_of, token_mask

TOLERANCE = 1e-6
SIDEWAYS = 12


@dataclass(frozen=True, slots=True)
class Seed:
    """A set S to grow from, by its entering columns; `event` says what its tokens require."""

    event: int
    entering: tuple[int, ...]


class Growth:
    """Sets of tokens over one problem: S = tokens that require an event, and tokens added to them.

    S is never listed: a column needs a token of it when the event is a landmark of its needs.
    """

    def __init__(self, problem: Problem) -> None:
        self.columns = problem.columns
        self.free = problem.free
        self.givers = givers_of(problem)
        tokens = len(problem.value_of)
        marks = [token_mask(c.gives) | token_mask(c.region) << tokens for c in self.columns]
        self.known = find_landmarks(self.columns, problem.free, tokens, marks)
        self.seeds = self._seeds(problem, marks)

    def _seeds(self, problem: Problem, marks: Sequence[int]) -> list[Seed]:
        """One for each landmark of the outputs: executed primitives and given tokens."""
        proven = 0
        for token in problem.outputs:
            proven |= self.known.of_token[token]
        entering: dict[int, list[int]] = {}
        for k, column in enumerate(self.columns):
            given = 0
            for token in column.gives:
                given |= self.known.of_token[token]
            for e in bits(marks[k] & given & proven & ~self.known.of_needs[k]):
                entering.setdefault(e, []).append(k)
        distinct = {tuple(found): e for e, found in sorted(entering.items(), reverse=True)}
        return sorted((Seed(e, found) for found, e in distinct.items()), key=lambda s: s.event)

    def from_token(self, token: int) -> Seed:
        """S = {token}; no landmark, so no event."""
        found = (k for k in self.givers[token] if token not in self.columns[k].needs)
        return Seed(-1, tuple(found))

    def is_outside(self, k: int, seed: Seed, added: AbstractSet[int]) -> bool:
        """Column k needs no token of S."""
        if not self.columns[k].needs.isdisjoint(added):
            return False
        return seed.event < 0 or not self.known.of_needs[k] >> seed.event & 1

    def entering(self, seed: Seed, added: AbstractSet[int]) -> tuple[int, ...]:
        """The left side of the row: columns that give a token of S and need none."""
        found = set(seed.entering)
        for token in added:
            found.update(self.givers[token])
        return tuple(sorted(k for k in found if self.is_outside(k, seed, added)))


class Support:
    """The columns that a fractional point uses."""

    def __init__(self, growth: Growth, values: Sequence[float]) -> None:
        self.growth = growth
        self.values = values
        self.columns = [k for k, x in enumerate(values) if x > TOLERANCE / 10]
        self.givers: dict[int, list[int]] = {}
        for k in self.columns:
            for token in growth.columns[k].gives:
                self.givers.setdefault(token, []).append(k)

    def grow(self, seed: Seed, start: AbstractSet[int], goal: float) -> set[int] | None:
        """Tokens to add to S until its entering columns weigh less than `goal`; None if none do."""
        columns, added, sideways = self.growth.columns, set(start), 0
        entering = {k for k in seed.entering if self.values[k] > TOLERANCE / 10}
        if all(self.values[k] > 1 - TOLERANCE for k in entering):
            return None  # whole columns: what they need is the matter of other rows
        while True:
            gain, token = self._best_addition(seed, added, entering)
            sideways += gain < TOLERANCE
            if token < 0 or gain < -TOLERANCE or sideways > SIDEWAYS:
                break
            added.add(token)
            entering = {k for k in entering if token not in columns[k].needs}
            entering.update(self._new_givers(seed, added, token))
        weight = sum(self.values[k] for k in sorted(entering))
        return added if weight < goal - 10 * TOLERANCE else None

    def _new_givers(self, seed: Seed, added: AbstractSet[int], token: int) -> list[int]:
        growth = self.growth
        return [k for k in self.givers.get(token, ()) if growth.is_outside(k, seed, added)]

    def _best_addition(
        self, seed: Seed, added: AbstractSet[int], entering: AbstractSet[int]
    ) -> tuple[float, int]:
        columns, values = self.growth.columns, self.values
        leaves: dict[int, float] = {}
        for k in sorted(entering):
            for token in columns[k].needs:
                leaves[token] = leaves.get(token, 0.0) + values[k]
        best = (-1.0, -1)
        for token in sorted(leaves.keys() - self.growth.free):
            enters = sum(
                values[k]
                for k in self._new_givers(seed, added, token)
                if k not in entering and token not in columns[k].needs
            )
            gain = leaves[token] - enters
            if gain > best[0] + TOLERANCE / 10:
                best = (gain, token)
        return best


def violated_landmarks(growth: Growth, support: Support, serial: int) -> Iterator[Row]:
    """Grown from every landmark."""
    seen: set[tuple[int, ...]] = set()
    for i, seed in enumerate(growth.seeds):
        added = support.grow(seed, set(), 1.0)
        if added is not None:
            plus = growth.entering(seed, added)
            if plus not in seen:
                seen.add(plus)
                yield Row("landmark", (serial, i), plus)


def violated_founded(growth: Growth, support: Support, serial: int) -> Iterator[Row]:
    """Grown from every need of every used column."""
    for k in support.columns:
        for token in sorted(growth.columns[k].needs - growth.free):
            seed = growth.from_token(token)
            added = support.grow(seed, {token}, support.values[k])
            if added is not None:
                yield Row("founded", (serial, k, token), growth.entering(seed, added), k)


def violated(rows: Iterable[Row], values: Sequence[float]) -> list[Row]:
    """Those of `rows` that the point breaks."""
    broken: list[Row] = []
    for row in rows:
        wanted = row.least if row.minus is None else values[row.minus]
        if wanted > TOLERANCE and sum(values[k] for k in row.plus) < wanted - 10 * TOLERANCE:
            broken.append(row)
    return broken

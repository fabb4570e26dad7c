"""Cuts for a fractional point: the rows `needs` it violates, and landmarks by growth.

Let S be a set of tokens, none of them free.  Whatever derives a token of S runs, first of all, a
column that gives a token of S and needs none of S.  Hence

    sum_{j gives a token of S, needs none of S} x_j >= 1      if S holds an output            (landmark)
    sum_{j gives a token of S, needs none of S} x_j >= x_k    if k needs a token of S         (founded)

in every solution of which no column is superfluous.  All rows `sum >= 1` of the program are landmarks of this
form (`cover` of p: S is every token that requires p), and all landmarks together describe the problem
exactly, so what remains is to find violated ones.  Growth starts from such an S and adds, one by one,
the token that lowers the left side most, a few times also at no gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fissile.select.landmarks import bits, find_landmarks
from fissile.select.program import Problem, Row, givers_of, token_mask

TOLERANCE = 1e-6
SIDEWAYS = 12


@dataclass(frozen=True, slots=True)
class Seeds:
    """Sets S to grow from: for each landmark of the outputs, the tokens that require it."""

    sets: tuple[frozenset[int], ...]
    givers: tuple[tuple[int, ...], ...]


def find_seeds(problem: Problem) -> Seeds:
    """Landmarks are primitives that must be executed and tokens that must be given."""
    tokens = len(problem.value_of)
    marks = [
        token_mask(column.gives) | token_mask(column.region) << tokens for column in problem.columns
    ]
    known = find_landmarks(problem.columns, problem.free, tokens, marks)
    proven = 0
    for token in problem.outputs:
        proven |= known.of_token[token]
    requiring: dict[int, set[int]] = {e: set() for e in bits(proven)} if proven >= 0 else {}
    for token, mask in enumerate(known.of_token):
        if mask >= 0:
            for e in bits(mask & proven):
                requiring[e].add(token)
    sets = dict.fromkeys(frozenset(found) for found in requiring.values())
    return Seeds(tuple(sets), tuple(map(tuple, givers_of(problem))))


class Support:
    """The columns that a fractional point uses."""

    def __init__(self, problem: Problem, values: Sequence[float]) -> None:
        self.problem = problem
        self.values = values
        self.columns = [k for k, x in enumerate(values) if x > TOLERANCE / 10]
        self.givers: dict[int, list[int]] = {}
        for k in self.columns:
            for token in problem.columns[k].gives:
                self.givers.setdefault(token, []).append(k)

    def entering(self, inside: set[int] | frozenset[int]) -> set[int]:
        """The used columns that give a token of `inside` and need none."""
        columns = self.problem.columns
        found = {k for token in inside for k in self.givers.get(token, ())}
        return {k for k in found if columns[k].needs.isdisjoint(inside)}

    def weight(self, columns: set[int]) -> float:
        return sum(self.values[k] for k in sorted(columns))

    def grow(self, start: frozenset[int], goal: float) -> set[int] | None:
        """A set whose entering columns weigh less than `goal`, if growth finds one."""
        inside, sideways = set(start), 0
        entering = self.entering(inside)
        while True:
            gain, token = self._best_addition(inside, entering)
            sideways += gain < TOLERANCE
            if token < 0 or gain < -TOLERANCE or sideways > SIDEWAYS:
                break
            inside.add(token)
            entering = {k for k in entering if token not in self.problem.columns[k].needs}
            entering |= self._new_givers(token, inside)
        return inside if self.weight(entering) < goal - 10 * TOLERANCE else None

    def _new_givers(self, token: int, inside: set[int]) -> set[int]:
        columns = self.problem.columns
        return {k for k in self.givers.get(token, ()) if columns[k].needs.isdisjoint(inside)}

    def _best_addition(self, inside: set[int], entering: set[int]) -> tuple[float, int]:
        columns, values = self.problem.columns, self.values
        leaves: dict[int, float] = {}
        for k in sorted(entering):
            for token in columns[k].needs:
                leaves[token] = leaves.get(token, 0.0) + values[k]
        best = (-1.0, -1)
        for token in sorted(leaves.keys() - self.problem.free):
            enters = sum(
                values[k]
                for k in self.givers.get(token, ())
                if k not in entering
                and token not in columns[k].needs
                and columns[k].needs.isdisjoint(inside)
            )
            gain = leaves[token] - enters
            if gain > best[0] + TOLERANCE / 10:
                best = (gain, token)
        return best


def violated_landmarks(problem: Problem, seeds: Seeds, support: Support, serial: int) -> Iterator[Row]:
    """Grown from every seed."""
    seen = set()
    for i, seed in enumerate(seeds.sets):
        inside = support.grow(seed, 1.0)
        if inside is not None:
            plus = entering_columns(problem, seeds, inside)
            if plus not in seen:
                seen.add(plus)
                yield Row("landmark", (serial, i), plus)


def violated_founded(problem: Problem, seeds: Seeds, support: Support, serial: int) -> Iterator[Row]:
    """Grown from every need of every used column."""
    for k in support.columns:
        for token in sorted(problem.columns[k].needs - problem.free):
            inside = support.grow(frozenset([token]), support.values[k])
            if inside is not None:
                yield Row("founded", (serial, k, token), entering_columns(problem, seeds, inside), k)


def entering_columns(problem: Problem, seeds: Seeds, inside: set[int]) -> tuple[int, ...]:
    """The left side of the row for S = inside, over all columns."""
    found = {k for token in inside for k in seeds.givers[token]}
    return tuple(sorted(k for k in found if problem.columns[k].needs.isdisjoint(inside)))


def violated(rows: Iterable[Row], values: Sequence[float]) -> list[Row]:
    """Those of `rows` that the point breaks."""
    broken = []
    for row in rows:
        wanted = 1.0 if row.minus is None else values[row.minus]
        if wanted > TOLERANCE and sum(values[k] for k in row.plus) < wanted - 10 * TOLERANCE:
            broken.append(row)
    return broken

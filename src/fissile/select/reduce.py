"""A smaller problem with the same optimum.

Each step keeps an optimal solution of what it is given, so steps compose in any order:

- a column that cannot run, or gives nothing that a useful column needs, or is louder than a whole
  solution may be, is dropped;
- a token that must be there before column k can run is dropped from what k gives;
- k is dropped when another column b costs no more, is no louder where that counts, gives at least
  as much, and needs only tokens that k needs or that must be there before k can run.  In a
  solution b can take the place of k.  Ties are broken by index, so replacing ends.

Dropping columns keeps the rows `cover` and `edges` true: a solution of the smaller problem is a
solution of the larger one, and the rows hold for every solution.  What is dropped by index alone is
repeated with better landmarks until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fissile.select.cuts import keeps_within
from fissile.select.landmarks import derivation_order
from fissile.select.program import Column, Problem, givers_of, token_landmarks, token_mask, uses


@dataclass(frozen=True, slots=True)
class Reduced:
    """`origin[k]` is the index in the first problem of column k of `problem`."""

    problem: Problem
    origin: tuple[int, ...]


def restrict(reduced: Reduced, keep: Sequence[int], columns: Sequence[Column]) -> Reduced:
    """Keep the columns `keep` of `columns`, which may say less than those of the problem."""
    problem = replace(reduced.problem, columns=tuple(columns[k] for k in keep))
    return Reduced(problem, tuple(reduced.origin[k] for k in keep))


def reduce(problem: Problem, rounds: int = 4) -> Reduced:
    """Apply every step until nothing changes, or `rounds` times."""
    reduced = Reduced(problem, tuple(range(len(problem.columns))))
    for _ in range(rounds):
        before = reduced.problem.columns
        reduced = drop_dominated(drop_useless(reduced))
        if reduced.problem.columns == before:
            break
    return reduced


def drop_useless(reduced: Reduced) -> Reduced:
    """Forward and backward reachability; gives that are there anyway."""
    problem = reduced.problem
    known = token_landmarks(problem)
    order = derivation_order(problem.columns, problem.free, _affordable(problem))
    columns = list(problem.columns)
    for k in order:
        late = [t for t in columns[k].gives if not known.of_needs[k] >> t & 1]
        columns[k] = replace(columns[k], gives=frozenset(late) - problem.free)
    wanted = _wanted_tokens(columns, order, problem.outputs)
    keep: list[int] = []
    for k in sorted(order):
        columns[k] = replace(
            columns[k], gives=columns[k].gives & wanted, needs=columns[k].needs - problem.free
        )
        if columns[k].gives:
            keep.append(k)
    return restrict(reduced, keep, columns)


def _affordable(problem: Problem) -> list[int]:
    return [k for k in range(len(problem.columns)) if keeps_within(problem, [k])]


def _wanted_tokens(
    columns: Sequence[Column], order: Sequence[int], outputs: Sequence[int]
) -> set[int]:
    wanted, asked = set(outputs), list(outputs)
    givers: dict[int, list[int]] = {}
    for k in order:
        for token in columns[k].gives:
            givers.setdefault(token, []).append(k)
    for token in asked:  # grows while it is walked
        for k in givers.get(token, ()):
            fresh = columns[k].needs - wanted
            wanted |= fresh
            asked.extend(sorted(fresh))
    return wanted


def drop_dominated(reduced: Reduced) -> Reduced:
    """One column for one; sets of tokens are rows of machine words, all rivals tried at once."""
    problem = reduced.problem
    columns, known = problem.columns, token_landmarks(problem)
    words = len(problem.value_of) // 64 + 1
    needs = _packed((token_mask(column.needs) for column in columns), words)
    gives = _packed((token_mask(column.gives) for column in columns), words)
    there = needs | _packed(known.of_needs, words)
    rivals = givers_of(problem)
    used = uses(problem).T
    place: dict[tuple[int, int], int] = {}
    for token, same in enumerate(rivals):
        same.sort(key=lambda k: (columns[k].cost, k))
        place.update(((token, k), i) for i, k in enumerate(same))

    def is_dominated(k: int) -> bool:
        token = min(columns[k].gives, key=lambda t: (place[t, k], t))
        cheaper = rivals[token][: place[token, k]]
        lacks = (needs[cheaper] & ~there[k]) | (gives[k] & ~gives[cheaper])
        thrifty = (used[cheaper] <= used[k]).all(axis=1)
        return bool((~lacks.any(axis=1) & thrifty).any())

    keep = [k for k in range(len(columns)) if not is_dominated(k)]
    return restrict(reduced, keep, columns)


def _packed(masks: Iterable[int], words: int) -> NDArray[np.uint64]:
    """A row of `words` machine words for each mask; -1, all tokens, becomes all ones."""
    every = (1 << 64 * words) - 1
    packed = b"".join((mask & every).to_bytes(8 * words, "little") for mask in masks)
    return np.frombuffer(packed, np.uint64).reshape(-1, words)

"""A smaller problem with the same optimum.

Each step keeps an optimal solution of what it is given, so steps compose in any order:

- a column that cannot run, or gives nothing that a useful column needs, is dropped;
- a token that must be there before column k can run is dropped from what k gives;
- k is dropped when another column b costs no more, gives at least as much, and needs only tokens
  that k needs or that must be there before k can run.  In a solution b can take the place of k.
  Ties are broken by index, so replacing ends.

Dropping columns keeps the rows `cover` and `edges` true: a solution of the smaller problem is a
solution of the larger one, and the rows hold for every solution.  What is dropped by index alone is
repeated with better landmarks until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fissile.select.landmarks import derivation_order
from fissile.select.program import Column, Problem, givers_of, token_landmarks, token_mask


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
    order = derivation_order(problem.columns, problem.free)
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
    """One column for one."""
    problem = reduced.problem
    columns = problem.columns
    known = token_landmarks(problem)
    needs = [token_mask(column.needs) for column in columns]
    gives = [token_mask(column.gives) for column in columns]
    givers = givers_of(problem)
    for same in givers:
        same.sort(key=lambda k: (columns[k].cost, k))

    def dominated(k: int) -> bool:
        there, rank = needs[k] | known.of_needs[k], (columns[k].cost, k)
        fewest = min((givers[t] for t in columns[k].gives), key=len)
        for b in fewest:
            if (columns[b].cost, b) >= rank:
                return False
            if not gives[k] & ~gives[b] and not needs[b] & ~there:
                return True
        return False

    keep = [k for k in range(len(columns)) if not dominated(k)]
    return restrict(reduced, keep, columns)

"""The selection of kernels as a binary program over plain integers (design, section 9).

A token is a value in a layout; a column is a kernel that needs tokens, gives tokens and costs
time.  A set of columns is a solution when its columns can be run one after another from the free
tokens and the outputs are given.  This file holds the data and the rows; every row is written

    sum_{j in plus} x_j >= x_minus        or, without `minus`,        sum_{j in plus} x_j >= least

with least = 1 but for some cuts.

Invariant: the rows that `rows` yields keep at least one optimal solution.  `outputs` and `needs`
are Korch's; `cover`, `edges` and `layouts` are landmarks: sets of columns of which every solution
runs one.  Such a row is yielded only when the columns themselves prove it (`landmarks`), so a wrong
entry of `live` or `edges` costs strength and never the optimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fissile.select.landmarks import Landmarks, bits, find_landmarks

KORCH = frozenset({"needs"})
SECTION_9 = frozenset({"needs", "cover", "edges", "adapters"})
ALL_ROWS = SECTION_9 | {"layouts", "first"}


class MalformedProblem(ValueError):
    """A problem whose numbers refer to nothing, or whose costs are no costs."""


@dataclass(frozen=True, slots=True)
class Column:
    """A kernel: the primitives it executes (none for an adapter), its tokens and its time.

    uses: its share of what a solution may use of each limited resource; none for most."""

    cost: float
    region: frozenset[int]
    needs: frozenset[int]
    gives: frozenset[int]
    uses: tuple[float, ...] = ()

    @property
    def is_adapter(self) -> bool:
        return not self.region


@dataclass(frozen=True, slots=True)
class Problem:
    """Tokens are 0 .. len(value_of) - 1; `edges` holds (p, q, v) where q reads the value v of p.

    limits: how many resources are limited. The shares of a solution's columns must not exceed 1:

        sum uses_k[r] x_k <= 1     for r < limits                       (adapters use nothing)
    """

    columns: tuple[Column, ...]
    outputs: tuple[int, ...]
    free: frozenset[int]
    value_of: tuple[int, ...]
    producer: tuple[int | None, ...]
    edges: tuple[tuple[int, int, int], ...]
    live: frozenset[int]
    limits: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """`family` and `at` name the row; a column may stand in `plus` more than once."""

    family: str
    at: tuple[int, ...]
    plus: tuple[int, ...]
    minus: int | None = None
    least: int = 1

    @property
    def name(self) -> str:
        return "/".join((self.family, *map(str, self.at)))


def check(problem: Problem) -> None:
    """Refuse what would be solved into nonsense."""
    tokens = range(len(problem.value_of))
    for k, column in enumerate(problem.columns):
        if not 0 <= column.cost < float("inf"):
            raise MalformedProblem(f"column {k} costs {column.cost}, not a finite number >= 0")
        if not all(0 <= use < float("inf") for use in column.uses):
            raise MalformedProblem(f"column {k} uses {column.uses}, not finite numbers >= 0")
        if column.uses and len(column.uses) < problem.limits:
            raise MalformedProblem(f"column {k} uses {column.uses}: {problem.limits} have limits")
        if column.is_adapter and any(column.uses):
            raise MalformedProblem(f"column {k} is an adapter that uses {column.uses}")
        for token in column.needs | column.gives:
            if token not in tokens:
                raise MalformedProblem(f"column {k} names token {token}, but {len(tokens)} exist")
        if column.is_adapter and not (len(column.needs) == 1 == len(column.gives)):
            raise MalformedProblem(f"column {k} has no region, so needs and gives one token")
    for token in (*problem.outputs, *problem.free):
        if token not in tokens:
            raise MalformedProblem(f"token {token} is an output or free, but {len(tokens)} exist")


def unlimited(problem: Problem) -> Problem:
    """The same, with as much of everything as one likes."""
    return replace(problem, limits=0) if problem.limits else problem


def uses(problem: Problem) -> NDArray[np.float64]:
    """[limits, columns]: shares of the limited resources."""
    none = (0.0,) * problem.limits
    table = [column.uses[: problem.limits] or none for column in problem.columns]
    return np.array(table, np.float64).reshape(len(table), problem.limits).T


def token_mask(tokens: Sequence[int] | frozenset[int]) -> int:
    mask = 0
    for token in tokens:
        mask |= 1 << token
    return mask


def givers_of(problem: Problem) -> list[list[int]]:
    """token -> the columns that give it, by index."""
    givers: list[list[int]] = [[] for _ in problem.value_of]
    for k, column in enumerate(problem.columns):
        for token in column.gives:
            givers[token].append(k)
    return givers


def rows(problem: Problem, families: frozenset[str] = ALL_ROWS) -> Iterator[Row]:
    """Every row of the chosen families; `outputs` always."""
    yield from landmark_rows(problem, families)
    needs = NeedsRows(problem, families)
    for k in range(len(problem.columns)):
        yield from needs.of(k)


def landmark_rows(problem: Problem, families: frozenset[str]) -> Iterator[Row]:
    """Rows `sum >= 1`: outputs, cover, edges, layouts.

    `first` narrows such a row.  Let D be a landmark and let a in D be a column whose needs cannot
    be derived without D.  Whichever column of D runs first is not a, so D without a is a landmark.
    """
    candidates = list(_landmark_candidates(problem, families))
    marks = [0] * len(problem.columns)
    for e, row in enumerate(candidates):
        for k in row.plus:
            marks[k] |= 1 << e
    known = find_landmarks(problem.columns, problem.free, len(problem.value_of), marks)
    proven = 0
    for token in problem.outputs:
        proven |= known.of_token[token]
    narrow = "first" in families
    seen: set[tuple[int, ...]] = set()
    for e, row in enumerate(candidates):
        if row.family != "outputs" and not proven >> e & 1:
            continue
        plus = tuple(k for k in row.plus if not (narrow and known.of_needs[k] >> e & 1))
        if plus not in seen:
            seen.add(plus)
            yield Row(row.family, row.at, plus)


def _landmark_candidates(problem: Problem, families: frozenset[str]) -> Iterator[Row]:
    columns, givers = problem.columns, givers_of(problem)
    holders: dict[int, list[int]] = {p: [] for p in problem.live}
    for k, column in enumerate(columns):
        for p in column.region & problem.live:
            holders[p].append(k)
    for token in dict.fromkeys(problem.outputs):
        yield Row("outputs", (token,), tuple(givers[token]))
    if "cover" in families:
        for p in sorted(holders):
            yield Row("cover", (p,), tuple(holders[p]))
    layouts: dict[int, list[int]] = {}
    for token, value in enumerate(problem.value_of):
        if token not in problem.free:
            layouts.setdefault(value, []).append(token)
    for p, q, v in problem.edges:
        if p not in holders or q not in holders:
            continue
        if "edges" in families:
            inside = {k for k in holders[q] if p in columns[k].region}
            kernels = {k for t in layouts.get(v, ()) for k in givers[t] if columns[k].region}
            yield Row("edges", (p, q, v), tuple(sorted(inside | kernels)))
        if "layouts" in families:
            yield from _layout_candidates(columns, givers, layouts.get(v, ()), holders[q], q)


def _layout_candidates(
    columns: Sequence[Column],
    givers: list[list[int]],
    tokens: Sequence[int],
    holders: list[int],
    q: int,
) -> Iterator[Row]:
    """`edges` lifted to one layout t of the value that q reads:

        sum_{j gives t} x_j + sum_{k contains q, k does not need t} x_k >= 1.

    Some chosen k contains q, as q is live; if it needs t, some chosen j gives t.  Where q is
    executed once, this is the sum over all k of the rows `needs` of t, which the relaxation lacks.
    """
    for t in tokens:
        if any(t in columns[k].needs for k in holders):
            others = {k for k in holders if t not in columns[k].needs}
            yield Row("layouts", (t, q), tuple(sorted(others.union(givers[t]))))


class NeedsRows:
    """`needs` and `adapters`: sum_{j gives t} x_j >= x_k for every k and every token t it needs.

    `first` leaves out each j before which all that k gives must be there already: if the first
    chosen giver of t were such a j, then k could be removed.  So an optimal solution without
    removable columns satisfies the row.
    """

    def __init__(self, problem: Problem, families: frozenset[str]) -> None:
        self.problem = problem
        self.families = families
        self.givers = givers_of(problem)
        self.known = token_landmarks(problem) if "first" in families else None
        self.direct = _adapters_between(problem) if "adapters" in families else {}

    def of(self, k: int) -> Iterator[Row]:
        """The rows of column k."""
        column = self.problem.columns[k]
        family = "adapters" if column.is_adapter and "adapters" in self.families else "needs"
        if family not in self.families:
            return
        gives = token_mask(column.gives)
        for t in sorted(column.needs - self.problem.free):
            plus = [j for j in self.givers[t] if j != k]
            if self.known is not None:
                plus = [j for j in plus if gives & ~self.known.of_needs[j]]
            if family == "adapters":
                plus = [j for j in plus if not _is_detour(self.problem, self.direct, j, k)]
            yield Row(family, (k, t), tuple(plus), k)


def token_landmarks(problem: Problem) -> Landmarks:
    """For tokens alone: bit t is set where a column that gives t must have run."""
    marks = [token_mask(column.gives) for column in problem.columns]
    return find_landmarks(problem.columns, problem.free, len(problem.value_of), marks)


Ends = tuple[frozenset[int], frozenset[int]]


def _adapters_between(problem: Problem) -> dict[Ends, float]:
    """(what is read, what is given) -> the least cost of an adapter; presolve hides free tokens."""
    cheapest: dict[Ends, float] = {}
    for column in problem.columns:
        if column.is_adapter:
            ends = (column.needs, column.gives)
            cheapest[ends] = min(column.cost, cheapest.get(ends, column.cost))
    return cheapest


def _is_detour(problem: Problem, direct: dict[Ends, float], j: int, k: int) -> bool:
    """May adapter k: b -> c ignore adapter j: a -> b?

    Yes if a = c, as k is then removable, or if some a -> c costs no more than k.  Take an optimal
    solution without removable columns whose adapters stand in the shortest chains: were every
    chosen giver of b such a j, putting a -> c for k would shorten a chain at no cost.  With two
    layouts this is every j, the row of section 9.
    """
    first, second = problem.columns[j], problem.columns[k]
    if not first.is_adapter:
        return False
    bypass = direct.get((first.needs, second.gives), float("inf"))
    return first.needs == second.gives or bypass <= second.cost


def required(problem: Problem) -> frozenset[int]:
    """The primitives that every solution executes, from the columns alone (for checks)."""
    marks = [token_mask(column.region) for column in problem.columns]
    known = find_landmarks(problem.columns, problem.free, len(problem.value_of), marks)
    proven = 0
    for token in problem.outputs:
        proven |= max(known.of_token[token], 0)
    return frozenset(bits(proven))

"""Cuts from three landmarks that pairwise share kernels (zero-half cuts; Caprara, Fischetti 1996).

Three contractions of which a kernel may hold two tempt the relaxation to run each pair half: three
halves of a kernel cover what needs two.  Add the three rows `sum >= 1`, halve, round up:

    sum_k ceil(c_k / 2) x_k >= ceil(3 / 2) = 2        c_k: in how many of the three rows k stands

which every whole solution satisfies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from fissile.select.program import Row

TOLERANCE = 1e-6
Shares = dict[int, float]


def violated_triples(rows: Iterable[Row], values: Sequence[float], serial: int) -> Iterator[Row]:
    """One row for each triple of tight rows that the point breaks."""
    tight = _tight_rows(rows, values)
    meets: dict[int, list[int]] = {}
    for i, (_, shares) in enumerate(tight):
        for k in shares:
            meets.setdefault(k, []).append(i)
    near = [
        sorted({j for k in shares for j in meets[k] if j > i})
        for i, (_, shares) in enumerate(tight)
    ]
    for i, (first, x) in enumerate(tight):
        for j, m in combinations(near[i], 2):
            (second, y), (third, z) = tight[j], tight[m]
            if m in near[j] and _weight(x, y, z) < 2 - 1e-3:
                yield _halved((first, second, third), (serial, i, j, m))


def _tight_rows(rows: Iterable[Row], values: Sequence[float]) -> list[tuple[Row, Shares]]:
    """Tight rows `sum >= 1` over fractional columns, one for each set of those."""
    found: dict[tuple[int, ...], tuple[Row, Shares]] = {}
    for row in rows:
        if row.minus is not None or row.least != 1:
            continue
        shares = {k: values[k] for k in row.plus if values[k] > TOLERANCE}
        if len(shares) > 1 and sum(shares.values()) < 1 + TOLERANCE:
            known = found.setdefault(tuple(shares), (row, shares))
            if len(row.plus) < len(known[0].plus):
                found[tuple(shares)] = (row, shares)
    return list(found.values())


def _weight(x: Shares, y: Shares, z: Shares) -> float:
    """The left side: all three, less what stands in two or three of them once."""
    all_three = sum(x.values()) + sum(y.values()) + sum(z.values())
    twice = {
        k: x.get(k) or y[k]
        for k in (x.keys() & y.keys()) | (x.keys() & z.keys()) | (y.keys() & z.keys())
    }
    return all_three - sum(twice.values())


def _halved(rows: Sequence[Row], at: tuple[int, ...]) -> Row:
    """A column stands in `plus` as often as its coefficient says."""
    count: dict[int, int] = {}
    for row in rows:
        for k in row.plus:
            count[k] = count.get(k, 0) + 1
    plus = [k for k in sorted(count) for _ in range((count[k] + 1) // 2)]
    return Row("odd", at, tuple(plus), None, 2)

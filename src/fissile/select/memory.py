"""Solutions that were found before: the same program need not be solved twice.

What a solution is, and what bound was proven, depends on the program alone, so both are kept under
its digest. A remembered answer serves where it is as near to its bound as is asked now, or had as
much time; its set is checked and priced again before anyone believes it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from fissile.select.cuts import is_solution
from fissile.select.program import Problem
from fissile.select.relax import cost_of
from fissile.select.solve import Selected, reached, select

LEAST_S = 0.2  # what took less is solved again
DIGITS = 6  # of a reduced cost


class Memory(Protocol):
    """Text by digest, as long as there is room."""

    def recall(self, digest: str) -> str | None: ...

    def remember(self, digest: str, text: str) -> None: ...


@dataclass(frozen=True)
class Asked:
    """As in `select`."""

    gap: float
    limit_s: float
    once: bool


def solved(
    problem: Problem, asked: Asked, start: Sequence[int] = (), memory: Memory | None = None
) -> Selected:
    """`select`, or what it answered before; then `seconds` are those it took then."""
    key = _digest(problem, asked.once) if memory else ""
    if memory and (text := memory.recall(key)) and (known := _read(text, problem, asked)):
        return known
    found = select(
        problem, time_limit=asked.limit_s, gap=asked.gap, start=start, once=asked.once
    )  # fmt: skip
    if memory and found.seconds >= LEAST_S and found.status != "infeasible":
        memory.remember(key, _written(found, asked))
    return found


def _digest(problem: Problem, once: bool) -> str:
    parts: list[Any] = [_solver(), once, problem.limits, problem.outputs, sorted(problem.free)]
    parts += [problem.value_of, problem.producer, problem.edges, sorted(problem.live)]
    parts += (
        (c.cost.hex(), sorted(c.region), sorted(c.needs), sorted(c.gives), c.uses)
        for c in problem.columns
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def _solver() -> str:
    """Of the sources that solve: no answer outlives them."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]


def _written(found: Selected, asked: Asked) -> str:
    reduced = [d if d is None else float(f"{d:.{DIGITS}g}") for d in found.reduced]
    return json.dumps({**asdict(found), "reduced": reduced, "limit_s": asked.limit_s})


def _read(text: str, problem: Problem, asked: Asked) -> Selected | None:
    """What was remembered, if it answers this; None also where the text is no answer."""
    try:
        facts = json.loads(text)
        limit_s = float(facts.pop("limit_s"))
        known = Selected(**facts)
        chosen = tuple(map(int, known.chosen))
        reduced = tuple(d if d is None else float(d) for d in known.reduced)
        is_near = known.gap <= asked.gap + 1e-9 or limit_s >= asked.limit_s
        is_priced = math.isclose(cost_of(problem, chosen), known.objective, rel_tol=1e-9)
        is_proven = known.bound <= known.objective * (1 + 1e-9)
        runs = is_solution(problem, chosen)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    fits = len(reduced) in (0, len(problem.columns))
    if not (is_near and is_priced and is_proven and runs and fits):
        return None
    status = reached(known.gap, asked.gap)
    return replace(known, chosen=chosen, reduced=reduced, status=status)

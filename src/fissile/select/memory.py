"""Solutions that were found before: the same program need not be solved twice.

What a solution is, and what bound was proven, depends on the program alone, so both are kept under
its digest once they are as near as was asked. An answer serves where it is as near as is asked now.
Its set is checked and priced again before anyone believes it; its bound is trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from operator import index
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
    if memory and found.seconds >= LEAST_S and found.status in ("optimal", "within_gap"):
        memory.remember(key, _written(found))
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
    """Of what solves: no answer outlives these sources, or the HiGHS that proved its bound."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    parts = [version("highspy").encode(), *(p.read_bytes() for p in files)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _written(found: Selected) -> str:
    facts = {k: v for k, v in asdict(found).items() if k in _KEPT}
    reduced = [d if d is None else float(f"{d:.{DIGITS}g}") for d in found.reduced]
    return json.dumps(facts | {"reduced": reduced})


_KEPT = ("chosen", "bound", "seconds", "columns", "rows", "rounds")


def _read(text: str, problem: Problem, asked: Asked) -> Selected | None:
    """What was remembered, if it answers this; None also where the text is no answer."""
    try:
        facts = json.loads(text)
        chosen = tuple(map(index, facts["chosen"]))
        bound, seconds = float(facts["bound"]), float(facts["seconds"])
        columns, rows, rounds = (index(facts[k]) for k in ("columns", "rows", "rounds"))
        reduced = tuple(d if d is None else float(d) for d in facts["reduced"])
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError):
        return None
    if len(reduced) not in (0, len(problem.columns)) or not _runs(problem, chosen, asked.once):
        return None
    objective = cost_of(problem, chosen)
    if not (0 <= bound <= objective * (1 + 1e-9) and 0 <= seconds < math.inf):
        return None
    gap = max(0.0, (objective - bound) / objective) if objective else 0.0
    status = reached(gap, asked.gap)
    if status == "time_limit":
        return None
    bound = min(bound, objective)
    return Selected(
        chosen, objective, bound, gap, seconds, status, columns, rows, rounds, reduced
    )  # fmt: skip


def _runs(problem: Problem, chosen: Sequence[int], once: bool) -> bool:
    """Are these columns, in an order that runs, a solution?"""
    if not all(0 <= k < len(problem.columns) for k in chosen):
        return False
    executed = [n for k in chosen for n in problem.columns[k].region]
    if once and len(set(executed)) != len(executed):
        return False
    there = set(problem.free)
    for k in chosen:
        if not problem.columns[k].needs <= there:
            return False
        there |= problem.columns[k].gives
    return is_solution(problem, chosen)

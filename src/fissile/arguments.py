"""What the words of the command line mean: shapes, threads, budgets, input files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fissile.artifact.manifest import Tensor
from fissile.compile import budget_s
from fissile.errors import InputError, located, shown
from fissile.targets.cpu.host import MOST_THREADS, checked_threads


class UsageError(Exception):
    """The command line is wrong: exit status 2."""


def shapes(rows: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """NAME=1,3,224,224; NAME= is a scalar. The name may hold `=`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for row in rows or []:
        name, mark, extents = row.rpartition("=")
        parts = [p.strip() for p in extents.split(",")] if extents.strip() else []
        if not mark or not all(p.isascii() and p.isdigit() for p in parts):
            raise UsageError(f"--shape {shown(row)} is not like NAME=1,3,224,224")
        shapes[name] = tuple(map(int, parts))
    return shapes


def threads(threads: int | None) -> int | None:
    try:
        return checked_threads(threads)
    except ValueError:
        raise UsageError(f"--threads {threads} is not between 1 and {MOST_THREADS}") from None


def seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"--seconds {seconds} is not a number of seconds")
    return seconds


def tune(tune: str) -> str:
    try:
        budget_s(tune)
    except ValueError:
        raise UsageError(f"--tune {shown(tune)} is neither 0, seconds nor full") from None
    return tune


def given(inputs: Sequence[Tensor], rows: Sequence[str]) -> dict[str, np.ndarray]:
    """NAME=FILE.npy; both may hold `=`: the split that names an input counts."""
    names = {t.name for t in inputs}
    found: dict[str, np.ndarray] = {}
    for row in rows:
        cuts = [i for i, c in enumerate(row) if c == "="]
        if not cuts:
            raise UsageError(f"--input {shown(row)} is not like NAME=FILE.npy")
        cut = next((i for i in cuts if row[:i] in names), None)
        if cut is None:
            listed = ", ".join(shown(t.name) for t in inputs)
            raise InputError(f"no input is called {shown(row[: cuts[0]])}; the inputs are {listed}")
        found[row[:cut]] = _read_npy(row[cut + 1 :], row[:cut])
    return found


def _read_npy(path: str, name: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"input {shown(name)}: cannot read {located(path)}: {reason}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"input {shown(name)}: {located(path)} holds several arrays, expected one (.npy)"
        )
    return array

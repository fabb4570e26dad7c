"""Ratios of measured to modelled times by sort of kernel, as a machine showed them.

`ratios.json` holds, for every sort that was seen often enough, [number of kernels, mean of the
logarithms, their standard deviation]. A model starts from them (`Model.defaults`): so the first
choice is a sensible one, and the only one where nothing is measured. Written by

    python benchmarks/ratios.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fissile.cost.model import Seen
from fissile.cost.sorts import Sort

TABLE = Path(__file__).parent / "ratios.json"
LEAST = 3  # kernels, for a sort to stand in the table


@cache
def defaults() -> Mapping[Sort, Seen]:
    """The table as observations; empty where it is missing."""
    if not TABLE.exists():
        return {}
    rows = json.loads(TABLE.read_text())["ratios"]
    return {
        sort: Seen(count, count * mean, count * (deviation**2 + mean**2))
        for sort, (count, mean, deviation) in rows.items()
    }


def table(seen: Mapping[Sort, Seen], where: str) -> str:
    """The text of `ratios.json`, a line a sort."""
    lines = []
    for sort, s in sorted(seen.items()):
        if s.count >= LEAST:
            mean = s.total / s.count
            deviation = max(s.squares / s.count - mean * mean, 0.0) ** 0.5
            lines.append(f"  {json.dumps(sort)}: [{s.count:.0f}, {mean:.3f}, {deviation:.3f}]")
    rows = ",\n".join(lines)
    return f'{{\n "where": {json.dumps(where)},\n "ratios": {{\n{rows}\n }}\n}}\n'

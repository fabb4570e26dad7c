"""The tour runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"


def test_every_block_of_the_tour_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TOUR.read_text(), re.S)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(TOUR), "exec"), names)

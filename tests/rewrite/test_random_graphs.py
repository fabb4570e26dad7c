"""Every spelling of random graphs of all primitives equals the graph, in float64."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph
from fissile.rewrite.rules import RULES
from fissile.select.spellings import for_runtimes, rewritten
from rewrite.random_graphs import arrays, random_graph

PART = 50


def agree(graph: Graph, other: Graph, seed: int, title: str) -> None:
    feeds = arrays(graph, seed)
    want, got = (evaluate(g, feeds, reference=True) for g in (graph, other))
    for w, g in zip(want, got, strict=True):
        scale = max(float(np.abs(np.where(np.isfinite(w), w, 0)).max(initial=0)), 1e-3)
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-9 * scale, err_msg=f"{seed}: {title}")


def check(seeds: range) -> tuple[Counter[str], set[str]]:
    fired, used = Counter[str](), set[str]()
    for seed in seeds:
        graph, prims = random_graph(seed)
        made = rewritten(graph, RULES.values())
        for spelling in made.spellings:
            agree(graph, spelling.graph, seed, spelling.title)
        agree(graph, for_runtimes(graph, RULES.values()), seed, "for runtimes")
        fired += made.simpler.fired + made.found.fired
        used |= prims
    return fired, used


@pytest.mark.parametrize("part", range(4))
def test_spellings_equal_the_graph(part: int) -> None:
    fired, _ = check(range(part * PART, (part + 1) * PART))
    assert len(fired) > 15, "these graphs show few equations"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4, 40))
def test_more_spellings_equal_the_graph(part: int) -> None:
    check(range(part * PART, (part + 1) * PART))

"""Accuracy is a resource: what a plan may spend after another one failed.   (design, section 9)

A kernel that rounds more adds an error e, relative to what its contraction gives. The output
answers with a e of its scale, where a is measured: an evaluation in float64 with noise of that size
added to the contraction's value. Errors add nearly in quadrature, so with the error that was found
and the one that is allowed,

    sum_k (a_k e_k)^2 x_k <= (allowed / error)^2 / 2 * (the same sum over what was chosen)

lets the program spend the error where it buys most time. The half is a margin, as the largest of
many errors is a matter of luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Node
from fissile.kernels.blend import linear_anchors
from fissile.kernels.candidate import Candidate
from fissile.verify import WrongAnswer, most_error, relative_error

ATTEMPTS = 4  # plans, and one more that adds no error
ORDINARY = most_error("default")
MARGIN = 0.5
ANSWERS_S = 30.0  # for evaluations; contractions that are left get the largest answer
TOO_MUCH = 2.0  # of all that is allowed

Noise = Callable[[Candidate], float]


def allowance(
    graph: Graph, chosen: Sequence[Candidate], wrong: WrongAnswer, attempt: int,
    home: Mapping[Node, Graph] | None = None,
) -> Noise | None:  # fmt: skip
    """The noise of a candidate, as a share of what the next plan may have, after plan number
    `attempt` (from 1), `chosen`, was wrong. None where the plan added no error of its own.

    `home`: the graph of a node that is not of `graph`, an equal one. Where measured answers have
    not helped, or nothing is known of the error, the next plan may have what the default accuracy
    offers, and the one after that adds no error."""
    loud = [c for c in chosen if c.error]
    if not loud or attempt > ATTEMPTS:
        return None
    is_loud = max(c.error for c in loud) > ORDINARY
    tolerated = ORDINARY if is_loud and attempt < ATTEMPTS else 0.0

    def drastic(c: Candidate) -> float:
        return TOO_MUCH if c.error > tolerated else 0.0

    if attempt >= ATTEMPTS - 1 or not np.isfinite(wrong.error):
        return drastic
    errors = {anchor(c): c.error for c in loud}
    known = answers(graph, wrong.inputs, errors, home)
    most = max(known.values(), default=1.0)

    def squared(c: Candidate) -> float:
        return (c.error * known.get(anchor(c), most)) ** 2 if c.error else 0.0

    allowed = MARGIN * (wrong.allowed / wrong.error) ** 2 * sum(squared(c) for c in loud)
    if not 0 < allowed < np.inf:  # an output that shows no noise, or of which it makes no number
        return drastic
    return lambda c: min(squared(c) / allowed, TOO_MUCH) if c.error else 0.0


def anchor(candidate: Candidate) -> Node:
    """The contraction whose errors are meant."""
    return linear_anchors(candidate.region.nodes)[0]


def answers(
    graph: Graph, inputs: Sequence[np.ndarray], errors: Mapping[Node, float],
    home: Mapping[Node, Graph] | None = None,
) -> dict[Node, float]:  # fmt: skip
    """How much of an error of a node's value, relative to its rms, an output shows, relative to its
    scale; the largest errors first, as far as the time allows, at least one."""
    want = evaluate(graph, inputs, reference=True)
    found: dict[Node, float] = {}
    deadline = time.monotonic() + ANSWERS_S
    for node, error in sorted(errors.items(), key=lambda item: -item[1]):
        holds = home.get(node, graph) if home else graph
        got = evaluate(holds, inputs, reference=True, changes={node.value: _disturbed(error)})
        shown = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
        found[node] = shown / error
        if time.monotonic() > deadline:
            break
    return found


def _disturbed(error: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(x: np.ndarray) -> np.ndarray:
        rms = float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0
        return x + error * rms * np.random.default_rng(0).standard_normal(x.shape)

    return change

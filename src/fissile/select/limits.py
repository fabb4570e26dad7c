"""What an artifact may use besides time, as shares that rows of the program bound.

sum_k share(k) x_k <= 1                                             (see program.Problem)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fissile.ir.graph import Graph
from fissile.kernels.candidate import Candidate

Share = Callable[[Candidate], float]
STORED = 0.9  # bytes on disk beyond those of the model's constants, over these
OPENED = 1.5  # bytes of constants packed in memory, over those of the model's ...
LEAST = 1 << 16  # bytes that any artifact may store beyond
RESULTS = 4  # ... beyond this many results of the largest primitive


def limits(graph: Graph, candidates: Iterable[Candidate]) -> tuple[Share, ...]:
    """The shares that could exceed 1. Constants that the graph does not have, as rewriting made
    them, count like a second form of one.

    An artifact stays below twice the model's size. What it packs in memory stays below what an
    ordinary runtime has there: the weights, a second form of most, and a few results at once.
    """
    constants = {v for n in graph.nodes for v in n.inputs if v.is_constant}
    weights = sum(v.type.size_bytes for v in constants)
    largest = max((v.type.size_bytes for n in graph.primitives for v in n.outputs), default=0)
    stored, opened = max(STORED * weights, LEAST), OPENED * weights + RESULTS * largest

    def added(c: Candidate) -> int:
        made = (v for v in c.region.parameters if v not in constants)
        return c.extra_bytes + sum(v.type.size_bytes for v in made)

    shares: tuple[Share, ...] = (
        lambda c: added(c) / stored,
        lambda c: c.opened_bytes / opened if c.opened_bytes else 0.0,
    )
    users = [c for c in candidates if added(c) or c.opened_bytes]
    return tuple(share for share in shares if _all(users, share) > 1)


def _all(candidates: Iterable[Candidate], share: Share) -> float:
    """Every form of every constant at once: equal forms of one are one."""
    forms = {(c.region.parameters, c.impl, c.params): share(c) for c in candidates}
    return sum(forms.values())

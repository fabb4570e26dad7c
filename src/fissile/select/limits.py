"""What an artifact may use besides time, as shares that rows of the program bound.

sum_k share(k) x_k <= 1                                             (see program.Problem)
"""

from __future__ import annotations

from collections.abc import Callable

from fissile.ir.graph import Graph
from fissile.kernels.candidate import Candidate

WEIGHTS = 0.9  # bytes beyond those of the model's constants, over these


def stored(graph: Graph) -> Callable[[Candidate], float]:
    """The share of a candidate whose kernel wants more bytes of constants than the model has for
    it, as Winograd's convolution does: an artifact should stay below twice the model's size."""
    constants = {v for n in graph.nodes for v in n.inputs if v.is_constant}
    allowed = WEIGHTS * sum(v.type.size_bytes for v in constants)
    return lambda c: c.extra_bytes / allowed if c.extra_bytes else 0.0

"""From candidates and their costs to the binary program's integers."""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.graph import Graph
from fissile.ir.layout import Token, row_major
from fissile.kernels.candidate import Candidate
from fissile.select.program import Column, Problem


def problem(
    graph: Graph, candidates: Sequence[Candidate], costs: Sequence[float],
    uses: Sequence[tuple[float, ...]] = (), limits: int = 0,
) -> Problem:  # fmt: skip
    """Columns stand in the order of the candidates. Outputs that are inputs or constants of the
    graph need no kernel: the plan copies them. `uses`: of each candidate, what
    it takes of the `limits` resources."""
    numbers: dict[Token, int] = {}
    for c in candidates:
        for t in (*c.needs, *c.gives):
            numbers.setdefault(t, len(numbers))
    computed = [v for v in dict.fromkeys(graph.outputs) if v.node.prim not in ("input", "constant")]
    outputs = tuple(numbers.setdefault(Token(v, row_major(v.rank)), len(numbers)) for v in computed)
    values = {v: i for i, v in enumerate(dict.fromkeys(t.value for t in numbers))}
    primitives = {n: i for i, n in enumerate(graph.primitives)}
    columns = tuple(
        Column(
            cost, frozenset(primitives[n] for n in c.region.nodes),
            frozenset(numbers[t] for t in c.needs), frozenset(numbers[t] for t in c.gives), use,
        )
        for c, cost, use in zip(candidates, costs, uses or [()] * len(costs), strict=True)
    )  # fmt: skip
    free = frozenset(
        i for t, i in numbers.items() if t.value in graph.inputs and t.layout.is_row_major
    )
    edges = tuple(
        (primitives[v.node], primitives[n], values.get(v, -1))
        for n in graph.primitives
        for v in dict.fromkeys(n.inputs)
        if v.node in primitives and v in values
    )
    return Problem(
        columns, outputs, free,
        value_of=tuple(values[t.value] for t in numbers),
        producer=tuple(primitives.get(v.node) for v in values),
        edges=edges, live=frozenset(primitives.values()), limits=limits,
    )  # fmt: skip

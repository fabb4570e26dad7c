"""From candidates and their costs to the binary program's integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.layout import Token, row_major
from fissile.kernels.candidate import Candidate
from fissile.select.program import Column, Problem


@dataclass(frozen=True)
class Computation:
    """What is to be computed, as the program sees it. `primitives` numbers nodes; those of equal
    results have one number. `edges`: (number of who gives, of who reads, the value)."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    primitives: Mapping[Node, int]
    edges: tuple[tuple[int, int, Value], ...]


def computation(graph: Graph) -> Computation:
    """Of one graph: every primitive has a number of its own."""
    numbers = {n: i for i, n in enumerate(graph.primitives)}
    edges = tuple(
        (numbers[v.node], numbers[n], v)
        for n in graph.primitives
        for v in dict.fromkeys(n.inputs)
        if v.node in numbers
    )
    return Computation(graph.inputs, graph.outputs, numbers, edges)


def problem(
    graph: Graph | Computation, candidates: Sequence[Candidate], costs: Sequence[float],
    uses: Sequence[tuple[float, ...]] = (), limits: int = 0,
) -> Problem:  # fmt: skip
    """Columns stand in the order of the candidates. Outputs that are inputs or constants of the
    graph need no kernel: the plan copies them. `uses`: of each candidate, what
    it takes of the `limits` resources."""
    what = graph if isinstance(graph, Computation) else computation(graph)
    numbers: dict[Token, int] = {}
    for c in candidates:
        for t in (*c.needs, *c.gives):
            numbers.setdefault(t, len(numbers))
    computed = [v for v in dict.fromkeys(what.outputs) if v.node.prim not in ("input", "constant")]
    outputs = tuple(numbers.setdefault(Token(v, row_major(v.rank)), len(numbers)) for v in computed)
    values = {v: i for i, v in enumerate(dict.fromkeys(t.value for t in numbers))}
    primitives = what.primitives
    columns = tuple(
        Column(
            cost, frozenset(primitives[n] for n in c.region.nodes),
            frozenset(numbers[t] for t in c.needs), frozenset(numbers[t] for t in c.gives), use,
        )
        for c, cost, use in zip(candidates, costs, uses or [()] * len(costs), strict=True)
    )  # fmt: skip
    free = frozenset(
        i for t, i in numbers.items() if t.value in what.inputs and t.layout.is_row_major
    )
    edges = tuple((p, q, values[v]) for p, q, v in what.edges if v in values)
    return Problem(
        columns, outputs, free,
        value_of=tuple(values[t.value] for t in numbers),
        producer=tuple(primitives.get(v.node) for v in values),
        edges=edges, live=frozenset(primitives.values()), limits=limits,
    )  # fmt: skip

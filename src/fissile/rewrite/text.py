"""Classes as text, and back: the members as a graph, then who equals whom.

    graph "main" (%0 "x") -> (%0 "0", %2 "1", %4 "2") {
      ...
    }
    outputs 2
    class 0
    class 1 2
    retired 3

Numbers name the values of the graph's results. A retired node is one that only others still name.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Graph, Value
from fissile.ir.text import parse as parse_graph
from fissile.ir.text import text as graph_text
from fissile.rewrite.classes import Classes


def text(classes: Classes) -> str:
    """With a line break at the end. Large constants as `ir.text` has them."""
    members = [v for n in classes.nodes for v in n.outputs]
    graph = classes.graph
    named = _with_results(graph, [*members, *classes.outputs])
    named = _with_results(graph, [v for n in named.nodes for v in n.outputs])
    numbers = {v: i for i, v in enumerate(named.outputs)}
    lines = [f"outputs {' '.join(str(numbers[v]) for v in classes.outputs)}"]
    for v in classes.values:
        own = [numbers[o] for n in classes.members(v) for o in n.outputs if classes.same(o, v)]
        lines.append(f"class {' '.join(map(str, own))}")
    alive = set(members)
    retired = [i for v, i in numbers.items() if v not in alive]
    if retired:
        lines.append(f"retired {' '.join(map(str, retired))}")
        lines += [f"also {numbers[classes.find(v)]} {i}" for v, i in numbers.items()
                  if v not in alive and classes.knows(v)]  # fmt: skip
    return graph_text(named) + "\n".join(lines) + "\n"


def parse(source: str, constants: Mapping[str, np.ndarray] | None = None) -> Classes:
    """The classes of a text. Raises ModelError with the fault."""
    body, _, tail = source.partition("\n}\n")
    named = parse_graph(body + "\n}\n", constants)
    values = named.outputs
    numbers: dict[str, list[list[Value]]] = {}
    for line in tail.splitlines():
        word, *rest = line.split()
        if word not in ("outputs", "class", "retired", "also"):
            raise ModelError(f"classes: unexpected {line!r}")
        try:
            numbers.setdefault(word, []).append([values[int(i)] for i in rest])
        except (ValueError, IndexError):
            raise ModelError(f"classes: {line!r} names no value") from None
    outputs = tuple(v for group in numbers.get("outputs", []) for v in group)
    graph = Graph(
        named.inputs, outputs, named.input_names, tuple(f"y{i}" for i in range(len(outputs)))
    )
    classes = Classes(graph)
    for group in (*numbers.get("class", []), *numbers.get("also", [])):
        for v in group:
            classes.join(classes.add(group[0]), classes.add(v))
    classes.repair()
    for group in numbers.get("retired", []):
        for v in group:
            if classes.is_alive(v.node):
                classes.retire(v.node)
    return classes


def _with_results(graph: Graph, values: list[Value]) -> Graph:
    results = tuple(dict.fromkeys(values))
    names = tuple(map(str, range(len(results))))
    return Graph(graph.inputs, results, graph.input_names, names, {}, graph.name)

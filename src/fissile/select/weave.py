"""Several spellings as one choice.                                            (design, section 9)

    A token is (class, layout).  A region picks one member of each class that it keeps inside and
    needs the classes at its border, whichever member fills them.

Candidates are made for each spelling by itself, as if it were the only one; then their tokens are
named by classes. The first value of a class stands for it. Kernels of equal code that need and give
the same tokens are one candidate, so that spellings cost only where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate
from fissile.select.spellings import Spelling
from fissile.select.tokens import Computation, Member, computation


@dataclass(frozen=True)
class Woven:
    """`base`: the first spelling. `graph` has the inputs and outputs, by the names of classes, and
    the provenance of all nodes. `home`: the graph of a node; `equations`: those that made a node.
    `original[key]`: a candidate as its spelling has it, for lowering.
    """

    base: Graph
    graph: Graph
    computation: Computation
    candidates: tuple[Candidate, ...]
    original: Mapping[str, Candidate]
    home: Mapping[Node, Graph]
    equations: Mapping[Node, str]


def single(spelling: Spelling, candidates: Sequence[Candidate]) -> Woven:
    """Of one graph alone."""
    graph = spelling.graph
    home = dict.fromkeys(graph.primitives, graph)
    what = computation(graph)
    return Woven(graph, graph, what, tuple(candidates), {}, home, spelling.equations)


def weave(parts: Sequence[tuple[Spelling, Sequence[Candidate]]]) -> Woven:
    """All candidates of all spellings, the first of which holds every output."""
    if len(parts) == 1:
        return single(*parts[0])
    names = _names(s for s, _ in parts)
    meaning = {v: k for s, _ in parts for v, k in s.classes.items()}
    named = {v: names[k] for v, k in meaning.items()}
    home: dict[Node, Graph] = {}
    equations: dict[Node, str] = {}
    provenance: dict[Node, tuple[str, ...]] = {}
    for s, _ in parts:
        for n in s.graph.primitives:
            home.setdefault(n, s.graph)
        equations |= s.equations
        provenance |= {n: p for n, p in s.graph.provenance.items() if n not in provenance}
    found: dict[object, Candidate] = {}
    original: dict[str, Candidate] = {}
    numbers: dict[Value, int] = {}
    for _, candidates in parts:
        for c in candidates:
            renamed = _renamed(c, named)
            if not renamed.is_adapter and set(renamed.gives) & set(renamed.needs):
                continue  # it computes what it needs
            covers = frozenset(meaning[n.outputs[0]] for n in c.region.nodes)
            key = (c.key, renamed.needs, renamed.gives, c.region.parameters, covers)
            if key not in found:
                found[key] = renamed
                original.setdefault(c.key, c)
    first = parts[0][0].graph
    outputs = tuple(named.get(v, v) for v in first.outputs)
    graph = Graph(
        first.inputs, outputs, first.input_names, first.output_names, provenance, first.name
    )
    primitives = {n: numbers.setdefault(meaning[n.outputs[0]], len(numbers)) for n in home}
    edges = _edges(parts, primitives, named)
    members = {n: _member(n, primitives, named) for n in home}
    what = Computation(first.inputs, outputs, primitives, edges, members)
    return Woven(first, graph, what, tuple(found.values()), original, home, equations)


def _names(spellings: Iterable[Spelling]) -> dict[Value, Value]:
    """class -> the value that stands for it: an input, else the first."""
    names: dict[Value, Value] = {}
    for s in spellings:
        for v in s.graph.inputs:
            if v in s.classes:
                names.setdefault(s.classes[v], v)
        for n in s.graph.primitives:
            for v in n.outputs:
                names.setdefault(s.classes[v], v)
    return names


def _renamed(c: Candidate, named: Mapping[Value, Value]) -> Candidate:
    needs, gives = (
        tuple(Token(named.get(t.value, t.value), t.layout) for t in tokens)
        for tokens in (c.needs, c.gives)
    )
    return c if (needs, gives) == (c.needs, c.gives) else replace(c, needs=needs, gives=gives)


def _member(n: Node, primitives: Mapping[Node, int], named: Mapping[Value, Value]) -> Member:
    reads = {(primitives[v.node], named[v]): None for v in n.inputs if v.node in primitives}
    return Member(primitives[n], n.prim, tuple(reads))


def _edges(
    parts: Sequence[tuple[Spelling, Sequence[Candidate]]],
    primitives: Mapping[Node, int],
    named: Mapping[Value, Value],
) -> tuple[tuple[int, int, Value], ...]:
    """Of all spellings: those of which some solution has no need are not proven by the program's
    columns, and give no row."""
    found = {
        (primitives[v.node], primitives[n], named[v]): None
        for s, _ in parts
        for n in s.graph.primitives
        for v in n.inputs
        if v.node in primitives
    }
    return tuple(found)

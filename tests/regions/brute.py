"""Oracles for region identification, from the definitions and by trying everything."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain, combinations

from fissile.ir.graph import Graph, Node, Value, intern, placeholder
from fissile.ir.prims import (
    PRIMS,
    Kind,
    Primitive,
    contract,
    exp,
    reduce_mean,
    reduce_sum,
    tanh,
)
from fissile.ir.types import F32, TensorType

Set = frozenset[Node]
SQUARE = TensorType((16, 16), F32)

EXTRA = {
    "test_opaque": Primitive("test_opaque", Kind.OPAQUE, lambda ts, _: (ts[0],), lambda x: (x,)),
    "test_halves": Primitive(
        "test_halves", Kind.LAYOUT, lambda ts, _: (ts[0], ts[0]), lambda x: (x, x)
    ),
}


def graph_of(inputs: Iterable[Value], outputs: Iterable[Value]) -> Graph:
    inputs, outputs = tuple(inputs), tuple(outputs)
    names = [tuple(f"{c}{i}" for i in range(len(vs))) for c, vs in (("x", inputs), ("y", outputs))]
    return Graph(inputs, outputs, *names)


def random_graph(seed: int, size: int = 10) -> Graph:
    """Up to `size` primitives of all weights; some values escape, some come in pairs."""
    choose = random.Random(seed)
    inputs = [placeholder(SQUARE) for _ in range(choose.choice((1, 1, 2)))]
    values = list(inputs)
    locality = choose.choice((2, 4, 99))
    for _ in range(size):
        values.extend(_random_step(choose, values[-locality:]))
    full = [v for v in values if v not in inputs]
    unread = [v for v in full if not any(v in u.node.inputs for u in full)]
    extra = choose.sample(full, choose.randrange(min(3, len(full))))
    return graph_of(inputs, dict.fromkeys(unread + extra))


def _random_step(choose: random.Random, recent: list[Value]) -> Iterator[Value]:
    x, y = choose.choice(recent), choose.choice(recent)
    what = choose.randrange(12)
    if what < 3:
        yield exp(x) if choose.random() < 0.5 else tanh(x)
    elif what < 7:
        yield x + y if choose.random() < 0.5 else x * y
    elif what < 8:
        yield x * choose.choice((2.0, 3.0))
    elif what < 9:
        yield (reduce_sum if choose.random() < 0.5 else reduce_mean)(x, -1)
    elif what < 10:
        square = x.shape == y.shape == SQUARE.shape
        yield contract(x, y, "ab,bc->ac") if square else tanh(x)
    else:
        name = "test_opaque" if what == 10 else "test_halves"
        types = EXTRA[name].infer([x.type], {})
        yield from intern(name, (x,), {}, types).outputs


def subsets(nodes: Iterable[Node]) -> Iterator[Set]:
    nodes = list(nodes)
    some = chain.from_iterable(combinations(nodes, k) for k in range(1, len(nodes) + 1))
    return map(frozenset, some)


def paths(graph: Graph) -> dict[Node, Set]:
    """All primitives that a primitive depends on."""
    above: dict[Node, Set] = {}
    for n in graph.primitives:
        direct = [v.node for v in n.inputs if v.node in above]
        above[n] = frozenset(direct).union(*(above[d] for d in direct))
    return above


def is_convex(members: Set, above: dict[Node, Set]) -> bool:
    """Definition 1, word for word."""
    return not any(
        a in above[p] and p in above[b]
        for p in above.keys() - members
        for a in members
        for b in members
    )


def is_linked(members: Set) -> bool:
    """Connected over edges and over values that two members read."""
    todo, left = [], set(members)
    todo.append(left.pop())
    while todo:
        n = todo.pop()
        for m in list(left):
            reads = m in {v.node for v in n.inputs} or n in {v.node for v in m.inputs}
            if reads or any(v in m.inputs and not v.is_constant for v in n.inputs):
                left.discard(m)
                todo.append(m)
    return not left


def states(graph: Graph) -> set[Set]:
    """Execution states (definition 2) by depth-first search from the empty one."""
    above = paths(graph)
    found: set[Set] = {frozenset()}
    todo = list(found)
    while todo:
        state = todo.pop()
        for n in graph.primitives:
            if n not in state and above[n] <= state and state | {n} not in found:
                found.add(state | {n})
                todo.append(state | {n})
    return found


def differences(graph: Graph) -> set[Set]:
    """The convex sets by theorem 1: differences of execution states."""
    every = states(graph)
    return {a - b for a in every for b in every if not a <= b}


def escaping(members: Set, graph: Graph) -> tuple[set[Value], set[Value]]:
    """Values that are read outside or are the graph's: those read inside too, and all."""
    values = [v for n in members for v in n.outputs]
    every = {
        v
        for v in values
        if v in graph.outputs or any(v in n.inputs for n in graph.primitives if n not in members)
    }
    inner = {v for v in every if any(v in n.inputs for n in members)}
    return inner, every


def is_opaque(node: Node) -> bool:
    return PRIMS[node.prim].kind is Kind.OPAQUE


def count(members: Set, *prims: str) -> int:
    return sum(n.prim in prims for n in members)

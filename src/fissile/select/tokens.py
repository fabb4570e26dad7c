"""From candidates and their costs to the binary program's integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.layout import Token, row_major
from fissile.kernels.candidate import Candidate
from fissile.select.cuts import executable_order
from fissile.select.program import Column, Problem, required


@dataclass(frozen=True)
class Member:
    """A way to compute a value, from what. `number`: of the primitive; `reads`: (number of who
    gives it, the value), without inputs and constants."""

    number: int
    prim: str
    reads: tuple[tuple[int, Value], ...]


@dataclass(frozen=True)
class Computation:
    """What is to be computed, as the program sees it. `primitives` numbers nodes; those of equal
    results have one number. `edges`: (number of who gives, of who reads, the value). `members`:
    where values are computed in several ways, nodes and what they are."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    primitives: Mapping[Node, int]
    edges: tuple[tuple[int, int, Value], ...]
    members: Mapping[Node, Member] = field(default_factory=dict[Node, Member])


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
    found = Problem(
        columns, outputs, free,
        value_of=tuple(values[t.value] for t in numbers),
        producer=tuple(primitives.get(v.node) for v in values),
        edges=edges, live=frozenset(primitives.values()), limits=limits,
    )  # fmt: skip
    return with_derivations(found, what, candidates) if what.members else found


# ---------------------------------------------------------------- derivations

Key = tuple[object, ...]


def with_derivations(
    problem: Problem, what: Computation, candidates: Sequence[Candidate]
) -> Problem:
    """The problem with a column of no cost for each member of a class that has several, or that
    only some solutions compute. It is chosen where the first kernel that computes the class does so
    by this member; then

        sum_{k contains m} x_k >= y_m,    sum_{k contains m and gives v inside} x_k
                                          + sum_{j gives v} x_j >= y_m    for each v that m reads,
        sum_{m' computes v} y_m' >= y_m   and    sum_m y_m >= 1    of a class that all compute.

    These are the rows `cover` and `edges` under a condition, and without them the relaxation mixes
    halves of kernels of several spellings. They are `needs` of tokens that nothing else reads.
    Every set of kernels that runs has such members: of each class the first to be executed."""
    always = _always(what, problem.live)
    open_ = _open(what, always)
    keys = {m: i for i, m in enumerate(dict.fromkeys(what.members.values())) if m.number in open_}
    tokens: dict[Key, int] = {}
    first = len(problem.value_of)

    def token(*key: object) -> int:
        return tokens.setdefault(key, first + len(tokens))

    readers: dict[Value, list[int]] = {}
    columns: list[Column] = []
    for m, i in keys.items():
        needs = [token("executed", i)]
        for p, v in m.reads:
            needs.append(token("read", i, v))
            readers.setdefault(v, []).append(token("read", i, v))
            if p in open_:
                needs.append(token("class", p))
        gives = token("class", m.number)
        own = max(problem.live) + 1 + i  # a primitive that is not live
        columns.append(Column(0.0, frozenset({own}), frozenset(needs), frozenset({gives})))
    kernels: list[Column] = []
    for column, c in zip(problem.columns, candidates, strict=True):
        extra = {t for g in c.gives for t in readers.get(g.value, ()) if not c.is_adapter}
        inside = {what.primitives[n] for n in c.region.nodes}
        for n in c.region.nodes:
            m = what.members[n]
            if m in keys:
                extra.add(token("executed", keys[m]))
                extra |= {token("read", keys[m], v) for p, v in m.reads if p in inside}
        kernels.append(replace(column, gives=column.gives | extra) if extra else column)
    demanded = tuple(token("class", q) for q in sorted(open_ & always))
    last = max(problem.value_of, default=0)
    return replace(
        problem,
        columns=(*kernels, *columns),
        outputs=(*problem.outputs, *demanded),
        value_of=(*problem.value_of, *range(last + 1, last + 1 + len(tokens))),
        producer=(*problem.producer, *(None for _ in tokens)),
    )


def with_derived(problem: Problem, kernels: Sequence[int], count: int) -> list[int]:
    """A set of the first `count` columns with what they derive: of each class the first member."""
    if not kernels:
        return []
    known = list(kernels)
    there: set[int] = set()
    for k in executable_order(problem, [*kernels, *range(count, len(problem.columns))]):
        if k >= count and not problem.columns[k].gives <= there:
            known.append(k)
            there |= problem.columns[k].gives
    return known


def _open(what: Computation, always: frozenset[int]) -> frozenset[int]:
    """The classes with a choice, and those that only some solutions compute."""
    ways: dict[int, set[Member]] = {}
    for m in what.members.values():
        ways.setdefault(m.number, set()).add(m)
    return frozenset(q for q, some in ways.items() if len(some) > 1 or q not in always)


def _always(what: Computation, live: frozenset[int]) -> frozenset[int]:
    """The classes that are computed whichever members are chosen."""
    columns = tuple(
        Column(0.0, frozenset({m.number}), frozenset(p for p, _ in m.reads), frozenset({m.number}))
        for m in dict.fromkeys(what.members.values())
    )
    numbers = tuple(range(max(live, default=-1) + 1))
    outputs = {what.primitives[v.node] for v in what.outputs if v.node in what.primitives}
    return required(
        Problem(columns, tuple(sorted(outputs)), frozenset(), numbers, numbers, (), live)
    )

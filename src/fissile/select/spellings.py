"""Spellings: whole graphs made of members of classes.

The cheapest is the answer of the same binary program that selects kernels, with a column for every
member and a token for every class:

    minimise sum_m price(m) x_m,    sum_{m gives c} x_m >= x_n for every member n that needs class c

Prices are a roofline's. They decide which few spellings are worth offering; which parts of them
are used, and how they are fused, the program over kernels decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fissile.cost.model import flops
from fissile.ir.graph import Graph, Node, Value, intern
from fissile.ir.prims import PRIMS, Kind, constant, kind
from fissile.onnx.export.linear import moved_bytes
from fissile.rewrite.classes import Classes, rounded
from fissile.rewrite.labels import product
from fissile.rewrite.rule import Rule
from fissile.rewrite.saturate import Saturation, saturate
from fissile.rewrite.work import conv_work, product_work
from fissile.select.program import Column, Problem
from fissile.select.solve import select

SOURCES = ("input", "constant")
FEWEST = "fewest operations"
EPILOGUE = 0.2  # of its price: what a runtime pays for a bias
HEAVY = (Kind.LINEAR, Kind.WINDOW, Kind.REDUCE)
MOST = 6  # spellings besides the graph itself
NEAR = 1.05  # times the cheapest: what one that a single equation makes may cost
LINE = 1.1  # what a runtime pays for a convolution along one axis, over two
LEFT = 1.02  # what a runtime pays for weights on the left, which take no bias along
EARLY = "f(view(x), k) = view(f(x, k'))"  # the equation that brings a bias to its product
FAVOUR = 0.5  # of the price of its members, so that they are chosen
GROWTH = 2.0  # bytes of constants, over those of the graph


@dataclass(frozen=True)
class Profile:
    """What executes a graph. mults_per_us, bytes_per_us: its peaks. windows: by how much its 3x3
    convolutions beat their definition. near: the share of an elementwise result that goes through
    memory; views: that of a transpose. call_us: of a primitive. matmul: are contractions products
    of matrices between transposes?"""

    mults_per_us: float = 50_000.0
    bytes_per_us: float = 17_000.0
    windows: float = 2.0
    near: float = 0.15
    views: float = 0.5
    call_us: float = 0.2
    matmul: bool = False


class Effort(NamedTuple):
    """How far a program is solved."""

    gap: float
    seconds: float


USUAL = Effort(1e-3, 6.0)
ROUGH = Effort(5e-3, 6.0)  # of a favoured spelling, which is one of several
EXACT = Effort(1e-6, 25.0)  # where nobody chooses again: a bias in its place is worth a little

OURS = Profile()
OTHERS = Profile(windows=1.0, near=0.5, views=0.4, call_us=2.0, matmul=True)
COUNTS = Profile(bytes_per_us=1e9, windows=1.0, near=0.0, views=0.0, call_us=1e-3)


@dataclass(frozen=True)
class Spelling:
    """`classes` maps every value that the graph computes to its class. `us`: by price.
    `equations`: of the nodes that some equation made."""

    title: str
    graph: Graph
    classes: Mapping[Value, Value]
    us: float
    equations: Mapping[Node, str] = field(default_factory=dict[Node, str])


# ---------------------------------------------------------------- prices


def price_us(c: Classes, node: Node, by: Profile) -> float:
    """A roofline of one primitive by itself."""
    out = sum(t.size_bytes for t in node.types)
    if kind(node) is Kind.LINEAR:
        read = sum(v.type.size_bytes for v in dict.fromkeys(node.inputs))
        moved = moved_bytes(node, c.is_fixed) if by.matmul and node.prim == "contract" else 0
        us = max(_linear_us(c, node, by), (read + out) / by.bytes_per_us)
        return by.call_us + us + 2 * by.views * moved / by.bytes_per_us
    numel, elements = node.outputs[0].type.numel, sum(v.type.numel for v in node.inputs)
    if kind(node) is Kind.ELEMENTWISE:
        compute = PRIMS[node.prim].flops * numel / by.mults_per_us
        share = EPILOGUE if by.matmul and _is_bias(c, node) else 1.0
        return share * by.call_us + max(compute, share * by.near * out / by.bytes_per_us)
    if kind(node) is Kind.WINDOW:
        taps = sum(node.attrs["kernel"]) if node.prim == "window_max" else 1
        return by.call_us + (taps * numel + elements) / by.mults_per_us + out / by.bytes_per_us
    if kind(node) is Kind.REDUCE:
        return by.call_us + 2 * elements / by.mults_per_us
    if node.prim == "reshape":
        return 0.1 * by.call_us
    share = by.views if node.prim == "transpose" else by.near
    return by.call_us + share * out / by.bytes_per_us


def _is_bias(c: Classes, node: Node) -> bool:
    """Of a product or convolution along its channels, which a runtime adds at once."""
    if node.prim != "add":
        return False
    for x, b in (node.inputs, node.inputs[::-1]):
        for m in c.members(x, "contract", "conv") if c.is_fixed(b) else ():
            channels = x.rank - 1 if m.prim == "contract" else 1
            extents = (1,) * (x.rank - b.rank) + b.shape
            plain = m.prim == "conv" or not moved_bytes(m, c.is_fixed)
            if plain and all(s == 1 for a, s in enumerate(extents) if a != channels):
                return True
    return False


def _linear_us(c: Classes, node: Node, by: Profile) -> float:
    if node.prim == "contract":
        p = product(node)
        last = p.out[-1] if p.out else None
        left = any(c.is_fixed(o.value) and last not in o.labels for o in (p.a, p.b))
        share = LEFT if by.matmul and left else 1.0
        return share * product_work(c, p.a, p.b) / by.mults_per_us
    x, w = node.inputs
    work = conv_work(x.shape, w.shape, node.value.shape)
    if by.matmul and x.rank == 3:
        work *= LINE
    a = node.attrs
    fast = a["groups"] == 1 and w.shape[2:] == (3, 3) and {*a["dilations"]} == {1}
    if fast and min(w.shape[:2]) >= 16:
        work /= by.windows if set(a["strides"]) == {1} else 1 + (by.windows - 1) / 4
    efficiency = 0.2 if a["groups"] > 1 else min(1.0, w.shape[0] / 16)
    return work / efficiency / by.mults_per_us


def prices(c: Classes, by: Profile) -> dict[Node, float]:
    """Of every member that computes something at run time."""
    return {
        n: price_us(c, n, by) for n in c.nodes
        if n.prim not in SOURCES and not all(c.is_fixed(v) for v in n.outputs)
    }  # fmt: skip


# ---------------------------------------------------------------- the program


@dataclass(frozen=True)
class Answer:
    """`nodes` in an order that runs. `reduced`: of members, what the relaxation says that an answer
    costs more if it holds them; those that it left out are not there."""

    nodes: tuple[Node, ...] = ()
    reduced: Mapping[Node, float] = field(default_factory=dict[Node, float])

    def dearer_us(self, node: Node) -> float:
        return self.reduced.get(node, math.inf)


def cheapest(
    c: Classes, price: Mapping[Node, float], effort: Effort = USUAL, start: Collection[Node] = ()
) -> Answer:
    """Members that give the outputs. `start`: some that do. Raises ValueError where there are none,
    which would be a fault of the classes."""
    members = list(price)
    problem = _problem(c, members, price)
    known = [k for k, n in enumerate(members) if n in set(start)] if start else []
    found = select(problem, gap=effort.gap, time_limit=effort.seconds, start=known)
    if found.status == "infeasible":
        raise ValueError("no members of the classes give the outputs")
    reduced = {n: d for n, d in zip(members, found.reduced, strict=False) if d is not None}
    return Answer(tuple(members[k] for k in found.chosen), reduced)


def _problem(c: Classes, members: list[Node], price: Mapping[Node, float]) -> Problem:
    numbers: dict[Value, int] = {}

    def token(v: Value) -> int:
        return numbers.setdefault(c.find(v), len(numbers))

    columns: list[Column] = []
    edges: set[tuple[int, int, int]] = set()
    for n in members:
        gives = frozenset(token(v) for v in n.outputs)
        needs = frozenset(token(v) for v in n.inputs if not c.is_fixed(v))
        columns.append(Column(price[n], frozenset({min(gives)}), needs, gives))
        edges |= {(v, min(gives), v) for v in needs}
    free = frozenset(token(v) for v in c.graph.inputs if c.knows(v))
    outputs = [v for v in c.outputs if not c.is_fixed(v)]
    outputs = tuple(t for v in outputs if (t := token(v)) not in free)
    everything = range(len(numbers))
    return Problem(
        tuple(columns), outputs, free, tuple(everything), tuple(everything),
        tuple(sorted(edges)), frozenset(everything) - free,
    )  # fmt: skip


# ---------------------------------------------------------------- graphs


def spelled(c: Classes, chosen: Collection[Node], title: str, us: float) -> Spelling:
    """The graph of chosen members. Raises OverflowError where a constant is too large."""
    known: dict[Value, Value] = {c.find(v): v for v in c.graph.inputs if c.knows(v)}
    meaning: dict[Value, Value] = {v: k for k, v in known.items()}
    provenance: dict[Node, tuple[str, ...]] = {}
    equations: dict[Node, str] = {}

    def value(v: Value) -> Value:
        v = c.find(v)
        if v not in known:
            known[v] = rounded(c, v)
        return known[v]

    for n in chosen:
        if all(c.find(v) in known for v in n.outputs):
            continue
        node = intern(n.prim, _operands(n, [value(v) for v in n.inputs]), n.attrs, n.types)
        if equation := c.origin[n].equation:
            equations.setdefault(node, equation)
        for old, new in zip(n.outputs, node.outputs, strict=True):
            known.setdefault(c.find(old), new)
            meaning.setdefault(new, c.find(old))
        if names := c.graph.provenance.get(c.origin[n].node):
            provenance.setdefault(node, names)
    outputs = tuple(value(v) for v in c.outputs)
    g = c.graph
    graph = Graph(g.inputs, outputs, g.input_names, g.output_names, provenance, g.name)
    return Spelling(title, graph, meaning, us, equations)


def _operands(n: Node, inputs: Sequence[Value]) -> list[Value]:
    """Constants of elementwise primitives without leading axes of extent 1, as fission has them."""
    if kind(n) is not Kind.ELEMENTWISE:
        return list(inputs)
    most = max((v.rank for v in inputs if not v.is_constant), default=0)
    return [_bare(v) if v.is_constant and v.rank == most else v for v in inputs]


def _bare(v: Value) -> Value:
    lead = next((a for a, s in enumerate(v.shape) if s != 1), v.rank)
    return constant(v.array.reshape(v.shape[lead:])) if lead else v


def itself(c: Classes, title: str = "as given") -> Spelling:
    """The graph of the classes."""
    meaning = {v: c.find(v) for v in _computed(c.graph)}
    us = sum(price_us(c, n, OURS) for n in c.graph.primitives)
    return Spelling(title, c.graph, meaning, us)


def as_given(graph: Graph) -> Spelling:
    """A graph that nobody rewrites."""
    return Spelling("as given", graph, {v: v for v in _computed(graph)}, math.inf)


def _computed(graph: Graph) -> Iterator[Value]:
    """Its values but for constants."""
    return (v for n in graph.nodes if n.prim != "constant" for v in n.outputs)


def constant_bytes(graph: Graph) -> int:
    return sum(n.value.type.size_bytes for n in graph.nodes if n.prim == "constant")


def best(
    found: Saturation, by: Profile, title: str = "cheapest", effort: Effort = USUAL
) -> Spelling:
    """The cheapest spelling whose constants do not outgrow those of the graph by `GROWTH`; the
    graph itself where there is none."""
    spelling, _ = _best(found, prices(found.classes, by), title, effort)
    return spelling or itself(found.classes)


def _best(
    found: Saturation, price: Mapping[Node, float], title: str, effort: Effort = USUAL,
    start: Collection[Node] = (),
) -> tuple[Spelling | None, Answer]:  # fmt: skip
    c, limit = found.classes, GROWTH * constant_bytes(found.classes.graph)
    dear = dict(price)
    for _ in range(8):
        try:
            answer = cheapest(c, dear, effort, start)
            us = sum(price[n] for n in answer.nodes)
            spelling = spelled(c, answer.nodes, title, us)
        except OverflowError as fault:
            found.refused["constants", str(fault)] += 1
            dear |= {n: 100 * us for n, us in dear.items() if _overflows(c, n)}
            continue
        if constant_bytes(spelling.graph) <= max(limit, 1 << 16):
            return spelling, answer
        found.refused["constants", "they would outgrow those of the model"] += 1
        dear |= {n: us + _large(c, n) for n, us in dear.items()}
    return None, Answer()


def _overflows(c: Classes, node: Node) -> bool:
    try:
        for v in node.inputs:
            if c.is_fixed(v):
                rounded(c, v)
    except OverflowError:
        return True
    return False


def _large(c: Classes, node: Node) -> float:
    """A price of bytes of constants that are not the graph's own."""
    made = [v for v in node.inputs if c.is_fixed(v) and c.find(v).node.prim != "constant"]
    return sum(v.type.size_bytes for v in made) / OURS.bytes_per_us


@dataclass(frozen=True)
class Rewriting:
    """`simpler`: what was found by equations that always pay; `found`: by all, from there on."""

    spellings: tuple[Spelling, ...]
    simpler: Saturation
    found: Saturation

    @property
    def cheapest(self) -> Spelling:
        return min(self.spellings, key=lambda s: s.us)


def rewritten(graph: Graph, rules: Iterable[Rule], exact: bool = False) -> Rewriting:
    """The spellings of a graph: simplified, of fewest operations, the cheapest, and others."""
    simpler, found = _saturated(graph, rules, exact, OURS)
    return Rewriting(spellings(found), simpler, found)


def counted(graph: Graph, rules: Iterable[Rule], exact: bool = False) -> Spelling:
    """The spelling of fewest operations: what one would rewrite to before looking at kernels."""
    _, found = _saturated(graph, rules, exact, OURS)
    return best(found, COUNTS, FEWEST)


def for_runtimes(graph: Graph, rules: Iterable[Rule], exact: bool = False) -> Graph:
    """The cheapest spelling where a runtime executes one operator after another. A second look at
    what was chosen brings each bias to its product, past reshapes: a price for it in the first
    would have to know which member of the class is chosen."""
    rules = tuple(rules)
    _, found = _saturated(graph, [r for r in rules if not r.ours], exact, OTHERS)
    chosen = best(found, OTHERS, effort=EXACT).graph
    early = saturate(chosen, [r for r in rules if r.equation == EARLY], exact)
    return best(early, OTHERS, effort=EXACT).graph


def _saturated(
    graph: Graph, rules: Iterable[Rule], exact: bool, by: Profile
) -> tuple[Saturation, Saturation]:
    """By the equations that always pay, and from there on by all."""
    rules = tuple(rules)
    simpler = saturate(graph, [r for r in rules if r.always], exact)
    simple = best(simpler, by, "simplified").graph
    return simpler, saturate(simple, rules, exact)


def spellings(found: Saturation, by: Profile = OURS) -> tuple[Spelling, ...]:
    """The graph itself, the cheapest spelling, that of fewest operations, and for equations which
    the cheapest has no use for the cheapest that has, where it costs little more."""
    c = found.classes
    first = itself(c, "simplified")
    price = prices(c, by)
    if not any(c.origin[n].equation for n in price):
        return (first,)
    cheap, answer = _best(found, price, "cheapest")
    if cheap is None:
        return (first,)
    kept = {frozenset(first.graph.nodes): first, frozenset(cheap.graph.nodes): cheap}
    fewest, counting = _best(found, prices(c, COUNTS), FEWEST)
    if fewest is not None:  # so that the choice is never worse than rewriting first
        fewest = replace(fewest, us=sum(price[n] for n in counting.nodes))
        kept.setdefault(frozenset(fewest.graph.nodes), fewest)
    seen = {_work(s) for s in kept.values()}
    for s in sorted(_favoured(found, price, cheap, answer), key=lambda s: s.us):
        if _work(s) not in seen and len(kept) <= MOST:
            seen.add(_work(s))
            kept[frozenset(s.graph.nodes)] = s
    return tuple(kept.values())


def _work(s: Spelling) -> tuple[tuple[str, int], ...]:
    """What tells spellings apart: products and windows by the work of each, views aside."""
    heavy = (n for n in s.graph.primitives if kind(n) in HEAVY)
    return tuple(sorted((kind(n).value, round(flops(n))) for n in heavy))


def _favoured(
    found: Saturation, price: Mapping[Node, float], cheap: Spelling, answer: Answer
) -> Iterator[Spelling]:
    """For each equation that the cheapest has no use for, and whose products, windows or reductions
    could stand in a spelling that is nearly as cheap: that one."""
    c, slack = found.classes, (NEAR - 1) * cheap.us
    used = {c.origin[n].equation for n in answer.nodes}
    for equation in sorted({c.origin[n].equation for n in price} - used - {""}):
        own = {n for n in price if c.origin[n].equation == equation and kind(n) in HEAVY}
        if not any(answer.dearer_us(n) <= slack for n in own):
            continue
        better = {n: us * FAVOUR if n in own else us for n, us in price.items()}
        spelling, other = _best(found, better, equation, ROUGH, answer.nodes)
        if spelling is None or not own & set(other.nodes):
            continue
        us = sum(price[n] for n in other.nodes)
        if us <= cheap.us + slack:
            yield replace(spelling, us=us)

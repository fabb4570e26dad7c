"""Every region of a graph that one kernel may execute.                          (design, section 6)

    regions = { S convex, S linked, S within the limits } x { choices of what S gives }

Two primitives are *linked* when one reads the other, or when both read one value that is no
constant (siblings). S is linked when its links make it connected: growth along edges alone would
not find three projections of one input. Links between siblings of which one depends on the other
are left out: a convex set that holds both holds a path between them.

Growth adds one linked primitive at a time and keeps only convex sets; sets are ints, one level per
count of primitives, each set once.

Claim: this reaches every convex linked set, although many orders of adding its members pass through
sets with holes. Proof, by taking members away. Let S be convex and linked, of two members or more.
Cut the graph of links on S into blocks (its biconnected parts). If there is more than one, take a
block B that is a leaf and let c be the member it shares with the rest; else let B = S and c be any
member. Some v in B other than c is a source or a sink of the dependencies inside B: if c is the
only source, every other member of B depends on c, so the sinks of B are others. All links of v lie
inside B, and dependencies are links, so v is a source or a sink of S too.
  - S - v is linked, because v is no cut vertex.
  - S - v is convex: a path that leaves it and enters it again would leave S, or pass through v from
    a member to a member; but no path inside S enters a source or leaves a sink.
By induction S is reached from one primitive. Limits are monotone (what they refuse, they refuse
with more members), so the way there is within the limits. With Theorem 1 (Korch: the convex sets
are the differences of execution states) the result is exactly the linked differences.

One limit is not monotone and guards against graphs that are very wide, where subsets are too many
to list: `Limits.level` sets of one size at most, those with the fewest values on their border
first. `Growth.dropped` counts what it cost; at 0 the result is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import Kind, kind
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.chains import chains
from fissile.kernels.convex import Order, bits, extends, order_of
from fissile.kernels.region import Region
from fissile.kernels.statistics import with_statistics

SMALL_ELEMENTS = 64
STATISTIC_RATIO = 16
TOTAL_EACH = 40

Admissible = Callable[[tuple[Node, ...]], bool]
"""A target's own limit on the members of a region, which come in topological order. Monotone:
refused with some members, refused with more. Asked once for each set that the limits allow."""


@dataclass(frozen=True)
class Limits:
    """How far regions grow. All but `level` are monotone.

    primitives: members that weigh something (`weighs`).
    nodes: members of any weight.
    contractions: contractions and convolutions.
    siblings: a value with more readers than this links none of them.
    level: sets with one count of members that are kept to grow from.
    total: sets in all after which nothing grows any more, or TOTAL_EACH for each primitive if
        that is more.
    stages: anchors of a chain (see `chains`), which is no work of growth; 1: no chains.
    statistics: convolutions also with the moments of their results (see `statistics`).
    every_output_set: give every set of values that are read outside (Korch, definition 3), not
        only the smallest and the largest.
    """

    primitives: int = 8
    nodes: int = 14
    contractions: int = 2
    siblings: int = 8
    level: int = 10_000
    total: int = 20_000
    stages: int = 1
    statistics: bool = False
    every_output_set: bool = False


@dataclass(frozen=True)
class Growth:
    """`masks`: sets of members, smaller ones first. `dropped`: how many `Limits.level` left out,
    without those that would have grown from them."""

    masks: tuple[int, ...]
    dropped: int


def anything(nodes: tuple[Node, ...]) -> bool:
    return True


def identify(
    graph: Graph, limits: Limits = Limits(), admissible: Admissible = anything
) -> tuple[Region, ...]:
    """All regions of `graph` within the limits, in topological order of their members.

    Each set of members comes with its smallest choice of outputs (values that are read outside and
    not inside; others that are read outside would be computed again elsewhere) and, where it
    differs, the largest (all values that are read outside, or are the graph's). Every single
    primitive is a region, whatever the limits; an opaque one is only ever alone.
    """
    order = order_of(graph)
    masks = dict.fromkeys(grow(graph, order, limits, admissible).masks)
    masks |= dict.fromkeys(chains(graph, order, limits.stages))
    escape = _Escape(graph, order)
    found: list[Region] = []
    for members, mask in sorted((tuple(bits(mask)), mask) for mask in masks):
        nodes = tuple(order.nodes[i] for i in members)
        for outputs in escape.choices(members, mask, limits.every_output_set):
            found.append(Region(nodes, outputs))
    if limits.statistics:
        found += with_statistics(graph, tuple(found))
    return tuple(found)


def grow(
    graph: Graph, order: Order, limits: Limits = Limits(), admissible: Admissible = anything
) -> Growth:
    """The convex linked sets within the limits, and all single primitives."""
    links = linked(graph, order, limits.siblings)
    heavy = _mask(order.nodes, weighty(order.nodes).__contains__)
    linear = _mask(order.nodes, lambda n: kind_in_kernel(n) is Kind.LINEAR)

    def allowed(mask: int) -> bool:
        return (
            (mask & heavy).bit_count() <= limits.primitives
            and (mask & linear).bit_count() <= limits.contractions
            and admissible(order.members(mask))
        )

    singles = [1 << i for i in range(len(order.nodes))]
    found = list(singles)
    level = {s: links[i] for i, s in enumerate(singles) if links[i] and allowed(s)}
    dropped = 0
    for _ in range(limits.nodes - 1):
        if len(found) > max(limits.total, TOTAL_EACH * len(singles)):
            dropped += len(level)
            break
        level = _larger(order, links, level, allowed, 4 * limits.level)
        if len(level) > limits.level:
            dropped += len(level) - limits.level
            kept = sorted(level, key=lambda mask: _border(order, mask))[: limits.level]
            level = {mask: level[mask] for mask in kept}
        found.extend(level)
    return Growth(tuple(found), dropped)


def _border(order: Order, mask: int) -> int:
    """Primitives outside that are read, and members that are read outside."""
    read = {g for i in bits(mask) for g in order.givers[i] if not mask >> g & 1}
    return len(read) + sum(any(not mask >> r & 1 for r in order.readers[i]) for i in bits(mask))


def _larger(
    order: Order,
    links: list[int],
    level: Mapping[int, int],
    allowed: Callable[[int], bool],
    most: int,
) -> dict[int, int]:
    """Sets with one member more; growth stops at about `most`. A level maps a set to its border:
    what its members link to."""
    larger: dict[int, int] = {}
    refused: set[int] = set()
    for mask, border in level.items():
        if len(larger) > most:
            break
        for i in bits(border):
            union = mask | 1 << i
            if union in larger or union in refused:
                continue
            if extends(order, mask, i) and allowed(union):
                larger[union] = (border | links[i]) & ~union
            else:
                refused.add(union)
    return larger


def linked(graph: Graph, order: Order, siblings: int) -> list[int]:
    """For each primitive the mask of those linked to it. Opaque ones have no links."""
    index = {node: i for i, node in enumerate(order.nodes)}
    links = [0] * len(order.nodes)

    def link(i: int, j: int) -> None:
        links[i] |= 1 << j
        links[j] |= 1 << i

    for i, givers in enumerate(order.givers):
        for g in givers:
            link(g, i)
    for value, readers in graph.users.items():
        if not value.is_constant and len(readers) <= siblings:
            for i, j in combinations((index[r] for r in readers), 2):
                if not order.above[j] >> i & 1:
                    link(i, j)
    opaque = _mask(order.nodes, lambda n: kind(n) is Kind.OPAQUE)
    return [0 if opaque >> i & 1 else mask & ~opaque for i, mask in enumerate(links)]


def _mask(nodes: Iterable[Node], holds: Callable[[Node], bool]) -> int:
    return sum(1 << i for i, node in enumerate(nodes) if holds(node))


def weighty(nodes: Iterable[Node]) -> frozenset[Node]:
    """The primitives that count towards `Limits.primitives`: no scalar maths, no row statistics.

    A result of at most 64 elements is scalar maths. A reduction or window to at most 1/16 of its
    operand is a row statistic, and so is what elementwise and layout primitives make of statistics
    alone, while it does not grow: rsqrt(variance + epsilon). `nodes` are in topological order.
    """
    light: set[Node] = set()
    for node in nodes:
        if kind(node) not in (Kind.LINEAR, Kind.OPAQUE) and _is_light(node, light):
            light.add(node)
    return frozenset(n for n in nodes if n not in light)


def _is_light(node: Node, light: set[Node]) -> bool:
    numel = max(t.numel for t in node.types)
    largest = max((v.type.numel for v in node.inputs), default=0)
    if kind(node) in (Kind.REDUCE, Kind.WINDOW):
        return numel * STATISTIC_RATIO <= largest or largest <= SMALL_ELEMENTS
    if numel <= SMALL_ELEMENTS:
        return True
    tensors = [v for v in node.inputs if not v.is_constant]
    small = all(v.node in light for v in tensors) and numel <= largest
    return bool(tensors) and small and kind(node) in (Kind.ELEMENTWISE, Kind.LAYOUT)


class _Escape:
    """Which values of a set are read outside of it. `values[i]` are node i's, each with the mask of
    its readers and whether it is an output of the graph."""

    def __init__(self, graph: Graph, order: Order):
        index = {node: i for i, node in enumerate(order.nodes)}
        outputs = set(graph.outputs)
        self.values = [
            [
                (v, sum(1 << index[r] for r in graph.users.get(v, ())), v in outputs)
                for v in node.outputs
            ]
            for node in order.nodes
        ]

    def choices(
        self, members: Iterable[int], mask: int, every: bool
    ) -> Iterator[tuple[Value, ...]]:
        """The choices of outputs, smallest first; none where nothing escapes."""
        escaping: list[Value] = []
        inner: list[Value] = []
        for i in members:
            for value, readers, is_output in self.values[i]:
                if is_output or readers & ~mask:
                    escaping.append(value)
                    if readers & mask:
                        inner.append(value)
        if not escaping:
            return
        sizes = range(len(inner), -1, -1) if every else sorted({len(inner), 0}, reverse=True)
        for size in sizes:
            for withheld in combinations(inner, size):
                given = tuple(v for v in escaping if v not in withheld)
                if given:
                    yield given


def classes(regions: Iterable[Region]) -> dict[str, list[Region]]:
    """Regions by signature: what holds for the structure of one holds for all of its class."""
    found: dict[str, list[Region]] = {}
    for region in regions:
        found.setdefault(region.signature, []).append(region)
    return found

"""Chains: regions of several anchors in a line, put together from stages.     (design, section 7)

    chain = stage + stage (+ stage),      the value that one ends in is the one that the next reads

A *stage* is an anchor with all that a kernel computes along with it: a contraction, a convolution
or a pool with the pads before it, or the reductions of a normalisation; then its *tail*, the
elementwise primitives and moves after it, as far as a single value leaves it. Growth one primitive
at a time would visit every part of every chain; stages are few, so that the chains are no more than
a few for each anchor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import Kind, kind
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.convex import Order, bits, is_convex

NORM_NODES = 16  # members of a normalisation
TAIL_NODES = 16
_MOVES = ("transpose", "reshape")
_BETWEEN = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.LAYOUT, Kind.REDUCE)


@dataclass(frozen=True)
class Stage:
    """`mask`: members. It reads `entry`, and others that its anchor does not; `exit` is the only
    value that leaves it. `plain` is the mask without moves at its end."""

    mask: int
    entry: Value
    exit: Value
    plain: int = 0


def chains(graph: Graph, order: Order, most: int) -> list[int]:
    """Masks of the convex chains of 2 to `most` stages, each once."""
    found: dict[int, None] = {}
    stages = _Stages(graph, order).all()
    by_entry: dict[Value, list[Stage]] = {}
    for stage in stages:
        by_entry.setdefault(stage.entry, []).append(stage)
    todo = [(stage, stage.mask, 1) for stage in stages]
    while todo:
        last, mask, length = todo.pop()
        for stage in by_entry.get(last.exit, ()) if length < most else ():
            if mask & stage.mask:
                continue
            for more in dict.fromkeys((stage.mask, stage.plain)):
                if is_convex(order, mask | more):
                    found[mask | more] = None
            todo.append((stage, mask | stage.mask, length + 1))
    return list(found)


class _Stages:
    def __init__(self, graph: Graph, order: Order):
        self.graph, self.order = graph, order
        self.index: Mapping[Node, int] = {n: i for i, n in enumerate(order.nodes)}
        self.outputs = set(graph.outputs)

    def all(self) -> list[Stage]:
        """One for each anchor; the reductions of one normalisation are one anchor."""
        found: dict[Value, Stage] = {}
        for i, n in enumerate(self.order.nodes):
            if kind(n) is Kind.REDUCE:
                for stage in self._normalisations(i):
                    found.setdefault(stage.exit, stage)
            elif kind_in_kernel(n) in (Kind.LINEAR, Kind.WINDOW) and (x := _data(n)) is not None:
                mask = 1 << i
                while x.node.prim == "pad" and x.node in self.index:
                    mask |= 1 << self.index[x.node]
                    x = x.node.inputs[0]
                found.setdefault(n.value, Stage(mask, x, n.value))
        return self._merged([self._with_tail(stage) for stage in found.values()])

    # -- normalisations

    def _normalisations(self, reduction: int) -> Iterator[Stage]:
        """From the nearest value that the reduction is spread over again, back to what it is of."""
        shape = self.order.nodes[reduction].inputs[0].shape
        for i in bits(self.order.below[reduction]):
            n = self.order.nodes[i]
            if kind(n) is Kind.ELEMENTWISE and n.value.shape == shape:
                stage = self._single_entry(n.value)
                if stage is not None and stage.mask >> reduction & 1:
                    yield stage
                return

    def _single_entry(self, exit: Value) -> Stage | None:
        """The fewest primitives before `exit` that hold a reduction and read one tensor."""
        mask, reduces, front = 0, False, {exit}
        for _ in range(NORM_NODES):
            v = max(front, key=lambda v: self.index.get(v.node, -1))
            if v.node not in self.index or kind_in_kernel(v.node) not in _BETWEEN:
                return None
            front.remove(v)
            mask |= 1 << self.index[v.node]
            reduces = reduces or kind(v.node) is Kind.REDUCE
            front |= {u for u in v.node.inputs if not u.is_constant}
            if len(front) == 1 and reduces:
                return Stage(mask, next(iter(front)), exit)
        return None

    def _merged(self, stages: list[Stage]) -> list[Stage]:
        """Normalisations of which one ends where the next begins, over one domain, are one."""
        by_exit: dict[Value, Stage] = {}
        for stage in stages:
            before = by_exit.get(stage.entry)
            if before is not None and self._is_one(before, stage):
                stage = replace(
                    stage,
                    mask=before.mask | stage.mask,
                    plain=before.mask | stage.plain,
                    entry=before.entry,
                )
                del by_exit[before.exit]
            by_exit[stage.exit] = stage
        return list(by_exit.values())

    def _is_one(self, before: Stage, stage: Stage) -> bool:
        domains = {
            (n.inputs[0].shape, n.attrs["axes"])
            for n in self.order.members(before.mask | stage.mask)
            if kind(n) is Kind.REDUCE
        }
        reduces = [any(kind(n) is Kind.REDUCE for n in self.order.members(s.mask))
                   for s in (before, stage)]  # fmt: skip
        union = before.mask | stage.mask
        return all(reduces) and len(domains) == 1 and self._leaving(union) == [stage.exit]

    # -- tails

    def _with_tail(self, stage: Stage) -> Stage:
        members, known = stage.mask, {stage.exit}
        best = replace(stage, plain=stage.mask)
        for _ in range(TAIL_NODES):
            i = next(self._joining(members, known), None)
            if i is None:
                break
            members |= 1 << i
            known.add(self.order.nodes[i].value)
            leaving = self._leaving(members)
            if len(leaving) == 1:
                moved = self.order.nodes[i].prim in _MOVES
                best = Stage(members, stage.entry, leaving[0], best.plain if moved else members)
        return best

    def _joining(self, members: int, known: set[Value]) -> Iterator[int]:
        """Readers of known values that compute one element from one, and need nothing else that
        depends on the members."""
        readers = {self.index[n] for v in known for n in self.graph.users.get(v, ())}
        for i in sorted(i for i in readers if not members >> i & 1):
            n = self.order.nodes[i]
            first = next(v for v in n.inputs if v in known)
            same = kind(n) is Kind.ELEMENTWISE and n.value.shape == first.shape
            if (same or n.prim in _MOVES) and not any(
                self._hangs_on(v, members) for v in n.inputs if v not in known
            ):
                yield i

    def _hangs_on(self, v: Value, members: int) -> bool:
        i = self.index.get(v.node)
        return i is not None and bool((self.order.above[i] | 1 << i) & members)

    def _leaving(self, members: int) -> list[Value]:
        return [
            v for i in bits(members) for v in self.order.nodes[i].outputs
            if v in self.outputs
            or any(not members >> self.index[r] & 1 for r in self.graph.users.get(v, ()))
        ]  # fmt: skip


def _data(n: Node) -> Value | None:
    """The operand that is computed at run time; None where both are."""
    tensors = [v for v in n.inputs if not v.is_constant]
    return tensors[0] if len(tensors) == 1 else None

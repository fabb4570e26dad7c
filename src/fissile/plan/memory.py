"""Where every token lives: the caller's inputs and outputs, the weights, or the arena.

A token is given by the first candidate in the order that gives it; a later giver writes to memory
that nobody reads. The token of an alias is a byte offset inside its root. A root that is an output
of the graph (itself, or through an alias that covers it) is written in place; every other output is
copied at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fissile.errors import FissileError
from fissile.ir.graph import Graph, Value
from fissile.ir.layout import Token, row_major
from fissile.ir.types import DTYPES
from fissile.kernels.candidate import Candidate, Kernel, Packing, Param, parameter_value
from fissile.plan.arena import Span, live_bound, place
from fissile.plan.order import aligned, output_tokens
from fissile.plan.plan import Buffer, Launch, Opened, Plan, Slot, Transfer, Weight

C_SIZES = {d.c: d.size_bytes for d in DTYPES if d.c}


@dataclass
class _Root:
    """Memory that one kernel writes: of a token, of a result that nobody reads, or, with no token,
    of what its tiles share."""

    token: Token | None
    size_bytes: int
    first: int
    last: int
    aliases: list[Token] = field(default_factory=list)
    slot: Slot | None = None


@dataclass(frozen=True)
class _Place:
    """A token's memory: a root or a fixed slot, and the byte offset inside."""

    root: _Root | Slot
    offset: int


def plan(
    graph: Graph,
    order: Sequence[Candidate],
    kernels: Mapping[Candidate, Kernel],
    us: Mapping[Candidate, float] | None = None,
) -> Plan:
    """The plan of an order (see `order.arrange`). `kernels` lowers every candidate that is no
    alias."""
    return _Planner(graph, order, kernels, us or {}).plan()


class _Planner:
    def __init__(
        self,
        graph: Graph,
        order: Sequence[Candidate],
        kernels: Mapping[Candidate, Kernel],
        us: Mapping[Candidate, float],
    ):
        self.graph, self.kernels, self.us = graph, kernels, us
        self.order = order
        self.roots: list[_Root] = []
        self.places: dict[Token, _Place] = {}
        self.weights: dict[tuple[Value, Packing | None], Weight] = {}
        self.opened: dict[tuple[Value, Packing], Opened] = {}
        self.weight_bytes = self.opened_bytes = 0
        self.launches: list[tuple[Candidate, list[_Place]]] = []

    def plan(self) -> Plan:
        self._enter_inputs()
        for candidate in self.order:
            self._alias(candidate) if candidate.is_alias else self._launch(candidate)
        outputs = [self._place_of(t, "an output of the graph") for t in output_tokens(self.graph)]
        self._write_in_place(outputs)
        arena, bound = self._place_rest(outputs)
        steps = [self._step(candidate, places) for candidate, places in self.launches]
        return Plan(
            (*steps, *self._transfers(outputs)),
            tuple(_buffer(r) for r in self.roots),
            tuple(self.weights.values()),
            tuple(self.opened.values()),
            arena,
            bound,
            max((s.kernel.scratch_bytes for s in steps), default=0),
        )

    def _enter_inputs(self) -> None:
        for i, value in enumerate(self.graph.inputs):
            self.places.setdefault(
                Token(value, row_major(value.rank)), _Place(Slot("input", i, 0), 0)
            )

    def _place_of(self, token: Token, reader: str) -> _Place:
        """Where a token lies; constants enter the weights when first read."""
        if token in self.places:
            return self.places[token]
        if token.value.is_constant and token.layout.is_row_major:
            slot = self._weight(token.value, None, token.value.type.size_bytes)
            return self.places.setdefault(token, _Place(slot, 0))
        raise FissileError(f"{token!r} is needed by {reader} before anything gives it")

    def _constant(self, value: Value, packing: Packing | None, size_bytes: int) -> Slot:
        """Where a packed constant lies, of which there is one."""
        if packing is None or not packing.opening:
            return self._weight(value, packing, size_bytes)
        opened = self.opened.get((value, packing))
        if opened is None:
            source = self._weight(value, None, value.type.size_bytes)
            opened = Opened(value, packing, source, self.opened_bytes, size_bytes)
            self.opened[value, packing] = opened
            self.opened_bytes += aligned(size_bytes)
        _check_size(opened, size_bytes)
        return Slot("opened", 0, opened.offset)

    def _weight(self, value: Value, packing: Packing | None, size_bytes: int) -> Slot:
        weight = self.weights.get((value, packing))
        if weight is None:
            weight = Weight(value, packing, self.weight_bytes, size_bytes)
            self.weights[value, packing] = weight
            self.weight_bytes += aligned(size_bytes)
        _check_size(weight, size_bytes)
        return Slot("weights", 0, weight.offset)

    def _alias(self, candidate: Candidate) -> None:
        source = self._place_of(candidate.needs[0], "an alias")
        (given,) = candidate.gives
        if given in self.places:
            return
        self.places[given] = _Place(
            source.root, source.offset + candidate.param.get("offset_bytes", 0)
        )
        if isinstance(source.root, _Root):
            source.root.aliases.append(given)

    def _launch(self, candidate: Candidate) -> None:
        step = len(self.launches)
        needs = [self._place_of(t, candidate.impl) for t in candidate.needs]
        for p in needs:
            if isinstance(p.root, _Root):
                p.root.last = step
        gives: list[_Place] = []
        for token in candidate.gives:
            root = _Root(token, token.size_bytes, step, step)
            self.roots.append(root)
            gives.append(_Place(root, 0))
            self.places.setdefault(token, gives[-1])
        params = self.kernels[candidate].params
        places = [self._argument(candidate, p, needs, gives) for p in params]
        self.launches.append((candidate, places))

    def _argument(
        self, candidate: Candidate, param: Param, needs: list[_Place], gives: list[_Place]
    ) -> _Place:
        if param.role == "need":
            return needs[param.index]
        if param.role == "give":
            return gives[param.index]
        size = param.elements * C_SIZES[param.element]
        if param.role == "work":
            step = len(self.launches)
            self.roots.append(_Root(None, size, step, step))
            return _Place(self.roots[-1], 0)
        return _Place(self._constant(parameter_value(candidate, param), param.packing, size), 0)

    def _write_in_place(self, outputs: Sequence[_Place]) -> None:
        """Give a root the memory of the first output that covers it."""
        for i, (value, p) in enumerate(zip(self.graph.outputs, outputs, strict=True)):
            if not isinstance(p.root, _Root) or p.root.slot or p.offset:
                continue
            if p.root.size_bytes == value.type.size_bytes:
                p.root.slot = Slot("output", i, 0)

    def _place_rest(self, outputs: Sequence[_Place]) -> tuple[int, int]:
        """Offsets for what is left: (arena bytes, lower bound)."""
        for p in outputs:
            if isinstance(p.root, _Root):
                p.root.last = len(self.launches)
        rest = [r for r in self.roots if r.slot is None]
        spans = [Span(aligned(r.size_bytes), r.first, r.last) for r in rest]
        offsets, size = place(spans)
        for root, offset in zip(rest, offsets, strict=True):
            root.slot = Slot("arena", 0, offset)
        return size, live_bound(spans)

    def _step(self, candidate: Candidate, places: Sequence[_Place]) -> Launch:
        slots = tuple(_slot(p) for p in places)
        return Launch(candidate, self.kernels[candidate], slots, self.us.get(candidate, 0.0))

    def _transfers(self, outputs: Sequence[_Place]) -> list[Transfer]:
        copies: list[Transfer] = []
        for i, (value, p) in enumerate(zip(self.graph.outputs, outputs, strict=True)):
            source, target = _slot(p), Slot("output", i, 0)
            if source != target and value.type.size_bytes:
                copies.append(Transfer(source, target, value.type.size_bytes))
        return copies


def _check_size(constant: Weight | Opened, size_bytes: int) -> None:
    if constant.size_bytes != size_bytes:
        what = f"{constant.packing} of {constant.value.type}"
        raise FissileError(f"{what} is both {constant.size_bytes} and {size_bytes} B")


def _slot(p: _Place) -> Slot:
    base = p.root if isinstance(p.root, Slot) else p.root.slot
    assert base is not None
    return Slot(base.space, base.index, base.offset + p.offset)


def _buffer(root: _Root) -> Buffer:
    assert root.slot is not None
    return Buffer(
        root.token, root.slot, root.size_bytes, root.first, root.last, tuple(root.aliases)
    )

"""Equal values as classes: a congruence closure over interned nodes.

After Nelson and Oppen (Fast decision procedures based on congruence closure, JACM 1980) and egg
(Willsey et al., POPL 2021). Rules only ever add: `join` says that two values are equal, and what
follows from it (equal operands, equal results) is drawn by `repair`.

Invariant, after `repair`: every member reads representatives only, no member reads its own class,
and no two classes hold the same node. All values of a class have one type. A class is *fixed* when
it can be computed from constants alone; then its representative is made of constants alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fissile.ir.evaluate import apply
from fissile.ir.graph import Graph, Literal, Node, Value, intern
from fissile.ir.prims import constant
from fissile.rewrite.labels import plainly

LOOKED_AT = 1 << 20  # elements up to which constants are told apart by what they hold
VIEWED = 1 << 25  # the same for views of constants: else they turn back and forth without end
VIEWS = ("constant", "reshape", "transpose", "slice", "concat")
KEPT = 1 << 16  # elements up to which what was computed of them is kept


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: the equation (none of the graph's own), and the node of the graph
    that it stands for, or in whose place it was found."""

    equation: str
    node: Node


class Classes:
    """The values of a graph, each a class of its own until something is joined."""

    def __init__(self, graph: Graph):
        self._parent: dict[Value, Value] = {}
        self._age: dict[Value, int] = {}  # not the node's: others may have made that before
        self._members: dict[Value, dict[Node, None]] = {}
        self._users: dict[Value, dict[Node, None]] = {}
        self._fixed: set[Value] = set()
        self._stale: dict[Node, None] = {}
        self._known: dict[Node, None] = {}
        self._dead: set[Node] = set()
        self._data: dict[Value, np.ndarray] = {}
        self._numbers: dict[str, Value] = {}
        self.made: dict[Value, Value] = {}  # constants of fixed classes
        self.shares: dict[Value, float] = {}  # of non-zeros, of those that were looked at
        self.origin: dict[Node, Origin] = {}
        self.graph = graph
        self.outputs = tuple(self.add(v) for v in graph.outputs)
        self.repair()

    # -- looking

    def find(self, v: Value) -> Value:
        """The representative of a value that was added."""
        while (up := self._parent[v]) is not v:
            self._parent[v] = up = self._parent[up]
            v = up
        return v

    def same(self, a: Value, b: Value) -> bool:
        return self.find(a) is self.find(b)

    def knows(self, v: Value) -> bool:
        """Was it added, or found on the way?"""
        return v in self._parent

    def is_part(self, v: Value, of: Value) -> bool:
        """Is a value that may be new known to be of another's class?"""
        return v in self._parent and self.same(v, of)

    def members(self, v: Value, *prims: str) -> tuple[Node, ...]:
        """The nodes that give a value, the oldest first; those of the named primitives, if any."""
        nodes = self._members[self.find(v)]
        return tuple(n for n in nodes if not prims or n.prim in prims)

    def users(self, v: Value, *prims: str) -> tuple[Node, ...]:
        """The nodes that read a value, the oldest first."""
        nodes = self._users[self.find(v)]
        return tuple(n for n in nodes if not prims or n.prim in prims)

    def is_alive(self, node: Node) -> bool:
        return node in self._known

    def is_fixed(self, v: Value) -> bool:
        """Is it made from constants alone? Of any expression over values that were added."""
        if v in self._parent:
            return self.find(v) in self._fixed
        return v.node.prim != "input" and all(self.is_fixed(i) for i in v.node.inputs)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All members, the oldest first."""
        return tuple(self._known)

    @property
    def values(self) -> Iterator[Value]:
        """One of each class."""
        return iter(tuple(self._members))

    def data(self, v: Value) -> np.ndarray:
        """A fixed value: floats in float64, unrounded; integers as they are. Small are kept."""
        v = self.find(v) if v in self._parent else v
        if v in self._data:
            return self._data[v]
        known = dict(self._data)
        found = _evaluated(v, known)
        self._data.update((k, a) for k, a in known.items() if a.size <= KEPT)
        return found

    # -- adding

    def add(self, value: Value, why: Origin | None = None) -> Value:
        """The class of an expression over values of any age."""
        new: dict[Value, Value] = {}
        for node in _fresh(value, self._parent):
            inputs = [self.find(new.get(v, v)) for v in node.inputs]
            made = self._enter(node, inputs, why)
            for old, fresh in zip(node.outputs, made.outputs, strict=True):
                new[old] = fresh
                self._parent.setdefault(old, fresh)  # so that every value that was added is known
        return self.find(value)

    def join(self, a: Value, b: Value) -> bool:
        """From now on these are equal. False where they were. Raises ValueError where they have
        different types."""
        a, b = self.find(a), self.find(b)
        if a is b:
            return False
        if a.type != b.type:
            raise ValueError(f"{a.type} cannot equal {b.type}")
        if (b in self._fixed, -self._age[b]) > (a in self._fixed, -self._age[a]):
            a, b = b, a  # what is fixed represents, else the older
        self._parent[b] = a
        self._members[a] |= self._members.pop(b)
        users = self._users.pop(b)
        self._users[a] |= users
        self._stale |= users
        for node in [n for n in self._members[a] if any(self.find(v) is a for v in n.inputs)]:
            self.retire(node)  # it reads what it gives
        if b in self._fixed:
            self._fixed.discard(b)
        return True

    def repair(self) -> None:
        """Draw the consequences of all that was joined."""
        while self._stale:
            node = next(iter(self._stale))
            del self._stale[node]
            if node in self._known:
                self._renew(node)

    def retire(self, node: Node) -> None:
        """Forget a member: another of its class is never worse."""
        self._known.pop(node, None)
        self._dead.add(node)
        for v in node.outputs:
            self._members[self.find(v)].pop(node, None)
        for v in node.inputs:
            self._users[self.find(v)].pop(node, None)

    def _renew(self, node: Node) -> None:
        """Put a node whose operands have new representatives in the place of the old one."""
        origin = self.origin[node]
        self.retire(node)
        made = self._enter(node, [self.find(v) for v in node.inputs], origin)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            self.join(old, new)
        if any(self.same(v, o) for v in made.inputs for o in made.outputs):
            self.retire(made)

    def _enter(self, node: Node, inputs: Sequence[Value], why: Origin | None) -> Node:
        """The node over these operands, a member from now on."""
        why, attrs = why or Origin("", node), plainly(node)
        if attrs is not node.attrs or tuple(inputs) != node.inputs:
            node = intern(node.prim, inputs, attrs, node.types)
        if node in self._known or node in self._dead:
            return node
        self._known[node] = None
        self.origin.setdefault(node, why)
        fixed = node.prim != "input" and all(v in self._fixed for v in inputs)
        for v in node.outputs:
            if v not in self._parent:
                self._parent[v], self._age[v] = v, len(self._age)
                self._members[v], self._users[v] = {}, {}
                if fixed:
                    self._fixed.add(v)
            self._members[self.find(v)][node] = None
        for v in inputs:
            self._users[v][node] = None
        if fixed:
            self._recognise(node)
        return node

    def _recognise(self, node: Node) -> None:
        """Constants of equal numbers are equal, however they were computed."""
        most = VIEWED if node.prim in VIEWS else LOOKED_AT
        for v in node.outputs:
            if v.type.numel > most or self.find(v) is not v:
                continue
            if node.prim == "constant":
                literal = node.attrs["value"]
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    literal = Literal(self.data(v).astype(v.type.dtype.numpy))
            if (known := self._numbers.setdefault(literal.digest, v)) is not v:
                self.join(known, v)


def _fresh(value: Value, known: Iterable[Value]) -> Iterator[Node]:
    """Nodes that a value needs and nobody knows, operands first."""
    done: set[Node] = set()
    stack = [(value.node, False)] if value not in known else []
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        if expanded:
            done.add(node)
            yield node
            continue
        stack.append((node, True))
        stack.extend((v.node, False) for v in reversed(node.inputs) if v not in known)


def _evaluated(value: Value, known: dict[Value, np.ndarray]) -> np.ndarray:
    """An expression over constants, in float64. Every step is kept in `known`."""
    for node in _fresh(value, known):
        if node.prim == "constant":
            array = node.attrs["value"].array
            wide = node.value.type.dtype.is_float
            known[node.value] = array.astype(np.float64) if wide else array
            continue
        results = apply(node, [known[v] for v in node.inputs], reference=True)
        known.update(zip(node.outputs, results, strict=True))
    return known[value]


def rounded(classes: Classes, v: Value) -> Value:
    """A fixed value as a constant: computed in float64 and rounded once to its element type. Raises
    OverflowError where that makes a finite number infinite."""
    if known := classes.members(v, "constant"):
        return known[0].value
    v = classes.find(v)
    if v in classes.made:
        return classes.made[v]
    data = classes.data(v)
    with np.errstate(over="ignore"):
        array = data.astype(v.type.dtype.numpy)
    if v.type.dtype.is_float and np.isfinite(data).all() and not np.isfinite(array).all():
        raise OverflowError(f"a constant of up to {np.abs(data).max():.3g} is no {v.type.dtype}")
    classes.made[v] = constant(array)
    return classes.made[v]

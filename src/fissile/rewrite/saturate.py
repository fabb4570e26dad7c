"""Saturation: apply rules to a graph's classes until nothing new is found or a budget ends.

Every round looks at the nodes that are new or whose operands, or theirs, have new members; all that
is found joins at the end of the round, in the order of the nodes and rules. The result depends on
the graph and the rules alone, unless the time ends first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fissile.ir.graph import Graph, Node, Value
from fissile.rewrite.classes import Classes, Origin
from fissile.rewrite.rule import No, Rule

NODES = 12_000
SECONDS = 20.0
DEPTH = 2  # rules look at operands of operands
MERGED = ("contract", "conv", "reduce_sum")  # rules look at those of one operand


@dataclass
class Saturation:
    """What was found. `fired` and `refused` count by equation, the latter also by reason.
    `ended`: saturated, nodes or time."""

    classes: Classes
    fired: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    rounds: int = 0
    seconds: float = 0.0
    ended: str = "saturated"


def saturate(
    graph: Graph, rules: Iterable[Rule], exact: bool = False,
    nodes: int = NODES, seconds: float = SECONDS,
) -> Saturation:  # fmt: skip
    """All that the rules say of a graph. `exact`: only what rounds no float differently. `nodes`,
    `seconds`: where it ends."""
    begin = time.monotonic()
    found = Saturation(Classes(graph))
    table = _by_primitive(rules)
    todo: Collection[Node] = found.classes.nodes
    while todo:
        before = set(found.classes.nodes)
        matches = list(_matches(found, table, todo, exact, begin + seconds))
        _join(found, matches)
        found.rounds += 1
        fresh = [n for n in found.classes.nodes if n not in before]
        if found.ended != "saturated" or len(found.classes.nodes) > nodes:
            found.ended = "nodes" if found.ended == "saturated" else found.ended
            break
        todo = _touched(found.classes, fresh)
    found.seconds = time.monotonic() - begin
    return found


def _by_primitive(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for prim in rule.prims:
            table.setdefault(prim, []).append(rule)
    return table


Match = tuple[Rule, Node, Value]


def _matches(
    found: Saturation, table: dict[str, list[Rule]], todo: Iterable[Node], exact: bool, end: float
) -> Iterator[Match]:
    for node in todo:
        if time.monotonic() > end:
            found.ended = "time"
            return
        if all(found.classes.is_fixed(v) for v in node.outputs):
            continue  # computed beforehand, in whatever way
        for rule in table.get(node.prim, ()):
            if not rule.fits(node, exact):
                continue
            for result in rule.look(found.classes, node):
                if isinstance(result, No):
                    found.refused[rule.equation, result.reason] += 1
                else:
                    yield rule, node, result


def _join(found: Saturation, matches: Sequence[Match]) -> None:
    classes = found.classes
    for rule, node, value in matches:
        if any(classes.is_part(v, node.value) for v in value.node.inputs):
            continue  # x = f(x) is no way to compute x
        source = classes.origin[node].node
        made = classes.add(value, Origin(rule.equation, source))
        if classes.join(made, node.value):
            found.fired[rule.equation] += 1
        if rule.replaces and classes.is_alive(node) and len(classes.members(node.value)) > 1:
            classes.retire(node)
    classes.repair()


def _touched(classes: Classes, fresh: Iterable[Node]) -> list[Node]:
    """New nodes, those that read what they give, up to `DEPTH` steps away, and those that share an
    operand with a new one and may merge with it."""
    touched: dict[Node, None] = dict.fromkeys(n for n in fresh if classes.is_alive(n))
    level = list(touched)
    for n in [n for n in level if n.prim in MERGED]:
        beside = (r for v in n.inputs if not classes.is_fixed(v) for r in classes.users(v, *MERGED))
        touched.update(dict.fromkeys(beside))
    for _ in range(DEPTH):
        readers = dict.fromkeys(r for n in level for v in n.outputs for r in classes.users(v))
        level = [r for r in readers if r not in touched]
        touched.update(dict.fromkeys(level))
    return list(touched)

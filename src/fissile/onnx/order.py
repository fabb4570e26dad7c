"""Which nodes of a model graph count, and in what order they run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence

from onnx import AttributeProto, GraphProto, NodeProto

from fissile.errors import ModelError, shown


def title(node: NodeProto) -> str:
    """How messages and provenance name a node: its own name, else its first output's."""
    return node.name or next((o for o in node.output if o), "") or node.op_type


def live(
    nodes: Sequence[NodeProto],
    outputs: Collection[str],
    outer: Collection[str],
    own: Collection[str],
) -> list[NodeProto]:
    """The nodes that the outputs need, operands first, else as the model lists them.

    `outer` holds the names known before any node runs, `own` those of this very graph. Raises
    ModelError for names that nothing gives, that two nodes give, and for cycles."""
    giver: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in giver or name in own:
                raise ModelError(f"the name {shown(name)} is given twice, the second time by node "
                                 f"{shown(title(node))} ({node.op_type})")  # fmt: skip
            giver[name] = index
    needs = _needed(nodes, giver, outputs, outer)
    users: dict[int, list[int]] = {}
    for index, operands in needs.items():
        for operand in operands:
            users.setdefault(operand, []).append(index)
    waiting = {index: len(operands) for index, operands in needs.items()}
    ready = [index for index, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[NodeProto] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for user in users.get(index, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(order) < len(needs):
        stuck = nodes[min(index for index, count in waiting.items() if count)]
        raise ModelError(f"node {shown(title(stuck))} ({stuck.op_type}) waits for its own result: "
                         "the graph has a cycle")  # fmt: skip
    return order


def _needed(
    nodes: Sequence[NodeProto],
    giver: Mapping[str, int],
    outputs: Collection[str],
    outer: Collection[str],
) -> dict[int, set[int]]:
    """For every live node the nodes that it reads."""
    for name in outputs:
        if name not in giver and name not in outer:
            raise ModelError(
                f"the graph's output {shown(name)} is given by no node, input or initialiser"
            )
    needs: dict[int, set[int]] = {}
    stack = [giver[name] for name in outputs if name in giver]
    while stack:
        index = stack.pop()
        if index in needs:
            continue
        node = nodes[index]
        needs[index] = set()
        for name in reads(node):
            if name in giver:
                needs[index].add(giver[name])
            elif name not in outer:
                raise ModelError(f"node {shown(title(node))} ({node.op_type}) reads {shown(name)}, "
                                 "which no node, input or initialiser gives")  # fmt: skip
        stack.extend(needs[index])
    return needs


def reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, those that its subgraphs capture included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from captures(attribute.g)


def captures(graph: GraphProto) -> list[str]:
    """Names that a subgraph reads from outside."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    names = [name for node in graph.node for name in reads(node)]
    return [n for n in dict.fromkeys([*names, *(o.name for o in graph.output)]) if n not in own]

"""Constant folding of the primitives that one operator became.

Invariant: no value that depends on constants only stays unevaluated, unless it would be much larger
than what it is made from. Each primitive is computed in float64 and rounded once to its element
type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.prims import PRIMS, constant, make
from fissile.ir.types import dtype_of

# an Expand or ConstantOfShape larger than this stays a primitive
GROWTH_LIMIT_BYTES = 4 << 20


def between(outputs: Sequence[Value], borders: Collection[Value]) -> Iterator[Node]:
    """Nodes that the outputs need and that lie behind no border, operands first; no sources."""
    done: set[Node] = set()
    stack = [(v.node, False) for v in reversed(outputs) if v not in borders]
    while stack:
        node, expanded = stack.pop()
        if node in done or node.prim in ("input", "constant"):
            continue
        if expanded:
            done.add(node)
            yield node
            continue
        stack.append((node, True))
        stack.extend((v.node, False) for v in reversed(node.inputs) if v not in borders)


def fold(
    outputs: Sequence[Value], borders: Collection[Value]
) -> tuple[tuple[Value, ...], list[Node]]:
    """The outputs with constants folded, and the primitives that are left."""
    new: dict[Value, Value] = {}
    kept = []
    for node in between(outputs, borders):
        inputs = [new.get(v, v) for v in node.inputs]
        results = _folded(node, inputs)
        if not all(v.is_constant for v in results):
            kept.append(results[0].node)
        new.update(zip(node.outputs, results, strict=True))
    return tuple(new.get(v, v) for v in outputs), kept


def _folded(node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    if all(v.is_constant for v in inputs) and _stays_small(node, inputs):
        operands = [_wide(v.array) for v in inputs]
        with np.errstate(all="ignore"):
            arrays = PRIMS[node.prim].evaluate(*operands, **node.attrs)
            return tuple(
                constant(np.asarray(a).astype(t.dtype.numpy, copy=False))
                for a, t in zip(arrays, node.types, strict=True)
            )
    if tuple(inputs) == node.inputs:
        return node.outputs
    return make(node.prim, inputs, **node.attrs)


def _stays_small(node: Node, inputs: Sequence[Value]) -> bool:
    made = sum(t.size_bytes for t in node.types)
    return made <= max(GROWTH_LIMIT_BYTES, 2 * sum(v.type.size_bytes for v in inputs))


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if dtype_of(array).is_float else array

"""The reference: a graph evaluated with numpy, node by node.

With `reference=True` every float is computed in float64 (constants included), which is the
yardstick of the correctness policy (design, section 13). Otherwise each node rounds to its own
element type; half precision computes in f32 and rounds at each node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import PRIMS
from fissile.ir.semantics import wide


def evaluate(
    graph: Graph, inputs: Sequence[np.ndarray], reference: bool = False,
    changes: Mapping[Value, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The outputs for these inputs, in order. Values are dropped after their last reader. `changes`
    are made to values once they are computed."""
    changes = changes or {}
    known = {v: _enter(a, reference) for v, a in zip(graph.inputs, inputs, strict=True)}
    left = {v: len(users) for v, users in graph.users.items()}
    for v in (*graph.outputs, *graph.inputs):
        left[v] = left.get(v, 0) + 1
    for node in graph.nodes:
        if node.prim == "input":
            continue
        for value, array in zip(
            node.outputs, apply(node, [known[v] for v in node.inputs], reference), strict=True
        ):
            known[value] = changes[value](array) if value in changes else array
        for value in set(node.inputs):
            left[value] -= 1
            if not left[value]:
                del known[value]
    return [known[v] for v in graph.outputs]


def apply(node: Node, inputs: Sequence[np.ndarray], reference: bool = False) -> list[np.ndarray]:
    """One node on arrays."""
    operands = list(inputs) if reference else [wide(a) for a in inputs]
    with np.errstate(all="ignore"):
        results = PRIMS[node.prim].evaluate(*operands, **node.attrs)
    return [_leave(a, v, reference) for a, v in zip(results, node.outputs, strict=True)]


def _enter(array: np.ndarray, reference: bool) -> np.ndarray:
    narrow = array.dtype.kind not in "iubc" and array.dtype != np.float64
    return array.astype(np.float64) if reference and narrow else array


def _leave(array: np.ndarray, value: Value, reference: bool) -> np.ndarray:
    array = np.asarray(array)
    if reference and value.type.dtype.is_float:
        return array.astype(np.float64)
    return array.astype(value.type.dtype.numpy, copy=False)

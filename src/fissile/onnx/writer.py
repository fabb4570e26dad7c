"""Writes ONNX nodes for primitives: names, constants, and the table of ONNX forms.

    @export("transpose")
    def _transpose(w, node): ...

A primitive whose row names an ONNX operator, and that has no attributes, needs no entry. A padding
that feeds convolutions or pools only is folded into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from fissile.errors import ModelError
from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import PRIMS
from fissile.ir.types import dtype_of
from fissile.onnx.schema import NEWEST_OPSET

OPSET = 21  # what runtimes of 2024 and later know
_YOUNG = ("f4e2m1", "f8e8m0", "u2", "i2")  # element types that need a newer one
_FOLDS = ("conv", "window_max", "window_sum")


class Writer:
    """Collects nodes, constants and names."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.names: dict[Value, str] = {}
        self.origin = ""
        self.folded = {n for n in graph.primitives if n.prim == "pad" and self._folds(n)}
        self._taken = {*graph.input_names, *graph.output_names}
        self._titles: set[str] = set()
        self._counts: dict[str, int] = {}

    def _folds(self, node: Node) -> bool:
        """Whether all readers of this padding take it as their own."""
        users = self.graph.users.get(node.value, ())
        return (
            node.value not in self.graph.outputs
            and bool(users)
            and all(_takes(u, node) for u in users)
        )

    def fresh(self, hint: str, taken: set[str] | None = None) -> str:
        taken = self._taken if taken is None else taken
        name = hint
        while name in taken:
            self._counts[hint] = self._counts.get(hint, 1) + 1
            name = f"{hint}_{self._counts[hint]}"
        taken.add(name)
        return name

    def name(self, value: Value) -> str:
        if value not in self.names:
            if value.is_constant:
                self.names[value] = self.constant(value.array)
            else:
                self.names[value] = self.fresh(f"v{len(self.names)}")
        return self.names[value]

    def inputs(self, node: Node) -> list[str]:
        return [self.name(v) for v in node.inputs]

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        """The name of an initialiser; lists become i64 vectors."""
        name = self.fresh(f"c{len(self.constants)}")
        self.constants[name] = array if isinstance(array, np.ndarray) else np.asarray(array, dtype)
        return name

    def add(
        self, op: str, inputs: Sequence[str], name: str | None = None, **attributes: Any
    ) -> str:
        """A node with one result; the result's name."""
        name = name or self.fresh(f"t{len(self.nodes)}")
        self.add_many(op, inputs, [name], **attributes)
        return name

    def add_many(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        title = self.fresh(f"{self.origin}/{op}" if self.origin else op, self._titles)
        self.nodes.append(helper.make_node(op, inputs, outputs, title, **attributes))


def opset_for(graph: Graph) -> int:
    """The one opset, or the newest where an element type asks for it."""
    types = [v.type.dtype for node in graph.nodes for v in node.outputs]
    shifts = [n for n in graph.primitives if n.prim.startswith("shift")]
    young = any(t.name in _YOUNG for t in types)
    return NEWEST_OPSET if young or any(n.types[0].dtype.kind == "int" for n in shifts) else OPSET


Export = Callable[[Writer, Node], None]
EXPORTS: dict[str, Export] = {}


def export(*prims: str) -> Callable[[Export], Export]:
    def register(function: Export) -> Export:
        EXPORTS.update(dict.fromkeys(prims, function))
        return function

    return register


def _takes(user: Node, pad: Node) -> bool:
    """Whether this convolution or pool can do the padding itself."""
    if user.prim not in _FOLDS or user.inputs[0] is not pad.value or pad.value in user.inputs[1:]:
        return False
    lo, hi, value = pad.attrs["lo"], pad.attrs["hi"], pad.attrs["value"]
    if pad.attrs["mode"] != "constant" or any((*lo[:2], *hi[:2])):
        return False
    if user.prim == "conv":
        return value == 0 and pad.value.type.dtype.is_float
    # runtimes refuse pools whose window may lie in the padding alone
    fits = all(max(a, b) < k for a, b, k in zip(lo[2:], hi[2:], user.attrs["kernel"], strict=True))
    return fits and value == (-math.inf if user.prim == "window_max" else 0)


def write_node(w: Writer, node: Node) -> None:
    """Appends the ONNX form of a primitive."""
    w.origin = next(iter(w.graph.provenance.get(node, ())), "")
    write = EXPORTS.get(node.prim)
    op = PRIMS[node.prim].onnx
    if write is not None:
        write(w, node)
    elif op is not None and not node.attrs:
        w.add(op, w.inputs(node), w.name(node.value))
    else:
        raise ModelError(f"the primitive {node.prim} has no ONNX form")


def tensor(name: str, array: np.ndarray) -> TensorProto:
    dtype = dtype_of(array)
    if dtype.name in ("u4", "i4", "f4e2m1", "u2", "i2"):
        return numpy_helper.from_array(array, name)
    data = np.ascontiguousarray(array)
    return TensorProto(name=name, dims=array.shape, data_type=dtype.onnx, raw_data=data.tobytes())

"""Reductions, moves of data, gathers and scatters."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from fissile.ir.graph import Node
from fissile.ir.prims import PRIMS
from fissile.onnx.writer import Writer, export


@export("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
def _reduce(w: Writer, node: Node) -> None:
    op = PRIMS[node.prim].onnx or ""
    axes = w.constant(node.attrs["axes"])
    w.add(op, [*w.inputs(node), axes], w.name(node.value), keepdims=1, noop_with_empty_axes=1)


@export("argmax", "argmin")
def _argument(w: Writer, node: Node) -> None:
    (axis,), op = node.attrs["axes"], PRIMS[node.prim].onnx or ""
    last = int(node.attrs["last"])
    w.add(op, w.inputs(node), w.name(node.value), axis=axis, keepdims=1, select_last_index=last)


@export("broadcast")
def _broadcast(w: Writer, node: Node) -> None:
    w.add("Expand", [*w.inputs(node), w.constant(node.attrs["shape"])], w.name(node.value))


@export("transpose")
def _transpose(w: Writer, node: Node) -> None:
    w.add("Transpose", w.inputs(node), w.name(node.value), perm=node.attrs["perm"])


@export("reshape")
def _reshape(w: Writer, node: Node) -> None:
    shape = node.attrs["shape"]
    zero = {"allowzero": 1} if 0 in shape else {}
    w.add("Reshape", [*w.inputs(node), w.constant(shape)], w.name(node.value), **zero)


@export("slice")
def _slice(w: Writer, node: Node) -> None:
    (x,) = node.inputs
    start, size, step = node.attrs["start"], node.attrs["size"], node.attrs["step"]
    axes = [a for a in range(x.rank) if (start[a], size[a], step[a]) != (0, x.shape[a], 1)]
    ends = [start[a] + size[a] * step[a] for a in axes]
    # an end before the first element cannot be written as -1, which counts from the end
    ends = [e if e >= 0 else np.iinfo(np.int64).min for e in ends]
    rows = [[start[a] for a in axes], ends, axes, [step[a] for a in axes]]
    w.add("Slice", [w.name(x), *map(w.constant, rows)], w.name(node.value))


@export("concat")
def _concat(w: Writer, node: Node) -> None:
    w.add("Concat", w.inputs(node), w.name(node.value), axis=node.attrs["axis"])


@export("pad")
def _pad(w: Writer, node: Node) -> None:
    (x,), mode = node.inputs, node.attrs["mode"]
    inputs = [w.name(x), w.constant((*node.attrs["lo"], *node.attrs["hi"]))]
    if mode == "constant":
        inputs.append(w.constant(np.asarray(node.attrs["value"]).astype(x.type.dtype.numpy)))
    w.add("Pad", inputs, w.name(node.value), mode=mode)


@export("gather")
def _gather(w: Writer, node: Node) -> None:
    x, index = w.inputs(node)
    if node.inputs[1].type.dtype.name not in ("i32", "i64"):
        index = w.add("Cast", [index], to=TensorProto.INT64)
    w.add("Gather", [x, index], w.name(node.value), axis=node.attrs["axis"])


@export("scatter")
def _scatter(w: Writer, node: Node) -> None:
    x, index, updates = w.inputs(node)
    column = w.add("Unsqueeze", [index, w.constant([1])])
    how = node.attrs["reduction"]
    w.add("ScatterND", [x, column, updates], w.name(node.value), reduction=how)


@export("topk")
def _topk(w: Writer, node: Node) -> None:
    inputs = [*w.inputs(node), w.constant([node.attrs["k"]])]
    outputs = [w.name(v) for v in node.outputs]
    w.add_many("TopK", inputs, outputs, axis=node.attrs["axis"], largest=int(node.attrs["largest"]))

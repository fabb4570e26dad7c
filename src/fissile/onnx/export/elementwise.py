"""Elementwise primitives that are more than one ONNX operator of the same name."""

from __future__ import annotations

import numpy as np

from fissile.ir.graph import Node
from fissile.ir.types import BY_NAME
from fissile.onnx.writer import Writer, export


@export("rsqrt")
def _rsqrt(w: Writer, node: Node) -> None:
    w.add("Reciprocal", [w.add("Sqrt", w.inputs(node))], w.name(node.value))


@export("clip")
def _clip(w: Writer, node: Node) -> None:
    x, low, high = w.inputs(node)
    if all(v.rank == 0 for v in node.inputs[1:]):
        w.add("Clip", [x, low, high], w.name(node.value))
    else:
        w.add("Min", [w.add("Max", [x, low]), high], w.name(node.value))


@export("cast")
def _cast(w: Writer, node: Node) -> None:
    to = BY_NAME[node.attrs["to"]]
    # the model's own saturation, if any, is spelt out before
    own = {"saturate": 0} if to.name.startswith("f8") else {}
    w.add("Cast", w.inputs(node), w.name(node.value), to=to.onnx, **own)


@export("fmod")
def _fmod(w: Writer, node: Node) -> None:
    w.add("Mod", w.inputs(node), w.name(node.value), fmod=1)


@export("mod")
def _mod(w: Writer, node: Node) -> None:
    """ONNX takes the divisor's sign for integers only; for floats the remainder is moved there."""
    if not node.value.type.dtype.is_float:
        w.add("Mod", w.inputs(node), w.name(node.value), fmod=0)
        return
    x, y = w.inputs(node)
    rest = w.add("Mod", [x, y], fmod=1)
    zero = w.constant(np.zeros((), node.value.type.dtype.numpy))
    opposite = w.add("Less", [w.add("Mul", [w.add("Sign", [rest]), w.add("Sign", [y])]), zero])
    w.add("Where", [opposite, w.add("Add", [rest, y]), rest], w.name(node.value))


@export("shift_left", "shift_right")
def _shift(w: Writer, node: Node) -> None:
    direction = node.prim.removeprefix("shift_").upper()
    w.add("BitShift", w.inputs(node), w.name(node.value), direction=direction)

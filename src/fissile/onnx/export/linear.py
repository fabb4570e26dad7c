"""Convolutions, windows and contractions. A padding before a window may become the window's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from fissile.ir.graph import Node, Value
from fissile.ir.semantics import split_spec
from fissile.onnx.writer import Writer, export


def _padded(w: Writer, node: Node) -> tuple[str, dict[str, Any]]:
    """The input's name, and the padding that the node takes over."""
    x = node.inputs[0]
    if x.node not in w.folded:
        return w.name(x), {}
    pads = (*x.node.attrs["lo"][2:], *x.node.attrs["hi"][2:])
    return w.name(x.node.inputs[0]), {"pads": pads}


@export("conv")
def _conv(w: Writer, node: Node) -> None:
    x, pads = _padded(w, node)
    a, weights = node.attrs, node.inputs[1]
    if not node.value.type.dtype.is_float:
        return _integer_conv(w, node)
    w.add("Conv", [x, w.name(weights)], w.name(node.value), strides=a["strides"],
          dilations=a["dilations"], group=a["groups"], kernel_shape=weights.shape[2:],
          **pads)  # fmt: skip
    return None


def _integer_conv(w: Writer, node: Node) -> None:
    """ONNX convolves floats only: one matrix product per tap of the kernel, summed."""
    (x, weights), a = node.inputs, node.attrs
    n, m, *space = node.value.shape
    groups, per_group, kernel = a["groups"], weights.shape[1], weights.shape[2:]
    axes = list(range(2, x.rank))
    grouped = w.constant([groups, m // groups, per_group, math.prod(kernel)])
    flat = w.add("Reshape", [w.name(weights), grouped])
    columns = w.constant([n, groups, per_group, math.prod(space)])
    total = None
    for index, tap in enumerate(product(*map(range, kernel))):
        start = [t * d for t, d in zip(tap, a["dilations"], strict=True)]
        ends = [b + (s - 1) * d + 1 for b, s, d in zip(start, space, a["strides"], strict=True)]
        cut = w.add("Slice", [w.name(x), *map(w.constant, (start, ends, axes, a["strides"]))])
        tap_weights = w.add("Gather", [flat, w.constant(np.asarray(index))], axis=3)
        term = w.add("MatMul", [tap_weights, w.add("Reshape", [cut, columns])])
        total = term if total is None else w.add("Add", [total, term])
    w.add("Reshape", [total or "", w.constant(node.value.shape)], w.name(node.value))


@export("window_max")
def _window_max(w: Writer, node: Node) -> None:
    x, pads = _padded(w, node)
    a = node.attrs
    w.add("MaxPool", [x], w.name(node.value), kernel_shape=a["kernel"], strides=a["strides"],
          dilations=a["dilations"], **pads)  # fmt: skip


@export("window_sum")
def _window_sum(w: Writer, node: Node) -> None:
    """The mean with padding counted, times the number of elements."""
    x, pads = _padded(w, node)
    a, own = node.attrs, node.value.type.dtype.numpy
    mean = w.add("AveragePool", [x], kernel_shape=a["kernel"], strides=a["strides"],
                 dilations=a["dilations"], count_include_pad=1, **pads)  # fmt: skip
    count = w.constant(np.asarray(math.prod(a["kernel"])).astype(own))
    w.add("Mul", [mean, count], w.name(node.value))


@export("contract")
def _contract(w: Writer, node: Node) -> None:
    """A MatMul between transposes and reshapes; an Einsum where one operand alone is summed."""
    left, right, out = split_spec(node.attrs["spec"])
    a, b = node.inputs
    if _stacked(left, right, out):
        w.add("MatMul", w.inputs(node), w.name(node.value))
    elif _stacked(right, left, out):
        w.add("MatMul", [w.name(b), w.name(a)], w.name(node.value))
    elif any(c not in out for c in set(left) ^ set(right)):
        w.add("Einsum", w.inputs(node), w.name(node.value), equation=node.attrs["spec"])
    else:
        _matmul(w, node, left, right, out)


def moved_bytes(node: Node, is_fixed: Callable[[Value], bool]) -> int:
    """What transposes around the ONNX form of a contraction move, of operands that are not fixed
    and of the result. An Einsum moves all."""
    left, right, out = split_spec(node.attrs["spec"])
    if _stacked(left, right, out) or _stacked(right, left, out):
        return 0
    a, b = node.inputs
    values = [(a, left), (b, right), (node.value, out)]
    if any(c not in out for c in set(left) ^ set(right)):
        return sum(v.type.size_bytes for v, _ in values)
    batch = "".join(c for c in out if c in left and c in right)
    k = "".join(c for c in left if c in right and c not in out)
    m, n = ("".join(c for c in out if c not in other) for other in (right, left))
    natural = (batch + m + k, batch + k + n, batch + m + n)
    return sum(
        v.type.size_bytes
        for (v, labels), wanted in zip(values, natural, strict=True)
        if labels != wanted and not is_fixed(v)
    )


def _stacked(left: str, right: str, out: str) -> bool:
    """Whether the contraction is numpy's matmul as it is: [batch..., m, k] times [..., k, n]."""
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2] or left[-1] in out:
        return False
    m, n, one, two = left[-2], right[-1], left[:-2], right[:-2]
    longer, shorter = (one, two) if len(one) >= len(two) else (two, one)
    return m not in right and n not in left and longer.endswith(shorter) and out == longer + m + n


def _matmul(w: Writer, node: Node, left: str, right: str, out: str) -> None:
    a, b = node.inputs
    extent = dict(zip(left + right, a.shape + b.shape, strict=True))
    batch = "".join(c for c in out if c in left and c in right)
    k = "".join(c for c in left if c in right and c not in out)
    m = "".join(c for c in out if c not in right)
    n = "".join(c for c in out if c not in left)
    size = {g: math.prod(extent[c] for c in g) for g in (k, m, n)}
    lead = [extent[c] for c in batch]
    x = _arranged(w, a, left, batch + m + k, [*lead, size[m], size[k]])
    y = _arranged(w, b, right, batch + k + n, [*lead, size[k], size[n]])
    natural = batch + m + n
    steps: list[tuple[str, list[int]]] = []
    if len(m) != 1 or len(n) != 1:
        steps.append(("Reshape", [extent[c] for c in natural]))
    if natural != out:
        steps.append(("Transpose", [natural.index(c) for c in out]))
    result = w.add("MatMul", [x, y], None if steps else w.name(node.value))
    for index, (op, how) in enumerate(steps):
        name = w.name(node.value) if index == len(steps) - 1 else None
        if op == "Reshape":
            result = w.add(op, [result, w.constant(how)], name)
        else:
            result = w.add(op, [result], name, perm=how)


def _arranged(w: Writer, x: Value, labels: str, wanted: str, shape: Sequence[int]) -> str:
    """x with its axes in the wanted order, grouped to the given shape; constants at once."""
    perm = [labels.index(c) for c in wanted]
    if x.is_constant:
        return w.constant(np.ascontiguousarray(np.transpose(x.array, perm).reshape(shape)))
    name = w.name(x)
    if perm != sorted(perm):
        name = w.add("Transpose", [name], perm=perm)
    if tuple(x.shape[p] for p in perm) != tuple(shape):
        name = w.add("Reshape", [name, w.constant(shape)])
    return name

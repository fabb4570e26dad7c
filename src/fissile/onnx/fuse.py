"""Operators again: what fission has split, where runtimes are faster with the whole.

    @recognise("div")
    def _softmax(node): yield Form("Softmax", (x,), {"axis": ...})

A guess reads operands and attributes off the graph, from an operator's last primitive upwards.
Then fission splits the guessed operator, and it stands only if that gives the very same value:
nodes are interned, so equal means identical. No guess can be wrong, only missing. Interpolations
are compared by their matrices instead, as they may come in any order of axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import constant
from fissile.ir.semantics import split_spec
from fissile.onnx.fission.resize import interpolation
from fissile.onnx.fold import between, fold
from fissile.onnx.rule import call, rule_for
from fissile.onnx.writer import OPSET, Writer

SHARED = ("pad", "reshape")  # may stand in two operators, and be written for others as well


@dataclass(frozen=True)
class Form:
    """An operator of one result. Inputs are values, those it makes of constants included."""

    op: str
    inputs: tuple[Value | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    proven: bool = False


Guess = Callable[[Node], Iterator[Form]]
GUESSES: dict[str, list[Guess]] = {}


def recognise(*prims: str) -> Callable[[Guess], Guess]:
    def register(guess: Guess) -> Guess:
        for prim in prims:
            GUESSES.setdefault(prim, []).append(guess)
        return guess

    return register


def forms(graph: Graph) -> dict[Node, Form]:
    """The operators that stand for primitives, by their last one. What they cover is read by
    nobody else."""
    found: dict[Node, Form] = {}
    covered: set[Node] = set()
    for node in reversed(graph.primitives):
        if node in covered or len(node.outputs) != 1:
            continue
        for guess in GUESSES.get(node.prim, ()):
            form = next((f for f in guess(node) if _stands(graph, node, f)), None)
            if form is not None:
                found[node] = form
                covered |= _inside(node, form)
                break
    return found


def live(graph: Graph, found: Mapping[Node, Form]) -> set[Node]:
    """The nodes that are written, given the operators that stand for others."""
    todo, seen = [v.node for v in graph.outputs], set[Node]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        inputs = found[node].inputs if node in found else node.inputs
        todo += [v.node for v in inputs if v is not None]
    return seen


def write(w: Writer, node: Node, form: Form) -> None:
    w.origin = next(iter(w.graph.provenance.get(node, ())), "")
    names = [w.name(v) if v is not None else "" for v in form.inputs]
    w.add(form.op, names, w.name(node.value), **form.attrs)


def _inside(node: Node, form: Form) -> set[Node]:
    return set(between([node.value], {v for v in form.inputs if v is not None}))


def _stands(graph: Graph, node: Node, form: Form) -> bool:
    inside = _inside(node, form)
    outputs = {v.node for v in graph.outputs}
    for n in inside - {node}:
        readers = {r for v in n.outputs for r in graph.users.get(v, ())}
        if n.prim not in SHARED and (n in outputs or not readers <= inside):
            return False
    return form.proven or _split(form) is node.value


def _split(form: Form) -> Value | None:
    """What fission makes of an operator; None where it does not take it."""
    rule = rule_for("", form.op, OPSET)
    if rule is None:
        return None
    try:
        results = call(rule, form.inputs, form.attrs, OPSET, 1)
    except (ModelError, ValueError):
        return None
    folded, _ = fold(results[:1], {v for v in form.inputs if v is not None})
    return folded[0]


# ---------------------------------------------------------------- looking


def _operand(node: Node, prim: str) -> Iterator[tuple[Node, Value]]:
    """(the operand's node, the other operand) of a node of two."""
    for a, b in (node.inputs, node.inputs[::-1]):
        if a.node.prim == prim:
            yield a.node, b


def _vector(v: Value) -> Value:
    """A constant without axes of extent 1."""
    return constant(v.array.reshape(-1))


def _numbers(v: Value) -> float | None:
    return float(v.array.reshape(())) if v.is_constant and v.type.numel == 1 else None


# ---------------------------------------------------------------- rows


@recognise("div")
def _softmax(node: Node) -> Iterator[Form]:
    e, total = (v.node for v in node.inputs)
    if (e.prim, total.prim) == ("exp", "reduce_sum") and e.inputs[0].node.prim == "sub":
        x = e.inputs[0].node.inputs[0]
        axes = total.attrs["axes"]
        if len(axes) == 1:
            yield Form("Softmax", (x,), {"axis": axes[0]})


@recognise("sub")
def _log_softmax(node: Node) -> Iterator[Form]:
    if node.inputs[1].node.prim == "log" and node.inputs[0].node.prim == "sub":
        total = node.inputs[1].node.inputs[0].node
        if total.prim == "reduce_sum" and len(total.attrs["axes"]) == 1:
            yield Form(
                "LogSoftmax", (node.inputs[0].node.inputs[0],), {"axis": total.attrs["axes"][0]}
            )


@recognise("add", "mul")
def _layer_norm(node: Node) -> Iterator[Form]:
    """centred * inverse * scale + bias, with scale and bias or without."""
    shifted = [(m, b) for m, b in _operand(node, "mul") if b.is_constant]
    if node.prim == "add":
        for m, bias in shifted:
            for n, scale in _operand(m, "mul"):
                if scale.is_constant:
                    yield from _normalised(n, scale, bias)
        return
    for n, scale in shifted:
        yield from _normalised(n, scale, None)
    yield from _normalised(node, None, None)


def _normalised(n: Node, scale: Value | None, bias: Value | None) -> Iterator[Form]:
    for centred, inverse in _operand(n, "sub"):
        epsilon = _epsilon(inverse)
        mean = centred.inputs[1].node
        if epsilon is None or mean.prim != "reduce_mean":
            continue
        x, axes = centred.inputs[0], mean.attrs["axes"]
        if axes != tuple(range(axes[0], x.rank)):
            continue
        shape = x.shape[axes[0] :]
        dtype = x.type.dtype.numpy
        if scale is not None and scale.shape != shape:
            continue
        ones = scale or constant(np.ones(shape, dtype))
        inputs = (x, ones) if bias is None or bias.shape != shape else (x, ones, bias)
        yield Form(
            "LayerNormalization", inputs, {"axis": axes[0], "epsilon": epsilon}, scale is None
        )


def _epsilon(inverse: Value) -> float | None:
    """That of 1 / sqrt(variance + epsilon)."""
    if inverse.node.prim != "rsqrt" or inverse.node.inputs[0].node.prim != "add":
        return None
    return _numbers(inverse.node.inputs[0].node.inputs[1])


@recognise("add")
def _instance_norm(node: Node) -> Iterator[Form]:
    for m, bias in _operand(node, "mul"):
        for centred, factor in _operand(m, "sub"):
            if factor.node.prim != "mul" or not bias.is_constant:
                continue
            inverse, scale = factor.node.inputs
            epsilon = _epsilon(inverse)
            if epsilon is not None and scale.is_constant:
                inputs = (centred.inputs[0], _vector(scale), _vector(bias))
                yield Form("InstanceNormalization", inputs, {"epsilon": epsilon})


# ---------------------------------------------------------------- activations


@recognise("max")
def _relu(node: Node) -> Iterator[Form]:
    if not node.value.type.dtype.is_float:
        return  # runtimes lack some of the others
    yield Form("Relu", (node.inputs[0],))
    for m, x in _operand(node, "mul"):
        slope = next((v for v in m.inputs if v.is_constant), None)
        if slope is not None and slope.type.numel == 1:
            yield Form("LeakyRelu", (x,), {"alpha": float(slope.array.reshape(()))})


@recognise("mul")
def _hard_swish(node: Node) -> Iterator[Form]:
    for _, x in _operand(node, "clip"):
        yield Form("HardSwish", (x,))


@recognise("clip")
def _hard_sigmoid(node: Node) -> Iterator[Form]:
    inner = node.inputs[0].node
    if inner.prim == "add" and inner.inputs[0].node.prim == "mul":
        m = inner.inputs[0].node
        alpha, beta = _numbers(m.inputs[1]), _numbers(inner.inputs[1])
        if alpha is not None and beta is not None:
            yield Form("HardSigmoid", (m.inputs[0],), {"alpha": alpha, "beta": beta})


@recognise("mul")
def _gelu(node: Node) -> Iterator[Form]:
    for half, _ in _operand(node, "mul"):
        yield Form("Gelu", (half.inputs[0],))
        yield Form("Gelu", (half.inputs[0],), {"approximate": "tanh"})


# ---------------------------------------------------------------- windows


def _window_attrs(node: Node, kernel: tuple[int, ...]) -> tuple[Value, dict[str, Any]]:
    """The operand and the attributes of a convolution or pool, a padding taken over."""
    x, attrs = node.inputs[0], {"strides": node.attrs["strides"], "kernel_shape": kernel}
    border = x.node
    if border.prim == "pad" and border.attrs["mode"] == "constant":
        lo, hi = border.attrs["lo"], border.attrs["hi"]
        if not any((*lo[:2], *hi[:2])):
            return border.inputs[0], attrs | {"pads": (*lo[2:], *hi[2:])}
    return x, attrs


@recognise("add")
def _convolution(node: Node) -> Iterator[Form]:
    """With its bias."""
    for c, bias in _operand(node, "conv"):
        w = c.inputs[1]
        if not bias.is_constant or bias.type.numel != w.shape[0] or not w.is_constant:
            continue
        x, attrs = _window_attrs(c, w.shape[2:])
        attrs |= {"dilations": c.attrs["dilations"], "group": c.attrs["groups"]}
        yield Form("Conv", (x, w, _vector(bias)), attrs)


@recognise("add")
def _gemm(node: Node) -> Iterator[Form]:
    """A product of matrices with a row of biases. Its labels may be any letters."""
    for product, bias in _operand(node, "contract"):
        x, w = product.inputs
        left, right, out = split_spec(product.attrs["spec"])
        if not (w.is_constant and bias.is_constant and x.rank == w.rank == 2):
            continue
        columns = node.value.shape[-1:]
        if bias.shape not in (columns, (1, *columns)) or left[1] in out or left[0] in right:
            continue
        if out == left[0] + right[1] and right[0] == left[1]:
            yield Form("Gemm", (x, w, _vector(bias)), {}, proven=True)
        elif out == left[0] + right[0] and right[1] == left[1]:
            yield Form("Gemm", (x, w, _vector(bias)), {"transB": 1}, proven=True)


@recognise("mul")
def _average(node: Node) -> Iterator[Form]:
    for total, _ in _operand(node, "window_sum"):
        x, attrs = _window_attrs(total, total.attrs["kernel"])
        for counted in (0, 1):
            yield Form("AveragePool", (x,), attrs | {"count_include_pad": counted})


@recognise("reduce_mean")
def _global_average(node: Node) -> Iterator[Form]:
    x = node.inputs[0]
    if x.rank > 2 and node.attrs["axes"] == tuple(range(2, x.rank)):
        yield Form("GlobalAveragePool", (x,))


@recognise("reshape")
def _depth_to_space(node: Node) -> Iterator[Form]:
    turned = node.inputs[0].node
    if turned.prim != "transpose" or turned.inputs[0].node.prim != "reshape":
        return
    x = turned.inputs[0].node.inputs[0]
    if x.rank == 4 and node.value.rank == 4 and node.value.shape[2] % max(x.shape[2], 1) == 0:
        size = node.value.shape[2] // max(x.shape[2], 1)
        for mode in ("DCR", "CRD"):
            yield Form("DepthToSpace", (x,), {"blocksize": size, "mode": mode})


# ---------------------------------------------------------------- interpolation

_MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")


@recognise("contract")
def _interpolated(node: Node) -> Iterator[Form]:
    """One axis, or two of the same kind one after another."""
    last = _one_axis(node)
    if last is None:
        return
    x, axis, mode = last
    inner = _one_axis(x.node) if x.node.prim == "contract" else None
    if inner is not None and inner[2] == mode and inner[1] != axis:
        yield _resize(inner[0], node.value, mode)
    yield _resize(x, node.value, mode)


def _resize(x: Value, y: Value, mode: str) -> Form:
    sizes = constant(np.array(y.shape, np.int64))
    attrs = {"mode": "linear", "coordinate_transformation_mode": mode}
    return Form("Resize", (x, None, None, sizes), attrs, proven=True)


def _one_axis(node: Node) -> tuple[Value, int, str] | None:
    """(operand, axis, mode) of a contraction that interpolates linearly."""
    left, right, out = split_spec(node.attrs["spec"])
    for x, w, at, of in (
        (*node.inputs, left, right), (*node.inputs[::-1], right, left),
    ):  # fmt: skip
        if not w.is_constant or w.rank != 2 or x.is_constant:
            continue
        for k, z, matrix in ((of[1], of[0], w.array), (of[0], of[1], w.array.T)):
            if k in at and z not in at and out == at.replace(k, z):
                for mode in _MODES:
                    if _is_matrix(matrix, mode):
                        return x, at.index(k), mode
    return None


def _is_matrix(matrix: np.ndarray, mode: str) -> bool:
    count, size = matrix.shape
    if not matrix.size:
        return False  # runtimes refuse a scale of zero
    wanted = _matrix(count, size, mode)
    return bool(np.array_equal(wanted.astype(matrix.dtype), matrix))


@cache
def _matrix(count: int, size: int, mode: str) -> np.ndarray:
    return interpolation(count, size, mode)


@recognise("gather")
def _repeated(node: Node) -> Iterator[Form]:
    """Nearest, by whole factors: the map's axes one after another."""
    x, scales = node.value, [1] * node.value.rank
    while x.node.prim == "gather":
        axis, times = x.node.attrs["axis"], _times(x.node)
        if not times or scales[axis] != 1:
            break
        x, scales[axis] = x.node.inputs[0], times
    if x is not node.value and math.prod(scales) > 1 and node.value.type.numel:
        attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                 "nearest_mode": "floor"}  # fmt: skip
        sizes = constant(np.array(node.value.shape, np.int64))
        yield Form("Resize", (x, None, None, sizes), attrs, proven=True)


def _times(node: Node) -> int:
    x, indices = node.inputs
    n = x.shape[node.attrs["axis"]]
    if not indices.is_constant or indices.rank != 1 or not n or indices.type.numel % n:
        return 0
    times = indices.type.numel // n
    same = np.array_equal(indices.array, np.repeat(np.arange(n), times))
    return times if same and times > 1 else 0

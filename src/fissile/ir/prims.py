"""The primitives: one row each.

    A row: name, class, type inference, numpy semantics (the oracle), C expression where
    elementwise, and the ONNX operator of the same meaning where there is one.
                                                         (design, section 4; Korch, section 3)

Classes are Korch's: elementwise; reduce and broadcast; layout; linear; window (pooling); opaque.
Departures that keep the graph small: an elementwise primitive broadcasts its operands as numpy
does, so `broadcast` is needed only where a model asks for it; reductions keep their axes with
extent 1, so that the rank never changes under them. Convolution and pooling know no padding: `pad`
is a primitive of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from fissile.ir import infer
from fissile.ir import semantics as sem
from fissile.ir.graph import OPERATORS, Literal, Node, Operand, Value, intern
from fissile.ir.infer import Attrs
from fissile.ir.types import BOOL, F32, I64, DType, TensorType


class Kind(Enum):
    ELEMENTWISE = "elementwise"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    LAYOUT = "layout"
    LINEAR = "linear"
    WINDOW = "window"
    OPAQUE = "opaque"
    SOURCE = "source"


@dataclass(frozen=True)
class Primitive:
    """`infer` maps operand types and attributes to output types and raises ValueError with the
    reason. `evaluate` maps arrays to a tuple of arrays. `c` is a format string over operand
    expressions whose functions `runtime/vec.h` overloads for scalars and vectors."""

    name: str
    kind: Kind
    infer: Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]
    evaluate: Callable[..., tuple[np.ndarray, ...]]
    c: str | None = None
    onnx: str | None = None
    flops: float = 1.0  # vector operations per output element where elementwise


PRIMS: dict[str, Primitive] = {}


def row(primitive: Primitive) -> Primitive:
    PRIMS[primitive.name] = primitive
    return primitive


def kind(node: Node) -> Kind:
    return PRIMS[node.prim].kind


def make(prim: str, inputs: Sequence[Value], **attrs: Any) -> tuple[Value, ...]:
    """Apply a primitive. Raises ValueError where types do not fit."""
    types = PRIMS[prim].infer([v.type for v in inputs], attrs)
    return intern(prim, inputs, attrs, types).outputs


# ---------------------------------------------------------------- sources


def _source(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (attrs["value"].type,)


def _data(value: Literal) -> tuple[np.ndarray]:
    return (value.array,)


def _nothing(**_: Any) -> tuple[np.ndarray, ...]:
    return ()


row(Primitive("constant", Kind.SOURCE, _source, _data))
row(Primitive("input", Kind.SOURCE, lambda types, attrs: (), _nothing))


def _default(data: object) -> DType | None:
    """The element type of Python's numbers and lists; None for numpy's data, which has its own."""
    if isinstance(data, np.ndarray | np.generic):
        return None
    known: dict[type, DType] = {bool: BOOL, int: I64, float: F32}
    return known.get(type(data), F32)


def constant(array: Any, dtype: DType | None = None) -> Value:
    """A constant value. Python floats become f32 unless a dtype is given."""
    default = _default(array)
    data: np.ndarray = np.asarray(array, dtype=(dtype or default).numpy if default else None)
    literal = Literal(data if dtype is None else data.astype(dtype.numpy))
    return intern("constant", (), {"value": literal}, (literal.type,)).value


# ---------------------------------------------------------------- elementwise


def _unary(name: str, c: str, fn: Callable[..., Any], onnx: str | None, flops: float = 1) -> None:
    def evaluate(x: np.ndarray) -> tuple[np.ndarray]:
        return (fn(x),)

    row(Primitive(name, Kind.ELEMENTWISE, infer.same, evaluate, c, onnx, flops))


def _binary(name: str, c: str, fn: Callable[..., Any], onnx: str | None, flops: float = 1) -> None:
    def evaluate(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray]:
        return (fn(x, y),)

    row(Primitive(name, Kind.ELEMENTWISE, infer.same, evaluate, c, onnx, flops))


def _predicate(name: str, c: str, fn: Callable[..., Any], onnx: str | None) -> None:
    row(Primitive(name, Kind.ELEMENTWISE, infer.compare, lambda *xs: (fn(*xs),), c, onnx))


_unary("neg", "-{0}", np.negative, "Neg")
_unary("abs", "abs({0})", np.abs, "Abs")
_unary("sign", "sign({0})", np.sign, "Sign", 2)
_unary("floor", "floor({0})", np.floor, "Floor")
_unary("ceil", "ceil({0})", np.ceil, "Ceil")
_unary("round", "round_even({0})", np.round, "Round")
_unary("sqrt", "sqrt({0})", np.sqrt, "Sqrt", 8)
_unary("rsqrt", "rsqrt({0})", sem.rsqrt, None, 12)
_unary("reciprocal", "reciprocal({0})", sem.reciprocal, "Reciprocal", 5)
_unary("exp", "exp({0})", np.exp, "Exp", 9)
_unary("log", "log({0})", np.log, "Log", 18)
_unary("tanh", "tanh({0})", np.tanh, "Tanh", 19)
_unary("erf", "erf({0})", sem.erf, "Erf", 16)
_unary("sigmoid", "sigmoid({0})", sem.sigmoid, "Sigmoid", 12)
_unary("softplus", "softplus({0})", sem.softplus, "Softplus", 19)
_unary("mish", "mish({0})", sem.mish, "Mish", 15)  # rewriting makes it: fission splits Mish
for _name in (
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
):
    _full = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
             "acosh": "arccosh", "atanh": "arctanh"}.get(_name, _name)  # fmt: skip
    _unary(_name, _name + "({0})", getattr(np, _full), _name.capitalize(), 24)
_unary("not", "!{0}", np.logical_not, "Not")
_unary("bit_not", "~{0}", np.invert, "BitwiseNot")

_binary("add", "{0} + {1}", np.add, "Add")
_binary("sub", "{0} - {1}", np.subtract, "Sub")
_binary("mul", "{0} * {1}", np.multiply, "Mul")
_binary("div", "divide({0}, {1})", sem.divide, "Div", 5)
_binary("mod", "modulo({0}, {1})", sem.modulo, "Mod", 8)
_binary("fmod", "fmod({0}, {1})", np.fmod, "Mod", 8)
_binary("pow", "pow({0}, {1})", sem.power, "Pow", 36)
_binary("min", "min({0}, {1})", np.minimum, "Min")
_binary("max", "max({0}, {1})", np.maximum, "Max")
_binary("and", "{0} && {1}", np.logical_and, "And")
_binary("or", "{0} || {1}", np.logical_or, "Or")
_binary("xor", "{0} != {1}", np.logical_xor, "Xor")
_binary("bit_and", "{0} & {1}", np.bitwise_and, "BitwiseAnd")
_binary("bit_or", "{0} | {1}", np.bitwise_or, "BitwiseOr")
_binary("bit_xor", "{0} ^ {1}", np.bitwise_xor, "BitwiseXor")
_binary("shift_left", "{0} << {1}", np.left_shift, "BitShift")
_binary("shift_right", "{0} >> {1}", np.right_shift, "BitShift")
_predicate("equal", "{0} == {1}", np.equal, "Equal")
_predicate("less", "{0} < {1}", np.less, "Less")
_predicate("less_equal", "{0} <= {1}", np.less_equal, "LessOrEqual")
_predicate("is_nan", "is_nan({0})", np.isnan, "IsNaN")
_predicate("is_inf", "is_inf({0})", np.isinf, "IsInf")
row(Primitive("clip", Kind.ELEMENTWISE, infer.same, sem.clip,
              "min(max({0}, {1}), {2})", "Clip", 2))  # fmt: skip
row(Primitive("where", Kind.ELEMENTWISE, infer.select, sem.select,
              "select({0}, {1}, {2})", "Where"))  # fmt: skip
row(Primitive("cast", Kind.ELEMENTWISE, infer.cast, sem.cast, "cast<{to}>({0})", "Cast"))


def _operands(*operands: Operand) -> list[Value]:
    """Python numbers become constants of the other operands' element type."""
    dtype = next((o.type.dtype for o in operands if isinstance(o, Value)), F32)
    return [o if isinstance(o, Value) else constant(o, dtype) for o in operands]


def elementwise(name: str) -> Callable[..., Value]:
    def apply(*operands: Operand) -> Value:
        return make(name, _operands(*operands))[0]

    apply.__name__ = name
    return apply


neg, abs_, sign, floor, ceil = map(elementwise, ("neg", "abs", "sign", "floor", "ceil"))
round_, sqrt, rsqrt, reciprocal = map(elementwise, ("round", "sqrt", "rsqrt", "reciprocal"))
exp, log, tanh, erf = map(elementwise, ("exp", "log", "tanh", "erf"))
sigmoid, softplus, mish = map(elementwise, ("sigmoid", "softplus", "mish"))
logical_not = elementwise("not")
add, sub, mul, div = map(elementwise, ("add", "sub", "mul", "div"))
pow_, minimum, maximum, clip = map(elementwise, ("pow", "min", "max", "clip"))
equal, less, less_equal = map(elementwise, ("equal", "less", "less_equal"))
logical_and, logical_or = map(elementwise, ("and", "or"))
is_nan, is_inf = map(elementwise, ("is_nan", "is_inf"))
OPERATORS.update(add=add, sub=sub, mul=mul, div=div, neg=neg)


def where(condition: Value, x: Operand, y: Operand) -> Value:
    return make("where", [condition, *_operands(x, y)])[0]


def cast(x: Value, to: DType) -> Value:
    return x if x.type.dtype == to else make("cast", [x], to=to.name)[0]


# ---------------------------------------------------------------- reduce and broadcast


_REDUCTIONS = {"sum": sem.total, "mean": sem.mean, "max": np.max, "min": np.min, "prod": np.prod}
for _name, _fn in _REDUCTIONS.items():
    row(Primitive(f"reduce_{_name}", Kind.REDUCE, infer.reduce, sem.reducer(_fn), None,
                  f"Reduce{_name.capitalize()}"))  # fmt: skip
row(Primitive("argmax", Kind.REDUCE, infer.reduce, sem.arg(np.argmax), None, "ArgMax"))
row(Primitive("argmin", Kind.REDUCE, infer.reduce, sem.arg(np.argmin), None, "ArgMin"))


def normal_axes(x: Value, axes: int | Sequence[int]) -> tuple[int, ...]:
    """Sorted non-negative axes. Raises ValueError where one is out of range."""
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(-x.rank <= a < x.rank for a in axes):
        raise ValueError(f"axes {list(axes)} do not fit {x.type}")
    return tuple(sorted({a % x.rank for a in axes}))


def reduction(name: str) -> Callable[..., Value]:
    def apply(x: Value, axes: int | Sequence[int]) -> Value:
        """x: any shape; the result keeps the reduced axes with extent 1."""
        return make(name, [x], axes=normal_axes(x, axes))[0]

    apply.__name__ = name
    return apply


reduce_sum, reduce_mean = reduction("reduce_sum"), reduction("reduce_mean")
reduce_max, reduce_min = reduction("reduce_max"), reduction("reduce_min")
reduce_prod = reduction("reduce_prod")


def argument(name: str, x: Value, axis: int, last: bool = False) -> Value:
    """argmax or argmin: i64, the axis kept with extent 1; the first or the last of equals."""
    return make(name, [x], axes=normal_axes(x, axis), last=last)[0]


row(Primitive("broadcast", Kind.BROADCAST, infer.broadcast, sem.broadcast, None, "Expand"))


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    shape = tuple(int(s) for s in shape)
    return x if x.shape == shape else make("broadcast", [x], shape=shape)[0]


# ---------------------------------------------------------------- layout


row(Primitive("transpose", Kind.LAYOUT, infer.transpose, sem.transpose, None, "Transpose"))
row(Primitive("reshape", Kind.LAYOUT, infer.reshape, sem.reshape, None, "Reshape"))
row(Primitive("slice", Kind.LAYOUT, infer.slice, sem.slice_, None, "Slice"))
row(Primitive("concat", Kind.LAYOUT, infer.concat, sem.concat, None, "Concat"))
row(Primitive("pad", Kind.LAYOUT, infer.pad, sem.pad, None, "Pad"))
row(Primitive("gather", Kind.LAYOUT, infer.gather, sem.gather, None, "Gather"))


def transpose(x: Value, perm: Sequence[int]) -> Value:
    perm = tuple(int(p) for p in perm)
    return x if perm == tuple(range(x.rank)) else make("transpose", [x], perm=perm)[0]


def reshape(x: Value, shape: Sequence[int]) -> Value:
    shape = tuple(int(s) for s in shape)
    return x if shape == x.shape else make("reshape", [x], shape=shape)[0]


def slice_(
    x: Value, start: Sequence[int], size: Sequence[int], step: Sequence[int] | None = None
) -> Value:
    """x[start : start + size*step : step] on every axis; steps may be negative."""
    step = tuple(step) if step is not None else (1,) * x.rank
    start, size = tuple(int(s) for s in start), tuple(int(s) for s in size)
    return x if size == x.shape and set(step) <= {1} else make(
        "slice", [x], start=start, size=size, step=step)[0]  # fmt: skip


def concat(xs: Sequence[Value], axis: int) -> Value:
    return xs[0] if len(xs) == 1 else make("concat", list(xs), axis=axis % max(xs[0].rank, 1))[0]


def pad(
    x: Value,
    lo: Sequence[int],
    hi: Sequence[int],
    mode: str = "constant",
    value: float | int | bool = 0.0,
) -> Value:
    """mode: constant, reflect (without the edge), edge or wrap. `value` fills in mode constant."""
    lo, hi = tuple(int(s) for s in lo), tuple(int(s) for s in hi)
    fill = x.type.dtype.numpy.type(value).item() if mode == "constant" else 0
    return make("pad", [x], lo=lo, hi=hi, mode=mode, value=fill)[0] if any(lo + hi) else x


def gather(x: Value, indices: Value, axis: int = 0) -> Value:
    """x[:, indices, :] along an axis; negative indices count from the end. Indices out of range
    fail in the evaluator and are clamped in generated code."""
    return make("gather", [x, indices], axis=axis % max(x.rank, 1))[0]


# ---------------------------------------------------------------- linear


row(Primitive("contract", Kind.LINEAR, infer.contract, sem.contract, None, "Einsum"))
row(Primitive("conv", Kind.LINEAR, infer.conv, sem.conv, None, "Conv"))


def contract(a: Value, b: Value, spec: str) -> Value:
    """Einsum of two operands, `"bmk,bkn->bmn"`: labels are single letters, none twice in one
    operand; labels missing from the result are summed."""
    return make("contract", [a, b], spec=spec)[0]


def conv(
    x: Value, w: Value, strides: Sequence[int], dilations: Sequence[int], groups: int = 1
) -> Value:
    """x: [n, c, spatial...], w: [m, c/groups, kernel...], no padding -> [n, m, ...]."""
    return make("conv", [x, w], strides=tuple(strides), dilations=tuple(dilations), groups=groups)[
        0
    ]


# ---------------------------------------------------------------- window


row(Primitive("window_max", Kind.WINDOW, infer.window, sem.windowed(np.maximum), None, "MaxPool"))
row(Primitive("window_sum", Kind.WINDOW, infer.window, sem.windowed(np.add), None, "AveragePool"))


def window(
    name: str,
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> Value:
    """window_max or window_sum over the spatial axes of x: [n, c, spatial...], no padding."""
    dilations = tuple(dilations) if dilations is not None else (1,) * len(kernel)
    return make(name, [x], kernel=tuple(kernel), strides=tuple(strides), dilations=dilations)[0]

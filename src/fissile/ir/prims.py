"""The primitives: one row each.

    A row: name, class, type inference, numpy semantics (the oracle), C expression where elementwise,
    and the ONNX form it is exported as.                                     (design, section 4; Korch, section 3)

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

from fissile.ir import semantics as sem
from fissile.ir.graph import OPERATORS, Literal, Node, Operand, Value, intern
from fissile.ir.types import BOOL, BY_NAME, F32, I64, DType, TensorType

Attrs = dict[str, Any]


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


row(Primitive("constant", Kind.SOURCE, _source, lambda value: (value.array,)))
row(Primitive("input", Kind.SOURCE, lambda types, attrs: (), lambda **_: ()))


def constant(array: Any, dtype: DType | None = None) -> Value:
    """A constant value. Python floats become f32 unless a dtype is given."""
    if not isinstance(array, np.ndarray | np.generic):
        default = {bool: BOOL, int: I64, float: F32}.get(type(array))
        array = np.asarray(array, dtype=(dtype or default or F32).numpy)
    array = np.asarray(array)
    if dtype is not None:
        array = array.astype(dtype.numpy)
    literal = Literal(array)
    return intern("constant", (), {"value": literal}, (literal.type,)).value


# ---------------------------------------------------------------- elementwise


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """numpy's rule. Raises ValueError naming the shapes."""
    try:
        return tuple(int(s) for s in np.broadcast_shapes(*shapes))
    except ValueError:
        named = " and ".join(str(list(s)) for s in shapes)
        raise ValueError(f"shapes {named} do not broadcast") from None


def _same(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    if len({t.dtype for t in types}) > 1:
        raise ValueError(f"operands have different element types: {', '.join(map(repr, types))}")
    return (TensorType(broadcast_shapes([t.shape for t in types]), types[0].dtype),)


def _compare(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(_same(types, attrs)[0].shape, BOOL),)


def _select(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    shape = broadcast_shapes([t.shape for t in types])
    return (TensorType(shape, _same(types[1:], attrs)[0].dtype),)


def _cast(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(types[0].shape, BY_NAME[attrs["to"]]),)


def _unary(name: str, c: str, fn: Callable[..., Any], onnx: str | None, flops: float = 1) -> None:
    row(Primitive(name, Kind.ELEMENTWISE, _same, lambda x: (fn(x),), c, onnx, flops))


def _binary(name: str, c: str, fn: Callable[..., Any], onnx: str | None, flops: float = 1) -> None:
    row(Primitive(name, Kind.ELEMENTWISE, _same, lambda x, y: (fn(x, y),), c, onnx, flops))


def _predicate(name: str, c: str, fn: Callable[..., Any], onnx: str | None) -> None:
    row(Primitive(name, Kind.ELEMENTWISE, _compare, lambda *xs: (fn(*xs),), c, onnx))


_unary("neg", "-{0}", np.negative, "Neg")
_unary("abs", "abs({0})", np.abs, "Abs")
_unary("sign", "sign({0})", np.sign, "Sign", 2)
_unary("floor", "floor({0})", np.floor, "Floor")
_unary("ceil", "ceil({0})", np.ceil, "Ceil")
_unary("round", "round_even({0})", np.round, "Round")
_unary("sqrt", "sqrt({0})", np.sqrt, "Sqrt", 8)
_unary("rsqrt", "rsqrt({0})", lambda x: 1 / np.sqrt(x), None, 12)
_unary("reciprocal", "reciprocal({0})", sem.reciprocal, "Reciprocal", 5)
_unary("exp", "exp({0})", np.exp, "Exp", 14)
_unary("log", "log({0})", np.log, "Log", 18)
_unary("tanh", "tanh({0})", np.tanh, "Tanh", 22)
_unary("erf", "erf({0})", sem.erf, "Erf", 22)
_unary("sigmoid", "sigmoid({0})", sem.sigmoid, "Sigmoid", 20)
_unary("softplus", "softplus({0})", sem.softplus, "Softplus", 36)
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
row(Primitive("clip", Kind.ELEMENTWISE, _same, lambda x, lo, hi: (np.minimum(np.maximum(x, lo), hi),),
              "min(max({0}, {1}), {2})", "Clip", 2))  # fmt: skip
row(Primitive("where", Kind.ELEMENTWISE, _select, lambda c, x, y: (np.where(c, x, y),),
              "select({0}, {1}, {2})", "Where"))  # fmt: skip
row(Primitive("cast", Kind.ELEMENTWISE, _cast, sem.cast, "cast<{to}>({0})", "Cast"))


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
sigmoid, softplus, logical_not = map(elementwise, ("sigmoid", "softplus", "not"))
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


def _reduce(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axes = types, attrs["axes"]
    if not all(0 <= a < x.rank for a in axes) or list(axes) != sorted(set(axes)):
        raise ValueError(f"axes {list(axes)} do not fit {x}")
    shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
    return (TensorType(shape, I64 if "last" in attrs else x.dtype),)


for _name, _fn in dict(sum=sem.total, mean=sem.mean, max=np.max, min=np.min, prod=np.prod).items():
    row(Primitive(f"reduce_{_name}", Kind.REDUCE, _reduce, sem.reducer(_fn), None,
                  f"Reduce{_name.capitalize()}"))  # fmt: skip
row(Primitive("argmax", Kind.REDUCE, _reduce, sem.arg(np.argmax), None, "ArgMax"))
row(Primitive("argmin", Kind.REDUCE, _reduce, sem.arg(np.argmin), None, "ArgMin"))


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


def _broadcast(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    if broadcast_shapes([types[0].shape, attrs["shape"]]) != attrs["shape"]:
        raise ValueError(f"{types[0]} does not broadcast to {list(attrs['shape'])}")
    return (TensorType(attrs["shape"], types[0].dtype),)


row(Primitive("broadcast", Kind.BROADCAST, _broadcast,
              lambda x, shape: (np.broadcast_to(x, shape),), None, "Expand"))  # fmt: skip


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    shape = tuple(int(s) for s in shape)
    return x if x.shape == shape else make("broadcast", [x], shape=shape)[0]


# ---------------------------------------------------------------- layout


def _transpose(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), perm = types, attrs["perm"]
    if sorted(perm) != list(range(x.rank)):
        raise ValueError(f"{list(perm)} is no permutation of the axes of {x}")
    return (TensorType(tuple(x.shape[a] for a in perm), x.dtype),)


def _reshape(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    y = TensorType(attrs["shape"], types[0].dtype)
    if y.numel != types[0].numel or any(s < 0 for s in y.shape):
        raise ValueError(f"{types[0]} cannot be reshaped to {list(y.shape)}")
    return (y,)


def _slice(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    start, size, step = attrs["start"], attrs["size"], attrs["step"]
    for s, b, n, d in zip(x.shape, start, size, step, strict=True):
        if n < 0 or d == 0 or (n and not (0 <= b < s and 0 <= b + (n - 1) * d < s)):
            raise ValueError(f"slice {list(start)} size {list(size)} step {list(step)} leaves {x}")
    return (TensorType(size, x.dtype),)


def _concat(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    axis, first = attrs["axis"], types[0]
    for t in types:
        if t.dtype != first.dtype or t.rank != first.rank or not 0 <= axis < t.rank:
            raise ValueError(f"cannot concat {', '.join(map(repr, types))} along axis {axis}")
        if t.shape[:axis] + t.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]:
            raise ValueError(f"cannot concat {', '.join(map(repr, types))} along axis {axis}")
    shape = list(first.shape)
    shape[axis] = sum(t.shape[axis] for t in types)
    return (TensorType(tuple(shape), first.dtype),)


def _pad(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), lo, hi, mode = types, attrs["lo"], attrs["hi"], attrs["mode"]
    for s, a, b in zip(x.shape, lo, hi, strict=True):
        if a < 0 or b < 0 or (mode == "reflect" and max(a, b) >= max(s, 1)):
            raise ValueError(f"cannot pad {x} by {list(lo)}, {list(hi)} in mode {mode}")
        if mode in ("edge", "wrap") and s == 0 and a + b:
            raise ValueError(f"cannot pad the empty axis of {x} in mode {mode}")
    shape = tuple(s + a + b for s, a, b in zip(x.shape, lo, hi, strict=True))
    return (TensorType(shape, x.dtype),)


def _gather(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x, i), axis = types, attrs["axis"]
    if not 0 <= axis < x.rank or not i.dtype.is_integer:
        raise ValueError(f"cannot gather from {x} along axis {axis} with indices {i}")
    return (TensorType(x.shape[:axis] + i.shape + x.shape[axis + 1 :], x.dtype),)


row(Primitive("transpose", Kind.LAYOUT, _transpose,
              lambda x, perm: (np.transpose(x, perm),), None, "Transpose"))  # fmt: skip
row(
    Primitive(
        "reshape", Kind.LAYOUT, _reshape, lambda x, shape: (np.reshape(x, shape),), None, "Reshape"
    )
)
row(Primitive("slice", Kind.LAYOUT, _slice, sem.slice_, None, "Slice"))
row(
    Primitive(
        "concat",
        Kind.LAYOUT,
        _concat,
        lambda *xs, axis: (np.concatenate(xs, axis),),
        None,
        "Concat",
    )
)
row(Primitive("pad", Kind.LAYOUT, _pad, sem.pad, None, "Pad"))
row(Primitive("gather", Kind.LAYOUT, _gather, sem.gather, None, "Gather"))


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


def _contract(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    left, right, out = sem.split_spec(attrs["spec"])
    extents: dict[str, int] = {}
    for labels, t in zip((left, right), types, strict=True):
        if len(labels) != t.rank or len(set(labels)) != len(labels):
            raise ValueError(f"{attrs['spec']!r} does not fit {t}")
        for label, extent in zip(labels, t.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise ValueError(f"{attrs['spec']!r}: {label} is {extents[label]} and {extent}")
    if len(set(out)) != len(out) or not set(out) <= set(extents):
        raise ValueError(f"{attrs['spec']!r} is not a contraction")
    if types[0].dtype != types[1].dtype:
        raise ValueError(f"operands have different element types: {', '.join(map(repr, types))}")
    return (TensorType(tuple(extents[c] for c in out), types[0].dtype),)


def _conv(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    x, w = types
    strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
    if (
        x.dtype != w.dtype
        or x.rank != w.rank
        or x.rank != len(strides) + 2
        or len(dilations) != len(strides)
    ):
        raise ValueError(f"convolution of {x} with {w}, strides {list(strides)}")
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError(f"convolution of {x} with {w} in {groups} groups")
    spatial = sem.window_extents(x.shape[2:], w.shape[2:], strides, dilations)
    return (TensorType((x.shape[0], w.shape[0], *spatial), x.dtype),)


row(Primitive("contract", Kind.LINEAR, _contract, sem.contract, None, "Einsum"))
row(Primitive("conv", Kind.LINEAR, _conv, sem.conv, None, "Conv"))


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


def _window(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    if x.rank != len(attrs["kernel"]) + 2:
        raise ValueError(f"window {list(attrs['kernel'])} over {x}")
    spatial = sem.window_extents(x.shape[2:], attrs["kernel"], attrs["strides"], attrs["dilations"])
    return (TensorType((*x.shape[:2], *spatial), x.dtype),)


row(Primitive("window_max", Kind.WINDOW, _window, sem.windowed(np.maximum), None, "MaxPool"))
row(Primitive("window_sum", Kind.WINDOW, _window, sem.windowed(np.add), None, "AveragePool"))


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

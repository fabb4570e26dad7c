"""Random small graphs of all primitives, in f64, as constants that rewriting makes are rounded to
their element type. Values stay of ordinary size, so that what is compared is
algebra and not overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import PRIMS, Kind, constant, make
from fissile.ir.types import F64, I32, DType, of

BOUNDED = ("tanh", "erf", "sigmoid", "sin", "cos", "atan")
LIKE = {"asin": "tanh", "acos": "tanh", "atanh": "sin", "acosh": "exp", "log": "exp",
        "sqrt": "abs", "rsqrt": "exp", "reciprocal": "exp"}  # fmt: skip
SMALL = 512  # elements


class Maker:
    """Grows a graph primitive by primitive."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        for _ in range(self.integer(1, 3)):
            self.input(F64, self.shape())
        self.used: set[str] = set()

    def integer(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def any(self, options: Sequence):
        return options[self.integer(0, len(options) - 1)]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.integer(1, 4) if rank is None else rank
        return tuple(self.any((1, 2, 3, 4, 6)) for _ in range(rank))

    def input(self, dtype: DType, shape: Sequence[int]) -> Value:
        v = placeholder(of(tuple(shape), dtype))
        self.inputs.append(v)
        self.values.append(v)
        return v

    def weights(self, shape: Sequence[int], dtype: DType = F64) -> Value:
        if dtype.is_integer:
            return constant(self.rng.integers(-3, 4, tuple(shape)), dtype)
        if self.integer(0, 5) == 0:
            return constant(self.any((0.0, 1.0, -1.0, 2.0, 0.5)) * np.ones(tuple(shape)), dtype)
        return constant(self.rng.standard_normal(tuple(shape)) / 2, dtype)

    def value(self, dtype: DType = F64, rank: int | None = None, least: int = 0) -> Value:
        """One that exists, often a recent one; a new input where none fits."""
        fits = [
            v for v in self.values
            if v.type.dtype is dtype and (rank is None or v.rank == rank) and v.rank >= least
        ]  # fmt: skip
        if not fits or self.integer(0, 9) == 0:
            return self.input(dtype, self.shape(rank or max(least, 2)))
        return self.any(fits[-4:]) if self.integer(0, 2) else self.any(fits)

    def operand(self, like: Value) -> Value:
        """What broadcasts against a value: constants, it itself, or one of its shape."""
        shape = [s if self.integer(0, 2) else 1 for s in like.shape][self.integer(0, like.rank) :]
        same = [v for v in self.values if v.type == like.type]
        return self.any((
            self.weights(shape, like.type.dtype), self.weights(shape, like.type.dtype),
            self.any(same), like,
        ))  # fmt: skip

    def enter(self, prim: str, inputs: Sequence[Value], **attrs) -> Value | None:
        try:
            outputs = make(prim, list(inputs), **attrs)
        except ValueError:
            return None
        if outputs[0].type.numel > SMALL:
            return None
        self.used.add(prim)
        self.values.append(outputs[0])
        return outputs[0]

    def step(self) -> None:
        self.any(STEPS)(self)

    def graph(self) -> Graph:
        read = {v for n in Graph((), tuple(self.values), (), ()).nodes for v in n.inputs}
        ends = [v for v in self.values if v not in read and v not in self.inputs]
        outputs = tuple(ends[-4:]) or (self.values[-1],)
        needed = set(Graph((), outputs, (), ()).nodes)
        inputs = tuple(v for v in self.inputs if v.node in needed)
        names = tuple(f"x{i}" for i in range(len(inputs)))
        return Graph(inputs, outputs, names, tuple(f"y{i}" for i in range(len(outputs))))


def _unary(m: Maker) -> None:
    names = [n for n, p in PRIMS.items() if p.kind is Kind.ELEMENTWISE and n in UNARY]
    name, x = m.any(names), m.value()
    if name in ("exp", "softplus", "mish", "sinh", "cosh", "tan", "asinh"):
        x = make("tanh", [x])[0]
    if name in LIKE:
        x = make("tanh", [x])[0] if LIKE[name] == "exp" else x
        x = make(LIKE[name], [x])[0]
        if name in ("asin", "acos", "atanh"):
            x = x * 0.9
        if name == "acosh":
            x = x + 1.0
        if name == "sqrt":
            x = x + 0.1
    m.enter(name, [x])


UNARY = {
    "neg", "abs", "sign", "floor", "ceil", "round", "sqrt", "rsqrt", "reciprocal", "exp", "log",
    "tanh", "erf", "sigmoid", "softplus", "mish", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh",
}  # fmt: skip


def _binary(m: Maker) -> None:
    name, x = (
        m.any(("add", "add", "sub", "mul", "mul", "min", "max", "div", "pow", "fmod")),
        m.value(),
    )
    y = m.operand(x)
    if name == "div":
        y = make("exp", [make("tanh", [y])[0]])[0]
    if name == "pow":
        x, y = (
            make("exp", [make("tanh", [x])[0]])[0],
            m.any((constant(2.0, F64), constant(3.0, F64), y)),
        )
        y = y if y.is_constant else make("tanh", [y])[0]
    if name == "fmod":
        y = constant(1.5, F64)
    m.enter(name, [x, y] if m.integer(0, 1) else [y, x])


def _product_of_sums(m: Maker) -> None:
    """Where constants gather and distribute."""
    x = m.value()
    for _ in range(m.integer(2, 4)):
        y = m.weights([s if m.integer(0, 1) else 1 for s in x.shape], F64)
        found = m.enter(m.any(("add", "mul", "sub")), [x, y])
        x = found if found is not None else x


def _choice(m: Maker) -> None:
    x = m.value()
    y = m.operand(x)
    kind = m.any(("where", "clip", "compare", "cast", "logic"))
    if kind == "clip":
        m.enter("clip", [x, constant(-0.5, F64), constant(0.75, F64)])
    elif kind == "cast":
        m.enter("cast", [x], to="i32")
    else:
        c = make(m.any(("less", "less_equal", "equal")), [x, y])[0]
        if kind == "logic":
            d = make("is_nan", [x])[0]
            c = make(m.any(("and", "or", "xor")), [c, make("not", [d])[0]])[0]
            m.used |= {"is_nan", "not"}
        m.used.add(c.node.prim)
        m.enter("where", [c, x, y])


def _whole(m: Maker) -> None:
    x = m.value(I32)
    name = m.any(("add", "sub", "mul", "min", "max", "neg", "abs", "bit_and", "div", "mod"))
    m.enter(name, [x] if name in ("neg", "abs") else [x, m.operand(x)])


def _reduce(m: Maker) -> None:
    x = m.value(m.any((F64, F64, F64, I32)), least=1)
    axes = tuple(a for a in range(x.rank) if m.integer(0, 1)) or (x.rank - 1,)
    m.enter(m.any(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")), [x], axes=axes)


def _normal(m: Maker) -> None:
    """A softmax or a normalisation."""
    x = m.value(least=1)
    axes = (x.rank - 1,)
    if m.integer(0, 1):
        e = make("exp", [x - make("reduce_max", [x], axes=axes)[0]])[0]
        m.enter("div", [e, make("reduce_sum", [e], axes=axes)[0]])
    else:
        c = x - make("reduce_mean", [x], axes=axes)[0]
        v = make("reduce_mean", [c * c], axes=axes)[0]
        m.enter("mul", [c, make("rsqrt", [v + 0.01])[0]])


def _move(m: Maker) -> None:
    x = m.value(m.any((F64, F64, F64, I32)), least=1)
    kind = m.any(
        ("transpose", "transpose", "reshape", "reshape", "slice", "pad", "gather", "broadcast")
    )
    if kind == "transpose":
        m.enter(kind, [x], perm=tuple(int(a) for a in m.rng.permutation(x.rank)))
    elif kind == "reshape":
        m.enter(kind, [x], shape=_reshaped(m, x.shape))
    elif kind == "slice":
        step = [m.any((1, 1, 2, -1)) for _ in x.shape]
        size = [max(1, m.integer(1, s) // abs(d)) for s, d in zip(x.shape, step, strict=True)]
        start = [
            s - 1 if d < 0 else m.integer(0, s - ((n - 1) * d + 1))
            for s, n, d in zip(x.shape, size, step, strict=True)
        ]
        m.enter(kind, [x], start=tuple(start), size=tuple(size), step=tuple(step))
    elif kind == "pad":
        lo, hi = (tuple(m.integer(0, 1) for _ in x.shape) for _ in range(2))
        mode = m.any(("constant", "constant", "edge", "reflect", "wrap"))
        m.enter(kind, [x], lo=lo, hi=hi, mode=mode, value=0.0 if x.type.dtype is F64 else 0)
    elif kind == "gather":
        axis = m.integer(0, x.rank - 1)
        n = x.shape[axis]
        index = m.any((np.repeat(np.arange(n), 2), m.rng.integers(0, n, m.integer(1, 4))))
        m.enter(kind, [x, constant(index.astype(np.int64))], axis=axis)
    else:
        m.enter(kind, [x], shape=tuple(s if s > 1 else m.any((1, 3)) for s in x.shape))


def _reshaped(m: Maker, shape: Sequence[int]) -> tuple[int, ...]:
    """Axes split, joined, or of extent 1 added and dropped."""
    out: list[int] = []
    for s in shape:
        kind = m.integer(0, 4)
        if kind == 0 and s % 2 == 0:
            out += [2, s // 2]
        elif kind == 1 and out:
            out[-1] *= s
        elif kind == 2:
            out += [1, s]
        elif s > 1 or kind > 3:
            out.append(s)
    return tuple(out) if math.prod(out) == math.prod(shape) else tuple(shape)


def _concat(m: Maker) -> None:
    x = m.value(least=1)
    axis = m.integer(0, x.rank - 1)
    shape = [m.integer(1, 3) if a == axis else s for a, s in enumerate(x.shape)]
    fits = [
        v
        for v in m.values
        if v.type.dtype is F64
        and v.rank == x.rank
        and all(a == axis or s == t for a, (s, t) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    more = m.any(fits) if m.integer(0, 2) else m.weights(shape)
    m.enter("concat", [x, more], axis=axis)


def _contract(m: Maker) -> None:
    """A linear map of one axis, a product of matrices, or one with a batch."""
    x = m.value(least=1)
    labels = "abcdef"[: x.rank]
    kind = m.integer(0, 3)
    if kind <= 1 or x.rank < 2:
        axis = m.integer(0, x.rank - 1)
        w = m.weights((x.shape[axis], m.integer(1, 4)))
        out = labels[:axis] + "z" + labels[axis + 1 :]
        spec = f"{labels},{labels[axis]}z->{out}"
        m.enter("contract", [x, w], spec=spec)
    elif kind == 2:
        y = m.any(
            (
                m.input(F64, (*x.shape[:-2], x.shape[-1], m.integer(1, 3))),
                m.weights((*x.shape[:-2], x.shape[-1], 2)),
            )
        )
        lead = labels[:-2]
        m.enter("contract", [x, y], spec=f"{labels},{lead}{labels[-1]}z->{lead}{labels[-2]}z")
    else:
        keep = "".join(c for c in labels if m.integer(0, 1)) or labels[0]
        y = m.operand(x)
        if y.shape == x.shape:
            m.enter("contract", [x, y], spec=f"{labels},{labels}->{keep}")


def _map(m: Maker) -> Value | None:
    """[n, c, h, w], perhaps of repeated elements or padded."""
    x = m.value(rank=4)
    if m.integer(0, 3) == 0:
        for axis in (2, 3):
            index = np.repeat(np.arange(x.shape[axis]), 2)
            found = m.enter("gather", [x, constant(index)], axis=axis)
            x = found if found is not None else x
    if m.integer(0, 1):
        p = m.integer(1, 2)
        mode = m.any(("constant", "constant", "edge", "reflect"))
        found = m.enter("pad", [x], lo=(0, 0, p, p), hi=(0, 0, p, p), mode=mode, value=0.0)
        x = found if found is not None else x
    return x


def _conv(m: Maker) -> None:
    x = _map(m)
    groups = x.shape[1] if m.integer(0, 3) == 0 else 1
    kernel = m.any(((1, 1), (1, 1), (3, 3), (2, 1), (1, 3), (3, 6)))
    w = m.weights((groups * m.integer(1, 3), x.shape[1] // groups, *kernel))
    m.enter(
        "conv", [x, w], strides=m.any(((1, 1), (1, 1), (2, 1))), dilations=(1, 1), groups=groups
    )
    if m.integer(0, 2) == 0:  # a sibling
        w = m.weights((groups * m.integer(1, 3), x.shape[1] // groups, *kernel))
        m.enter("conv", [x, w], strides=(1, 1), dilations=(1, 1), groups=groups)


def _pool(m: Maker) -> None:
    x = m.value(rank=4)
    name = m.any(("window_max", "window_max", "window_sum"))
    kernel = m.any(((2, 2), (3, 3), (1, 2)))
    if m.integer(0, 1):
        fill = -math.inf if name == "window_max" else 0.0
        around = (0, 0, *(int(k > 1) for k in kernel))
        found = m.enter("pad", [x], lo=around, hi=around, mode="constant", value=fill)
        x = found if found is not None else x
        if found in m.values and fill < 0:  # sums of infinities are no algebra
            m.values.remove(found)
    m.enter(name, [x], kernel=kernel, strides=m.any(((1, 1), (2, 2))), dilations=(1, 1))


STEPS: tuple[Callable[[Maker], None], ...] = (
    _unary, _binary, _binary, _product_of_sums, _choice, _whole, _reduce, _normal, _move, _move,
    _move, _concat, _contract, _contract, _contract, _conv, _conv, _pool,
)  # fmt: skip


def random_graph(seed: int) -> tuple[Graph, set[str]]:
    """The graph of a seed, and the primitives that were used."""
    m = Maker(seed)
    for _ in range(m.integer(3, 14)):
        m.step()
    return m.graph(), m.used


def arrays(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-5, 6, v.shape).astype(np.int32) if v.type.dtype is I32
        else rng.standard_normal(v.shape) for v in graph.inputs
    ]  # fmt: skip

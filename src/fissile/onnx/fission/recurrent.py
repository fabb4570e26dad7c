"""LSTM, GRU and RNN: one large contraction of the inputs, then one step after another.

x: [time, batch, input], w: [directions, gates*hidden, input], r: [directions, gates*hidden, hidden]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value
from fissile.ir.prims import (
    abs_,
    broadcast,
    clip,
    concat,
    constant,
    contract,
    exp,
    less,
    maximum,
    reshape,
    sigmoid,
    softplus,
    tanh,
    transpose,
    where,
)
from fissile.onnx.fission.layout import along
from fissile.onnx.rule import fission

STEPS_LIMIT = 512

Activation = Callable[[Value], Value]
Stepped = tuple[list[Value], Value | None]  # h after every step, c after the last
Steps = Callable[["_Cell", Value, Sequence[int]], Stepped]


@dataclass(frozen=True)
class _Cell:
    """One direction, without the direction axis; h and c are None where they start at zero."""

    w: Value
    r: Value
    bias: Value | None  # [2 * gates * hidden]
    h: Value | None
    c: Value | None
    peephole: Value | None
    activations: tuple[Activation, ...]
    clip: float | None
    hidden: int
    lengths: Value | None  # steps of every sequence of the batch; None: all

    def kept(self, t: int, new: Value, old: Value | None) -> Value:
        """The state after step t, which sequences that are shorter do not take."""
        if self.lengths is None:
            return new
        old = broadcast(_zero(new), new.shape) if old is None else old
        return where(self.alive(t), new, old)

    def alive(self, t: int) -> Value:
        assert self.lengths is not None
        within = less(constant(t, self.lengths.type.dtype), self.lengths)
        return reshape(within, (self.lengths.type.numel, 1))

    def clipped(self, x: Value) -> Value:
        return x if self.clip is None else clip(x, -self.clip, self.clip)

    def halves(self, gates: int) -> tuple[Value | None, Value | None]:
        """The input's and the recurrence's bias."""
        if self.bias is None:
            return None, None
        size = gates * self.hidden
        return along(self.bias, 0, 0, size), along(self.bias, 0, size, size)


@dataclass(frozen=True)
class _Layer:
    """All directions: the operator's operands as ONNX lays them out."""

    w: Value
    r: Value
    b: Value | None
    h: Value | None
    c: Value | None
    peephole: Value | None
    lengths: Value | None
    activations: tuple[Activation, ...]
    clip: float | None

    def run(self, steps: Steps, x: Value, direction: str, layout: int) -> list[Value]:
        """[y: [time, directions, batch, hidden], y_h, y_c: [directions, batch, hidden]].

        Layout 1 has the batch first."""
        if layout:
            x = transpose(x, (1, 0, 2))
        time, count = x.shape[0], self.w.shape[0]
        if not 0 < time <= STEPS_LIMIT:
            raise ModelError(f"{time} time steps exceed the {STEPS_LIMIT} that can be unrolled")
        if (direction, count) not in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            raise ModelError(f"{count} sets of weights do not fit direction {direction!r}")
        results = []
        for d in range(count):
            backwards = direction == "reverse" or d == 1
            results.append(_one_direction(steps, self.cell(d, time, layout), x, backwards))
        y = _joined([ys for ys, _, _ in results], 1)
        states = ([h for _, h, _ in results], [c for _, _, c in results if c is not None])
        ends = [_joined(each, 0) for each in states if each]
        if layout:
            y, ends = transpose(y, (2, 0, 1, 3)), [transpose(e, (1, 0, 2)) for e in ends]
        return [y, *ends]

    def cell(self, d: int, time: int, layout: int) -> _Cell:
        """The parameters of one direction."""
        lengths = self.lengths
        if lengths is not None and lengths.is_constant and bool(np.all(lengths.array == time)):
            lengths = None
        h, c = (
            transpose(s, (1, 0, 2)) if layout and s is not None else s for s in (self.h, self.c)
        )
        b, h, c, peephole = (
            None if v is None else _row(v, d) for v in (self.b, h, c, self.peephole)
        )
        each = len(self.activations) // self.w.shape[0]
        own = self.activations[d * each :][:each]
        w, r = _row(self.w, d), _row(self.r, d)
        return _Cell(w, r, b, h, c, peephole, own, self.clip, self.r.shape[2], lengths)


@fission("LSTM")
def lstm(
    x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, *,
    activation_alpha=None, activation_beta=None, activations=None, clip=None, direction="forward",
    hidden_size=None, input_forget=0, layout=0,
):  # fmt: skip
    if input_forget:
        raise ModelError("input_forget is not supported")
    default = ("Sigmoid", "Tanh", "Tanh")
    functions = _activations(activations, activation_alpha, activation_beta, default, w)
    layer = _Layer(w, r, b, initial_h, initial_c, p, sequence_lens, functions, clip)
    return layer.run(_lstm_steps, x, direction, layout)


@fission("GRU")
def gru(
    x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
    activation_beta=None, activations=None, clip=None, direction="forward", hidden_size=None,
    layout=0, linear_before_reset=0,
):  # fmt: skip
    functions = _activations(activations, activation_alpha, activation_beta, ("Sigmoid", "Tanh"), w)
    layer = _Layer(w, r, b, initial_h, None, None, sequence_lens, functions, clip)
    return layer.run(_gru_linear_first if linear_before_reset else _gru_steps, x, direction, layout)


@fission("RNN")
def rnn(
    x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
    activation_beta=None, activations=("Tanh", "Tanh"), clip=None, direction="forward",
    hidden_size=None, layout=0,
):  # fmt: skip
    names = activations[: w.shape[0]]
    functions = _activations(names, activation_alpha, activation_beta, ("Tanh",), w)
    layer = _Layer(w, r, b, initial_h, None, None, sequence_lens, functions, clip)
    return layer.run(_rnn_steps, x, direction, layout)


def _row(v: Value, index: int) -> Value:
    return reshape(along(v, 0, index, 1), v.shape[1:])


def _joined(parts: Sequence[Value], axis: int) -> Value:
    """Stacks values along a new axis."""
    shape = parts[0].shape
    return concat([reshape(v, (*shape[:axis], 1, *shape[axis:])) for v in parts], axis)


def _one_direction(
    steps: Steps, cell: _Cell, x: Value, backwards: bool
) -> tuple[Value, Value, Value | None]:
    order = range(x.shape[0])[::-1] if backwards else range(x.shape[0])
    hs, c = steps(cell, x, order)
    seen = hs
    if cell.lengths is not None:
        seen = [where(cell.alive(t), h, 0.0) for t, h in zip(order, hs, strict=True)]
    return _joined(seen[::-1] if backwards else seen, 0), hs[-1], c


def _inputs(cell: _Cell, x: Value, gates: int, whole_bias: bool) -> Value:
    """x W^T with the biases that need no recurrence: [time, batch, gates * hidden]."""
    pre = contract(x, cell.w, "tbi,gi->tbg")
    first, second = cell.halves(gates)
    if first is None or second is None:
        return pre
    return pre + (first + second if whole_bias else first)


def _recurrent(h: Value | None, r: Value) -> Value | None:
    return None if h is None else contract(h, r, "bh,gh->bg")


def _plus(x: Value, y: Value | None) -> Value:
    return x if y is None else x + y


def _lstm_steps(cell: _Cell, x: Value, order: Sequence[int]) -> Stepped:
    """Gates i, o, f, c:  c' = f c + i g(c),  h' = o h(c')."""
    n, (f, g, h_of) = cell.hidden, cell.activations
    pre, h, c, hs = _inputs(cell, x, 4, True), cell.h, cell.c, []
    for t in order:
        z = _plus(_row(pre, t), _recurrent(h, cell.r))
        new = g(cell.clipped(along(z, 1, 3 * n, n)))
        if cell.peephole is None:
            i, o, forget = _split(f(cell.clipped(along(z, 1, 0, 3 * n))), 3)
            fresh = i * new if c is None else forget * c + i * new
        else:
            pi, po, pf = (along(cell.peephole, 0, k * n, n) for k in range(3))
            zi, zo, zf, _ = _split(z, 4)
            i = f(cell.clipped(zi if c is None else zi + pi * c))
            forget = f(cell.clipped(zf if c is None else zf + pf * c))
            fresh = i * new if c is None else forget * c + i * new
            o = f(cell.clipped(zo + po * fresh))
        h, c = cell.kept(t, o * h_of(fresh), h), cell.kept(t, fresh, c)
        hs.append(h)
    return hs, c


def _split(z: Value, count: int) -> list[Value]:
    n = z.shape[1] // count
    return [along(z, 1, k * n, n) for k in range(count)]


def _gru_steps(cell: _Cell, x: Value, order: Sequence[int]) -> Stepped:
    """Gates z, r, h:  h' = (1 - z) g(Wx + R(r h)) + z h."""
    n, (f, g) = cell.hidden, cell.activations
    pre, h, hs = _inputs(cell, x, 3, True), cell.h, []
    r_zr, r_h = along(cell.r, 0, 0, 2 * n), along(cell.r, 0, 2 * n, n)
    for t in order:
        row = _row(pre, t)
        z, reset = _split(f(cell.clipped(_plus(along(row, 1, 0, 2 * n), _recurrent(h, r_zr)))), 2)
        inner = along(row, 1, 2 * n, n)
        new = g(cell.clipped(inner if h is None else inner + contract(reset * h, r_h, "bh,gh->bg")))
        h = cell.kept(t, (1.0 - z) * new if h is None else (1.0 - z) * new + z * h, h)
        hs.append(h)
    return hs, None


def _gru_linear_first(cell: _Cell, x: Value, order: Sequence[int]) -> Stepped:
    """The reset gate applies after the recurrence:  g(Wx + r (R h + b))."""
    n, (f, g) = cell.hidden, cell.activations
    pre, h, hs = _inputs(cell, x, 3, False), cell.h, []
    _, bias = cell.halves(3)
    for t in order:
        row, rec = _row(pre, t), _recurrent(h, cell.r)
        rec = bias if rec is None else _plus(rec, bias)
        if rec is None:
            rec = constant(np.zeros(3 * n), x.type.dtype)
        parts = [along(rec, rec.rank - 1, k * n, n) for k in range(3)]
        z, reset = (
            f(cell.clipped(a + b)) for a, b in zip(_split(row, 3)[:2], parts[:2], strict=True)
        )
        new = g(cell.clipped(along(row, 1, 2 * n, n) + reset * parts[2]))
        h = cell.kept(t, (1.0 - z) * new if h is None else (1.0 - z) * new + z * h, h)
        hs.append(h)
    return hs, None


def _rnn_steps(cell: _Cell, x: Value, order: Sequence[int]) -> Stepped:
    (f,) = cell.activations
    pre, h, hs = _inputs(cell, x, 1, True), cell.h, []
    for t in order:
        h = cell.kept(t, f(cell.clipped(_plus(_row(pre, t), _recurrent(h, cell.r)))), h)
        hs.append(h)
    return hs, None


def _zero(x: Value) -> Value:
    return constant(0, x.type.dtype)


# name: (function of x, alpha, beta; default alpha; default beta)
_FUNCTIONS: dict[str, tuple[Callable[[Value, float, float], Value], float, float]] = {
    "sigmoid": (lambda x, a, b: sigmoid(x), 0, 0),
    "tanh": (lambda x, a, b: tanh(x), 0, 0),
    "relu": (lambda x, a, b: maximum(x, _zero(x)), 0, 0),
    "softplus": (lambda x, a, b: softplus(x), 0, 0),
    "softsign": (lambda x, a, b: x / (abs_(x) + 1.0), 0, 0),
    "affine": (lambda x, a, b: x * a + b, 1, 0),
    "leakyrelu": (lambda x, a, b: where(less(x, _zero(x)), x * a, x), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: where(less(x, constant(a, x.type.dtype)), 0.0, x), 1, 0),
    "scaledtanh": (lambda x, a, b: tanh(x * b) * a, 1, 1),
    "hardsigmoid": (lambda x, a, b: clip(x * a + b, 0.0, 1.0), 0.2, 0.5),
    "elu": (lambda x, a, b: where(less(x, _zero(x)), (exp(x) - 1.0) * a, x), 1, 0),
}
_TAKES_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
_TAKES_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _activations(
    names, alphas, betas, default: tuple[str, ...], w: Value
) -> tuple[Activation, ...]:
    """One function per gate and direction; alpha and beta are handed out to those that take one."""
    names = tuple(names) if names else default * w.shape[0]
    if len(names) != len(default) * w.shape[0]:
        raise ModelError(f"{len(names)} activations do not fit {w.shape[0]} directions")
    alpha, beta, found = list(alphas or ()), list(betas or ()), []
    for name in (n.lower() for n in names):
        if name not in _FUNCTIONS:
            raise ModelError(f"the activation {name!r} is not supported")
        function, a, b = _FUNCTIONS[name]
        a = alpha.pop(0) if alpha and name in _TAKES_ALPHA else a
        b = beta.pop(0) if beta and name in _TAKES_BETA else b
        found.append(lambda x, function=function, a=a, b=b: function(x, a, b))
    return tuple(found)

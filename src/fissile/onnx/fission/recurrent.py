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


@fission("LSTM")
def lstm(
    x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, *,
    activation_alpha=None, activation_beta=None, activations=None, clip=None, direction="forward",
    hidden_size=None, input_forget=0, layout=0,
):  # fmt: skip
    if input_forget:
        raise ModelError("input_forget is not supported")
    names = _activations(
        activations, activation_alpha, activation_beta, ("Sigmoid", "Tanh", "Tanh"), w
    )
    return _run(_lstm_steps, x, w, r, b, sequence_lens, initial_h, initial_c, p, names, clip,
                direction, layout)  # fmt: skip


@fission("GRU")
def gru(
    x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
    activation_beta=None, activations=None, clip=None, direction="forward", hidden_size=None,
    layout=0, linear_before_reset=0,
):  # fmt: skip
    names = _activations(activations, activation_alpha, activation_beta, ("Sigmoid", "Tanh"), w)
    steps = _gru_linear_first if linear_before_reset else _gru_steps
    return _run(steps, x, w, r, b, sequence_lens, initial_h, None, None, names, clip, direction,
                layout)[:2]  # fmt: skip


@fission("RNN")
def rnn(
    x, w, r, b=None, sequence_lens=None, initial_h=None, *, activation_alpha=None,
    activation_beta=None, activations=("Tanh", "Tanh"), clip=None, direction="forward",
    hidden_size=None, layout=0,
):  # fmt: skip
    activations = activations[: w.shape[0]]
    names = _activations(activations, activation_alpha, activation_beta, ("Tanh",), w)
    return _run(_rnn_steps, x, w, r, b, sequence_lens, initial_h, None, None, names, clip,
                direction, layout)[:2]  # fmt: skip


def _run(steps, x, w, r, b, lengths, h, c, p, names, clip_at, direction, layout):
    """(y: [time, directions, batch, hidden], y_h, y_c: [directions, batch, hidden]).

    Layout 1 has the batch first."""
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ModelError(f"direction cannot be {direction!r}")
    if layout:
        x = transpose(x, (1, 0, 2))
        h, c = (None if s is None else transpose(s, (1, 0, 2)) for s in (h, c))
    time, directions, hidden = x.shape[0], w.shape[0], r.shape[2]
    if time > STEPS_LIMIT:
        raise ModelError(f"{time} time steps exceed the {STEPS_LIMIT} that can be unrolled")
    if lengths is not None and lengths.is_constant and bool(np.all(lengths.array == time)):
        lengths = None
    if directions != (2 if direction == "bidirectional" else 1):
        raise ModelError(f"{directions} sets of weights do not fit direction {direction!r}")
    each = len(names) // directions
    results = []
    for d in range(directions):
        parts = [None if v is None else _row(v, d) for v in (w, r, b, h, c, p)]
        cell = _Cell(*parts, names[d * each :][:each], clip_at, hidden, lengths)
        backwards = direction == "reverse" or d == 1
        results.append(_one_direction(steps, cell, x, backwards))
    y = _joined([ys for ys, _, _ in results], 1)
    ends = [_joined([end[k] for end in results], 0) for k in (1, 2) if results[0][k] is not None]
    if layout:
        y, ends = transpose(y, (2, 0, 1, 3)), [transpose(e, (1, 0, 2)) for e in ends]
    return [y, *ends]


def _row(v: Value, index: int) -> Value:
    return reshape(along(v, 0, index, 1), v.shape[1:])


def _joined(parts: Sequence[Value], axis: int) -> Value:
    """Stacks values along a new axis."""
    shape = parts[0].shape
    return concat([reshape(v, (*shape[:axis], 1, *shape[axis:])) for v in parts], axis)


def _one_direction(steps, cell: _Cell, x: Value, backwards: bool):
    time, batch, _ = x.shape
    order = range(time)[::-1] if backwards else range(time)
    hs, c = steps(cell, x, order)
    zero = broadcast(constant(0, x.type.dtype), (batch, cell.hidden))
    if cell.lengths is None:
        shown = hs
    else:
        shown = [where(cell.alive(t), h, 0.0) for t, h in zip(order, hs, strict=True)]
    ys = _joined(shown[::-1] if backwards else shown, 0)
    return ys, (hs[-1] if hs else cell.h or zero), c


def _inputs(cell: _Cell, x: Value, gates: int, whole_bias: bool) -> Value:
    """x W^T with the biases that need no recurrence: [time, batch, gates * hidden]."""
    pre = contract(x, cell.w, "tbi,gi->tbg")
    first, second = cell.halves(gates)
    if first is None:
        return pre
    return pre + (first + second if whole_bias else first)


def _recurrent(h: Value | None, r: Value) -> Value | None:
    return None if h is None else contract(h, r, "bh,gh->bg")


def _plus(x: Value, y: Value | None) -> Value:
    return x if y is None else x + y


def _lstm_steps(cell: _Cell, x: Value, order: Sequence[int]):
    """Gates i, o, f, c:  c' = f c + i g(c),  h' = o h(c')."""
    n, (f, g, h_of) = cell.hidden, cell.activations
    pre, h, c, hs = _inputs(cell, x, 4, True), cell.h, cell.c, []
    pi, po, pf = (
        (None,) * 3
        if cell.peephole is None
        else (along(cell.peephole, 0, k * n, n) for k in range(3))
    )
    for t in order:
        z = _plus(_row(pre, t), _recurrent(h, cell.r))
        if cell.peephole is None:
            i, o, forget = _split(f(cell.clipped(along(z, 1, 0, 3 * n))), 3)
        else:
            zi, zo, zf, _ = _split(z, 4)
            i, forget = (f(cell.clipped(_plus(a, _peep(q, c)))) for a, q in ((zi, pi), (zf, pf)))
        new = g(cell.clipped(along(z, 1, 3 * n, n)))
        fresh = i * new if c is None else forget * c + i * new
        if cell.peephole is not None:
            o = f(cell.clipped(zo + po * fresh))
        h, c = cell.kept(t, o * h_of(fresh), h), cell.kept(t, fresh, c)
        hs.append(h)
    return hs, c


def _peep(weights: Value, c: Value | None) -> Value | None:
    return None if c is None else weights * c


def _split(z: Value, count: int) -> list[Value]:
    n = z.shape[1] // count
    return [along(z, 1, k * n, n) for k in range(count)]


def _gru_steps(cell: _Cell, x: Value, order: Sequence[int]):
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


def _gru_linear_first(cell: _Cell, x: Value, order: Sequence[int]):
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


def _rnn_steps(cell: _Cell, x: Value, order: Sequence[int]):
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

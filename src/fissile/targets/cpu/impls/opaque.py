"""Opaque primitives, each alone in its kernel: TopK and scatter, in plain loops.

Their numpy forms in `ir.opaque` are the meaning; what they do with equal elements, NaN and indices
is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fissile.ir.graph import Node, Value
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import is_scalar
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.tiles.cpp import compute_type, literal
from fissile.tiles.expr import Load, Point
from fissile.tiles.index import Index, Var, const, text, unflatten, var


def lower(candidate: Candidate) -> Kernel | No:
    """The kernel of a region that is one opaque primitive."""
    if len(candidate.region.nodes) != 1:
        return No("an opaque primitive stands alone")
    (node,) = candidate.region.nodes
    if node.prim not in _WRITERS:
        return No(f"{node.prim} has no C++")
    if bad := [v for v in (*node.inputs, *node.outputs) if v.type.dtype.c is None]:
        return No(f"{node.prim}: C++ has no type for {bad[0].type.dtype}")
    return _WRITERS[node.prim](candidate, Writer(candidate), node)


def _topk(candidate: Candidate, writer: Writer, n: Node) -> Kernel:
    """One row a tile: the best so far stay sorted, and a better one is inserted."""
    x, axis, k = n.inputs[0], n.attrs["axis"], n.attrs["k"]
    rest = tuple(1 if a == axis else s for a, s in enumerate(x.shape))
    rows = math.prod(rest)
    if not k or not rows:
        return writer.kernel([], 0)
    i, j, t = Var("i", 0, x.shape[axis] - 1), Var("j", 0, k - 1), Var("t", 0, rows - 1)
    row = unflatten(var(t), rest)
    ctype = compute_type(x.type.dtype)
    writer.local("best", k, ctype)
    writer.local("at", k, "int64_t")
    beyond = ">" if n.attrs["largest"] else "<"
    nan = "(x != x && y == y)" if n.attrs["largest"] else "(x == x && y != y)"
    place = _with(row, axis, var(j))
    given = [
        f"put(y{q} + {_address(place, strides_of(g))}, {'at' if g.value.index else 'best'}[j]);"
        for q, g in enumerate(candidate.gives)
    ]
    body = [
        f"const auto before = []({ctype} x, {ctype} y) {{ return x {beyond} y || {nan}; }};",
        "int64_t count = 0;",
        f"for (int64_t i = 0; i < {i.extent}; ++i) {{",
        f"  const {ctype} x = {_element(writer, x, _with(row, axis, var(i)))};",
        f"  if (count == {k} && !before(x, best[{k - 1}])) continue;",
        f"  int64_t j = count < {k} ? count++ : {k - 1};",
        "  for (; j > 0 && before(x, best[j - 1]); --j) best[j] = best[j - 1], at[j] = at[j - 1];",
        "  best[j] = x, at[j] = i;",
        "}",
        f"for (int64_t j = 0; j < {k}; ++j) {{",
        *(f"  {line}" for line in given),
        "}",
    ]
    return writer.kernel([f"    {line}" for line in body], rows)


_COMBINE = {
    "none": "{1}",
    "add": "{0} + {1}",
    "mul": "{0} * {1}",
    "max": "max({0}, {1})",
    "min": "min({0}, {1})",
}


def _scatter(candidate: Candidate, writer: Writer, n: Node) -> Kernel:
    """A copy, then the updates one after the other: later ones win."""
    x, index, updates = n.inputs
    (given,) = candidate.gives
    if not x.type.numel:
        return writer.kernel([], 0)
    loops = [Var(f"i{a}", 0, s - 1) for a, s in enumerate(x.shape)]
    here, m = tuple(map(var, loops)), Var("m", 0, max(updates.shape[0] - 1, 0))
    y = f"y0 + {_address(here, strides_of(given))}"
    update = _element(writer, updates, (var(m), *here[1:]))
    combined = _COMBINE[n.attrs["reduction"]].format(f"get({y})", update)
    body = [
        *_loops(loops, [f"put({y}, {_element(writer, x, here)});"]),
        f"for (int64_t m = 0; m < {updates.shape[0]}; ++m) {{",
        f"  const int64_t i0 = {_entry(writer, index, var(m), x.shape[0])};",
        *(f"  {line}" for line in _loops(loops[1:], [f"put({y}, {combined});"])),
        "}",
    ]
    return writer.kernel([f"    {line}" for line in body], 1)


def _loops(loops: Sequence[Var], body: list[str]) -> list[str]:
    for v in reversed(loops):
        head = f"for (int64_t {v.name} = 0; {v.name} < {v.extent}; ++{v.name}) {{"
        body = [head, *(f"  {line}" for line in body), "}"]
    return body


def _with(point: Point, axis: int, index: Index) -> Point:
    return (*point[:axis], index, *point[axis + 1 :])


def _address(point: Point, strides: Sequence[int]) -> str:
    total = const(0)
    for i, stride in zip(point, strides, strict=True):
        total = total + i * stride
    return text(total)


def _element(writer: Writer, v: Value, point: Point) -> str:
    """C++ of one element of an operand."""
    if is_scalar(v):
        return literal(v.array.reshape(-1)[0], v.type.dtype)
    load = writer.leaves()[v](point)
    assert isinstance(load, Load)
    return f"get({load.pointer} + {text(load.address)})"


def _entry(writer: Writer, index: Value, m: Index, extent: int) -> str:
    """C++ of an entry of an index array, brought into 0 .. extent - 1."""
    if is_scalar(index):
        return text(const(int(index.array.reshape(-1)[0]) % extent))
    load = writer.leaves()[index]((m,))
    assert isinstance(load, Load)
    return f"index_at({load.pointer}, {text(load.address)}, {extent})"


_WRITERS: dict[str, Callable[[Candidate, Writer, Node], Kernel]] = {
    "topk": _topk,
    "scatter": _scatter,
}

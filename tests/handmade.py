"""Small graphs with kernels written by hand: the chain from plan to run without any kernel
generator.

Kernels cover regions of elementwise primitives on equal shapes, and a transposing adapter of
matrices.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from fissile.ir.graph import Graph, Node, Value, placeholder
from fissile.ir.layout import Layout, Token, row_major
from fissile.ir.prims import add, constant, mul, neg, reshape, sub
from fissile.ir.types import of
from fissile.kernels.candidate import EMPTY, Candidate, Kernel, Packing, Param
from fissile.kernels.region import Region

C = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "div": "{0} / {1}"}
COLUMNS = Layout((1, 0))


def token(value: Value, layout: Layout | None = None) -> Token:
    return Token(value, layout or row_major(value.rank))


def compute(
    nodes: Sequence[Node], outputs: Sequence[Value], layout: Layout | None = None
) -> Candidate:
    """A candidate that executes these nodes, everything in one layout."""
    region = Region(tuple(nodes), tuple(outputs))
    needs = tuple(token(v, layout) for v in region.tensors)
    return Candidate(region, "loop", (), needs, tuple(token(v, layout) for v in outputs))


def alias(source: Value, target: Value, offset_bytes: int = 0) -> Candidate:
    region = Region((target.node,), (target,))
    params = (("offset_bytes", offset_bytes),)
    return Candidate(region, "alias", params, (token(source),), (token(target),))


def adapter(value: Value, source: Layout, target: Layout) -> Candidate:
    return Candidate(EMPTY, "transpose", (), (token(value, source),), (token(value, target),))


def lower(candidate: Candidate, packer: str | None = None, tile: int = 7) -> Kernel:
    """A loop; constants are read through `packer`, which must keep their elements in order."""
    if candidate.is_adapter:
        return _transpose(candidate)
    count = candidate.gives[0].value.type.numel
    names: dict[Value, str] = {}
    params: list[Param] = []
    for role, values in (
        ("need", candidate.region.tensors),
        ("constant", candidate.region.parameters),
    ):
        for i, v in enumerate(values):
            packing = Packing(packer) if packer and role == "constant" else None
            params.append(Param(f"{role}{i}", "float", role, i, v.type.numel, packing))
            names[v] = f"{role}{i}[i]"
    for v in candidate.region.inputs:
        if v not in names:
            names[v] = f"{float(v.array.reshape(-1)[0])!r}f"
    body: list[str] = []
    for node in candidate.region.nodes:
        expression = C[node.prim].format(*(names[v] for v in node.inputs))
        names[node.value] = f"v{len(body)}"
        body.append(f"    float v{len(body)} = {expression};")
    for i, v in enumerate(candidate.region.outputs):
        params.append(Param(f"y{i}", "float", "give", i, v.type.numel))
        body.append(f"    y{i}[i] = {names[v]};")
    const = {"give": ""}
    shown = ", ".join(f"{const.get(p.role, 'const ')}float* {p.name}" for p in params)
    name = f"k{candidate.key[:12]}"
    source = (
        f"static void {name}({shown}, char* scratch, long begin, long end) {{\n"
        f"  for (long i = begin * {tile}; i < end * {tile} && i < {count}; i++) {{\n"
        "    *(float*)scratch = 1.0f;  // every thread owns its scratch\n"
        + "\n".join(body)
        + "\n  }\n}\n"
    )
    return Kernel(name, source, tuple(params), -(-count // tile), 4)


def _transpose(candidate: Candidate) -> Kernel:
    (need,), (give,) = candidate.needs, candidate.gives
    rows, columns = need.value.shape if need.layout.is_row_major else need.value.shape[::-1]
    name = f"k{candidate.key[:12]}"
    ends = "const float* x, float* y, char* scratch, long begin, long end"
    source = f"""static void {name}({ends}) {{
  for (long r = begin; r < end; r++)
    for (long c = 0; c < {columns}; c++) y[c * {rows} + r] = x[r * {columns} + c];
}}"""
    count = give.value.type.numel
    params = (Param("x", "float", "need", 0, count), Param("y", "float", "give", 0, count))
    return Kernel(name, source, params, rows, 0)


def lower_all(order: Sequence[Candidate], packer: str | None = None) -> dict[Candidate, Kernel]:
    return {c: lower(c, packer) for c in order if not c.is_alias}


def pack(array: np.ndarray, packing: Packing | None) -> np.ndarray:
    return array if packing is None else np.ascontiguousarray(array)


def graph_of(inputs: Sequence[Value], outputs: Sequence[Value], **more: Any) -> Graph:
    names_in = more.pop("input_names", tuple(f"x{i}" for i in range(len(inputs))))
    names_out = more.pop("output_names", tuple(f"y{i}" for i in range(len(outputs))))
    return Graph(tuple(inputs), tuple(outputs), names_in, names_out, **more)


def singles(graph: Graph) -> list[Candidate]:
    """One candidate for every primitive; reshapes are aliases."""
    return [
        alias(n.inputs[0], n.value) if n.prim == "reshape" else compute([n], [n.value])
        for n in graph.primitives
    ]


def random_graph(seed: int, size: int = 12, shape: tuple[int, ...] = (3, 5)) -> Graph:
    """A random graph of elementwise primitives, constants and reshapes, with odd outputs now and
    then."""
    rng = random.Random(seed)
    data = np.random.default_rng(seed)
    inputs = [placeholder(of(shape)) for _ in range(rng.randint(1, 3))]
    values: list[Value] = [*inputs, constant(data.standard_normal(shape).astype(np.float32))]
    flat = (shape[0] * shape[1],)
    for _ in range(size):
        x, y = rng.choice(values[-6:]), rng.choice(values)
        if x.shape != y.shape:
            y = reshape(y, x.shape)
        kind = rng.randrange(6)
        if kind == 5:
            values.append(reshape(x, flat if x.shape == shape else shape))
        else:
            values.append([add(x, y), sub(x, y), mul(x, y), neg(x), x * 0.5][kind])
    outputs = [values[-1], *rng.sample(values, rng.randint(0, 3))]
    if rng.random() < 0.3:
        outputs.append(outputs[0])
    return graph_of(inputs, outputs)

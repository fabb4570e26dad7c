"""An ONNX model becomes a primitive graph of concrete shapes.

load -> fission                                                           (design, sections 2 and 4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from fissile.errors import ModelError, shown
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.prims import constant
from fissile.ir.types import BY_ONNX, TensorType
from fissile.onnx.read import read, type_name
from fissile.onnx.schema import NEWEST_OPSET, OLDEST_OPSET
from fissile.onnx.scope import Scope, initialisers, versions

Shapes = Mapping[str, Sequence[int]]


def load(
    source: str | Path | bytes | ModelProto,
    shapes: Shapes | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """The model as a graph of primitives.

    `shapes` gives the shape of inputs with dynamic dimensions. An initialiser that is also a graph
    input is a constant, unless `shapes` names it. `values` turns inputs into constants, for those
    that decide shapes or branches; the graph has them no longer as inputs. Raises ModelError where
    the model cannot be read, is not valid or holds what is not supported."""
    model, tensors = read(source)
    opsets = versions(model.opset_import)
    _check_opset(opsets)
    graph = model.graph
    shapes = dict(shapes or {})
    constants = initialisers(graph, tensors) | _fixed(graph, values or {})
    inputs = _inputs(graph, constants, shapes)
    functions = {(f.domain if f.domain != "ai.onnx" else "", f.name): f for f in model.functions}
    known = {**constants, **inputs}
    scope = Scope(known, opsets, functions, tensors, provenance={})
    names = tuple(o.name for o in graph.output)
    if not names or len(set(names)) < len(names):
        raise ModelError("the model has no outputs, or two of one name")
    try:
        outputs = scope.run(graph.node, names, known)
    except RecursionError:
        raise ModelError("the model's functions or bodies are nested too deeply") from None
    for info, value in zip(graph.output, outputs, strict=True):
        _check_output(info, value)
    origins = {node: tuple(origin) for node, origin in scope.provenance.items()}
    title = graph.name or "main"
    return Graph(tuple(inputs.values()), outputs, tuple(inputs), names, origins, title)


def _check_opset(opsets: Mapping[str, int]) -> None:
    opset = opsets.get("")
    if opset is None:
        raise ModelError("the model imports no opset of the ONNX domain")
    if opset < OLDEST_OPSET:
        raise ModelError(f"the model uses opset {opset}; {OLDEST_OPSET} is the oldest that is "
                         "supported: convert it with onnx.version_converter")  # fmt: skip
    if opset > NEWEST_OPSET:
        raise ModelError(f"the model uses opset {opset}, but the installed onnx package knows "
                         f"{NEWEST_OPSET}: upgrade onnx or export with an older one")  # fmt: skip


def _inputs(graph: GraphProto, constants: Mapping[str, Value], shapes: Shapes) -> dict[str, Value]:
    infos = {i.name: i for i in graph.input}
    if len(infos) < len(graph.input):
        raise ModelError("two inputs of the graph have the same name")
    for name in shapes:
        if name not in infos:
            listed = ", ".join(shown(n) for n in infos) or "none"
            raise ModelError(
                f"a shape is given for {shown(name)}, which is no input; inputs: {listed}"
            )
    asked = [i for i in graph.input if i.name not in constants or i.name in shapes]
    symbols: dict[str, int] = {}
    for info in asked:
        if info.name in shapes:
            _bind(info, shapes[info.name], symbols)
    return {i.name: placeholder(_type(i, shapes.get(i.name), symbols)) for i in asked}


def _fixed(graph: GraphProto, values: Mapping[str, np.ndarray]) -> dict[str, Value]:
    infos = {i.name: i for i in graph.input}
    for name in values:
        if name not in infos:
            raise ModelError(f"a value is given for {shown(name)}, which is no input")
    return {n: constant(a, BY_ONNX[_tensor_type(infos[n]).elem_type]) for n, a in values.items()}


def _tensor_type(info: ValueInfoProto) -> TypeProto.Tensor:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "unknown").removesuffix("_type")
        raise ModelError(
            f"input {shown(info.name)} is of type {what}; only dense tensors are supported"
        )
    if info.type.tensor_type.elem_type not in BY_ONNX:
        code = type_name(info.type.tensor_type.elem_type)
        raise ModelError(
            f"input {shown(info.name)} has element type {code}, which is not supported"
        )
    return info.type.tensor_type


def _bind(info: ValueInfoProto, shape: Sequence[int], symbols: dict[str, int]) -> None:
    """Checks a given shape against the declared one and learns symbolic dimensions from it."""
    tensor = _tensor_type(info)
    name = shown(info.name)
    if any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in shape):
        raise ModelError(
            f"the shape {list(shape)} given for input {name} is not one of whole numbers"
        )
    if not tensor.HasField("shape"):
        return
    declared = tensor.shape.dim
    if len(declared) != len(shape):
        raise ModelError(
            f"the shape {list(shape)} is given for input {name}, which has rank {len(declared)}"
        )
    for axis, (dim, extent) in enumerate(zip(declared, shape, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != extent:
            raise ModelError(f"the shape {list(shape)} is given for input {name}, but its "
                             f"dimension {axis} is fixed to {dim.dim_value}")  # fmt: skip
        if (
            dim.dim_param
            and symbols.setdefault(dim.dim_param, extent) != extent
            and not _anonymous(dim.dim_param)
        ):
            raise ModelError(f"the given shapes make the dimension {shown(dim.dim_param)} both "
                             f"{symbols[dim.dim_param]} and {extent}")  # fmt: skip


def _anonymous(symbol: str) -> bool:
    """Some exporters write one mark for every dimension they do not know."""
    return symbol in ("?", "None", "-1", "unknown")


def _type(
    info: ValueInfoProto, given: Sequence[int] | None, symbols: Mapping[str, int]
) -> TensorType:
    tensor = _tensor_type(info)
    dtype = BY_ONNX[tensor.elem_type]
    if given is not None:
        return TensorType(tuple(int(s) for s in given), dtype)
    name = shown(info.name)
    if not tensor.HasField("shape"):
        raise ModelError(
            f"input {name} has no shape in the model; give one: --shape {info.name}=..."
        )
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        elif dim.dim_param in symbols and not _anonymous(dim.dim_param):
            shape.append(symbols[dim.dim_param])
        else:
            symbol = f" ({shown(dim.dim_param)})" if dim.dim_param else ""
            raise ModelError(f"input {name} has the dynamic dimension {axis}{symbol}; "
                             f"fix it: --shape {_remedy(info)}")  # fmt: skip
    return TensorType(tuple(shape), dtype)


def _remedy(info: ValueInfoProto) -> str:
    dims = info.type.tensor_type.shape.dim
    extents = [
        str(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else "N" for d in dims
    ]
    return f"{shown(info.name)[1:-1]}={','.join(extents)}"


def _check_output(info: ValueInfoProto, value: Value) -> None:
    """A declared element type is a promise to the caller; declared shapes are often stale."""
    if info.type.WhichOneof("value") != "tensor_type" or not info.type.tensor_type.elem_type:
        return
    declared = BY_ONNX.get(info.type.tensor_type.elem_type)
    if declared is not value.type.dtype:
        raise ModelError(f"output {shown(info.name)} is declared as {declared}, but the graph "
                         f"computes {value.type.dtype}")  # fmt: skip

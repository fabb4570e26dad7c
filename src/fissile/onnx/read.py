"""Models and their tensors from files and bytes; external data lies in the model's folder."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper

from fissile.errors import ModelError, shown
from fissile.ir.types import BY_ONNX

_PER_BYTE = {"u4": 2, "i4": 2, "f4e2m1": 2, "u2": 4, "i2": 4}  # packed elements
_PATH = 300  # characters of a path in a message
_REMEDY = "export it again with the ONNX exporter of your framework"


@dataclass(frozen=True)
class Tensors:
    """Reads tensors; `folder` holds their external data, None where the model came as bytes."""

    folder: Path | None

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The tensor as a numpy array. Raises ModelError where it is damaged or not allowed."""
        name = shown(tensor.name)
        if tensor.data_type not in BY_ONNX:
            kind = type_name(tensor.data_type)
            raise ModelError(f"tensor {name} has element type {kind}, which is not supported")
        if any(d < 0 for d in tensor.dims) or math.prod(tensor.dims) >= 2**48:
            raise ModelError(f"tensor {name} has an impossible shape {list(tensor.dims)}")
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor = self._inlined(tensor)
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, RuntimeError) as error:
            reason = f"its data does not fill the shape {list(tensor.dims)}"
            raise ModelError(f"tensor {name} is damaged: {reason}; {_REMEDY}") from error
        expected = BY_ONNX[tensor.data_type].numpy
        if array.shape != tuple(tensor.dims):
            raise ModelError(f"tensor {name} is damaged: it holds {array.size} elements; {_REMEDY}")
        return array if array.dtype == expected else array.astype(expected)

    def _inlined(self, tensor: TensorProto) -> TensorProto:
        """A copy that holds its external data."""
        name, place = shown(tensor.name), {e.key: e.value for e in tensor.external_data}
        path = self._contained(tensor.name, place.get("location", ""))
        dtype = BY_ONNX[tensor.data_type]
        size = -(-math.prod(tensor.dims) * dtype.size_bytes // _PER_BYTE.get(dtype.name, 1))
        offset = _whole(tensor.name, place, "offset", 0)
        length = _whole(tensor.name, place, "length", size)
        held = path.stat().st_size
        if length != size or offset + length > held:
            raise ModelError(
                f"tensor {name} needs {size} bytes, but its external data names {length} bytes "
                f"from offset {offset} of {shown(path.name)}, which holds {held} bytes"
            )
        copy = TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name)
        with path.open("rb") as file:
            file.seek(offset)
            copy.raw_data = file.read(length)
        return copy

    def _contained(self, name: str, location: str) -> Path:
        if self.folder is None:
            raise ModelError(
                f"tensor {shown(name)} lies in an external file; load the model by its path"
            )
        if not location or os.path.isabs(location) or "\0" in location:
            raise ModelError(f"tensor {shown(name)} names the external file {shown(location)}; "
                             "it must be a path inside the model's folder")  # fmt: skip
        folder = self.folder.resolve()
        path = (folder / location).resolve()
        if not path.is_relative_to(folder):
            raise ModelError(f"tensor {shown(name)} names the external file {shown(location)}, "
                             "which leaves the model's folder; this is refused")  # fmt: skip
        if not path.is_file():
            raise ModelError(
                f"tensor {shown(name)} needs the external file {shown(location)}, which does not "
                "exist; put it next to the model"
            )
        return path


def _whole(name: str, place: dict[str, str], key: str, default: int) -> int:
    text = place.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(
            f"tensor {shown(name)} has the external {key} {shown(text)}, which is no size"
        )
    return int(text)


def type_name(code: int) -> str:
    """The name of a TensorProto element type, for people."""
    try:
        return TensorProto.DataType.Name(code).lower()
    except ValueError:
        return f"number {code}"


def read(source: str | Path | bytes | ModelProto) -> tuple[ModelProto, Tensors]:
    """The model and a reader for its tensors. Raises ModelError where there is no ONNX model."""
    if isinstance(source, ModelProto):
        return source, Tensors(None)
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "the given bytes"), Tensors(None)
    if not isinstance(source, str | os.PathLike):
        raise ModelError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}")
    path = Path(source)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"there is no file {shown(str(path), _PATH)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"the file {shown(str(path), _PATH)} cannot be read: {reason}") from error
    return _parse(data, f"the file {shown(str(path), _PATH)}"), Tensors(path.parent)


def _parse(data: bytes, what: str) -> ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{what} is no ONNX model, or is cut short") from error
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError(f"{what} is no ONNX model, or is cut short: it has no graph or no opset")
    _check_text(model, what)
    return model


def _check_text(message: Any, what: str) -> None:
    """Damaged names come as bytes, which nothing else here expects."""
    for field, value in message.ListFields():
        repeated = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        items = value if repeated else (value,)
        if field.type == field.TYPE_MESSAGE:
            for item in items:
                _check_text(item, what)
        elif field.type == field.TYPE_STRING and any(isinstance(item, bytes) for item in items):
            raise ModelError(f"{what} is damaged: its field {field.name} is no text")

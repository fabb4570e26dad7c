"""Element types and tensor types.

Invariant: a `TensorType` is a concrete shape and one of the ONNX element types (strings apart). The
names follow the usual short forms (f32, i64, ...); `DTYPES` is the one table that joins them to
numpy, to ONNX's `TensorProto.DataType` codes and to C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """One element type. `onnx` is the TensorProto code, `c` the C type, None where C has none."""

    name: str
    numpy: np.dtype
    onnx: int
    c: str | None
    kind: str  # float, int, uint, bool, complex

    def __repr__(self) -> str:
        return self.name

    @property
    def size_bytes(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


def _row(name: str, scalar: Any, code: int, c: str | None, kind: str) -> DType:
    return DType(name, np.dtype(scalar), code, c, kind)


F32 = _row("f32", np.float32, 1, "float", "float")
F64 = _row("f64", np.float64, 11, "double", "float")
F16 = _row("f16", np.float16, 10, "_Float16", "float")
BF16 = _row("bf16", ml_dtypes.bfloat16, 16, "bfloat16", "float")
I8 = _row("i8", np.int8, 3, "int8_t", "int")
I16 = _row("i16", np.int16, 5, "int16_t", "int")
I32 = _row("i32", np.int32, 6, "int32_t", "int")
I64 = _row("i64", np.int64, 7, "int64_t", "int")
U8 = _row("u8", np.uint8, 2, "uint8_t", "uint")
U16 = _row("u16", np.uint16, 4, "uint16_t", "uint")
U32 = _row("u32", np.uint32, 12, "uint32_t", "uint")
U64 = _row("u64", np.uint64, 13, "uint64_t", "uint")
BOOL = _row("bool", np.bool_, 9, "bool", "bool")

DTYPES: tuple[DType, ...] = (
    F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL,
    _row("c64", np.complex64, 14, None, "complex"),
    _row("c128", np.complex128, 15, None, "complex"),
    _row("f8e4m3fn", ml_dtypes.float8_e4m3fn, 17, None, "float"),
    _row("f8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 18, None, "float"),
    _row("f8e5m2", ml_dtypes.float8_e5m2, 19, None, "float"),
    _row("f8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 20, None, "float"),
    _row("u4", ml_dtypes.uint4, 21, None, "uint"),
    _row("i4", ml_dtypes.int4, 22, None, "int"),
    _row("f4e2m1", ml_dtypes.float4_e2m1fn, 23, None, "float"),
    _row("f8e8m0", ml_dtypes.float8_e8m0fnu, 24, None, "float"),
    _row("u2", ml_dtypes.uint2, 25, None, "uint"),
    _row("i2", ml_dtypes.int2, 26, None, "int"),
)  # fmt: skip

BY_NAME = {d.name: d for d in DTYPES}
BY_ONNX = {d.onnx: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}


def dtype_of(array: np.ndarray) -> DType:
    """The DType of a numpy array. Raises KeyError for strings and objects."""
    return _BY_NUMPY[array.dtype]


@dataclass(frozen=True)
class Bounded:
    """An extent that is known at run time only, at most `max`."""

    max: int


@dataclass(frozen=True)
class TensorType:
    """Shape and element type. Scalars have the empty shape."""

    shape: tuple[int, ...]
    dtype: DType

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.numel * self.dtype.size_bytes


def of(shape: tuple[int, ...] | list[int], dtype: DType = F32) -> TensorType:
    return TensorType(tuple(int(s) for s in shape), dtype)

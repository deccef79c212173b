"""One table of element types: the numpy, ONNX, GE and npz names of each.

GE numbers its types twice: tensor descriptors use the protobuf enum (``ge_proto``), attributes use the C++ enum
(``ge_attr``). Mixing the two loads silently wrong, so nothing else in kvfuse writes either number by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
        name: kvfuse's name, the numpy / ml_dtypes spelling.
        np: the numpy dtype that holds it, None where numpy has none.
        onnx: ``TensorProto.DataType`` number, None where ONNX has none.
        ge_proto: number in a GE tensor descriptor.
        ge_attr: number in a GE attribute.
        bits: bits of one element.
        suffix: key suffix in npz files for types numpy cannot store itself.
    """

    name: str
    np: np.dtype[Any] | None
    onnx: int | None
    ge_proto: int
    ge_attr: int
    bits: int
    suffix: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of one element (1 for packed 4-bit types)."""
        return max(1, self.bits // 8)

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` contiguous elements, packed types rounded up to whole bytes."""
        return (elements * self.bits + 7) // 8

    @property
    def is_float(self) -> bool:
        return "float" in self.name or self.name == "double"

    @property
    def is_8bit_float(self) -> bool:
        return self.is_float and self.bits == 8


def _row(
    name: str, np_dtype: DTypeLike | None, onnx: int | None, proto: int, attr: int, bits: int, suffix: str = ""
) -> DType:
    return DType(name, None if np_dtype is None else np.dtype(np_dtype), onnx, proto, attr, bits, suffix)


TABLE: tuple[DType, ...] = (
    _row("float32", np.float32, 1, 1, 0, 32),
    _row("float16", np.float16, 10, 2, 1, 16),
    _row("int8", np.int8, 3, 3, 2, 8),
    _row("uint8", np.uint8, 2, 4, 4, 8),
    _row("int16", np.int16, 5, 5, 6, 16),
    _row("uint16", np.uint16, 4, 6, 7, 16),
    _row("int32", np.int32, 6, 7, 3, 32),
    _row("int64", np.int64, 7, 8, 9, 64),
    _row("uint32", np.uint32, 12, 9, 8, 32),
    _row("uint64", np.uint64, 13, 10, 10, 64),
    _row("bool", np.bool_, 9, 11, 12, 8),
    _row("float64", np.float64, 11, 12, 11, 64),
    _row("complex64", np.complex64, 14, 16, 16, 64),
    _row("bfloat16", ml_dtypes.bfloat16, 16, 27, 27, 16, "__bf16"),
    _row("int4", ml_dtypes.int4, 22, 28, 29, 4, "__int4"),
    _row("hifloat8", None, None, 33, 34, 8),
    _row("float8_e5m2", ml_dtypes.float8_e5m2, 19, 34, 35, 8, "__e5m2"),
    _row("float8_e4m3fn", ml_dtypes.float8_e4m3fn, 17, 35, 36, 8, "__e4m3fn"),
    _row("float8_e8m0", ml_dtypes.float8_e8m0fnu, 24, 36, 37, 8, "__e8m0"),
    _row("float4_e2m1", ml_dtypes.float4_e2m1fn, 23, 39, 40, 4, "__e2m1"),
)

UNDEFINED_GE_PROTO = 0
"""The dtype of an absent optional input's descriptor."""
UNDEFINED_GE_ATTR = 28

_BY_NAME = {row.name: row for row in TABLE}
_BY_NUMPY = {row.np: row for row in TABLE if row.np is not None}
_BY_ONNX = {row.onnx: row for row in TABLE if row.onnx is not None}
_BY_GE_PROTO = {row.ge_proto: row for row in TABLE}
_BY_GE_ATTR = {row.ge_attr: row for row in TABLE}
_BY_SUFFIX = {row.suffix: row for row in TABLE if row.suffix}


def by_name(name: str) -> DType:
    """The type called ``name``. Raises KeyError for an unknown name."""
    return _BY_NAME[name]


def by_numpy(dtype: DTypeLike) -> DType:
    """The type that a numpy dtype holds. Raises KeyError for one that has no row (strings, objects)."""
    return _BY_NUMPY[np.dtype(dtype)]


def by_onnx(number: int) -> DType:
    """The type with that ``TensorProto.DataType`` number. Raises KeyError when kvfuse does not know it."""
    return _BY_ONNX[number]


def by_ge_proto(number: int) -> DType:
    """The type with that number in a GE tensor descriptor. Raises KeyError when unknown."""
    return _BY_GE_PROTO[number]


def by_ge_attr(number: int) -> DType:
    """The type with that number in a GE attribute. Raises KeyError when unknown."""
    return _BY_GE_ATTR[number]


def by_suffix(suffix: str) -> DType:
    """The type stored under that npz key suffix. Raises KeyError when unknown."""
    return _BY_SUFFIX[suffix]

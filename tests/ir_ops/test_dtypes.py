"""The table of element types against onnx's and GE's numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ir_ops import dtypes
from ir_ops.dtypes import TABLE, DType

ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}

# name: (number in a GE tensor descriptor, number in a GE attribute), from GE's own type mapping
GE_NUMBERS = {
    "float32": (1, 0), "float16": (2, 1), "int8": (3, 2), "uint8": (4, 4), "int16": (5, 6), "uint16": (6, 7),
    "int32": (7, 3), "int64": (8, 9), "uint32": (9, 8), "uint64": (10, 10), "bool": (11, 12), "float64": (12, 11),
    "complex64": (16, 16), "bfloat16": (27, 27), "int4": (28, 29), "hifloat8": (33, 34), "float8_e5m2": (34, 35),
    "float8_e4m3fn": (35, 36), "float8_e8m0": (36, 37), "float4_e2m1": (39, 40),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_numbers(row: DType) -> None:
    """ONNX's number is the enum value of the type's name, GE's two are the ones GE maps to each other."""
    if row.onnx is not None:
        name = onnx.TensorProto.DataType.Name(row.onnx)
        assert name == ONNX_NAMES.get(
            row.name, row.name.upper().replace("FLOAT8_", "FLOAT8").replace("FLOAT4_", "FLOAT4")
        )
    assert (row.ge_proto, row.ge_attr) == GE_NUMBERS[row.name]


def test_every_type_of_the_table_is_checked() -> None:
    assert {row.name for row in TABLE} == set(GE_NUMBERS)
    assert dtypes.UNDEFINED_GE_PROTO == 0
    assert dtypes.UNDEFINED_GE_ATTR == 28
    assert dtypes.UNDEFINED_GE_ATTR not in {row.ge_attr for row in TABLE}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_lookups_lead_back_to_the_row(row: DType) -> None:
    assert dtypes.by_name(row.name) is row
    assert dtypes.by_ge_proto(row.ge_proto) is row
    assert dtypes.by_ge_attr(row.ge_attr) is row
    if row.np is not None:
        assert dtypes.by_numpy(row.np) is row
        assert row.np.itemsize == row.itemsize
    if row.onnx is not None:
        assert dtypes.by_onnx(row.onnx) is row
    if row.suffix:
        assert dtypes.by_suffix(row.suffix) is row


@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.np is not None and row.onnx is not None], ids=lambda r: r.name
)
def test_numpy_type_is_the_one_onnx_uses(row: DType) -> None:
    assert onnx.helper.tensor_dtype_to_np_dtype(row.onnx) == row.np


def test_unknown_types_are_key_errors() -> None:
    for lookup, key in (
        (dtypes.by_name, "float99"),
        (dtypes.by_onnx, onnx.TensorProto.STRING),
        (dtypes.by_ge_proto, dtypes.UNDEFINED_GE_PROTO),
        (dtypes.by_ge_attr, dtypes.UNDEFINED_GE_ATTR),
        (dtypes.by_numpy, np.dtype("U3")),
        (dtypes.by_suffix, "__x"),
    ):
        with pytest.raises(KeyError):
            lookup(key)


def test_bytes_of_packed_types() -> None:
    """Two 4-bit elements share a byte; an odd count takes the whole last byte."""
    assert dtypes.by_name("int4").nbytes(3) == 2
    assert dtypes.by_name("float4_e2m1").nbytes(4) == 2
    assert dtypes.by_name("bfloat16").nbytes(3) == 6

"""Constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ir_ops.dtypes import Array, DType
from ir_ops.ge.evaluator.registry import EvalCall, evaluates
from ir_ops.ge.model import ConstTensor, TensorType, array_from_bytes
from ir_ops.ge.nz import unpacked


def _file(call: EvalCall, location: str, offset: int, length: int) -> bytes:
    path = (call.folder or Path()) / location
    if not path.is_file():
        raise call.error("no weight file", str(path))
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise call.error("the weight file is too short", f"{path} ends before {offset + length}")
    return data


@evaluates("Const", "Constant")
def const(call: EvalCall) -> Array:
    value = call.attr("value")
    if not isinstance(value, ConstTensor):
        raise call.error("a constant without a tensor", "no attribute value")
    if "location" in call.node.attrs:
        data = _file(call, call.attr("location"), 0, int(call.attr("length")))
        value = ConstTensor(value.type, data)
    return unpacked(value.array()) if value.type.storage else value.array()


@evaluates("FileConstant")
def file_constant(call: EvalCall) -> Array:
    dtype = call.attr("dtype")
    if not isinstance(dtype, DType):
        raise call.error("a weight without an element type", "no attribute dtype")
    tensor = TensorType(dtype, tuple(call.attr("shape")))
    location = call.attr("location") or call.attr("file_path")
    length = dtype.nbytes(tensor.numel or 0)
    return array_from_bytes(_file(call, location, int(call.attr("offset") or 0), length), tensor)


@evaluates("Fill")
def fill(call: EvalCall) -> Array:
    return np.full(call.ints("dims"), call.x("value").reshape(()))


@evaluates("Range")
def range_(call: EvalCall) -> Array:
    start, limit, delta = (call.x(name).reshape(()) for name in ("start", "limit", "delta"))
    count = max(0, int(np.ceil((limit.astype(np.float64) - start) / delta)))
    return np.asarray(start + np.arange(count, dtype=start.dtype) * delta).astype(start.dtype)


@evaluates("OnesLike", "ZerosLike")
def like(call: EvalCall) -> Array:
    return np.full_like(call.x("x"), 1 if call.node.type == "OnesLike" else 0)

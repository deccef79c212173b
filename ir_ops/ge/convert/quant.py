"""Quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

import numpy as np

from ir_ops.dtypes import Array, DType, by_name, by_onnx
from ir_ops.ge.convert.call import FLOATS, NodeCall
from ir_ops.ge.convert.matmul import product
from ir_ops.ge.convert.registry import MICROSOFT, Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor
from ir_ops.ge.validator.semantics import ONNX_SCALE_ATTR


def _along(n: NodeCall, x: Tensor, axis: int, rank: int, part: str) -> Tensor:
    """A 1-D per-axis parameter with trailing dims of 1, so that it broadcasts along ``axis``."""
    if len(x.shape or ()) != 1 or axis == rank - 1 or x.shape == (1,):
        return x
    shape = [-1] + [1] * (rank - axis - 1)
    return n.emit("Reshape", {"x": x, "shape": n.vector(shape)}, part=part)


def _refuse_blocks(n: NodeCall) -> None:
    if n.attr("block_size", 0):
        raise Unsupported("blockwise quantisation", "per-tensor or per-axis parameters")


@converts(
    "QuantizeLinear",
    since=10,
    dtypes="float32, float16, bfloat16 -> int8, uint8",
    ge="AscendQuantV2; RealDiv, Round, Add, ClipByValue, Cast",
    note="GE multiplies: constant scales become reciprocals in x's type, which can move a tie; GE adds the zero point "
    "before rounding, ONNX after: equal except at ties with an odd zero point. To uint8, and along an axis that is not "
    "the last, it is spelled out in float32",
)
def quantize(n: NodeCall) -> Result:
    n.require(*FLOATS)
    _refuse_blocks(n)
    target = n.dtype(2).name if n.has(2) else _declared_target(n)
    if target not in _BYTES:
        raise Unsupported(f"QuantizeLinear to {target}", "int8 or uint8")
    axis = n.axis(int(n.attr("axis", 1)), n.rank(0)) if n.rank(1) == 1 and n.arg(1).type.numel != 1 else n.rank(0) - 1
    if axis != n.rank(0) - 1 or target != "int8":
        return _quantized(n, max(axis, 0), target)
    scale, mark = _reciprocal(n)
    offset = _offset(n)
    attrs = {"dst_type": 2, "axis": -1, "round_mode": "round", **mark}
    return n.emit("AscendQuantV2", {"x": n.x(0), "scale": scale, "offset": offset}, attrs)


_BYTES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}


def _quantized(n: NodeCall, axis: int, target: str) -> Tensor:
    """``saturate(round(x / scale) + zero_point)`` as the standard spells it."""
    rank = n.rank(0)
    scale = _along(n, n.cast(n.x(1), "float32", "scale"), axis, rank, "scale_axis")
    steps = n.emit("RealDiv", {"x1": n.cast(n.x(0), "float32", "wide"), "x2": scale}, part="steps")
    y = n.emit("Round", {"x": steps}, part="rounded")
    if n.has(2):
        zero = _along(n, n.cast(n.x(2), "float32", "zero_point"), axis, rank, "zero_point_axis")
        y = n.emit("Add", {"x1": y, "x2": zero}, part="shifted")
    low, high = (n.scalar(bound, "float32") for bound in _BYTES[target])
    y = n.emit("ClipByValue", {"x": y, "clip_value_min": low, "clip_value_max": high}, part="clipped")
    return n.emit("Cast", {"x": y}, {"dst_type": by_name(target)})


def _declared_target(n: NodeCall) -> str:
    """The type that the attribute names (from opset 21), by default uint8."""
    number = int(n.attr("output_dtype", 0))
    try:
        return by_onnx(number).name if number else "uint8"
    except KeyError:
        return f"element type {number}"


def _vector_of(array: Array, dtype: DType) -> Array:
    return np.asarray(array, dtype=dtype.np).reshape(-1)


def _reciprocal(n: NodeCall) -> tuple[Tensor, dict[str, object]]:
    values = n.arg(1).constant()
    if values is not None:
        inverse = 1.0 / values.astype(np.float64)
        mark = n.mark(ONNX_SCALE_ATTR, "ListFloat", [float(item) for item in values.reshape(-1)[:16]])
        return n.builder.const(_vector_of(inverse, n.dtype(0)), name=f"{n.name}/scale"), dict(mark)
    wide = n.emit("Reciprocal", {"x": n.cast(n.x(1), n.dtype(0), "scale_cast")}, part="scale")
    return n.emit("Reshape", {"x": wide, "shape": n.vector([-1])}, part="scale_vector"), {}


def _offset(n: NodeCall) -> Tensor | None:
    if not n.has(2):
        return None
    values = n.arg(2).constant()
    if values is not None:
        if not values.any():
            return None
        # an offset has the shape of the scale
        vector = _vector_of(values, n.dtype(0))
        count = max(n.arg(1).type.numel or 1, vector.size)
        return n.builder.const(np.broadcast_to(vector, (count,)).copy(), name=f"{n.name}/offset")
    flat = n.emit("Reshape", {"x": n.x(2), "shape": n.vector([-1])}, part="offset_vector")
    return n.cast(flat, n.dtype(0), "offset")


@converts("DequantizeLinear", dtypes="int8, uint8, int32 -> float32, float16, bfloat16", ge="Cast, Sub, Mul", since=10,
          note="(x - zero_point) * scale in the scale's type")  # fmt: skip
def dequantize(n: NodeCall) -> Result:
    n.require("int8", "uint8", "int32")
    _refuse_blocks(n)
    rank, scale = n.rank(0), n.dtype(1)
    axis = n.axis(int(n.attr("axis", 1)), rank) if n.rank(1) == 1 and rank > 1 else max(rank - 1, 0)
    known = n.arg(2).constant() if n.has(2) else np.zeros(1)
    plain = known is not None and not known.any()
    wide = n.cast(n.x(0), scale if plain else "int32", "widen")
    if not plain:
        zero = _along(n, n.cast(n.x(2), "int32", "zero_point"), axis, rank, "zero_point_axis")
        wide = n.cast(n.emit("Sub", {"x1": wide, "x2": zero}, part="centred"), scale, "float")
    return n.emit("Mul", {"x1": wide, "x2": _along(n, n.x(1), axis, rank, "scale_axis")})


@converts(
    "DynamicQuantizeLinear",
    dtypes="float32 -> uint8",
    ge="ReduceMax, ReduceMin, Sub, RealDiv, Equal, SelectV2, Round, ClipByValue, Cast",
    note="spelled out: GE's DynamicQuant is symmetric int8 for each row, another function; "
    "of zeros alone the scale is 1, as in ONNX Runtime",
)
def dynamic_quantize(n: NodeCall) -> Result:
    n.require("float32")
    axes, zero = n.vector(range(n.rank(0))), n.scalar(0.0, "float32")

    def extreme(kind: str, bound: str) -> Tensor:
        reduced = n.emit(f"Reduce{kind}", {"x": n.x(0), "axes": axes}, {"keep_dims": False}, kind.lower())
        return n.emit(bound, {"x1": reduced, "x2": zero}, part=f"{kind.lower()}_or_zero")

    high, low = extreme("Max", "Maximum"), extreme("Min", "Minimum")
    reach = n.emit("Sub", {"x1": high, "x2": low}, part="range")
    step = n.emit("RealDiv", {"x1": reach, "x2": n.scalar(255.0, "float32")}, part="step")
    # nothing but zeros: any scale is right, and 0 would divide
    flat = n.emit("Equal", {"x1": reach, "x2": zero}, part="is_flat")
    scale = n.emit("SelectV2", {"condition": flat, "then": n.scalar(1.0, "float32"), "else": step}, part="scale")
    start = n.emit(
        "RealDiv", {"x1": n.emit("Sub", {"x1": zero, "x2": low}, part="minus_min"), "x2": scale}, part="start"
    )
    zero_point = _rounded_byte(n, start, "zero")
    steps = n.emit("RealDiv", {"x1": n.x(0), "x2": scale}, part="steps")
    shifted = n.emit("Add", {"x1": n.emit("Round", {"x": steps}, part="rounded"), "x2": zero_point}, part="shifted")
    byte = by_name("uint8")
    y = n.emit("Cast", {"x": _clipped(n, shifted, "y")}, {"dst_type": byte})
    return [y, scale, n.emit("Cast", {"x": zero_point}, {"dst_type": byte}, "zero_point")]


def _clipped(n: NodeCall, x: Tensor, part: str) -> Tensor:
    bounds = {"clip_value_min": n.scalar(0.0, "float32"), "clip_value_max": n.scalar(255.0, "float32")}
    return n.emit("ClipByValue", {"x": x, **bounds}, part=f"{part}_clipped")


def _rounded_byte(n: NodeCall, x: Tensor, part: str) -> Tensor:
    return n.emit("Round", {"x": _clipped(n, x, part)}, part=f"{part}_rounded")


@converts(
    "MatMulNBits",
    domain=MICROSOFT,
    dtypes="float32, float16, bfloat16",
    ge="MatMulV2 / BatchMatMulV2, Add",
    note="2, 4 or 8 bits in blocks; the weight is stored dequantised in A's type (exact, 2 to 8 times as large)",
)
def matmul_nbits(n: NodeCall) -> Result:
    n.require(*FLOATS)
    if n.has(4):
        raise Unsupported("MatMulNBits with g_idx", "blocks in order")
    weight = _dequantised(n).astype(n.dtype(0).np)
    n.note_once(
        "MatMulNBits: weights are stored dequantised; activations are not quantised, whatever accuracy_level says"
    )
    y = product(n, n.x(0), n.weight(weight, "weight"), "product" if n.has(5) else "")
    return n.emit("Add", {"x1": y, "x2": n.x(5)}) if n.has(5) else y


def _dequantised(n: NodeCall) -> Array:
    """The weight ``[K, N]`` in float32: ``(q - zero_point) * scale`` of each block of a column."""
    bits, block, depth, columns = (int(n.attr(name)) for name in ("bits", "block_size", "K", "N"))
    if bits not in (2, 4, 8):
        raise Unsupported(f"MatMulNBits with {bits} bits", "2, 4 or 8 bits")
    blocks = -(-depth // block)
    values = _unpacked(n.constant(1).reshape(columns, -1), bits)[:, : blocks * block].reshape(columns, blocks, block)
    zero: Array = np.full((columns, blocks), float(2 ** (bits - 1)), np.float32)
    if n.has(3):
        given = n.constant(3).reshape(columns, -1)
        zero = given if given.dtype.kind != "u" else _unpacked(given, bits)[:, :blocks]
    scale = n.constant(2).reshape(columns, blocks).astype(np.float32)
    wide = (values.astype(np.float32) - zero.astype(np.float32)[..., None]) * scale[..., None]
    return np.ascontiguousarray(wide.reshape(columns, -1)[:, :depth].T)


def _unpacked(rows: Array, bits: int) -> Array:
    """The values in rows of bytes, the first in the lowest bits."""
    parts = [(rows >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(rows.shape[0], -1)

"""Rules 29 to 36: operators whose defaults or conventions differ from what an ONNX user expects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ir_ops.dtypes import by_name
from ir_ops.errors import BadInput
from ir_ops.ge.codec import decode_desc, shape_of
from ir_ops.ge.model import array_from_bytes
from ir_ops.ge.validator.context import ERROR, NOTE, Context, Op, Report, dtype_of, rule

ONNX_SCALE_ATTR = "_onnx_scale"
"""The exporter leaves the scale of QuantizeLinear here (its first values), for rule 36."""

_ATTENTION = ("FusedInferAttentionScore", "PromptFlashAttention", "IncreFlashAttention")


def _unwritten(c: Context, attr: str, *types: str) -> Iterator[Op]:
    return (op for op in c.of_type(*types) if attr not in op.message.attr)


@rule(29, "Reductions write keep_dims (false by default in GE, true in ONNX)")
def keep_dims(c: Context) -> Iterator[Report]:
    reductions = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceAll", "ReduceAny")
    for op in _unwritten(c, "keep_dims", *reductions):
        yield ERROR, op.place, "keep_dims is not written"


@rule(30, "Trilu writes upper (0 by default in GE, 1 in ONNX)")
def trilu_upper(c: Context) -> Iterator[Report]:
    for op in _unwritten(c, "upper", "Trilu"):
        yield ERROR, op.place, "upper is not written"


@rule(31, "GatherV2's axis is a constant scalar")
def gather_axis(c: Context) -> Iterator[Report]:
    for op in c.of_type("GatherV2"):
        place, source = op.slot("axis"), op.producer("axis")
        if place is None or source is None:
            continue
        shape = shape_of(op.message.input_desc[place])
        if shape not in ((), (1,)):
            yield ERROR, op.place, f"axis has shape {list(shape or ())}, wanted a scalar"


@rule(32, "TopK's k and indices are int32")
def top_k(c: Context) -> Iterator[Report]:
    int32 = by_name("int32")
    for op in c.of_type("TopK", "TopKV2"):
        place = op.slot("k")
        if place is not None and dtype_of(op.message.input_desc[place]) != int32:
            yield ERROR, op.place, "k is not int32 (ONNX has int64)"
        if "indices" in op.output_names:
            desc = op.message.output_desc[op.output_names.index("indices")]
            if dtype_of(desc) != int32:
                yield ERROR, op.place, "indices are not int32; a Cast makes int64 of them"


@rule(33, "Norms write epsilon (its default differs between operators and from ONNX)")
def epsilon(c: Context) -> Iterator[Report]:
    for op in c.ops():
        if op.prototype is not None and op.prototype.attr("epsilon") and "epsilon" not in op.message.attr:
            yield ERROR, op.place, "epsilon is not written"


@rule(34, "Shape and Size write dtype (int32 by default in GE, int64 in ONNX)")
def shape_dtype(c: Context) -> Iterator[Report]:
    for op in _unwritten(c, "dtype", "Shape", "Size"):
        yield ERROR, op.place, "dtype is not written"


@rule(35, "Attention masks are bool or int8, and true means masked")
def mask_polarity(c: Context) -> Iterator[Report]:
    for op in c.of_type(*_ATTENTION):
        place = op.slot("atten_mask")
        if place is None:
            continue
        dtype = dtype_of(op.message.input_desc[place])
        if dtype is None or dtype.name not in ("bool", "int8", "uint8"):
            yield ERROR, op.place, f"atten_mask is {dtype.name if dtype else '?'}; an additive mask goes to pse_shift"
        else:
            yield NOTE, op.place, "true in atten_mask means masked (ONNX: true means keep)"


@rule(36, "AscendQuantV2 multiplies by its scale: the reciprocal of ONNX's")
def quant_scale(c: Context) -> Iterator[Report]:
    for op in c.of_type("AscendQuantV2"):
        onnx_scale, values = op.attr(ONNX_SCALE_ATTR).list.f, _const_values(op, "scale")
        if not onnx_scale or values is None:
            yield NOTE, op.place, "x is multiplied by scale (ONNX QuantizeLinear divides)"
            continue
        wanted = 1.0 / np.asarray(onnx_scale, dtype=np.float64)
        if not np.allclose(values[: len(wanted)], wanted, rtol=2.0**-7):
            yield ERROR, op.place, f"scale {values[:3].tolist()}, wanted the reciprocal {wanted[:3].tolist()}"


def _const_values(op: Op, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    source = op.producer(name)
    if source is None or not source.is_constant or source.attr("value").WhichOneof("value") != "t":
        return None
    tensor = source.attr("value").t
    try:
        array = array_from_bytes(bytes(tensor.data), decode_desc(tensor.desc, source.place))
    except BadInput:
        return None
    return array.astype(np.float64).reshape(-1)

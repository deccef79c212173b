"""What operators take beyond their prototypes: element types, and operands that have to be constants."""

from __future__ import annotations

from ir_ops.ge.validator.context import ERROR, NOTE, WARNING
from ir_ops.ops import OPS

CONST_OPERANDS: dict[str, tuple[str, ...]] = {
    "Transpose": ("perm",),
    "ReduceMean": ("axes",), "ReduceSum": ("axes",), "ReduceMax": ("axes",), "ReduceMin": ("axes",),
    "ReduceProd": ("axes",), "ReduceAll": ("axes",), "ReduceAny": ("axes",),
    "SplitV": ("size_splits", "split_dim"), "Split": ("split_dim",),
    "GatherV2": ("axis",), "ConcatV2": ("concat_dim",), "Cumsum": ("axis",), "ArgMaxV2": ("dimension",),
    "ExpandDims": ("axis",), "UnsqueezeV3": ("axes",), "SqueezeV3": ("axes",), "OneHot": ("depth",),
    "TopK": ("k",), "TopKV2": ("k",), "Trilu": ("k",), "LayerNormV4": ("normalized_shape",),
    "Reshape": ("shape",), "Expand": ("shape",), "BroadcastTo": ("shape",), "Tile": ("multiples",), "Fill": ("dims",),
    "StridedSliceV2": ("begin", "end", "axes", "strides"), "Range": ("start", "limit", "delta"),
}  # fmt: skip
"""Operator -> inputs whose content decides the output's shape."""

MUST_BE_CONST = frozenset(
    {"perm", "axes", "axis", "split_dim", "size_splits", "concat_dim", "dimension", "strides", "normalized_shape"}
)
"""Those that no compiler takes at run time; the others may be computed where shapes are dynamic."""

_OLD_HEADERS = "bfloat16 is missing from older GE prototypes of this operator"
_NO_BOOL = "the prototype lists numbers only"
_REFUSED: dict[str, dict[str, tuple[str, str]]] = {
    "ConcatD": {"bool": (ERROR, "ConcatD does not take bool; use ConcatV2")},
    "GatherElements": {"float64": (ERROR, "the operator does not take double")},
    "GatherV2": {"bool": (WARNING, _NO_BOOL)},
    "GatherNd": {"bool": (WARNING, _NO_BOOL)},
    "IsNan": {"bfloat16": (ERROR, "the operator takes float16, float32 and double")},
    "Einsum": {"bfloat16": (ERROR, "the operator takes float16, float32 and int32")},
    "MatMulV2": {"uint8": (ERROR, "the product takes int8, not uint8")},
    "BatchMatMulV2": {"uint8": (ERROR, "the product takes int8, not uint8")},
    "DynamicQuant": {"float32": (ERROR, "the operator takes float16 and bfloat16")},
    **{
        op: {"bfloat16": (WARNING, _OLD_HEADERS)}
        for op in (
            "Expand", "Identity", "Round", "TensorMove", "Relu", "Sign", "Minimum", "Maximum", "Mod", "Muls", "Scatter",
        )
    },
    "Flatten": {"bfloat16": (WARNING, _OLD_HEADERS), "bool": (ERROR, "the operator takes numbers; use Reshape")},
    "ScatterNdAdd": {
        "bfloat16": (WARNING, _OLD_HEADERS),
        "int64": (ERROR, "the operator takes float32, float16, int32, int8 and uint8"),
        "bool": (ERROR, "the operator takes float32, float16, int32, int8 and uint8"),
    },
    # no element is read, so this is a matter of the prototype's text alone
    "Shape": {"bfloat16": (NOTE, _OLD_HEADERS)},
    "Size": {"bfloat16": (NOTE, _OLD_HEADERS)},
}  # fmt: skip
_DATA_INPUTS = frozenset({"x", "x1", "x2", "var"})


def refused_dtype(op_type: str, name: str, dtype: str) -> tuple[str, str] | None:
    """(severity, reason) when an operator does not take an element type at an input, None when it does."""
    if op_type in OPS:
        declared = next((entry for entry in OPS[op_type].inputs if entry.name == name), None)
        if declared is not None and dtype not in OPS[op_type].types[declared.type]:
            return ERROR, f"the operator takes {' | '.join(OPS[op_type].types[declared.type])}"
    base = name.rstrip("0123456789") if op_type in ("ConcatD", "Einsum") else name
    return _REFUSED.get(op_type, {}).get(dtype) if base in _DATA_INPUTS else None

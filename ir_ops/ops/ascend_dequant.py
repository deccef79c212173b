"""AscendDequant: int32 sums times a scale, of the tensor or of each column.

``y = x * scale`` in fp32, with ``sqrt_mode`` ``x * scale * scale``, with ``relu_flag`` not below 0; rounded once. The
scale is fp16, or uint64 that holds the bits of an fp32 number in its low half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract_rows as rows
from ir_ops.contract_rows import integer, target_type
from ir_ops.declaration import (
    Attr,
    Attrs,
    Case,
    Constraint,
    Finding,
    Input,
    Note,
    Operator,
    Output,
    Shape,
    TensorSpec,
    shape_differs,
    shape_text,
)
from ir_ops.numeric import Numeric

TARGETS = ("float16", "float32")


def _scale_shape(case: Case) -> Iterator[Finding]:
    forms: list[Shape] = [(1,), case.shape("x")[-1:]]
    if all(shape_differs(case.shape("deq_scale"), form) for form in forms):
        shown = " or ".join(shape_text(form) for form in dict.fromkeys(forms))
        yield f"deq_scale {shape_text(case.shape('deq_scale'))}", shown


def _known_type(case: Case) -> Iterator[Finding]:
    if target_type(integer(case, "dtype")) not in TARGETS:
        yield f"dtype {integer(case, 'dtype')}", "0 (float32) | 1 (float16)"


def _not_there(case: Case) -> Iterator[Finding]:
    yield "AscendDequant", "another operator"


CONSTRAINTS = (
    Constraint("AD-1", "unknown dtype", _known_type),
    Constraint("AD-2", "x has 1 to 8 dims", rows.ranks("x", 1, 8)),
    Constraint("AD-2", "deq_scale must have one element or those of the last dim", _scale_shape),
    Constraint("AD-3", "the product does not have this operator", _not_there, ("A3", "A2", "kirin")),
)
"""The contract has no numbers: these are ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    number = attrs.get("dtype")
    kind = target_type(number) if isinstance(number, int) else ""
    return {"y": TensorSpec(kind if kind in TARGETS else "float16", specs["x"].shape)}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    scale = x["deq_scale"]
    scale = xp.from_bits(scale) if xp.dtype(scale) == "uint64" else xp.cast(scale, "float32")
    y = xp.cast(x["x"], "float32") * scale
    if attrs["sqrt_mode"]:
        y = y * scale
    if attrs["relu_flag"]:
        y = xp.clip(xp.nan_to_zero(y), 0.0, float("inf"))
    return {"y": xp.cast(y, target_type(int(attrs["dtype"])))}


OPERATOR = Operator(
    name="AscendDequant",
    doc=__doc__,
    types={"X": ("int32",), "S": ("uint64", "float16"), "Y": TARGETS},
    inputs=(
        Input("x", "X", "any but a scalar", "sums; may be empty"),
        Input("deq_scale", "S", "[1] or [C]; C = last dim of x", "multiplier, or its bits"),
    ),
    outputs=(Output("y", "Y", "as x", "numbers, of dtype"),),
    attrs=(
        Attr("sqrt_mode", "Bool", False, "multiply by the scale twice"),
        Attr("relu_flag", "Bool", False, "what is below 0 becomes 0"),
        Attr("dtype", "Int", None, "0 float32, 1 float16"),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    notes=(
        Note(
            "Choices where the contract leaves room",
            items=(
                "dtype must be given: the sources differ in its default (0 and 1).",
                "The upper half of a uint64 scale is not looked at.",
                "With relu_flag NaN becomes 0.",
                "Device layouts (NC1HWC0, FRACTAL_NZ) are a matter of GE: here x is plain.",
                "On a device this belongs to convolutions. In decoders QuantBatchMatmulV3, or a cast and a product, "
                "dequantise.",
            ),
        ),
    ),
)

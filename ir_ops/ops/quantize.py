"""Quantize: static quantisation by division, with a zero point that is added before rounding.

``y = clamp(round(x / scales + zero_points))`` in fp32, half to even, as int8, uint8 or int32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import FLOATS
from ir_ops.contract_rows import integer, normalised_axis
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
    TensorSpec,
    shape_differs,
    shape_text,
)
from ir_ops.numeric import Numeric
from ir_ops.ops.ascend_quant_v2 import along
from ir_ops.preamble import to_integer

TARGETS = {"torch.qint8": "int8", "torch.quint8": "uint8", "torch.qint32": "int32"}
"""The values of ``dtype`` -> element type of y."""


def _per_axis(case: Case) -> bool:
    return shape_differs(case.shape("scales"), (1,))


def _scale_shape(case: Case) -> Iterator[Finding]:
    if not _per_axis(case):
        return
    x = case.shape("x")
    size = x[normalised_axis(integer(case, "axis"), len(x))]
    if shape_differs(case.shape("scales"), (size,)):
        yield f"scales {shape_text(case.shape('scales'))}", f"[1] or {shape_text((size,))}"


def _zero_shape(case: Case) -> Iterator[Finding]:
    if case.has("zero_points"):
        yield from rows.same_shape("zero_points", "scales")(case)


CONSTRAINTS = (
    Constraint("QU-1", "unknown dtype", rules.known_word("dtype", TARGETS)),
    Constraint("QU-2", "x has 1 to 8 dims", rows.ranks("x", 1, 8)),
    Constraint("QU-2", "axis must be an axis of x", rules.when(_per_axis, rows.axis_of("x", "axis"))),
    Constraint("QU-3", "scales must have one element or those of the axis", _scale_shape),
    Constraint("QU-3", "zero_points must have the shape of scales", _zero_shape),
    Constraint("QU-4", "a scale cannot divide", rules.divisors("scales")),
)
"""The contract has no numbers: these are ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"y": TensorSpec(TARGETS.get(str(attrs.get("dtype")), "int8"), specs["x"].shape)}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rank, axis = xp.rank(x["x"]), int(attrs["axis"])
    y = xp.cast(x["x"], "float32") / along(xp, xp.cast(x["scales"], "float32"), axis, rank)
    if "zero_points" in x:
        y = y + along(xp, xp.cast(x["zero_points"], "float32"), axis, rank)
    return {"y": to_integer(xp, y, TARGETS[str(attrs["dtype"])])}


OPERATOR = Operator(
    name="Quantize",
    doc=__doc__,
    types={"T": FLOATS, "S": FLOATS, "Z": ("int8", "uint8", "int32", "float32", "bfloat16"),
           "Q": tuple(TARGETS.values())},
    inputs=(
        Input("x", "T", "any but a scalar", "values; may be empty"),
        Input("scales", "S", "[1] or [C]; C = size of axis", "divisors"),
        Input("zero_points", "Z", "as scales", "added to the quotient, before rounding", True),
    ),
    outputs=(Output("y", "Q", "as x", "quantised values, of dtype"),),
    attrs=(
        Attr("dtype", "String", None, "element type of y", tuple(TARGETS)),
        Attr("axis", "Int", 1, "the axis that scales and zero_points belong to; not looked at with one scale"),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    needs_rank=("x",),
    notes=(
        Note(
            "Choices where the contract leaves room",
            (
                ("dtype", "y", "clamped to"),
                ("torch.qint8", "int8", "-128..127"),
                ("torch.quint8", "uint8", "0..255"),
                ("torch.qint32", "int32", "its whole range"),
            ),
            (
                "NaN becomes 0.",
                "A scale that is 0, infinite or NaN is refused.",
                "This is ONNX's QuantizeLinear but for ties with an odd zero point: ONNX rounds before it adds.",
            ),
        ),
    ),
)  # fmt: skip

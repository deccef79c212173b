"""InterleaveRope: DeepSeek's rotation: even and odd columns are put apart, then halves are turned.

``x' = [even columns, odd columns]``, ``y = x' * cos + [-x'[h:], x'[:h]] * sin``: mode 3 of RotaryPositionEmbedding, and
the rotation inside KvRmsNormRopeCache and MlaPrologV3. All arithmetic is fp32; y is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import DEVICES, FLOATS
from ir_ops.declaration import (
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
from ir_ops.preamble import rotate


def _cos(case: Case) -> Iterator[Finding]:
    x, cos = case.shape("x"), case.shape("cos")
    if len(x) != 4:
        return  # IR-1
    wanted = (x[0], 1, cos[2] if len(cos) == 4 and cos[2] == 1 else x[2], x[3])
    if shape_differs(cos, wanted):
        yield f"cos {shape_text(cos)}", f"[B, 1, S or 1, D] for x {shape_text(x)}"


def _device_width(case: Case) -> Iterator[Finding]:
    if case.dim("x", -1) != 64:
        yield f"D = {case.dim('x', -1)}", "D = 64"


CONSTRAINTS = (
    Constraint("IR-1", "x must be 4-D", rules.rank("x", "[B, N, S, D]")),
    Constraint("IR-1", "the width must be even", rows.multiple_width("x", 2)),
    Constraint("IR-1", "the product has a fixed width", _device_width, DEVICES),
    Constraint("IR-2", "cos must fit x", _cos),
    Constraint("IR-2", "sin must have the shape of cos", rows.same_shape("sin", "cos")),
    Constraint("IR-3", "cos and sin must have the element type of x", rules.same_type("x", "cos", "sin")),
    Constraint("IR-3", "the product does not take this element type", rules.type_in("x", "float16", "bfloat16"),
               DEVICES),
)  # fmt: skip
"""IR-3 is ours: the element types of the operator's definition."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"y": specs["x"]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rows_, cos, sin = (xp.cast(x[name], "float32") for name in ("x", "cos", "sin"))
    return {"y": xp.cast(rotate(xp, rows_, cos, sin, "interleave-half"), xp.dtype(x["x"]))}


OPERATOR = Operator(
    name="InterleaveRope",
    doc=__doc__,
    types={"T": FLOATS},
    inputs=(
        Input("x", "T", "[B, N, S, D]", "rows"),
        Input("cos", "T", "[B, 1, S or 1, D]", "full width, in output order"),
        Input("sin", "T", "as cos"),
    ),
    outputs=(Output("y", "T", "as x", "rotated rows"),),
    attrs=(),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    notes=(
        Note(
            "Choices where the contract leaves room",
            items=(
                "`generic` takes float32 and any even width; the products take D = 64 in 16 bits.",
                "The description names the 950 only; the operator's definition and its binaries are for A2, A3, 950 "
                "and Kirin, and the checks follow these.",
            ),
        ),
    ),
)

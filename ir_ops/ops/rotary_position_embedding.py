"""RotaryPositionEmbedding: rotation of the last axis by given cosines and sines.

``y = x * cos + rot(x) * sin`` with cos and sin as wide as x, each column used as it is given. With ``rotate`` the
turned row is ``x @ rotate`` and mode is not looked at. All arithmetic is fp32; y is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import ASCEND_2, FLOATS
from ir_ops.contract_rows import ROTARY_MODES, integer
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
from ir_ops.preamble import rotate

_QUARTER = 2


def _by_mode(case: Case) -> bool:
    return not case.has("rotate")


def _quarter(case: Case) -> bool:
    return _by_mode(case) and integer(case, "mode") == _QUARTER


def _rotate_matrix(case: Case) -> Iterator[Finding]:
    if case.has("rotate"):
        wanted = (case.dim("x", -1),) * 2
        if shape_differs(case.shape("rotate"), wanted):
            yield f"rotate {shape_text(case.shape('rotate'))}", shape_text(wanted)


def _rotate_given(case: Case) -> Iterator[Finding]:
    if case.has("rotate"):
        yield "rotate given", "mode"


def _device_forms(case: Case) -> Iterator[Finding]:
    """A2 and A3 know few forms of cos; which axis is B, N or S is not declared: refused is what no layout allows."""
    x, cos = [case.dim("x", axis) for axis in range(3)], [case.dim("cos", axis) for axis in range(3)]
    if len(case.shape("x")) != 4 or not _by_mode(case):
        return
    shown, shared = shape_text(case.shape("cos")), [size > 1 and row == 1 for size, row in zip(x, cos, strict=True)]
    if integer(case, "mode") == 0:
        if sorted(x)[1] >= 1000:
            yield f"x {shape_text(case.shape('x'))}", "B and N below 1000"
        if shared == [True, False, False] or all(shared):
            yield f"cos {shown}", "rows for every S: [1, 1, S, D], [B, 1, S, D] or full in the layout of x"
    else:
        if sorted(x)[0] * sorted(x)[1] >= 1000:
            yield f"x {shape_text(case.shape('x'))}", "B * N below 1000"
        if sum(row > 1 for row in cos) > 1:
            yield f"cos {shown}", "one batch and one head"


CONSTRAINTS = (
    Constraint("RP-1", "x must have 3 or 4 dims", rows.ranks("x", 3, 4)),
    Constraint("RP-2", "cos, sin and rotate must have the element type of x",
               rules.same_type("x", "cos", "sin", "rotate")),
    Constraint("RP-2", "cos must fit x", rows.rotary_rows("x", "cos")),
    Constraint("RP-2", "sin must have the shape of cos", rows.same_shape("sin", "cos")),
    Constraint("RP-3", "the width must be even", rules.when(_by_mode, rows.multiple_width("x", 2))),
    Constraint("RP-3", "the width of mode 2 must be a multiple of 4",
               rules.when(_quarter, rows.multiple_width("x", 4))),
    Constraint("RP-3", "the product has a largest width", rows.width_below("x", 1025), ("950",)),
    Constraint("RP-3", "the product has a largest width", rows.width_below("x", 896), ASCEND_2),
    Constraint("RP-4", "unknown mode", rows.one_of("mode", 0, 1, 2, 3)),
    Constraint("RP-4", "the product does not know this mode", rules.when(_by_mode, rows.one_of("mode", 0, 1)),
               ASCEND_2),
    Constraint("RP-5", "the product does not take these sizes or this form of cos", _device_forms, ASCEND_2),
    Constraint("RP-6", "rotate must be square and as wide as x", _rotate_matrix),
    Constraint("RP-6", "the product does not take rotate", _rotate_given, ("950", "kirin")),
)  # fmt: skip


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"y": specs["x"]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rows_, cos, sin = (xp.cast(x[name], "float32") for name in ("x", "cos", "sin"))
    if "rotate" in x:
        y = rows_ * cos + xp.matmul(rows_, xp.cast(x["rotate"], "float32")) * sin
    else:
        y = rotate(xp, rows_, cos, sin, ROTARY_MODES[int(attrs["mode"])])
    return {"y": xp.cast(y, xp.dtype(x["x"]))}


MODES = Note(
    "Modes",
    (
        ("mode", "name", "rot(x); h = D/2, q = D/4", "cos and sin usually"),
        ("0", "half", "[-x[h:], x[:h]]", "[c, c]"),
        ("1", "interleave", "pairs (-x[2j+1], x[2j]) in place", "each value twice in a row"),
        ("2", "quarter", "[-x[q:2q], x[:q], -x[3q:], x[2q:3q]]", "[c1, c1, c2, c2]"),
        ("3", "interleave-half", "even and odd columns first put apart, then as mode 0", "[c, c]"),
    ),
    ("That the halves of cos are equal is not checked: every column is used as it is.",),
)

OPERATOR = Operator(
    name="RotaryPositionEmbedding",
    doc=__doc__,
    types={"T": FLOATS},
    inputs=(
        Input("x", "T", "[B, S, N, D], [B, N, S, D], [S, B, N, D] or [T, N, D]", "rows"),
        Input("cos", "T", "as x, any dim but the last may be 1", "full width"),
        Input("sin", "T", "as cos"),
        Input("rotate", "T", "[D, D]", "x @ rotate takes the place of rot(x)", True),
    ),
    outputs=(Output("y", "T", "as x", "rotated rows"),),
    attrs=(Attr("mode", "Int", 0, "which rotation: 0 half, 1 interleave, 2 quarter, 3 interleave-half"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    notes=(
        MODES,
        Note(
            "Roundings and limits of products",
            items=(
                "A2 and A3 compute mode 0 of float16 in float16 arithmetic: both products and the sum are rounded.",
                "The inference series takes mode 0 of float16 and float32 only, widths of 32 to 128 in steps of 32.",
                "Graph mode uses RotaryMul on A2 and A3 and this operator on 950.",
                "A rotation of a part of the row needs Slice and Concat around it, or ApplyRotaryPosEmb.",
            ),
        ),
    ),
)

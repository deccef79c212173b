"""DynamicQuant: symmetric quantisation of each row by its own largest value.

For each row over the last axis ``v = x * smooth``, ``scale = max|v| / 127`` and ``y = round(v / scale)``, half to even.
A row of zeros has scale 0 and y 0. All arithmetic is fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import DEVICES, FLOATS
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
    Undecided,
    shape_differs,
    shape_text,
)
from ir_ops.numeric import Numeric
from ir_ops.ops.ascend_quant_v2 import TARGETS, small_spec, whole_bytes
from ir_ops.preamble import to_small

LARGEST = {"int8": 127.0, "int4": 7.0, "float8_e5m2": 57344.0, "float8_e4m3fn": 448.0, "hifloat8": 32768.0}
"""What the largest value of a row becomes."""


def _smooth(case: Case) -> Iterator[Finding]:
    wanted: Shape = (case.dim("x", -1),)
    if case.has("group_index"):
        groups = case.shape("group_index")
        if len(groups) != 1:
            yield f"group_index {shape_text(groups)}", "[E]"
            return
        wanted = (groups[0], *wanted)
    if case.has("smooth_scales") and shape_differs(case.shape("smooth_scales"), wanted):
        yield f"smooth_scales {shape_text(case.shape('smooth_scales'))}", shape_text(wanted)


def _row_ends(case: Case) -> Iterator[Finding]:
    if not case.has("group_index"):
        return
    ends, shape = case.value("group_index").reshape(-1).astype(np.int64), case.shape("x")[:-1]
    if None in shape:
        raise Undecided("x")
    count = int(np.prod([size for size in shape if size is not None], dtype=np.int64))
    starts = np.concatenate([[0], ends[:-1]])
    falling = np.flatnonzero(ends < starts)
    if falling.size:
        yield f"group_index[{falling[0]}] = {ends[falling[0]]}", f"at least {starts[falling[0]]}"
    elif (ends[-1] if ends.size else 0) != count:
        yield f"last end {ends[-1] if ends.size else 0}", f"the number of rows {count}"


def _int4_pairs(case: Case) -> Iterator[Finding]:
    if target_type(integer(case, "dst_type")) == "int4" and case.dim("x", -1) % 2:
        yield f"H = {case.dim('x', -1)}", "an even H"


def _groups(case: Case) -> Iterator[Finding]:
    if case.has("group_index") and case.dim("group_index", 0) > 1024:
        yield f"E = {case.dim('group_index', 0)}", "at most 1024"


def _last_dim(case: Case) -> Iterator[Finding]:
    if case.dim("x", -1) == 0:
        yield f"x {shape_text(case.shape('x'))}", "H >= 1"


CONSTRAINTS = (
    Constraint("DQ-1", "x has 2 to 8 dims", rows.ranks("x", 2, 8)),
    Constraint("DQ-1", "a row must not be empty", _last_dim),
    Constraint("DQ-1", "the product does not take this element type", rules.type_in("x", "float16", "bfloat16"),
               DEVICES),
    Constraint("DQ-2", "smooth_scales must have the element type of x", rules.same_type("x", "smooth_scales")),
    Constraint("DQ-2", "smooth_scales and group_index must fit x", _smooth),
    Constraint("DQ-2", "there are too many groups", _groups),
    Constraint("DQ-2", "group_index must hold running row ends", _row_ends),
    Constraint("DQ-3", "int4 needs an even last dim", _int4_pairs),
    Constraint("DQ-4", "unknown dst_type", rows.dst_type(*TARGETS)),
    Constraint("DQ-4", "the product does not know this dst_type", rows.dst_type("int8", "int4"), ("A3", "A2", "kirin")),
)  # fmt: skip


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    x = specs["x"]
    return {"y": small_spec(x, attrs), "scale": TensorSpec("float32", None if x.shape is None else x.shape[:-1])}


def _row_factors(xp: Numeric, smooth: Any, ends: Any, count: Any) -> Any:
    """Row of smooth of each of ``count`` rows: its group is the number of ends that are not behind it."""
    row = xp.reshape(xp.arange(count), [-1, 1])
    ended = xp.cast(row >= xp.reshape(xp.cast(ends, "int64"), [1, -1]), "int64")
    return xp.take(smooth, xp.reshape(xp.sum_columns(ended), [-1]))


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    value = xp.cast(x["x"], "float32")
    if "smooth_scales" in x:
        smooth = xp.cast(x["smooth_scales"], "float32")
        if "group_index" in x:
            value = xp.reshape(value, [-1, xp.dim(x["x"], -1)])
            smooth = _row_factors(xp, smooth, x["group_index"], xp.dim(value, 0))
        value = xp.reshape_like(value * smooth, x["x"])
    target = target_type(int(attrs["dst_type"]))
    scale = xp.max_columns(xp.abs(value)) / LARGEST[target]
    y = value / xp.where(0.0 - scale >= 0.0, 1.0, scale)
    y = xp.round(y) if target in ("int8", "int4") else y
    return {"y": to_small(xp, y, target), "scale": xp.first_column(scale)}


OPERATOR = Operator(
    name="DynamicQuant",
    doc=__doc__,
    types={"T": FLOATS, "E": ("int32",), "Q": TARGETS, "F": ("float32",)},
    inputs=(
        Input("x", "T", "[..., H]", "rows; there may be none"),
        Input("smooth_scales", "T", "[H]; with group_index [E, H]", "multiplies x", True),
        Input("group_index", "E", "[E]", "running ends of the groups' rows; the last is the number of rows", True),
    ),
    outputs=(
        Output("y", "Q", "as x", "quantised rows, of dst_type"),
        Output("scale", "F", "x without the last dim", "what y is to be multiplied by"),
    ),
    attrs=(Attr("dst_type", "Int", 2, "2 int8, 29 int4, 34 hifloat8, 35 float8_e5m2, 36 float8_e4m3fn"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    body_types=whole_bytes,
    notes=(
        Note(
            "Choices where the contract leaves room",
            (
                ("dst_type", "the largest value of a row becomes", "rounding"),
                ("int8", "127", "to whole numbers, half to even"),
                ("int4", "7", "to whole numbers, half to even"),
                ("float8_e4m3fn", "448", "to float8, half to even"),
                ("float8_e5m2", "57344", "to float8, half to even"),
                ("hifloat8", "32768", "GE graphs only"),
            ),
            (
                "The published references divide 0 by 0 for a row of zeros; here its scale and y are 0.",
                "A2 and A3 multiply by 127 / max instead of dividing: a step of one at near-ties.",
                "group_index without smooth_scales chooses nothing; its row ends are checked all the same.",
                "Rows behind the last group would have no meaning: the last end must be the number of rows.",
                "`generic` takes float32; the products take 16-bit rows.",
            ),
        ),
    ),
)

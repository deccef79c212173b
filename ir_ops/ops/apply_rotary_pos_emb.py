"""ApplyRotaryPosEmb: rotation of query and key together, in place.

``y = x * cos + rot(x) * sin`` over the first columns of each row of query and key, as many as cos has; the columns
behind them are left as they are. All arithmetic is fp32; the results are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import ASCEND_2, DEVICES, FLOATS
from ir_ops.contract_rows import integer
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
    Rule,
    Shape,
    TensorSpec,
    Undecided,
    shape_differs,
    shape_text,
)
from ir_ops.numeric import Numeric
from ir_ops.preamble import rotate

ROTARY_MODES = ("half", "interleave", "quarter")
LAYOUTS = {1: "[B, S, N, D]", 2: "[S, B, N, D]", 3: "[B, N, S, D]", 4: "[T, N, D]"}
_HEADS = {1: 2, 2: 2, 3: 1, 4: 1}
_BATCH = {1: 0, 2: 1, 3: 0}
"""Axis of the heads and of the batch in each layout."""


def _layout(case: Case) -> int:
    layout = integer(case, "layout")
    if layout not in LAYOUTS:
        raise Undecided("layout")
    return layout


def _rank(case: Case) -> Iterator[Finding]:
    wanted = LAYOUTS[_layout(case)]
    for name in ("query", "key"):
        if len(case.shape(name)) != wanted.count(",") + 1:
            yield f"{name} {shape_text(case.shape(name))}", f"{wanted} in layout {_layout(case)}"


def _same_but_heads(case: Case) -> Iterator[Finding]:
    query, key = case.shape("query"), case.shape("key")
    axis = _HEADS[_layout(case)]
    if len(query) == len(key) and shape_differs(
        (*query[:axis], None, *query[axis + 1 :]), (*key[:axis], None, *key[axis + 1 :])
    ):
        yield f"key {shape_text(key)}", f"that of query {shape_text(query)} but for the heads"


def _cos(case: Case) -> Iterator[Finding]:
    layout, query, cos = _layout(case), case.shape("query"), case.shape("cos")
    if len(query) != LAYOUTS[layout].count(",") + 1:
        return  # AR-1 says so
    wanted: list[int | None] = [*query[:-1], cos[-1] if cos else None]
    wanted[_HEADS[layout]] = 1
    if layout in _BATCH and len(cos) == len(query) and cos[_BATCH[layout]] == 1:
        wanted[_BATCH[layout]] = 1
    if shape_differs(cos, tuple(wanted)):
        yield f"cos {shape_text(cos)}", f"one head, and the rows of query {shape_text(query)} in layout {layout}"


def _width(case: Case) -> Iterator[Finding]:
    if case.dim("cos", -1) > case.dim("query", -1):
        yield f"width {case.dim('cos', -1)}", f"at most D = {case.dim('query', -1)}"


def _in_mode(mode: str) -> Callable[[Case], bool]:
    return lambda case: case.attrs["rotary_mode"] == mode


def _device_batch(case: Case) -> Iterator[Finding]:
    if _layout(case) == 1 and case.dim("cos", 0) != case.dim("query", 0):
        yield f"cos {shape_text(case.shape('cos'))}", f"B = {case.dim('query', 0)}"


def _layouts(*layouts: int) -> Rule:
    return rows.one_of("layout", *layouts)


def _half_only(case: Case) -> Iterator[Finding]:
    if case.attrs["rotary_mode"] != "half":
        yield f"rotary_mode {case.attrs['rotary_mode']!r}", "half"


CONSTRAINTS = (
    Constraint("AR-5", "unknown layout", _layouts(*LAYOUTS)),
    Constraint("AR-5", "the product does not know this layout", _layouts(1, 4), ASCEND_2),
    Constraint("AR-5", "the product does not know this layout", _layouts(1), ("kirin",)),
    Constraint("AR-6", "unknown rotary_mode", rules.known_word("rotary_mode", dict.fromkeys(ROTARY_MODES))),
    Constraint("AR-6", "the product rotates by halves only", _half_only, ASCEND_2),
    Constraint("AR-1", "key, cos and sin must have the element type of query",
               rules.same_type("query", "key", "cos", "sin")),
    Constraint("AR-1", "query and key must have the dims of the layout", _rank),
    Constraint("AR-1", "query and key must be equal in all dims but the heads", _same_but_heads),
    Constraint("AR-2", "cos must fit query", _cos),
    Constraint("AR-2", "sin must have the shape of cos", rows.same_shape("sin", "cos")),
    Constraint("AR-2", "cos must not be wider than query", _width),
    Constraint("AR-2", "the width must be even", rows.multiple_width("cos", 2)),
    Constraint("AR-2", "the width of quarters must be a multiple of 4",
               rules.when(_in_mode("quarter"), rows.multiple_width("cos", 4))),
    Constraint("AR-2", "the product has a largest width", rows.width_below("query", 1025), DEVICES),
    Constraint("AR-3", "the product needs rows of cos for every batch", _device_batch, ASCEND_2),
)  # fmt: skip
"""AR-4 is about the words of another interface. AR-5 and AR-6 are ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    def known(name: str, other: str) -> Shape | None:
        shape, like = specs[name].shape, specs[other].shape
        return shape if shape is not None or like is None else (None,) * len(like)

    return {
        "query": TensorSpec(specs["query"].dtype, known("query", "key")),
        "key": TensorSpec(specs["key"].dtype, known("key", "query")),
    }


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    cos, sin = (xp.cast(x[name], "float32") for name in ("cos", "sin"))
    turned, width = xp.dim(x["cos"], -1), xp.dim(x["query"], -1)
    outputs = {}
    for name in ("query", "key"):
        row = xp.cast(x[name], "float32")
        front = rotate(xp, xp.columns(row, 0, turned), cos, sin, str(attrs["rotary_mode"]))
        whole = xp.concat_columns([front, xp.columns(row, turned, width)])
        outputs[name] = xp.cast(whole, xp.dtype(x[name]))
    return outputs


OPERATOR = Operator(
    name="ApplyRotaryPosEmb",
    doc=__doc__,
    types={"T": FLOATS},
    inputs=(
        Input("query", "T", "[B, S, Nq, D], [S, B, Nq, D], [B, Nq, S, D] or [T, Nq, D]", "in place", ref="query"),
        Input("key", "T", "as query with Nk heads", "in place", ref="key"),
        Input("cos", "T", "as query with one head, d columns, and B or 1", "d is at most D"),
        Input("sin", "T", "as cos"),
    ),
    outputs=(
        Output("query", "T", "as the input", "the same buffer", ref=True),
        Output("key", "T", "as the input", "the same buffer", ref=True),
    ),
    attrs=(
        Attr("layout", "Int", 1, "order of the axes: " + "; ".join(f"{key} {text}" for key, text in LAYOUTS.items())),
        Attr("rotary_mode", "String", "half", "modes 0, 1 and 2 of RotaryPositionEmbedding", ROTARY_MODES),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    notes=(
        Note(
            "Roundings and choices",
            items=(
                "A2 and A3 compute float16 in float16 arithmetic; their bfloat16 is rounded half away from zero, which "
                "differs on exact ties only.",
                "cos narrower than the rows turns the first columns only.",
                "Both tensors are overwritten where an output shares its input's buffer: another reader of the old "
                "query or key needs a copy.",
            ),
        ),
    ),
)

"""ScatterUpdate: rows of a tensor, along its first axis, are replaced in place.

``var[indices[k]] = updates[k]`` for every k in the shape of indices. Nothing is computed: elements keep their bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract_rows import MOVED
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


def _updates(case: Case) -> Iterator[Finding]:
    wanted = (*case.shape("indices"), *case.shape("var")[1:])
    if shape_differs(case.shape("updates"), wanted):
        yield f"updates {shape_text(case.shape('updates'))}", shape_text(wanted)


def _range(case: Case) -> Iterator[Finding]:
    index, count = case.value("indices").reshape(-1), case.dim("var", 0)
    outside = np.flatnonzero((index < 0) | (index >= count))
    if outside.size:
        yield f"index {int(outside[0])} = {int(index[outside[0]])}", f"0 to {count - 1}"


def _distinct(case: Case) -> Iterator[Finding]:
    index = case.value("indices").reshape(-1)
    again = rules.repeats(index)
    if again.size:
        yield f"index {int(again[0])} = {int(index[again[0]])} again", "distinct rows"


CONSTRAINTS = (
    Constraint("SU-1", "updates must have the element type of var", rules.same_type("var", "updates")),
    Constraint("SU-1", "var has 1 to 8 dims", rows.ranks("var", 1, 8)),
    Constraint("SU-2", "updates must have a row of var for each index", _updates),
    Constraint("SU-3", "an index is out of range", _range),
    Constraint("SU-4", "a row is written twice", _distinct),
)
"""The contract has no numbers: these are ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"var": specs["var"]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"var": xp.scatter(x["var"], xp.column(xp.cast(x["indices"], "int64")), x["updates"])}


OPERATOR = Operator(
    name="ScatterUpdate",
    doc=__doc__,
    types={"T": MOVED, "I": ("int32", "int64")},
    inputs=(
        Input("var", "T", "[R, ..]", "in place", ref="var"),
        Input("indices", "I", "any", "rows of var"),
        Input("updates", "T", "dims of indices, then dims of var but the first", "the new rows"),
    ),
    outputs=(Output("var", "T", "as the input", "the same buffer", ref=True),),
    attrs=(Attr("use_locking", "Bool", False, "has no effect: rows are distinct"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    body_types=rules.no_float8,
    notes=(
        Note(
            "Choices where the contract leaves room",
            items=(
                "Two writes of one row have no defined order on a device; here the call is refused.",
                "Negative indices are out of range: they neither count from the end nor skip.",
                "TorchAir's `scatter_update` is GE's Scatter, which writes a run of rows for each batch entry: not "
                "this.",
            ),
        ),
    ),
)

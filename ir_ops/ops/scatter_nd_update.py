"""ScatterNdUpdate: slices of a tensor are replaced in place, each at the tuple of leading indices that names it.

``var[indices[k, :]] = updates[k, ...]``. Tuples name as many leading dims of var as they are long. Nothing is computed:
elements keep their bits.
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
    Undecided,
    shape_differs,
    shape_text,
)
from ir_ops.dtypes import Array
from ir_ops.numeric import Numeric

LONGEST = 7
"""Numbers in an index tuple."""


def _length(case: Case) -> int:
    """Numbers in an index tuple; undecided where there is none of a legal length."""
    found = case.dim("indices", -1)
    if not 1 <= found <= min(LONGEST, len(case.shape("var"))):
        raise Undecided("indices")
    return found


def _tuples(case: Case) -> Iterator[Finding]:
    shape, most = case.shape("indices"), min(LONGEST, len(case.shape("var")))
    if len(shape) < 2 or (shape[-1] is not None and not 1 <= shape[-1] <= most):
        yield f"indices {shape_text(shape)}", f"[.., r] with r from 1 to {most}"


def _slices(case: Case) -> Iterator[Finding]:
    wanted = (*case.shape("indices")[:-1], *case.shape("var")[_length(case) :])
    if shape_differs(case.shape("updates"), wanted):
        yield f"updates {shape_text(case.shape('updates'))}", shape_text(wanted)


def _given(case: Case) -> tuple[Array, list[int]]:
    """The index tuples ``[K, r]``, and the dims that they name."""
    length = _length(case)
    return case.value("indices").reshape(-1, length), [case.dim("var", axis) for axis in range(length)]


def _range(case: Case) -> Iterator[Finding]:
    tuples, dims = _given(case)
    outside = np.flatnonzero(((tuples < 0) | (tuples >= dims)).any(axis=1))
    if outside.size:
        yield f"index {int(outside[0])} = {tuples[outside[0]].tolist()}", f"0 or more, and less than {dims}"


def _distinct(case: Case) -> Iterator[Finding]:
    tuples, dims = _given(case)
    if ((tuples < 0) | (tuples >= dims)).any():
        return  # another rule's business
    again = rules.repeats(tuples)
    if again.size:
        yield f"index {int(again[0])} = {tuples[again[0]].tolist()} again", "distinct index tuples"


CONSTRAINTS = (
    Constraint("SN-4", "updates must have the element type of var", rules.same_type("var", "updates")),
    Constraint("SN-1", "var has 1 to 8 dims", rows.ranks("var", 1, 8)),
    Constraint("SN-1", "indices must be tuples that name leading dims of var", _tuples),
    Constraint("SN-1", "updates must have a slice of var for each index tuple", _slices),
    Constraint("SN-2", "an index is out of range", _range),
    Constraint("SN-3", "a slice is written twice", _distinct),
)
"""SN-4 is ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"var": specs["var"]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"var": xp.scatter(x["var"], xp.cast(x["indices"], "int64"), x["updates"])}


OPERATOR = Operator(
    name="ScatterNdUpdate",
    doc=__doc__,
    types={"T": MOVED, "I": ("int32", "int64")},
    inputs=(
        Input("var", "T", "any but a scalar", "in place", ref="var"),
        Input("indices", "I", "[.., r]", "tuples of r numbers, r from 1 to 7 and at most the dims of var"),
        Input("updates", "T", "dims of indices but the last, then dims of var from r on", "the new slices"),
    ),
    outputs=(Output("var", "T", "as the input", "the same buffer", ref=True),),
    attrs=(Attr("use_locking", "Bool", False, "has no effect: slices are distinct"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    body_types=rules.no_float8,
    notes=(
        Note(
            "Choices where the contract leaves room",
            items=(
                "Two writes of one slice have no defined order on a device; here the call is refused.",
                "Negative numbers do not count from the end as in ONNX's ScatterND, and -1 does not skip as in "
                "ScatterPaKvCache: both are out of range.",
                "A paged cache `[block_num, block_size, N, D]` is written by slot as `[block_num * block_size, N, D]` "
                "with indices `[T, 1]`.",
            ),
        ),
    ),
)

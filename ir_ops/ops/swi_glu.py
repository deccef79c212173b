"""SwiGlu: the gated activation of a decoder's feed-forward part, on gate and up projection side by side.

``[a, b]`` are the halves of x along ``dim``; ``y = a * sigmoid(a) * b``: the first half is activated. All arithmetic is
fp32; y is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract_rows as rows
from ir_ops.contract import FLOATS
from ir_ops.contract_rows import integer, normalised_axis
from ir_ops.declaration import Attr, Attrs, Case, Constraint, Finding, Input, Note, Operator, Output, TensorSpec
from ir_ops.numeric import Numeric
from ir_ops.preamble import silu


def _even(case: Case) -> Iterator[Finding]:
    axis = normalised_axis(integer(case, "dim"), len(case.shape("x")))
    if case.dim("x", axis) % 2:
        yield f"dim {integer(case, 'dim')} of size {case.dim('x', axis)}", "an even size"


CONSTRAINTS = (
    Constraint("SG-1", "x has 1 to 8 dims", rows.ranks("x", 1, 8)),
    Constraint("SG-1", "dim must be an axis of x", rows.axis_of("x", "dim")),
    Constraint("SG-1", "the split dim must be even", _even),
)


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    x = specs["x"]
    if x.shape is None:
        return {"y": x}
    sizes = list(x.shape)
    axis = int(attrs["dim"])  # type: ignore[arg-type]
    if -len(sizes) <= axis < len(sizes):
        size = sizes[axis]
        sizes[axis] = None if size is None else size // 2
    return {"y": TensorSpec(x.dtype, tuple(sizes))}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    axis = int(attrs["dim"])
    size = xp.dim(x["x"], axis)
    whole = xp.cast(x["x"], "float32")
    gate, up = xp.slice(whole, 0, size // 2, axis), xp.slice(whole, size // 2, size, axis)
    return {"y": xp.cast(silu(xp, gate) * up, xp.dtype(x["x"]))}


OPERATOR = Operator(
    name="SwiGlu",
    doc=__doc__,
    types={"T": FLOATS},
    inputs=(Input("x", "T", "any, even along dim", "gate, then up; may be empty"),),
    outputs=(Output("y", "T", "as x, half along dim", "activated product"),),
    attrs=(Attr("dim", "Int", -1, "the axis that holds gate and up"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    notes=(
        Note(
            "Differences from like-sounding graphs",
            items=(
                "Two projections need one packed weight [gate; up], never [up; gate]: DequantSwigluQuant's default is "
                "the other half.",
                "Half precision graphs round silu(a) before the product; this operator does not.",
            ),
        ),
    ),
)

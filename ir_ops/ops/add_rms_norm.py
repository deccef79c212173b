"""AddRmsNorm: residual addition, then root mean square normalisation of the sum.

``x = x1 + x2``, ``rstd = 1 / sqrt(mean(x^2) + epsilon)`` over the axes of gamma, ``y = x * rstd * gamma``. The norm
reads the unrounded fp32 sum; y and x are rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import FLOATS
from ir_ops.declaration import Attr, Attrs, Constraint, Input, Note, Operator, Output, TensorSpec
from ir_ops.numeric import Numeric
from ir_ops.ops.rms_norm import normed_shapes
from ir_ops.preamble import rms_norm_rows

CONSTRAINTS = (
    Constraint("AN-1", "x1, x2 and gamma must have one element type", rules.same_type("x1", "x2", "gamma")),
    Constraint("AN-1", "x1 has 1 to 8 dims", rows.ranks("x1", 1, 8)),
    Constraint("AN-1", "x1 and x2 must have one shape", rows.same_shape("x2", "x1")),
    Constraint("AN-2", "gamma must have the last dims of x1", rows.ends_with("x1", "gamma")),
    Constraint("AN-2", "gamma must not be empty", rows.not_empty("gamma")),
    Constraint("AN-3", "epsilon must be finite", rules.finite("epsilon")),
    Constraint("AN-3", "epsilon must not be negative", rows.at_least("epsilon", 0.0)),
)


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    shape = specs["x1"].shape if specs["x1"].shape is not None else specs["x2"].shape
    x = TensorSpec(specs["x1"].dtype, shape)
    return {"y": x, "rstd": normed_shapes(x, specs["gamma"]), "x": x}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    total = xp.cast(x["x1"], "float32") + xp.cast(x["x2"], "float32")
    y, rstd = rms_norm_rows(xp, total, x["gamma"], attrs["epsilon"])
    kind = xp.dtype(x["x1"])
    return {"y": xp.cast(y, kind), "rstd": rstd, "x": xp.cast(total, kind)}


OPERATOR = Operator(
    name="AddRmsNorm",
    doc=__doc__,
    types={"T": FLOATS, "F": ("float32",)},
    inputs=(
        Input("x1", "T", "[..., D] or [..., D1, ..., Dr]", "rows; may be empty"),
        Input("x2", "T", "as x1", "added to x1"),
        Input("gamma", "T", "[D] or [D1, ..., Dr]", "weight"),
    ),
    outputs=(
        Output("y", "T", "as x1", "normalised rows"),
        Output("rstd", "F", "as x1 with 1 for the dims of gamma", "1 / root mean square"),
        Output("x", "T", "as x1", "the sum: the new residual"),
    ),
    attrs=(Attr("epsilon", "Float", 1e-6, "added to the mean square"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    needs_rank=("gamma",),
    notes=(
        Note(
            "Roundings of products",
            items=(
                "950 computes as described. A2 and A3 round the sum to 16 bits first, normalise the rounded sum, and "
                "round x * rstd before gamma; float32 does not differ.",
                "On the inference series rstd is not defined.",
            ),
        ),
    ),
)

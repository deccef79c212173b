"""RmsNorm: root mean square normalisation over the axes of gamma.

``rstd = 1 / sqrt(mean(x^2) + epsilon)`` over the last axes, as many as gamma has; ``y = x * rstd * gamma``. All
arithmetic is fp32; y is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import FLOATS
from ir_ops.declaration import Attr, Attrs, Case, Constraint, Finding, Input, Note, Operator, Output, TensorSpec
from ir_ops.numeric import Numeric
from ir_ops.preamble import rms_norm_rows


def _gamma_type(case: Case) -> Iterator[Finding]:
    if case.dtype("gamma") not in (case.dtype("x"), "float32"):
        yield f"gamma {case.dtype('gamma')}", f"{case.dtype('x')} as x, or float32"


CONSTRAINTS = (
    Constraint("RN-1", "x has 1 to 8 dims", rows.ranks("x", 1, 8)),
    Constraint("RN-1", "gamma must have the last dims of x", rows.ends_with("x", "gamma")),
    Constraint("RN-2", "gamma must have the element type of x or be float32", _gamma_type),
    Constraint("RN-2", "the product takes gamma only in the element type of x", rules.same_type("x", "gamma"),
               ("kirin",)),
    Constraint("RN-4", "gamma must not be empty", rows.not_empty("gamma")),
    Constraint("RN-5", "epsilon must be finite", rules.finite("epsilon")),
    Constraint("RN-5", "epsilon should be positive", rules.positive("epsilon"), severity="warning"),
)  # fmt: skip
"""RN-3, the shape of rstd, is the shape rule. RN-5 is ours."""


def normed_shapes(x: TensorSpec, gamma: TensorSpec) -> TensorSpec:
    """The spec of rstd: the shape of x with 1 for the dims of gamma."""
    if x.shape is None or gamma.shape is None or len(gamma.shape) > len(x.shape):
        return TensorSpec("float32", None if x.shape is None or gamma.shape is None else (None,) * len(x.shape))
    kept = len(x.shape) - len(gamma.shape)
    return TensorSpec("float32", (*x.shape[:kept], *(1,) * len(gamma.shape)))


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"y": specs["x"], "rstd": normed_shapes(specs["x"], specs["gamma"])}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    y, rstd = rms_norm_rows(xp, xp.cast(x["x"], "float32"), x["gamma"], attrs["epsilon"])
    return {"y": xp.cast(y, xp.dtype(x["x"])), "rstd": rstd}


OPERATOR = Operator(
    name="RmsNorm",
    doc=__doc__,
    types={"T": FLOATS, "TG": FLOATS, "F": ("float32",)},
    inputs=(
        Input("x", "T", "[..., D] or [..., D1, ..., Dr]", "rows; may be empty"),
        Input("gamma", "TG", "[D] or [D1, ..., Dr]", "weight; of x's type or float32"),
    ),
    outputs=(
        Output("y", "T", "as x", "normalised rows"),
        Output("rstd", "F", "as x with 1 for the dims of gamma", "1 / root mean square"),
    ),
    attrs=(Attr("epsilon", "Float", 1e-6, "added to the mean square"),),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    combines=lambda choice: choice["TG"] in (choice["T"], "float32"),
    needs_rank=("gamma",),
    notes=(
        Note(
            "Differences from like-sounding graphs",
            items=(
                "Half precision models of Hugging Face round x * rstd to 16 bits before gamma; this operator does not.",
                "`1 + gamma` is another operator (GemmaRmsNorm), or a gamma that was folded.",
                "epsilon is a float32 here. Its default differs from KvRmsNormRopeCache's 1e-5: write it always.",
                "bfloat16 is not for the inference series.",
            ),
        ),
    ),
)

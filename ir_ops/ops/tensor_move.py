"""TensorMove: a copy of a tensor in memory of its own.

It stands in front of an operator that writes in place where the old value is still read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir_ops.contract import no_float8
from ir_ops.contract_rows import MOVED
from ir_ops.declaration import Attrs, Input, Note, Operator, Output, TensorSpec
from ir_ops.numeric import Numeric


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"y": specs["x"]}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": xp.copy(x["x"])}


OPERATOR = Operator(
    name="TensorMove",
    doc=__doc__,
    types={"T": MOVED},
    inputs=(Input("x", "T", "any", "what is copied; may be empty"),),
    outputs=(Output("y", "T", "as x", "the same elements, in another buffer"),),
    attrs=(),
    constraints=(),
    shapes=_shapes,
    compute=_compute,
    body_types=no_float8,
    notes=(
        Note(
            "Differences from like-sounding graphs",
            items=(
                "Identity is no substitute on a device: GE may give its result the same memory. In ONNX Runtime, which "
                "orders readers and writers itself, it is, and the function body is one.",
            ),
        ),
    ),
)

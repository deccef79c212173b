"""DequantSwigluQuant: int8 product sums dequantised, gated, and quantised again.

``t = (x + bias) * weight_scale * activation_scale`` for int32 sums, a bias of another type added last; other rows are
t already. Then ``s = silu(a) * b`` for the halves of t along one axis, by default the right one activated, or one of
three clamped variants. Then int8: by given scales (static) or by each row's largest value (dynamic). All arithmetic is
fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir_ops.contract import FLOATS
from ir_ops.declaration import Attr, Attrs, Input, Note, Operator, Output, TensorSpec
from ir_ops.numeric import Numeric
from ir_ops.ops._swiglu_quant_rules import CONSTRAINTS, QUANT_MODES
from ir_ops.preamble import silu, to_small


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    shape = specs["x"].shape
    if shape is None:
        return {"y": TensorSpec("int8", None), "scale": TensorSpec("float32", None)}
    sizes, axis = list(shape), int(attrs["activate_dim"])  # type: ignore[arg-type]
    if -len(sizes) <= axis < len(sizes):
        size = sizes[axis]
        sizes[axis] = None if size is None else size // 2
    return {"y": TensorSpec("int8", tuple(sizes)), "scale": TensorSpec("float32", tuple(sizes[:-1]))}


class _Groups:
    """Parameters by row: the row's group's, or everybody's."""

    def __init__(self, xp: Numeric, counts: Any, rows_: Any) -> None:
        self.xp, self.grouped = xp, counts is not None
        if counts is None:
            return
        ends = xp.cumsum(xp.cast(counts, "int64"))
        row = xp.reshape(xp.arange(rows_), [-1, 1])
        behind = xp.cast(row >= xp.reshape(ends, [1, -1]), "int64")
        self.group = xp.reshape(xp.sum_columns(behind), [-1])
        self.behind = xp.reshape(self.group >= xp.dim(counts, 0), [-1, 1])

    def of(self, parameter: Any) -> Any:
        """``[rows, columns]``, or what broadcasts so."""
        if not self.grouped:
            return self.xp.reshape(parameter, [1, -1])
        # rows behind the last group take any group's: they are masked
        own = self.xp.take(parameter, self.group % self.xp.dim(parameter, 0))
        return own if self.xp.rank(parameter) == 2 else self.xp.reshape(own, [-1, 1])

    def masked(self, x: Any) -> Any:
        """Zeros behind the last group."""
        return self.xp.where(self.behind, 0.0, x) if self.grouped else x


def _dequantised(xp: Numeric, x: Mapping[str, Any], groups: _Groups) -> Any:
    """t, ``[rows, columns]``."""
    t = xp.reshape(x["x"], [-1, xp.dim(x["x"], -1)])
    if "weight_scale" not in x:
        return xp.cast(t, "float32")
    before = "bias" in x and xp.dtype(x["bias"]) == "int32"
    if before:
        t = t + groups.of(x["bias"])
    t = xp.cast(t, "float32") * groups.of(x["weight_scale"])
    if "activation_scale" in x:
        t = t * xp.reshape(x["activation_scale"], [-1, 1])
    return t + groups.of(xp.cast(x["bias"], "float32")) if "bias" in x and not before else t


def _activated(xp: Numeric, a: Any, b: Any, attrs: Mapping[str, Any]) -> Any:
    mode, limit = int(attrs["swiglu_mode"]), attrs["clamp_limit"]
    if mode == 0:
        return silu(xp, a) * b
    b = xp.where(b >= limit, limit, xp.where(0.0 - b >= limit, 0.0 - limit, b))
    if mode == 3:
        gate = silu(xp, a)
        return xp.where(gate >= limit, limit, gate) * b
    a = xp.where(a >= limit, limit, a)
    z = a * attrs["glu_alpha"]
    power = xp.exp(0.0 - xp.abs(z))
    return a * xp.where(z >= 0.0, 1.0, power) / (power + 1.0) * (b + attrs["glu_bias"])


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    whole, rank = x["x"], xp.rank(x["x"])
    axis = int(attrs["activate_dim"]) % rank
    groups = _Groups(xp, x.get("group_index"), xp.dim(xp.reshape(whole, [-1, xp.dim(whole, -1)]), 0))
    t, size = _dequantised(xp, x, groups), xp.dim(whole, axis)
    if int(attrs["swiglu_mode"]) == 1:
        a, b = xp.columns(t, 0, size, 2), xp.columns(t, 1, size, 2)
    elif axis == rank - 1:
        a, b = xp.columns(t, 0, size // 2), xp.columns(t, size // 2, size)
    else:
        t = xp.reshape_like(t, whole)
        a, b = xp.slice(t, 0, size // 2, axis), xp.slice(t, size // 2, size, axis)
    a, b = (a, b) if attrs["activate_left"] else (b, a)
    dims = [xp.dim(whole, at) if at != axis else size // 2 for at in range(rank)]
    s = xp.reshape(_activated(xp, a, b, attrs), [-1, dims[-1]])
    if attrs["quant_mode"] == "static":
        y = s / groups.of(x["quant_scale"]) + groups.of(x["quant_offset"])
        scale = xp.zeros(dims[:-1], "float32")
    else:
        s = s * groups.of(x["quant_scale"]) if "quant_scale" in x else s
        largest = xp.max_columns(xp.abs(s)) / 127.0
        y = s / xp.where(0.0 - largest >= 0.0, 1.0, largest)
        scale = xp.reshape(groups.masked(largest), dims[:-1])
    return {"y": xp.reshape(to_small(xp, groups.masked(xp.round(y)), "int8"), dims), "scale": scale}


OPERATOR = Operator(
    name="DequantSwigluQuant",
    doc=__doc__,
    types={"X": ("int32", *FLOATS), "F": ("float32",), "B": ("int32", *FLOATS), "I": ("int64",), "Q": ("int8",)},
    inputs=(
        Input("x", "X", "[.., 2H]", "sums or rows; there may be none"),
        Input("weight_scale", "F", "[2H]; with group_index [G, 2H]", "of int32 x", True),
        Input("activation_scale", "F", "[rows]", "of int32 x", True),
        Input("bias", "B", "as weight_scale", "int32: added to the sums; else to the dequantised rows", True),
        Input(
            "quant_scale",
            "F",
            "dynamic [H] or [G, H]; static [1], [G], [H] or [G, H]",
            "dynamic: multiplies; static: divides",
            True,
        ),
        Input("quant_offset", "F", "as quant_scale", "static: added before rounding", True),
        Input("group_index", "I", "[G]", "rows of each group, one group after the other", True),
    ),
    outputs=(
        Output("y", "Q", "x with activate_dim halved", "quantised rows"),
        Output("scale", "F", "y without the last dim", "dynamic: what y is to be multiplied by; static: zeros"),
    ),
    attrs=(
        Attr("activate_left", "Bool", False, "the left half is activated; the default is the right one"),
        Attr("quant_mode", "String", "static", "by given scales, or by each row's largest value", QUANT_MODES),
        Attr("dst_type", "Int", 2, "2 int8"),
        Attr("round_mode", "String", "rint", "half to even", ("rint",)),
        Attr("activate_dim", "Int", -1, "the axis that holds both halves"),
        Attr("swiglu_mode", "Int", 0, "see below"),
        Attr("clamp_limit", "Float", 7.0, "c of modes 1 to 3"),
        Attr("glu_alpha", "Float", 1.702, "of modes 1 and 2"),
        Attr("glu_bias", "Float", 1.0, "of modes 1 and 2"),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    needs_rank=("x", "quant_scale"),
    notes=(
        Note(
            "Activations",
            (
                ("swiglu_mode", "a (activated), b", "s"),
                ("0, activate_left", "left half, right half", "silu(a) * b"),
                ("0", "right half, left half", "silu(a) * b"),
                ("1", "even columns, odd columns", "a' * sigmoid(alpha * a') * (b' + bias)"),
                ("2", "left half, right half", "as 1"),
                ("3", "left half, right half", "min(silu(a), c) * b'"),
            ),
            ("a' = min(a, c), b' = clamp(b, -c, c). Modes 1 to 3 want activate_left.",),
        ),
        Note(
            "Choices where the contract leaves room",
            items=(
                "Rows behind the last group have y 0 and scale 0; a device leaves them as they are.",
                "group_index counts rows here; DynamicQuant's holds running ends.",
                "A row of zeros has scale 0 and y 0, as in DynamicQuant.",
                "Without quant_scale dynamic rows are quantised as they are.",
                "Other element types of y are not described and not taken.",
                "`generic` takes float32 rows and any number of leading dims.",
            ),
        ),
    ),
)

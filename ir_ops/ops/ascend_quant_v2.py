"""AscendQuantV2: static quantisation by multiplication.

``y = clamp(round(x * scale + offset))`` in fp32; with ``sqrt_mode`` ``x * scale * scale``. The scale multiplies (it is
1/s of ONNX's QuantizeLinear) and the offset, a float, is added before rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import DEVICES, FLOATS
from ir_ops.contract_rows import integer, normalised_axis, target_type
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
    shape_differs,
    shape_text,
)
from ir_ops.dtypes import by_name
from ir_ops.numeric import Numeric
from ir_ops.preamble import to_small

TARGETS = ("int8", "int4", "hifloat8", "float8_e5m2", "float8_e4m3fn")
ROUND_MODES = ("round", "floor", "ceil", "trunc", "hybrid")
_INTEGER_MODES = ("round", "floor", "ceil", "trunc")


def _axis(case: Case) -> int:
    return normalised_axis(integer(case, "axis"), len(case.shape("x")))


def _scale_shape(case: Case) -> Iterator[Finding]:
    x, axis = case.shape("x"), _axis(case)
    forms: list[Shape] = [(1,), (x[axis],), tuple(size if at == axis else 1 for at, size in enumerate(x))]
    if all(shape_differs(case.shape("scale"), form) for form in forms):
        shown = " or ".join(shape_text(form) for form in dict.fromkeys(forms))
        yield f"scale {shape_text(case.shape('scale'))}", shown


def _offset_shape(case: Case) -> Iterator[Finding]:
    if case.has("offset"):
        yield from rows.same_shape("offset", "scale")(case)


def _device_axis(case: Case) -> Iterator[Finding]:
    if _axis(case) < len(case.shape("x")) - 2:
        yield f"axis {integer(case, 'axis')}", "one of the last two"


def _int4_pairs(case: Case) -> Iterator[Finding]:
    if target_type(integer(case, "dst_type")) == "int4" and case.dim("x", -1) % 2:
        yield f"last dim {case.dim('x', -1)}", "an even size"


def _mode_of_type(case: Case) -> Iterator[Finding]:
    target, mode = target_type(integer(case, "dst_type")), str(case.attrs["round_mode"])
    wanted = {"int8": _INTEGER_MODES, "int4": _INTEGER_MODES, "hifloat8": ("round", "hybrid")}.get(target, ("round",))
    if mode not in wanted:
        yield f"round_mode {mode!r} with dst_type {integer(case, 'dst_type')}", " | ".join(wanted)


CONSTRAINTS = (
    Constraint("AQ-1", "scale and offset must have the element type of x", rules.same_type("x", "scale", "offset")),
    Constraint("AQ-1", "offset must have the shape of scale", _offset_shape),
    Constraint("AQ-2", "x has 1 to 8 dims", rows.ranks("x", 1, 8)),
    Constraint("AQ-3", "axis must be an axis of x", rows.axis_of("x", "axis")),
    Constraint("AQ-2", "scale must have one element or those of the axis", _scale_shape),
    Constraint("AQ-3", "the product quantises along the last two axes only", _device_axis, DEVICES),
    Constraint("AQ-4", "unknown dst_type", rows.dst_type(*TARGETS)),
    Constraint("AQ-4", "the product does not know this dst_type", rows.dst_type("int8", "int4"), ("A3", "A2", "kirin")),
    Constraint("AQ-4", "int4 needs an even last dim", _int4_pairs),
    Constraint("AQ-5", "unknown round_mode", rules.known_word("round_mode", dict.fromkeys(ROUND_MODES))),
    Constraint("AQ-4", "this dst_type has another round_mode", _mode_of_type),
)
"""AQ-5 is ours."""


def small_spec(x: TensorSpec, attrs: Attrs) -> TensorSpec:
    """The spec of y: x in the element type of ``dst_type``."""
    return TensorSpec(target_type(int(attrs["dst_type"])) or "int8", x.shape)  # type: ignore[arg-type]


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {"y": small_spec(specs["x"], attrs)}


def along(xp: Numeric, parameter: Any, axis: int, rank: int) -> Any:
    """A parameter of one element, of the axis, or of full rank, to broadcast against x."""
    after = rank - 1 - axis % rank
    return parameter if not after else xp.reshape(parameter, [-1, *[1] * after])


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rank = xp.rank(x["x"])
    scale = along(xp, xp.cast(x["scale"], "float32"), int(attrs["axis"]), rank)
    y = xp.cast(x["x"], "float32") * scale
    if attrs["sqrt_mode"]:
        y = y * scale
    if "offset" in x:
        y = y + along(xp, xp.cast(x["offset"], "float32"), int(attrs["axis"]), rank)
    target = target_type(int(attrs["dst_type"]))
    if target in ("int8", "int4"):
        y = rounded(xp, y, str(attrs["round_mode"]))
    return {"y": to_small(xp, y, target)}


def rounded(xp: Numeric, x: Any, mode: str) -> Any:
    """``x`` as a whole number."""
    if mode == "round":
        return xp.round(x)
    if mode == "trunc":
        return xp.where(x >= 0.0, xp.floor(x), xp.ceil(x))
    return xp.floor(x) if mode == "floor" else xp.ceil(x)


def whole_bytes(choice: Mapping[str, str]) -> bool:
    """Whether ONNX Runtime computes with every element type: none of 4 bits, no 8-bit float."""
    return rules.no_float8(choice) and all(by_name(kind).bits >= 8 for kind in choice.values())


OPERATOR = Operator(
    name="AscendQuantV2",
    doc=__doc__,
    types={"T": FLOATS, "Q": TARGETS},
    inputs=(
        Input("x", "T", "any", "values; may be empty"),
        Input("scale", "T", "[1], [C] or [1, .., C, .., 1]; C = size of axis", "multiplier"),
        Input("offset", "T", "as scale", "added after the scale, before rounding", True),
    ),
    outputs=(Output("y", "Q", "as x", "quantised values, of dst_type"),),
    attrs=(
        Attr("sqrt_mode", "Bool", False, "multiply by the scale twice"),
        Attr("round_mode", "String", "round", "round is half to even; hybrid is hifloat8's", ROUND_MODES),
        Attr("dst_type", "Int", 2, "2 int8, 29 int4, 34 hifloat8, 35 float8_e5m2, 36 float8_e4m3fn"),
        Attr("axis", "Int", -1, "the axis that scale and offset belong to"),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    body_types=whole_bytes,
    needs_rank=("x",),
    notes=(
        Note(
            "Choices where the contract leaves room",
            items=(
                "int8 is clamped to -128..127, int4 to -8..7; NaN becomes 0.",
                "float8 is rounded half to even and saturates at the largest finite value.",
                "hifloat8 has no ONNX type: only GE graphs can declare it.",
                "`generic` quantises along any axis.",
                "This is not QuantizeLinear: a reciprocal scale in 16 bits can move ties, and ONNX adds its integer "
                "zero point after rounding (equal for whole offsets).",
            ),
        ),
    ),
)

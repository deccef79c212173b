"""RopeWithSinCosCache: rotation of query and key by a table that positions look up.

A row of the table holds the cosines of half a rotated width, then its sines. ``x1`` and ``x2``, the halves of the first
rotaryDim columns of a head (or its even and odd ones), become ``x1 * cos - x2 * sin`` and ``x2 * cos + x1 * sin``, put
back the same way; the other columns stay. All arithmetic is fp32; results are rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ir_ops import contract as rules
from ir_ops.contract import DEVICES, FLOATS
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
    Shape,
    TensorSpec,
    shape_differs,
    shape_text,
)
from ir_ops.numeric import Numeric
from ir_ops.preamble import rotate

_PARTS = (("queryIn", "queryOut", "numQHeads", "qStride"), ("keyIn", "keyOut", "numKHeads", "kStride"))
_DEVICE_SECTIONS = ((0, 0, 0), (11, 11, 10), (16, 24, 24), (24, 20, 20), (8, 12, 12))


def _sections(case: Case) -> list[int]:
    """mropeSection; undecided while it has another form."""
    return rules.int_list(case.attrs, "mropeSection", 3)


def _heads(case: Case) -> Iterator[Finding]:
    for name in ("numQHeads", "numKHeads", "headSize"):
        if integer(case, name) < 1:
            yield f"{name} {integer(case, name)}", "at least 1"


def _rows(case: Case) -> Iterator[Finding]:
    tokens = case.shape("positions")[-1:]
    for name, _, heads, _ in _PARTS:
        count = integer(case, heads)
        wanted: Shape = (*tokens, count * integer(case, "headSize"))
        if count >= 1 and shape_differs(case.shape(name), wanted):
            yield f"{name} {shape_text(case.shape(name))}", shape_text(wanted)


def _positions(case: Case) -> Iterator[Finding]:
    shape = case.shape("positions")
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape_differs(shape[:1], (3,))):
        yield f"positions {shape_text(shape)}", "[T] or [3, T]"


def _table(case: Case) -> Iterator[Finding]:
    shape, size = case.shape("cosSinCache"), integer(case, "headSize")
    width = shape[-1] if shape else None
    if len(shape) != 2 or (width is not None and (width % 2 or not 2 <= width <= size)):
        yield f"cosSinCache {shape_text(shape)}", f"[maxLen, r] with r even, from 2 to headSize {size}"


def _three(case: Case) -> Iterator[Finding]:
    if len(list(case.attrs["mropeSection"])) != 3:  # type: ignore[arg-type]
        yield f"mropeSection {case.attrs['mropeSection']}", "three numbers"


def _mrope(case: Case) -> Iterator[Finding]:
    sections, half = _sections(case), case.dim("cosSinCache", -1) // 2
    if len(case.shape("positions")) == 1:
        if any(sections):
            yield f"mropeSection {sections} with positions [T]", "[0, 0, 0]"
    elif min(sections) < 0 or sum(sections) != half:
        yield f"mropeSection {sections}", f"three numbers that are not negative, their sum {half}"


def _range(case: Case) -> Iterator[Finding]:
    places, length = case.value("positions").reshape(-1), case.dim("cosSinCache", 0)
    outside = np.flatnonzero((places < 0) | (places >= length))
    if outside.size:
        yield f"positions[{int(outside[0])}] = {int(places[outside[0]])}", f"0 to {length - 1}"


def _strides(case: Case) -> Iterator[Finding]:
    for name, _, heads, stride in _PARTS:
        width = integer(case, heads) * integer(case, "headSize")
        if integer(case, stride) not in (0, width):
            yield f"{stride} {integer(case, stride)}", f"0 or {width}, the width of {name}"


def _device_widths(case: Case) -> Iterator[Finding]:
    multiple = 16 if case.dtype("queryIn") == "float32" else 32
    for what, size in (("headSize", integer(case, "headSize")), ("rotaryDim", case.dim("cosSinCache", -1))):
        if size % multiple:
            yield f"{what} {size}", f"a multiple of {multiple}"


def _device_sections(case: Case) -> Iterator[Finding]:
    sections = tuple(_sections(case))
    if sections not in _DEVICE_SECTIONS:
        yield f"mropeSection {list(sections)}", " | ".join(str(list(known)) for known in _DEVICE_SECTIONS)


def _not_there(case: Case) -> Iterator[Finding]:
    yield "RopeWithSinCosCache", "ApplyRotaryPosEmb with gathered cos and sin"


CONSTRAINTS = (
    Constraint("RC-1", "key and table must have the element type of query",
               rules.same_type("queryIn", "keyIn", "cosSinCache")),
    Constraint("RC-5", "heads and their size must be positive", _heads),
    Constraint("RC-5", "positions must be a row, or three", _positions),
    Constraint("RC-1", "query and key must be rows of tokens", _rows),
    Constraint("RC-2", "the table has another form", _table),
    Constraint("RC-2", "the product has fixed widths", _device_widths, DEVICES),
    Constraint("RC-5", "a row stride must be the width of the rows", _strides),
    Constraint("RC-4", "mropeSection has three numbers", _three),
    Constraint("RC-4", "mropeSection must share out half the rotated width", _mrope),
    Constraint("RC-4", "the product has fixed sections", _device_sections, DEVICES),
    Constraint("RC-3", "a position is not in the table", _range),
    Constraint("RC-6", "the product does not have this operator", _not_there, ("950",)),
)  # fmt: skip
"""RC-5 and RC-6 are ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {result: specs[name] for name, result, _, _ in _PARTS}


def _angles(xp: Numeric, table: Any, positions: Any, sections: list[int]) -> tuple[Any, Any]:
    """Cosines and sines ``[T, r / 2]`` in fp32."""
    half = xp.dim(table, 1) // 2
    if xp.rank(positions) == 1:
        row = xp.cast(xp.take(table, positions), "float32")
        return xp.columns(row, 0, half), xp.columns(row, half, half * 2)
    parts: list[tuple[Any, Any]] = []
    start = 0
    for number, size in enumerate(sections):
        own = xp.reshape(xp.slice(positions, number, number + 1, 0), [-1])
        row = xp.cast(xp.take(table, own), "float32")
        end = start + size
        parts.append((xp.columns(row, start, end), xp.columns(row, half + start, half + end)))
        start = end
    return xp.concat_columns([cos for cos, _ in parts]), xp.concat_columns([sin for _, sin in parts])


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    cos, sin = _angles(xp, x["cosSinCache"], x["positions"], list(attrs["mropeSection"]))
    width, size = xp.dim(x["cosSinCache"], 1), int(attrs["headSize"])
    neox = bool(attrs["isNeoxStyle"])
    if neox:
        cos, sin = (xp.concat_columns([part, part]) for part in (cos, sin))
    else:
        twice = xp.arange(width) // 2
        cos, sin = (xp.take_columns(part, twice) for part in (cos, sin))
    cos, sin = (xp.reshape(part, [-1, 1, width]) for part in (cos, sin))
    results = {}
    for name, result, heads, _ in _PARTS:
        rows = xp.reshape(x[name], [-1, int(attrs[heads]), size])
        turned = rotate(xp, xp.cast(xp.columns(rows, 0, width), "float32"), cos, sin, "half" if neox else "interleave")
        turned = xp.concat_columns([xp.cast(turned, xp.dtype(x[name])), xp.columns(rows, width, size)])
        results[result] = xp.reshape_like(turned, x[name])
    return results


OPERATOR = Operator(
    name="RopeWithSinCosCache",
    doc=__doc__,
    types={"I": ("int32", "int64"), "T": FLOATS},
    inputs=(
        Input("positions", "I", "[T]; with mropeSection [3, T]", "rows of the table"),
        Input("queryIn", "T", "[T, numQHeads * headSize]", "rows of heads; there may be none"),
        Input("keyIn", "T", "[T, numKHeads * headSize]", "rows of heads"),
        Input("cosSinCache", "T", "[maxLen, rotaryDim]", "cosines of half the width, then its sines"),
    ),
    outputs=(
        Output("queryOut", "T", "as queryIn", "rotated rows"),
        Output("keyOut", "T", "as keyIn", "rotated rows"),
    ),
    attrs=(
        Attr("numQHeads", "Int", None, "heads of query"),
        Attr("numKHeads", "Int", None, "heads of key"),
        Attr("headSize", "Int", None, "columns of a head"),
        Attr("mropeSection", "ListInt", [0, 0, 0], "columns of cos that follow the first, second and third positions"),
        Attr("qStride", "Int", 0, "elements from one row of query to the next; 0 for its width"),
        Attr("kStride", "Int", 0, "the same of key"),
        Attr("isNeoxStyle", "Bool", True, "pairs are a half apart; else neighbours"),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    needs_rank=("positions",),
    notes=(
        Note(
            "Choices where the contract leaves room",
            items=(
                "cos and sin are half as wide as what they turn, unlike those of the other rotations.",
                "`generic` takes any even rotaryDim up to headSize and any sections that share out its half; the "
                "products want multiples of 32 (float32: 16) and five sets of sections.",
                "Rows lie one behind the other: a stride says nothing new and must be their width, or 0.",
                "Four sections, and the newer attribute cacheMode, are not taken.",
                "The operator's definition is for A2, A3 and Kirin; its description leaves the 950 out.",
            ),
        ),
    ),
)

"""Constraint rules of the building blocks (norms, rotations, quantisation of rows); see :mod:`ir_ops.contract`."""

from __future__ import annotations

from collections.abc import Iterator

from ir_ops.declaration import Case, Finding, Rule, Shape, Undecided, shape_differs, shape_text
from ir_ops.dtypes import by_ge_attr

MOVED = (
    "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "hifloat8", "float8_e5m2", "float8_e4m3fn",
)  # fmt: skip
"""Element types of operators that move elements and compute nothing."""

ROTARY_MODES = ("half", "interleave", "quarter", "interleave-half")
"""Names of the rotations; their places are the values of RotaryPositionEmbedding's ``mode``."""


def integer(case: Case, attr: str) -> int:
    """An Int attribute's value."""
    value = case.attrs[attr]
    assert isinstance(value, int)
    return value


def ranks(name: str, least: int, most: int) -> Rule:
    """The input has ``least`` to ``most`` dims."""

    def rule(case: Case) -> Iterator[Finding]:
        if not least <= len(case.shape(name)) <= most:
            yield f"{name} {shape_text(case.shape(name))}", f"{least} to {most} dims"

    return rule


def same_shape(name: str, wanted: str) -> Rule:
    """Two inputs have one shape."""

    def rule(case: Case) -> Iterator[Finding]:
        if shape_differs(case.shape(name), case.shape(wanted)):
            yield f"{name} {shape_text(case.shape(name))}", f"the shape of {wanted} {shape_text(case.shape(wanted))}"

    return rule


def ends_with(name: str, part: str) -> Rule:
    """The shape of ``part``, not without dims, is the end of the shape of ``name``."""

    def rule(case: Case) -> Iterator[Finding]:
        whole, end = case.shape(name), case.shape(part)
        if not end or shape_differs(whole[-len(end) :], end):
            yield f"{part} {shape_text(end)}", f"the last dims of {name} {shape_text(whole)}"

    return rule


def not_empty(name: str) -> Rule:
    """The input has an element."""

    def rule(case: Case) -> Iterator[Finding]:
        if 0 in case.shape(name):
            yield f"{name} {shape_text(case.shape(name))}", "every dim >= 1"

    return rule


def at_least(attr: str, least: float) -> Rule:
    """A number is not below a bound."""

    def rule(case: Case) -> Iterator[Finding]:
        value = case.attrs[attr]
        assert isinstance(value, (int, float))
        if value < least:
            yield f"{attr} {value}", f"at least {least:g}"

    return rule


def one_of(attr: str, *values: int) -> Rule:
    """An Int attribute has one of the values."""

    def rule(case: Case) -> Iterator[Finding]:
        if integer(case, attr) not in values:
            yield f"{attr} {integer(case, attr)}", " | ".join(map(str, values))

    return rule


def rotary_rows(name: str, parameter: str) -> Rule:
    """cos or sin has the rank and last dim of the rows and in every other dim 1 or theirs."""

    def rule(case: Case) -> Iterator[Finding]:
        x, row = case.shape(name), case.shape(parameter)
        fits = len(x) == len(row) and not shape_differs(x[-1:], row[-1:])
        if not fits or any(dim != 1 and shape_differs((dim,), (size,)) for dim, size in zip(row, x, strict=True)):
            yield f"{parameter} {shape_text(row)}", f"every dim 1 or that of {name} {shape_text(x)}, the last {x[-1:]}"

    return rule


def multiple_width(name: str, divisor: int) -> Rule:
    """The last dim of an input is a multiple of a number."""

    def rule(case: Case) -> Iterator[Finding]:
        if case.dim(name, -1) % divisor:
            yield f"width {case.dim(name, -1)}", f"a multiple of {divisor}"

    return rule


def width_below(name: str, limit: int) -> Rule:
    """The last dim of an input is smaller than a number."""

    def rule(case: Case) -> Iterator[Finding]:
        if case.dim(name, -1) >= limit:
            yield f"width {case.dim(name, -1)}", f"less than {limit}"

    return rule


def dst_type(*names: str) -> Rule:
    """The attribute ``dst_type`` is GE's number of one of the element types."""

    def rule(case: Case) -> Iterator[Finding]:
        number = integer(case, "dst_type")
        if target_type(number) not in names:
            yield f"dst_type {number}", " | ".join(f"{_number(name)} ({name})" for name in names)

    return rule


def target_type(number: int) -> str:
    """The element type with that number in a GE attribute, "" where there is none."""
    try:
        return by_ge_attr(number).name
    except KeyError:
        return ""


def _number(name: str) -> int:
    return next(number for number in range(64) if target_type(number) == name)


def normalised_axis(axis: int, rank: int) -> int:
    """A negative axis counted from the front; out of range is undecided."""
    if not -rank <= axis < rank:
        raise Undecided("axis")
    return axis % rank


def axis_of(name: str, attr: str) -> Rule:
    """An Int attribute is an axis of the input."""

    def rule(case: Case) -> Iterator[Finding]:
        axis, rank = integer(case, attr), len(case.shape(name))
        if not -rank <= axis < rank:
            yield f"{attr} {axis}", f"an axis of {name} {shape_text(case.shape(name))}"

    return rule


def shape_or_none(shape: Shape | None, rank: int | None = None) -> Shape | None:
    """A shape if it is known and has that rank."""
    return shape if shape is not None and (rank is None or len(shape) == rank) else None

"""The contract of DequantSwigluQuant: its numbered constraints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ir_ops import contract as rules
from ir_ops import contract_rows as rows
from ir_ops.contract import ASCEND_2
from ir_ops.contract_rows import integer, normalised_axis
from ir_ops.declaration import Case, Constraint, Finding, Shape, Undecided, shape_differs, shape_text

QUANT_MODES = ("static", "dynamic")
_DEQUANTISE = ("weight_scale", "activation_scale", "bias")
INT8 = 2


def _axis(case: Case) -> int:
    return normalised_axis(integer(case, "activate_dim"), len(case.shape("x")))


def _is_last(case: Case) -> bool:
    return _axis(case) == len(case.shape("x")) - 1


def _width(case: Case) -> int:
    """Columns of y."""
    width = case.dim("x", -1)
    return width // 2 if _is_last(case) else width


def _count(case: Case) -> int:
    """Rows of x."""
    shape = case.shape("x")[:-1]
    if None in shape:
        raise Undecided("x")
    return int(np.prod([size for size in shape if size is not None], dtype=np.int64))


def _groups(case: Case) -> int | None:
    """Rows of grouped parameters; 1 without groups."""
    if not case.has("group_index"):
        return 1
    shape = case.shape("group_index")
    if len(shape) != 1:
        raise Undecided("group_index")
    return shape[0]


def _sums(case: Case) -> Iterator[Finding]:
    if case.dtype("x") == "int32":
        if not case.has("weight_scale"):
            yield "int32 x without weight_scale", "weight_scale"
        return
    for name in _DEQUANTISE:
        if case.has(name):
            yield f"{name} with {case.dtype('x')} x", "int32 x, or none of " + ", ".join(_DEQUANTISE)


def _even(case: Case) -> Iterator[Finding]:
    size = case.dim("x", _axis(case))
    if size % 2:
        yield f"activate_dim {integer(case, 'activate_dim')} of size {size}", "an even size"


def _plain_split(case: Case) -> Iterator[Finding]:
    if not _is_last(case) and (str(case.attrs["quant_mode"]) != "static" or case.has("group_index")):
        yield f"activate_dim {integer(case, 'activate_dim')}", "the last dim, or static without group_index"


def _int8(case: Case) -> Iterator[Finding]:
    if integer(case, "dst_type") != INT8:
        yield f"dst_type {integer(case, 'dst_type')}", "2 (int8)"


def _rint(case: Case) -> Iterator[Finding]:
    if case.attrs["round_mode"] != "rint":
        yield f"round_mode {case.attrs['round_mode']!r}", "rint"


def _clamped(case: Case) -> bool:
    return integer(case, "swiglu_mode") in (1, 2, 3)


def _left(case: Case) -> Iterator[Finding]:
    if not case.attrs["activate_left"]:
        yield f"swiglu_mode {integer(case, 'swiglu_mode')} with activate_left false", "activate_left true"


def _neighbours(case: Case) -> Iterator[Finding]:
    if integer(case, "swiglu_mode") == 1 and not _is_last(case):
        yield f"activate_dim {integer(case, 'activate_dim')}", "the last dim"


def _limit(case: Case) -> Iterator[Finding]:
    limit = case.attrs["clamp_limit"]
    assert isinstance(limit, (int, float))
    if not (np.isfinite(limit) and limit > 0):
        yield f"clamp_limit {limit}", "a finite number above 0"


def _forms(case: Case, *, one: bool, width: int, by_group: bool = False) -> list[Shape]:
    """Shapes of a parameter of that many columns."""
    groups = _groups(case)
    forms: list[Shape] = [(1,)] if one else []
    if by_group and case.has("group_index"):
        forms.append((groups,))
    return [*forms, (groups, width)] if case.has("group_index") else [*forms, (width,), (1, width)]


def _fits(case: Case, name: str, forms: list[Shape]) -> Iterator[Finding]:
    if case.has(name) and all(shape_differs(case.shape(name), form) for form in forms):
        yield f"{name} {shape_text(case.shape(name))}", " or ".join(shape_text(form) for form in dict.fromkeys(forms))


def _column_shapes(case: Case) -> Iterator[Finding]:
    for name in ("weight_scale", "bias"):
        yield from _fits(case, name, _forms(case, one=False, width=case.dim("x", -1)))


def _quant_shapes(case: Case) -> Iterator[Finding]:
    static = case.attrs["quant_mode"] == "static"
    yield from _fits(case, "quant_scale", _forms(case, one=static, width=_width(case), by_group=static))


def _offset_shape(case: Case) -> Iterator[Finding]:
    if case.has("quant_scale") and case.has("quant_offset"):
        yield from rows.same_shape("quant_offset", "quant_scale")(case)


def _quantisation(case: Case) -> Iterator[Finding]:
    given = [name for name in ("quant_scale", "quant_offset") if case.has(name)]
    if case.attrs["quant_mode"] == "static" and len(given) < 2:
        yield f"static with {' and '.join(given) or 'neither'}", "quant_scale and quant_offset"
    if case.attrs["quant_mode"] == "dynamic" and case.has("quant_offset"):
        yield "dynamic with quant_offset", "no quant_offset"


def _counts(case: Case) -> Iterator[Finding]:
    if not case.has("group_index"):
        return
    counts = case.value("group_index").reshape(-1)
    below = np.flatnonzero(counts < 0)
    if below.size:
        yield f"group_index[{int(below[0])}] = {int(counts[below[0]])}", "0 or more"
    elif sum(int(count) for count in counts) > _count(case):
        yield f"{sum(int(count) for count in counts)} rows in groups", f"at most the rows of x, {_count(case)}"


def _group_rank(case: Case) -> Iterator[Finding]:
    if case.has("group_index") and len(case.shape("group_index")) != 1:
        yield f"group_index {shape_text(case.shape('group_index'))}", "[G]"
    elif case.has("group_index") and case.shape("group_index") == (0,):
        yield "group_index [0]", "a group"


def _device_rank(case: Case) -> Iterator[Finding]:
    if len(case.shape("x")) != 2 or not _is_last(case):
        yield (
            f"x {shape_text(case.shape('x'))}, activate_dim {integer(case, 'activate_dim')}",
            "[rows, 2H], the last dim",
        )


def _empty(case: Case) -> Iterator[Finding]:
    if case.dim("x", -1) == 0:
        yield f"x {shape_text(case.shape('x'))}", "a last dim of 1 or more"


CONSTRAINTS = (
    Constraint("DS-6", "unknown quant_mode", rules.known_word("quant_mode", dict.fromkeys(QUANT_MODES))),
    Constraint("DS-5", "y is int8 here", _int8),
    Constraint("DS-5", "int8 has one round_mode", _rint),
    Constraint("DS-6", "unknown swiglu_mode", rows.one_of("swiglu_mode", 0, 1, 2, 3)),
    Constraint("DS-6", "this swiglu_mode activates the left part", rules.when(_clamped, _left)),
    Constraint("DS-7", "clamp_limit has no meaning", rules.when(_clamped, _limit)),
    Constraint("DS-1", "the element type of x and the dequantisation's inputs do not go together", _sums),
    Constraint("DS-2", "x has 2 to 8 dims", rows.ranks("x", 2, 8)),
    Constraint("DS-2", "a row must not be empty", _empty),
    Constraint("DS-4", "activate_dim must be an axis of x", rows.axis_of("x", "activate_dim")),
    Constraint("DS-2", "the split dim must be even", _even),
    Constraint("DS-4", "an axis before the last is quantised by given scales only, without groups", _plain_split),
    Constraint("DS-6", "neighbouring columns are those of the last dim", _neighbours),
    Constraint("DS-8", "group_index must be a list", _group_rank),
    Constraint("DS-8", "weight_scale and bias must have the columns of x", _column_shapes),
    Constraint("DS-8", "activation_scale must have one number for each row",
               rules.elements_are(_count, "activation_scale")),
    Constraint("DS-8", "this quant_mode takes other parameters", _quantisation),
    Constraint("DS-8", "quant_scale must fit y", _quant_shapes),
    Constraint("DS-8", "quant_offset must have the shape of quant_scale", _offset_shape),
    Constraint("DS-2", "group_index must count rows", _counts),
    Constraint("DS-9", "a scale cannot divide",
               rules.when(lambda case: case.attrs["quant_mode"] == "static", rules.divisors("quant_scale"))),
    Constraint("DS-3", "the product takes rows of the last dim", _device_rank, ASCEND_2),
    Constraint("DS-3", "the product does not take this element type", rules.type_in("x", "int32", "bfloat16"),
               ASCEND_2),
    Constraint("DS-3", "the product does not take this element type",
               rules.type_in("x", "int32", "float16", "bfloat16"), ("950", "kirin")),
)  # fmt: skip
"""DS-6 to DS-9 are ours."""

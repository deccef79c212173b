"""Rules of FusedInferAttentionScore about int8 keys, values and queries."""

from __future__ import annotations

from collections.abc import Iterator

from ir_ops.contract_rows import integer
from ir_ops.declaration import Case, Finding, Shape, shape_differs, shape_text
from ir_ops.ops._fia_call import Sizes
from ir_ops.ops._fia_rules import is_int8

SCALES = (
    ("key_antiquant_scale", "key_antiquant_offset", "key_antiquant_mode"),
    ("value_antiquant_scale", "value_antiquant_offset", "value_antiquant_mode"),
)


def narrow_scales(case: Case) -> Iterator[Finding]:
    for scale, _, _ in SCALES:
        if is_int8(case, "key") and not case.has(scale):
            yield f"int8 key without {scale}", "key_antiquant_scale and value_antiquant_scale"
        if not is_int8(case, "key") and case.has(scale):
            yield f"{scale} with a {case.dtype('key')} key", "an int8 key"


def offset_pairs(case: Case) -> Iterator[Finding]:
    given = [case.has(offset) for _, offset, _ in SCALES]
    if given[0] != given[1]:
        yield f"{SCALES[given.index(True)][1]} alone", "both or neither"
    for scale, offset, _ in SCALES:
        if case.has(offset) and not case.has(scale):
            yield f"{offset} without {scale}", "the scale"
        elif case.has(offset) and case.dtype(offset) != case.dtype(scale):
            yield f"{offset} {case.dtype(offset)}", f"{case.dtype(scale)} as {scale}"
    for scale, offset, _ in SCALES:  # after both types: these are known even where a shape is not
        if case.has(offset) and case.has(scale) and shape_differs(case.shape(offset), case.shape(scale)):
            yield f"{offset} {shape_text(case.shape(offset))}", f"the shape of {scale}"


def scale_types(case: Case) -> Iterator[Finding]:
    if is_int8(case, "query"):
        wanted: tuple[str, ...] = ("float32",)
    else:
        wanted = tuple(dict.fromkeys((case.dtype("query"), "float32")))
    for scale, _, _ in SCALES:
        if case.has(scale) and case.dtype(scale) not in wanted:
            yield f"{scale} {case.dtype(scale)}", " | ".join(wanted)


def scale_modes(case: Case) -> Iterator[Finding]:
    modes = [integer(case, mode) for _, _, mode in SCALES]
    if not is_int8(case, "key"):
        return
    if min(modes) < 0 or max(modes) > 2 or (modes[0] != modes[1] and modes != [0, 1]):
        yield f"key_antiquant_mode {modes[0]}, value_antiquant_mode {modes[1]}", "0, 1 or 2, equal or 0 and 1"


def scale_dims(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    if not is_int8(case, "key") or is_int8(case, "query"):
        return
    for (scale, _, mode_name), width in zip(SCALES, (sizes.width, sizes.value_width()), strict=True):
        if not case.has(scale):
            continue
        shape, mode, count = case.shape(scale), integer(case, mode_name), sizes.kv_heads
        by_mode: dict[int, list[Shape]] = {
            0: [(1,), (count * width,), (1, count * width), (count, width), (count, 1, width), (1, count, width),
                (1, count, 1, width)],
            1: [(sizes.batch, None), (1, sizes.batch, None)],
            2: [(count,)],
        }  # fmt: skip
        forms = by_mode.get(mode, [shape])
        fits = any(not shape_differs(shape, form) for form in forms)
        last = shape[-1] if shape else 0
        if mode == 1 and fits and last is not None:
            fits = last >= sizes.room
        if not fits:
            text = {
                0: f"[1] or {count * width} elements by head and column",
                1: f"[{sizes.batch}, {sizes.room} or more] or [1, {sizes.batch}, {sizes.room} or more]",
                2: f"[{count}]",
            }[mode]
            yield f"{scale} {shape_text(shape)} in mode {mode}", text


def whole_int8(case: Case) -> Iterator[Finding]:
    """int8 queries: MLA with everything quantised but the rope parts."""
    mode = integer(case, "query_quant_mode")
    if not is_int8(case, "query"):
        if mode != 0:
            yield f"query_quant_mode {mode} with a {case.dtype('query')} query", "0"
        if case.has("dequant_scale_query"):
            yield f"dequant_scale_query with a {case.dtype('query')} query", "an int8 query"
        return
    if mode != 3:
        yield f"query_quant_mode {mode} with an int8 query", "3"
    for name in ("query_rope", "dequant_scale_query"):
        if not case.has(name):
            yield f"int8 query without {name}", "query_rope and dequant_scale_query"
    for scale, offset, name in SCALES:
        if case.has(offset):
            yield f"{offset} with an int8 query", "no offsets"
        if integer(case, name) != 0:
            yield f"{name} {integer(case, name)} with an int8 query", "0"
        if case.has(scale) and shape_differs(case.shape(scale), (1,)):
            yield f"{scale} {shape_text(case.shape(scale))} with an int8 query", "[1]"
    if case.has("dequant_scale_query"):
        sizes, shape = Sizes(case), case.shape("dequant_scale_query")
        wanted = (*case.shape("query")[:-1], *((sizes.heads,) if sizes.axes == "BSH" else ()))
        if shape_differs(shape, wanted):
            yield f"dequant_scale_query {shape_text(shape)}", shape_text(wanted)

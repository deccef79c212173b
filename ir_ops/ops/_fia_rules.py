"""Rules of FusedInferAttentionScore that every product has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ir_ops.contract import kept_as
from ir_ops.contract_rows import integer
from ir_ops.declaration import Case, Finding, Shape, Undecided, shape_differs, shape_text
from ir_ops.layout import nz_block
from ir_ops.ops._fia_call import INPUT_LAYOUTS, TRIANGLE, Sizes, cache_shape, cache_width

NOT_TAKEN = (
    "pse_shift",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "query_padding_size",
    "kv_padding_size",
    "key_shared_prefix",
    "value_shared_prefix",
    "actual_shared_prefix_len",
    "q_start_idx",
    "kv_start_idx",
)
"""Inputs of uses that are not in the subset."""
_ZERO_ATTRS = ("antiquant_mode", "pse_type", "out_dtype")
_TRIANGLES: tuple[Shape, ...] = tuple((*(1,) * ones, TRIANGLE, TRIANGLE) for ones in range(3))


def is_int8(case: Case, name: str) -> bool:
    return case.dtype(name) == "int8"


def not_taken(case: Case) -> Iterator[Finding]:
    for name in NOT_TAKEN:
        if case.has(name):
            yield f"{name} given", "none of " + ", ".join(NOT_TAKEN)


def zero_attrs(case: Case) -> Iterator[Finding]:
    for name in _ZERO_ATTRS:
        if integer(case, name) != 0:
            yield f"{name} {integer(case, name)}", "0"


def known_layout(case: Case) -> Iterator[Finding]:
    if case.attrs["input_layout"] not in INPUT_LAYOUTS:
        yield f"input_layout {case.attrs['input_layout']!r}", " | ".join(INPUT_LAYOUTS)


def heads(case: Case) -> Iterator[Finding]:
    count, kv_count = integer(case, "num_heads"), integer(case, "num_key_value_heads")
    if count < 1 or kv_count < 0 or (kv_count > 0 and count % kv_count):
        yield (
            f"num_heads {count}, num_key_value_heads {kv_count}",
            "num_heads >= 1, num_key_value_heads 0 or a divisor of it",
        )


def query_dims(case: Case) -> Iterator[Finding]:
    layout = str(case.attrs["input_layout"]).partition("_")[0]
    shape, count = case.shape("query"), integer(case, "num_heads")
    if case.attrs["input_layout"] not in INPUT_LAYOUTS:
        return
    fits = len(shape) == len(layout)
    for axis, size in zip(layout, shape, strict=False):
        if size is None:
            continue
        wrong = {
            "B": size < 1,
            "N": size != count,
            "D": size < 1,
            "H": size < 1 or size % max(count, 1) != 0,
        }
        fits = fits and not wrong.get(axis, False)
    if not fits:
        named = {"N": f"N = {count}", "H": f"{count}*D"}
        yield f"query {shape_text(shape)}", "[" + ", ".join(named.get(axis, axis) for axis in layout) + "]"


def query_and_key_types(case: Case) -> Iterator[Finding]:
    """A cache may be narrower than a float32 query: it is widened as it is read."""
    query, key = case.dtype("query"), case.dtype("key")
    wanted = ("int8",) if query == "int8" else (*kept_as(query), "int8")
    if key not in wanted:
        yield f"key {key}", " | ".join(wanted) + f" for a {query} query"


def table_and_size(case: Case) -> Iterator[Finding]:
    size = integer(case, "block_size")
    if case.has("block_table") != (size > 0) or size < 0:
        given = "block_table" if case.has("block_table") else "no block_table"
        yield f"{given} with block_size {size}", "both, or no block_table and 0"


def _cache_finding(sizes: Sizes, name: str, width: int | None, wanted_width: str) -> Iterator[Finding]:
    """``width`` None: any."""
    case = sizes.case
    shape, dtype = case.shape(name), case.dtype(name)
    form = cache_shape(sizes, width, dtype, len(shape))
    fits = form is not None and not shape_differs(shape, form)
    own = cache_width(shape, sizes.axes, sizes.kv_heads, sizes.paged)
    if fits and own is not None:
        fits = own >= 1 and (width is None or own == width)
        if shape[-1] is not None and form is not None and len(shape) == 3 and form[-1] is None and width is None:
            joined = sizes.paged or sizes.axes == "BSH"
            fits = fits and (not joined or shape[-1] % sizes.kv_heads == 0)
    if not fits:
        yield f"{name} {shape_text(shape)}", _cache_text(sizes, dtype, wanted_width)


def _cache_text(sizes: Sizes, dtype: str, width: str) -> str:
    count = sizes.kv_heads
    if sizes.paged:
        page, d0 = sizes.page, nz_block(dtype)
        return (
            f"[?, {page}, {count}*{width}], [?, {count}, {page}, {width}] or [?, {count}, {width}/{d0}, {page}, {d0}]"
        )
    named = {
        "B": "?" if sizes.packed else str(sizes.batch),
        "S": "?",
        "T": "?",
        "N": str(count),
        "D": width,
        "H": f"{count}*{width}",
    }
    return "[" + ", ".join(named[axis] for axis in sizes.axes) + "]"


def key_dims(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    yield from _cache_finding(sizes, "key", sizes.width, str(sizes.width))


def _same_rows(case: Case, name: str) -> Iterator[Finding]:
    """``name`` has the layout of key; only the width of a head may differ."""
    sizes = Sizes(case)
    key, other = case.shape("key"), case.shape(name)
    by_rank = {3: (0, 1), 4: (0, 1, 2), 5: (0, 1, 3)}
    axes = by_rank.get(len(key), ()) if sizes.paged else tuple(range(len(key) - 1))
    if len(key) != len(other) or shape_differs(tuple(key[i] for i in axes), tuple(other[i] for i in axes)):
        yield f"{name} {shape_text(other)}", f"the dims of key {shape_text(key)}, but for the columns"


def value_dims(case: Case) -> Iterator[Finding]:
    found = list(_cache_finding(Sizes(case), "value", None, "Dv"))
    yield from found or _same_rows(case, "value")


def key_rope_dims(case: Case) -> Iterator[Finding]:
    if not case.has("query_rope") or not case.has("key_rope"):
        return
    sizes = Sizes(case)
    query, rope = case.shape("query"), case.shape("query_rope")
    last = rope[-1] if rope else None
    count = sizes.heads if sizes.axes == "BSH" else 1
    if shape_differs(rope[:-1], query[:-1]) or not rope or (last is not None and (last < 1 or last % count)):
        part = f"{sizes.heads}*R" if sizes.axes == "BSH" else "R"
        yield f"query_rope {shape_text(rope)}", f"the dims of query {shape_text(query)}, the last {part}"
        return
    if last is None:
        raise Undecided("query_rope")
    found = list(_cache_finding(sizes, "key_rope", last // count, str(last // count)))
    yield from found or _same_rows(case, "key_rope")


def rope_parts(case: Case) -> Iterator[Finding]:
    if case.has("query_rope") != case.has("key_rope"):
        only = "query_rope" if case.has("query_rope") else "key_rope"
        yield f"{only} alone", "both or neither"


def rope_types(case: Case) -> Iterator[Finding]:
    if case.has("query_rope") and case.has("key_rope"):
        query = case.dtype("query_rope")
        if not is_int8(case, "query") and query != case.dtype("query"):
            yield f"query_rope {query}", f"{case.dtype('query')} as query"
        wanted, like = (query, "query_rope") if is_int8(case, "key") else (case.dtype("key"), "key")
        if case.dtype("key_rope") != wanted:
            yield f"key_rope {case.dtype('key_rope')}", f"{wanted} as {like}"


def table_dims(case: Case) -> Iterator[Finding]:
    if case.has("block_table"):
        shape = case.shape("block_table")
        if shape_differs(shape, (Sizes(case).batch, None)):
            yield f"block_table {shape_text(shape)}", f"[{Sizes(case).batch}, ?]"


def needed_lengths(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    if sizes.packed and not case.has("actual_seq_lengths"):
        yield "no actual_seq_lengths", f"it, with {sizes.axes}"
    elif (sizes.packed or sizes.paged) and not case.has("actual_seq_lengths_kv"):
        yield "no actual_seq_lengths_kv", "it, with " + ("block_table" if sizes.paged else sizes.axes)


def length_dims(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    for name in ("actual_seq_lengths", "actual_seq_lengths_kv"):
        if not case.has(name):
            continue
        shape = case.shape(name)
        if sizes.packed:
            first = name == "actual_seq_lengths"
            wrong = len(shape) != 1 or shape[0] == 0
            if not wrong and not first:
                wrong = shape_differs(shape, (sizes.batch,))
            wanted = "[B]" if first else f"[{sizes.batch}]"
        else:
            size = shape[0] if len(shape) == 1 else 0
            wrong = len(shape) != 1 or (size is not None and size != 1 and size < sizes.batch)
            wanted = f"[1] or at least [{sizes.batch}]"
        if wrong:
            yield f"{name} {shape_text(shape)}", wanted


def mask_and_mode(case: Case) -> Iterator[Finding]:
    mode = integer(case, "sparse_mode")
    if mode == 1 and not case.has("atten_mask"):
        yield "sparse_mode 1 without atten_mask", "a full mask"
    if mode in (2, 3, 4) and case.has("atten_mask"):
        shape = case.shape("atten_mask")
        if all(shape_differs(shape, form) for form in _TRIANGLES):
            yield f"atten_mask {shape_text(shape)} with sparse_mode {mode}", "the triangle [2048, 2048]"


def mask_of_packed(case: Case) -> Iterator[Finding]:
    if Sizes(case).packed and integer(case, "sparse_mode") in (0, 1) and case.has("atten_mask"):
        yield f"atten_mask with sparse_mode {integer(case, 'sparse_mode')}", "no mask, or sparse_mode 2, 3 or 4"


def mode_of_single(case: Case) -> Iterator[Finding]:
    mode = integer(case, "sparse_mode")
    if mode in (2, 4) and Sizes(case).single:
        yield f"sparse_mode {mode}", "0, 1 or 3, or a TND layout"


def band(case: Case) -> Iterator[Finding]:
    mode, before, after = (integer(case, name) for name in ("sparse_mode", "pre_tokens", "next_tokens"))
    found = f"pre_tokens {before}, next_tokens {after}"
    if mode == 4 and before + after < 0:
        yield found, "a sum of 0 or more"
    if mode == 0 and case.has("atten_mask"):
        sizes = Sizes(case)
        most = max(sizes.tokens, sizes.room)
        if min(before, after) < most:
            yield found, f"{most} or more beside a full mask"


def mask_dims(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    if not case.has("atten_mask") or integer(case, "sparse_mode") not in (0, 1) or sizes.packed:
        return
    shape, tokens = case.shape("atten_mask"), sizes.tokens
    if None in shape:
        raise Undecided("atten_mask")
    first = sizes.batch if tokens == 1 else 0
    fits = 2 <= len(shape) <= 4 and (shape[-1] or 0) >= sizes.room
    if fits and len(shape) == 2:
        fits = shape[0] == first if tokens == 1 else (shape[0] or 0) >= tokens
    elif fits:
        fits = shape[0] in (1, sizes.batch) and (shape[-2] or 0) >= tokens and (len(shape) == 3 or shape[1] == 1)
    if not fits:
        plain = f"[{first}, {sizes.room}]" if tokens == 1 else f"[{tokens}, {sizes.room}]"
        yield (
            f"atten_mask {shape_text(shape)}",
            f"[{sizes.batch} or 1, {tokens}, {sizes.room}], [{sizes.batch} or 1, 1, {tokens}, {sizes.room}] "
            f"or {plain}, the last two dims at least",
        )


def length_values(case: Case) -> Iterator[Finding]:
    """Plain lengths."""
    sizes = Sizes(case)
    for name in ("actual_seq_lengths", "actual_seq_lengths_kv"):
        first = name == "actual_seq_lengths"
        if not case.has(name) or (sizes.packed and (first or not sizes.paged)):
            continue
        most = sizes.tokens if first else sizes.room
        given = case.value(name).reshape(-1)
        given = given[: sizes.batch] if given.size >= sizes.batch else given[:1]
        wrong = np.flatnonzero((given < 0) | (given > most))
        if wrong.size and not (first and sizes.single):
            yield f"{name}[{int(wrong[0])}] = {int(given[wrong[0]])}", f"0 to {most}"


def sum_values(case: Case) -> Iterator[Finding]:
    """Running sums."""
    sizes = Sizes(case)
    if not sizes.packed:
        return
    totals = [("actual_seq_lengths", sizes.tokens)]
    if not sizes.paged:
        totals.append(("actual_seq_lengths_kv", sizes.kv_tokens))
    for name, total in totals:
        ends = case.value(name).reshape(-1)
        before = np.concatenate([np.zeros(1, ends.dtype), ends[:-1]])  # a difference could overflow
        wrong = np.flatnonzero((ends < before) | (ends > total))
        if wrong.size:
            yield f"{name}[{int(wrong[0])}] = {int(ends[wrong[0]])}", f"running sums up to {total}"


def page_values(case: Case) -> Iterator[Finding]:
    sizes = Sizes(case)
    if not sizes.paged:
        return
    blocks, table = case.dim("key", 0), case.value("block_table")
    if table.ndim != 2 or table.shape[0] != sizes.batch:
        raise Undecided("block_table")
    used = np.arange(table.shape[1]) * sizes.page < sizes.kv_lengths()[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= blocks)))
    if wrong.size:
        row, column = (int(place) for place in wrong[0])
        yield f"block_table[{row}, {column}] = {int(table[row, column])}", f"0 to {blocks - 1}"


def sink(case: Case) -> Iterator[Finding]:
    if not case.has("learnable_sink"):
        return
    if is_int8(case, "key"):
        yield "learnable_sink with an int8 key", "a float key"
    elif case.dtype("learnable_sink") != case.dtype("query"):
        yield f"learnable_sink {case.dtype('learnable_sink')}", f"{case.dtype('query')} as query"
    count, shape = integer(case, "num_heads"), case.shape("learnable_sink")
    if shape_differs(shape, (count,)):
        yield f"learnable_sink {shape_text(shape)}", f"[{count}]"

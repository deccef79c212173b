"""ScatterPaKvCache: writes the key and value rows of tokens into paged caches, by slot.

Token t goes to page ``slot_mapping[t] // block_size``, row ``slot_mapping[t] % block_size`` of both caches; -1 leaves
the caches alone. Nothing is computed: rows keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ir_ops import contract as rules
from ir_ops.contract import ASCEND_2, DEVICES, EIGHT_BIT, FLOATS
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
    Rule,
    Shape,
    TensorSpec,
    Undecided,
    shape_differs,
    shape_text,
)
from ir_ops.layout import CacheMode, nz_block
from ir_ops.numeric import Numeric
from ir_ops.preamble import slots, write_cache

CACHE_MODES = ("Norm", "PA_NZ")
SCATTER_MODES = ("None", "NHSD")
MODES = {
    ("Norm", "None"): CacheMode("Norm", "BSND", "slot"),
    ("Norm", "NHSD"): CacheMode("NHSD", "BNSD", "slot"),
    ("PA_NZ", "None"): CacheMode("PA_NZ", "NZ", "slot"),
}
_ROW_AXIS = {"Norm": 1, "NHSD": 2, "PA_NZ": -2}
"""The axis of a cache that is the block size."""
_PAIRS = (("key", "key_cache"), ("value", "value_cache"))
_COMPRESSION = ("compress_lens", "compress_seq_offset", "seq_lens")


def _mode(case: Case) -> CacheMode:
    found = MODES.get((str(case.attrs["cache_mode"]), str(case.attrs["scatter_mode"])))
    if found is None:
        raise Undecided("cache_mode")
    return found


def _key_only(case: Case) -> bool:
    return case.shape("value") == (0,) and case.shape("value_cache") == (0,)


def _pairs(case: Case) -> tuple[tuple[str, str], ...]:
    return _PAIRS[:1] if _key_only(case) else _PAIRS


def _block(case: Case) -> int:
    return case.dim("key_cache", _ROW_AXIS[_mode(case).name])


def _blocks(case: Case) -> int:
    return case.dim("key_cache", 0)


def _tokens(case: Case) -> int:
    return case.dim("key", 0)


def _known_modes(case: Case) -> Iterator[Finding]:
    modes = (str(case.attrs["cache_mode"]), str(case.attrs["scatter_mode"]))
    if modes not in MODES:
        yield f"{modes[0]!r} with {modes[1]!r}", " | ".join(f"{cache} with {scatter}" for cache, scatter in MODES)


def _uncompressed(case: Case) -> Iterator[Finding]:
    for name in _COMPRESSION:
        if case.has(name):
            yield f"{name} given", "none of " + ", ".join(_COMPRESSION)


def _plain(attr: str, *wanted: int) -> Rule:
    def rule(case: Case) -> Iterator[Finding]:
        if list(case.attrs[attr]) != list(wanted):  # type: ignore[arg-type]
            yield f"{attr} {case.attrs[attr]}", str(list(wanted))

    return rule


def _same_types(case: Case) -> Iterator[Finding]:
    for rows, cache in _PAIRS:
        if case.dtype(rows) != case.dtype(cache):
            yield f"{rows} {case.dtype(rows)}, {cache} {case.dtype(cache)}", "one element type"


def _one_type(case: Case) -> Iterator[Finding]:
    if _mode(case).order != "NZ" and case.dtype("key") != case.dtype("value"):
        yield f"key {case.dtype('key')}, value {case.dtype('value')}", "one element type"


def _rows(case: Case) -> Iterator[Finding]:
    key = case.shape("key")
    for name, _ in _pairs(case):
        if len(case.shape(name)) != 3:
            yield f"{name} {shape_text(case.shape(name))}", "[T, N, D]"
        elif name == "value" and shape_differs(case.shape("value")[:2], key[:2]):
            yield f"value {shape_text(case.shape('value'))}", f"T and N of key {shape_text(key)}"


def _width(case: Case) -> Iterator[Finding]:
    if _mode(case).order == "NZ":
        for name, cache in _pairs(case):
            d0 = nz_block(case.dtype(cache))
            if case.dim(name, 2) % d0:
                yield f"{name} width {case.dim(name, 2)}", f"a multiple of {d0}"


def _cache_forms(mode: CacheMode, heads: int | None, width: int | None, d0: int) -> list[Shape]:
    if mode.name == "Norm":
        return [(None, None, heads, width)]
    if mode.name == "NHSD":
        return [(None, heads, None, width)]
    fractals = None if width is None else width // d0
    joined = None if fractals is None or heads is None else heads * fractals
    return [(None, joined, None, d0), (None, heads, fractals, None, d0)]


def _cache_shapes(case: Case) -> Iterator[Finding]:
    for name, cache in _pairs(case):
        rows = case.shape(name)
        if len(rows) != 3:
            continue
        forms = _cache_forms(_mode(case), rows[1], rows[2], nz_block(case.dtype(cache)))
        if all(shape_differs(case.shape(cache), form) for form in forms):
            yield f"{cache} {shape_text(case.shape(cache))}", " or ".join(map(shape_text, forms))


def _same_pages(case: Case) -> Iterator[Finding]:
    if not _key_only(case):
        axis = _ROW_AXIS[_mode(case).name]
        one, other = ((case.dim(name, 0), case.dim(name, axis)) for name in ("key_cache", "value_cache"))
        if one != other:
            yield f"key_cache {list(one)}, value_cache {list(other)}", "equal block_num and block_size"


def _slot_count(case: Case) -> Iterator[Finding]:
    if shape_differs(case.shape("slot_mapping"), (tokens := case.dim("key", 0),)):
        yield f"slot_mapping {shape_text(case.shape('slot_mapping'))}", f"[{tokens}]"


def _device_skip(case: Case) -> Iterator[Finding]:
    skipped = np.flatnonzero(case.value("slot_mapping").reshape(-1) < 0)
    if skipped.size:
        yield f"slot_mapping[{skipped[0]}] = -1", "0 or more"


def _room(case: Case) -> Iterator[Finding]:
    if _tokens(case) > _blocks(case) * _block(case):
        yield f"T = {_tokens(case)}", f"at most {_blocks(case) * _block(case)}"


def _device_types(case: Case) -> Iterator[Finding]:
    for name in ("key", "value"):
        yield from rules.type_in(name, "float16", "bfloat16", "int8")(case)


def _form(name: str) -> Callable[[Case], bool]:
    return lambda case: _mode(case).name == name


def _not_known(case: Case) -> Iterator[Finding]:
    yield f"scatter_mode {case.attrs['scatter_mode']!r}", "None"


def _no_value(case: Case) -> Iterator[Finding]:
    if _key_only(case):
        yield "no value", "value and value_cache"


CONSTRAINTS = (
    Constraint("SP-6", "unknown cache_mode or scatter_mode", _known_modes),
    Constraint("SP-6", "the product does not know this scatter_mode", rules.when(_form("NHSD"), _not_known),
               ("950", "kirin")),
    Constraint("SP-6", "compression inputs belong to other scatter modes", _uncompressed),
    Constraint("SP-6", "strides belong to other scatter modes", _plain("strides", 1, 1)),
    Constraint("SP-6", "offsets belong to other scatter modes", _plain("offsets", 0, 0)),
    Constraint("SP-1", "a cache must have the element type of its rows", _same_types),
    Constraint("SP-1", "key and value must have one element type in this mode", _one_type),
    Constraint("SP-2", "the product does not take this element type", _device_types, ASCEND_2),
    Constraint("SP-7", "key and value must be rows of tokens", _rows),
    Constraint("SP-4", "an NZ cache row must divide into 32-byte fractals", _width),
    Constraint("SP-7", "a cache has another shape", _cache_shapes),
    Constraint("SP-7", "the caches must have the same pages", _same_pages),
    Constraint("SP-7", "the product needs value", _no_value, ("950", "kirin")),
    Constraint("SP-7", "slot_mapping must have one element for each token", _slot_count),
    Constraint("SP-3", "a slot is out of range or written twice",
               rules.index_values(_mode, _tokens, _block, _blocks, "slot_mapping")),
    Constraint("SP-3", "the product does not skip slots", _device_skip, DEVICES),
    Constraint("SP-5", "there are more tokens than slots", _room, DEVICES),
)  # fmt: skip
"""SP-6 and SP-7 are ours."""


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    return {cache: specs[cache] for _, cache in _PAIRS}


def _compute(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    mode = MODES[str(attrs["cache_mode"]), str(attrs["scatter_mode"])]
    index = xp.cast(x["slot_mapping"], "int64")
    outputs = {}
    for name, cache in _PAIRS:
        old = x[cache]
        if xp.rank(old) == 1:  # key only
            outputs[cache] = old
            continue
        rows = xp.dim(old, _ROW_AXIS[mode.name] % xp.rank(old))
        places = slots(xp, mode, index, xp.dim(index, 0), 1, rows)
        outputs[cache] = write_cache(xp, old, places, x[name])
    return outputs


OPERATOR = Operator(
    name="ScatterPaKvCache",
    doc=__doc__,
    types={"K": (*FLOATS, *EIGHT_BIT), "I": ("int32", "int64"), "V": (*FLOATS, *EIGHT_BIT)},
    inputs=(
        Input("key", "K", "[T, N, Dk]", "rows of the tokens"),
        Input("key_cache", "K", "by mode", "in place", ref="key_cache"),
        Input("slot_mapping", "I", "[T]", "page * block_size + row; -1 skips"),
        Input("value", "V", "[T, N, Dv]; [0] for none", "rows of the tokens"),
        Input("value_cache", "V", "by mode; [0] for none", "in place", ref="value_cache"),
        Input("compress_lens", "I", "", "not for these modes", True),
        Input("compress_seq_offset", "I", "", "not for these modes", True),
        Input("seq_lens", "I", "", "not for these modes", True),
    ),
    outputs=(
        Output("key_cache", "K", "as the input", "the same buffer", ref=True),
        Output("value_cache", "V", "as the input", "the same buffer", ref=True),
    ),
    attrs=(
        Attr("cache_mode", "String", "Norm", "how the caches are laid out", CACHE_MODES),
        Attr("scatter_mode", "String", "None", "order of heads and rows", SCATTER_MODES),
        Attr("strides", "ListInt", [1, 1], "of another scatter mode"),
        Attr("offsets", "ListInt", [0, 0], "of another scatter mode"),
    ),
    constraints=CONSTRAINTS,
    shapes=_shapes,
    compute=_compute,
    body_types=rules.no_float8,
    notes=(
        Note(
            "Cache modes and layouts",
            (
                ("cache_mode", "scatter_mode", "cache", "products"),
                ("Norm", "None", "[block_num, block_size, N, D]", "all"),
                ("Norm", "NHSD", "[block_num, N, block_size, D]", "A2, A3"),
                ("PA_NZ", "None", "[block_num, N*D/d0, block_size, d0] or [block_num, N, D/d0, block_size, d0]", "all"),
            ),
            (
                "d0 is 32 bytes of the cache's own type. Every byte that is not addressed stays.",
                "Without value (A2, A3) value and value_cache are empty tensors of shape [0].",
            ),
        ),
        Note(
            "Choices where the contract leaves room",
            items=(
                "Only -1 skips, and under `generic` only; other negative slots are refused.",
                "The scatter modes Alibi, Rope, Omni and Nct, which compress, are not taken.",
                "`generic` takes the float types and the 8-bit ones.",
                "FusedInferAttentionScore reads a 4-D cache as [block_num, N, block_size, D]: reshape a Norm cache.",
            ),
        ),
    ),
)

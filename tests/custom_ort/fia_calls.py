"""Random legal calls of FusedInferAttentionScore over layouts, lengths, pages, masks and element types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, by_name
from ir_ops.layout import nz_block
from tests.custom_ort.calls import Call, values

NAME = "FusedInferAttentionScore"
LAYOUTS = ("BSH", "BSND", "BNSD", "TND", "NTD", "BSH_BNSD", "BSND_BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD",
           "BNSD_NBSD", "TND_NTD", "NTD_TND")  # fmt: skip
TYPES = (("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float16"),
         ("float32", "bfloat16"), ("float32", "int8"), ("float16", "int8"), ("bfloat16", "int8"))  # fmt: skip
Rng = np.random.Generator
JUNK = float("nan")
"""What lies where no token is: whoever reads it gets caught."""


def pick(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


@dataclass
class Plan:
    """What a call is to be."""

    layout: str
    query: str
    key: str
    heads: int
    kv_heads: int
    width: int
    value_width: int
    rope: int
    pages: int  # dims of a page, 0 for contiguous keys
    page: int
    lengths: list[int]
    kv_lengths: list[int]
    mode: int
    masked: bool
    antiquant: int

    @property
    def axes(self) -> str:
        return self.layout.partition("_")[0]

    @property
    def packed(self) -> bool:
        return "T" in self.axes

    @property
    def batch(self) -> int:
        return len(self.lengths)


def plan(rng: Rng, **fixed: Any) -> Plan:
    """A plan; ``fixed`` are fields that are not drawn."""
    layout = fixed.get("layout") or str(pick(rng, LAYOUTS))
    query, key = pick(rng, TYPES)
    kv_heads = int(pick(rng, [1, 1, 2, 3]))
    batch = int(rng.integers(1, 5))
    tokens = int(pick(rng, [1, 1, 2, 5, 21]))
    lengths = [int(rng.integers(0, tokens + 1)) for _ in range(batch)] if rng.random() < 0.5 else [tokens] * batch
    most = int(pick(rng, [3, 40, 90]))
    kv_lengths = [int(rng.integers(0, most + 1)) for _ in range(batch)]
    if rng.random() < 0.3:
        kv_lengths = [max(a, b) for a, b in zip(lengths, kv_lengths, strict=True)]
    pages = int(pick(rng, [0, 0, 3, 4, 5]))
    step = 32 if pages == 5 else 1
    width = int(pick(rng, [32, 64, 96, 128] if step == 32 else [1, 8, 24, 33, 64, 80, 128]))
    mode = int(pick(rng, [0, 0, 1, 2, 3, 3, 4]))
    made = Plan(
        layout=layout,
        query=query,
        key=key,
        heads=kv_heads * int(pick(rng, [1, 2, 4, 7])),
        kv_heads=kv_heads,
        width=width,
        value_width=width if rng.random() < 0.6 else int(pick(rng, [32, 64] if step == 32 else [5, 16, 40])),
        rope=int(pick(rng, [0, 0, 0, 32, 64])),
        pages=pages,
        page=int(pick(rng, [1, 4, 16, 37])),
        lengths=lengths,
        kv_lengths=kv_lengths,
        mode=mode,
        masked=mode == 1 or rng.random() < 0.5,
        antiquant=int(rng.integers(3)),
    )
    for name, value in fixed.items():
        setattr(made, name, value)
    if made.packed and made.mode == 1:
        made.mode = 3
    if made.packed and made.mode == 0:
        made.masked = False
    if not made.packed and max(made.lengths) == 1 and not made.rope and made.mode in (2, 4):
        made.mode = 3
    return made


def random_call(rng: Rng, **fixed: Any) -> Call:
    """One legal call."""
    return build(rng, plan(rng, **fixed))


def build(rng: Rng, p: Plan) -> Call:
    """The call of a plan, with NaN (int8: large numbers) wherever no valid token is."""
    longest = max(p.lengths)
    longest_kv = max(p.kv_lengths) + int(rng.integers(0, 3))
    inputs: dict[str, Array] = {}
    attrs: dict[str, Any] = {
        "num_heads": p.heads,
        "num_key_value_heads": 0 if p.kv_heads == p.heads and rng.random() < 0.5 else p.kv_heads,
        "scale": float(np.float32(pick(rng, [p.width**-0.5, 0.3, -0.1]))),
        "input_layout": p.layout,
        "sparse_mode": p.mode,
        "softmax_lse_flag": bool(rng.integers(2)),
    }
    ends = np.cumsum(p.lengths).astype(np.int64)
    slack = int(rng.integers(0, 3)) if p.packed else 0
    inputs["query"] = _arranged(values(rng, _token_dims(p, longest, slack, p.heads, p.width), p.query), p.axes)
    if p.rope:
        rope = values(rng, _token_dims(p, longest, slack, p.heads, p.rope), p.query)
        inputs["query_rope"] = _arranged(rope, p.axes)
    if p.packed or rng.random() < 0.7 or min(p.lengths) != longest:
        inputs["actual_seq_lengths"] = ends if p.packed else np.array(p.lengths, np.int64)
    if p.pages:
        _paged(rng, p, inputs, attrs)
        inputs["actual_seq_lengths_kv"] = np.array(p.kv_lengths, np.int64)
        room = inputs["block_table"].shape[1] * p.page
    else:
        _contiguous(rng, p, inputs, longest_kv)
        room = sum(p.kv_lengths) + 1 if p.packed else longest_kv
        sums = np.cumsum(p.kv_lengths).astype(np.int64)
        inputs["actual_seq_lengths_kv"] = sums if p.packed else np.array(p.kv_lengths, np.int64)
        if not p.packed and len(set(p.kv_lengths)) == 1 and rng.random() < 0.5:
            inputs["actual_seq_lengths_kv"] = inputs["actual_seq_lengths_kv"][:1]
    if p.key == "int8":
        _antiquant(rng, p, inputs, attrs, room)
    _mask(rng, p, inputs, attrs, longest, room)
    if p.key != "int8" and rng.random() < 0.2:
        inputs["learnable_sink"] = values(rng, (p.heads,), p.query)
    return Call(inputs, attrs)


def _token_dims(p: Plan, longest: int, slack: int, heads: int, width: int) -> tuple[int, ...]:
    return (sum(p.lengths) + slack, heads, width) if p.packed else (p.batch, longest, heads, width)


def _arranged(tokens: Array, axes: str) -> Array:
    """``[B, S, N, D]`` or ``[T, N, D]`` in a layout."""
    if axes == "BSH":
        return tokens.reshape(*tokens.shape[:2], tokens.shape[2] * tokens.shape[3])
    if axes in ("BNSD", "NTD"):
        tokens = np.swapaxes(tokens, -3, -2)
    return np.ascontiguousarray(tokens)


def _numbers(rng: Rng, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return values(rng, shape, dtype)


def _parts(p: Plan) -> dict[str, int]:
    return {"key": p.width, "value": p.value_width} | ({"key_rope": p.rope} if p.rope else {})


def _type(p: Plan, name: str) -> str:
    return p.query if name == "key_rope" and p.key == "int8" else p.key


def _hide(tokens: Array, valid: Array) -> None:
    """Junk in the rows that are no tokens."""
    tokens[~valid] = 99 if tokens.dtype == np.int8 else JUNK


def _contiguous(rng: Rng, p: Plan, inputs: dict[str, Array], longest: int) -> None:
    for name, width in _parts(p).items():
        total = sum(p.kv_lengths)
        dims = (total + 1, p.kv_heads, width) if p.packed else (p.batch, longest, p.kv_heads, width)
        tokens = _numbers(rng, dims, _type(p, name))
        if p.packed:
            _hide(tokens, np.arange(total + 1) < total)
        else:
            _hide(tokens, np.arange(longest) < np.array(p.kv_lengths)[:, None])
        inputs[name] = _arranged(tokens, p.axes)


def _paged(rng: Rng, p: Plan, inputs: dict[str, Array], attrs: dict[str, Any]) -> None:
    needed = [-(-length // p.page) for length in p.kv_lengths]
    columns = max(needed) + int(rng.integers(0, 2))
    blocks = sum(needed) + int(rng.integers(1, 3))
    table = np.full((p.batch, columns), pick(rng, [-1, 10**6]), np.int32)
    order = iter(rng.permutation(blocks).tolist())
    valid = np.zeros((blocks, p.page), np.bool_)
    for entry, (count, length) in enumerate(zip(needed, p.kv_lengths, strict=True)):
        for column in range(count):
            table[entry, column] = next(order)
            valid[table[entry, column], : length - column * p.page] = True
    inputs["block_table"] = table
    attrs["block_size"] = p.page
    for name, width in _parts(p).items():
        kind = _type(p, name)
        pages = _numbers(rng, (blocks, p.page, p.kv_heads, width), kind)
        _hide(pages, valid)
        inputs[name] = page_layout(pages, p.pages, kind)


def page_layout(pages: Array, dims: int, kind: str) -> Array:
    """Pages ``[block_num, block_size, N, D]`` as 3, 4 or 5 (NZ) dims."""
    blocks, page, heads, width = pages.shape
    if dims == 3:
        return pages.reshape(blocks, page, heads * width)
    if dims == 4:
        return np.ascontiguousarray(pages.transpose(0, 2, 1, 3))
    d0 = nz_block(kind)
    return np.ascontiguousarray(pages.reshape(blocks, page, heads, width // d0, d0).transpose(0, 2, 3, 1, 4))


def _antiquant(rng: Rng, p: Plan, inputs: dict[str, Array], attrs: dict[str, Any], room: int) -> None:
    modes = (0, 1) if rng.random() < 0.1 else (p.antiquant, p.antiquant)
    offsets = rng.random() < 0.5
    for name, mode, width in zip(("key", "value"), modes, (p.width, p.value_width), strict=True):
        h = p.kv_heads
        forms: Mapping[int, list[tuple[int, ...]]] = {
            0: [(1,), (h * width,), (h, width), (h, 1, width), (1, h, 1, width)],
            1: [(p.batch, room + 2), (1, p.batch, room)],
            2: [(h,)],
        }
        shape = pick(rng, forms[mode])
        kind = p.query if mode != 1 and rng.random() < 0.5 else "float32"
        attrs[f"{name}_antiquant_mode"] = mode
        inputs[f"{name}_antiquant_scale"] = np.abs(values(rng, shape, kind, 0.02))
        if offsets:
            inputs[f"{name}_antiquant_offset"] = values(rng, shape, kind, 5.0)


def _mask(rng: Rng, p: Plan, inputs: dict[str, Array], attrs: dict[str, Any], longest: int, room: int) -> None:
    kind = by_name(str(pick(rng, ["bool", "int8", "uint8"]))).np
    if p.mode == 4:
        attrs["pre_tokens"], attrs["next_tokens"] = (int(rng.integers(-2, 9)) for _ in range(2))
        attrs["next_tokens"] = max(attrs["next_tokens"], -attrs["pre_tokens"])
    if not p.masked:
        return
    if p.mode > 1:
        inputs["atten_mask"] = np.triu(np.ones((2048, 2048), np.bool_), 1).reshape(*pick(rng, [(), (1,)]), 2048, 2048)
        return
    rows, columns = longest + int(rng.integers(0, 3)), room + int(rng.integers(0, 3))
    shapes = [(p.batch, rows, columns), (1, rows, columns), (p.batch, 1, rows, columns), (1, 1, rows, columns),
              (p.batch, columns) if longest == 1 else (rows, columns)]  # fmt: skip
    inputs["atten_mask"] = (rng.random(pick(rng, shapes)) < rng.choice([0.3, 0.95])).astype(kind)


def whole_int8(rng: Rng, layout: str, lengths: list[int], kv_lengths: list[int], mode: int) -> Call:
    """MLA decoding with int8 queries and an int8 latent cache in NZ pages."""
    p = Plan(layout, "bfloat16", "int8", 4, 1, 64, 64, 32, 5, 16, lengths, kv_lengths, mode, False, 0)
    call = build(rng, p)
    query = call.inputs["query"]
    for name in ("key", "value"):
        call.inputs[f"{name}_antiquant_scale"] = np.array([0.01], np.float32)
        call.inputs.pop(f"{name}_antiquant_offset", None)
        call.attrs[f"{name}_antiquant_mode"] = 0
    call.inputs["value"] = call.inputs["key"]
    call.attrs["query_quant_mode"] = 3
    rows = (*query.shape[:-1], 4) if p.axes == "BSH" else query.shape[:-1]
    call.inputs["dequant_scale_query"] = np.abs(values(rng, rows, "float32", 0.01)) + np.float32(1e-3)
    call.inputs["query"] = rng.integers(-127, 128, query.shape).astype(np.int8)
    return call


CALLS = {NAME: random_call}
"""For whoever draws calls of every operator."""

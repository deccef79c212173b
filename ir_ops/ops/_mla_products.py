"""What the products take of MlaPrologV3: sizes, pages and combinations of quantisation modes."""

from __future__ import annotations

from collections.abc import Iterator

from ir_ops.declaration import Case, Finding
from ir_ops.ops import _mla_rules as mla

_HIDDEN = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192)
_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
_SIZES = (
    ("He", mla.hidden, _HIDDEN),
    ("Hcq", mla.q_rank, (1536,)),
    ("N", mla.heads, _HEADS),
    ("Hckv", mla.kv_rank, (512,)),
    ("D", mla.nope, (128,)),
    ("Dr", mla.rope, (64,)),
)
_COMMON = {(0, 0), (1, 0), (1, 2)}
COMBINATIONS = {
    "950": _COMMON | {(3, 0), (3, 1), (3, 3)},
    "A3": _COMMON | {(1, 3), (2, 0), (2, 1), (2, 3)},
    "A2": _COMMON | {(1, 3), (2, 0), (2, 1), (2, 3)},
    "kirin": set[tuple[int, int]](),
}
"""(weight_quant_mode, kv_cache_quant_mode) that a product takes."""


def sizes(case: Case) -> Iterator[Finding]:
    for name, size, allowed in _SIZES:
        if size(case) not in allowed:
            yield f"{name} {size(case)}", f"{name} in {', '.join(map(str, allowed))}"


def pages(case: Case) -> Iterator[Finding]:
    if not mla.mode(case).paged:
        return
    rows, blocks = case.dim("kv_cache", 1), case.dim("kv_cache", 0)
    if mla.no_slots(case):
        return
    if rows % 16 or not 16 <= rows <= 1024:
        yield f"block_size {rows}", "a multiple of 16 from 16 to 1024"
    elif mla.fused(case):
        if blocks * rows < mla.tokens(case):
            yield f"block_num {blocks}", f"at least {-(-mla.tokens(case) // rows)}"
    else:
        batch, count = case.dim("token_x", 0), case.dim("token_x", 1)
        least = batch * -(-count // rows) if mla.by_page(case) else -(-batch * count // rows)
        if blocks < least:
            yield f"block_num {blocks}", f"at least {least}"


def combinations(case: Case) -> Iterator[Finding]:
    allowed = sorted(COMBINATIONS[case.product])
    found = (mla.weight_mode(case), mla.cache_quant(case))
    if found not in allowed:
        yield f"weight_quant_mode, kv_cache_quant_mode {found}", ", ".join(map(str, allowed)) or "none"


def derived_query_mode(case: Case) -> Iterator[Finding]:
    wanted = int(mla.weight_mode(case) in (2, 3, 4, 5) and mla.cache_quant(case) == 1)
    if mla.query_quant(case) != wanted:
        yield f"query_quant_mode {mla.query_quant(case)}", f"{wanted} with these quantisation modes"


def cache_of_mode(case: Case) -> Iterator[Finding]:
    """With int8 weights the 8-bit caches are int8, with MX ones e4m3."""
    wanted = "float8_e4m3fn" if mla.weight_mode(case) == 3 else "int8"
    if mla.cache_quant(case) and case.dtype("kv_cache") != wanted:
        yield f"kv_cache {case.dtype('kv_cache')}", f"{wanted} with weight_quant_mode {mla.weight_mode(case)}"


def tile_size(case: Case) -> Iterator[Finding]:
    if case.attrs["tile_size"] != 128:
        yield f"tile_size {case.attrs['tile_size']}", "128"


def plain_type(case: Case) -> Iterator[Finding]:
    if case.dtype("weight_uk") != "bfloat16":
        yield f"weight_uk {case.dtype('weight_uk')}", "bfloat16"


def scale_type(case: Case) -> Iterator[Finding]:
    for name in ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr"):
        if case.has(name) and case.dtype(name) == "uint8":
            yield f"{name} uint8", "float8_e8m0"


def no_empty_cache(case: Case) -> Iterator[Finding]:
    if not mla.mode(case).paged and 0 in case.shape("kv_cache"):
        yield f"an empty kv_cache in mode {mla.mode(case).name}", "a cache with rows"

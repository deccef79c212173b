"""The numbered rules of MlaPrologV3; its declaration names them with the contract's ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ir_ops import contract as rules
from ir_ops.contract import kept_as, repeats
from ir_ops.declaration import Case, Finding, Shape, Undecided, dim, shape_differs, shape_text
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import MLA_CACHE_MODES, nz_block

MX_BLOCK = 32
"""Elements that share a scale of the MX format."""
SCALE_BYTES = 4
WEIGHT_MODES, CACHE_MODES, QUERY_MODES = 6, 4, 2
"""How many values weight_quant_mode, kv_cache_quant_mode and query_quant_mode have."""

mode = rules.mode_of(MLA_CACHE_MODES)
hidden, q_rank, rope = dim("token_x", -1), dim("weight_dq", 1), dim("rope_cos", -1)
heads, nope, kv_rank = dim("weight_uk", 0), dim("weight_uk", 1), dim("weight_uk", 2)


def weight_mode(case: Case) -> int:
    return int(case.attrs["weight_quant_mode"])  # type: ignore[arg-type]


def cache_quant(case: Case) -> int:
    return int(case.attrs["kv_cache_quant_mode"])  # type: ignore[arg-type]


def query_quant(case: Case) -> int:
    return int(case.attrs["query_quant_mode"])  # type: ignore[arg-type]


def fused(case: Case) -> bool:
    """Whether the tokens come as [T, He] and not as [B, S, He]."""
    return len(case.shape("token_x")) == 2


def by_page(case: Case) -> bool:
    return mode(case).slot == "page"


def tokens(case: Case) -> int:
    """T, or B*S."""
    lead = case.shape("token_x")[:-1]
    if None in lead:
        raise Undecided("token_x")
    return int(np.prod([size or 0 for size in lead], dtype=np.int64))


def columns(case: Case) -> int:
    """Columns of weight_uq_qr: all heads' nope and rope parts."""
    return heads(case) * (nope(case) + rope(case))


def packed_width(kv: int, rope_width: int, rope_bytes: int, tile: int) -> int:
    """Bytes of a per-tile row: the values, the rotated key in its own type, one float32 scale for each tile."""
    return kv + rope_width * rope_bytes + SCALE_BYTES * (kv // max(tile, 1))


def cache_width(case: Case) -> int:
    """Columns of kv_cache."""
    if cache_quant(case) != 3:
        return kv_rank(case)
    size = by_name(case.dtype("weight_uk")).itemsize
    return packed_width(kv_rank(case), rope(case), size, int(case.attrs["tile_size"]))  # type: ignore[arg-type]


def no_slots(case: Case) -> bool:
    """Whether a paged cache has no rows: then nothing is written and the index means nothing."""
    return 0 in case.shape("kv_cache")[:2]


def known_number(attr: str, count: int) -> Callable[[Case], Iterator[Finding]]:
    """An Int attribute is one of 0 .. count-1."""

    def rule(case: Case) -> Iterator[Finding]:
        if not 0 <= int(case.attrs[attr]) < count:  # type: ignore[arg-type]
            yield f"{attr} {case.attrs[attr]}", f"0 to {count - 1}"

    return rule


def token_rank(case: Case) -> Iterator[Finding]:
    if len(case.shape("token_x")) not in (2, 3):
        yield f"token_x {shape_text(case.shape('token_x'))}", "[T, He] or [B, S, He]"


def query_follows_cache(case: Case) -> Iterator[Finding]:
    if query_quant(case) == 1 and cache_quant(case) != 1:
        yield f"query_quant_mode 1 with kv_cache_quant_mode {cache_quant(case)}", "kv_cache_quant_mode 1"


def repo_modes(case: Case) -> Iterator[Finding]:
    wanted = int(cache_quant(case) == 3)
    for attr in ("ckvkr_repo_mode", "quant_scale_repo_mode"):
        if case.attrs[attr] != wanted:
            yield f"{attr} {case.attrs[attr]}", f"{wanted} with kv_cache_quant_mode {cache_quant(case)}"


def tile_modes(case: Case) -> Iterator[Finding]:
    if cache_quant(case) == 3 and mode(case).name not in ("PA_BSND", "BSND", "TND"):
        yield f"cache_mode {mode(case).name}", "PA_BSND, BSND or TND"


def form_of_mode(case: Case) -> Iterator[Finding]:
    name, flat = mode(case).name, fused(case)
    if (name == "BSND" and flat) or (name == "TND" and not flat):
        yield f"token_x {shape_text(case.shape('token_x'))}", "[T, He]" if name == "TND" else "[B, S, He]"


_MAY_BE_EMPTY = {"token_x": 1, "rope_sin": 1, "rope_cos": 1, "dequant_scale_x": 1, "kv_cache": 2, "kr_cache": 2}
"""Inputs whose leading axes may be 0: how many of the last ones may not. cache_index and actual_seq_len are free."""


def empties(case: Case) -> Iterator[Finding]:
    for name, spec in case.specs.items():
        free = name in ("cache_index", "actual_seq_len") or (name == "kr_cache" and cache_quant(case) == 3)
        if spec.shape is not None and not free:
            last = spec.shape[-_MAY_BE_EMPTY[name] :] if name in _MAY_BE_EMPTY else spec.shape
            if 0 in last:
                yield f"{name} {shape_text(spec.shape)}", "only B, S, T and cache rows of 0"


def even_rope(case: Case) -> Iterator[Finding]:
    if rope(case) % 2:
        yield f"Dr {rope(case)}", "an even Dr"


def _shaped(case: Case, name: str, *wanted: Shape) -> Iterator[Finding]:
    if all(shape_differs(case.shape(name), shape) for shape in wanted):
        yield f"{name} {shape_text(case.shape(name))}", " or ".join(map(shape_text, wanted))


def weight_shapes(case: Case) -> Iterator[Finding]:
    if case.specs["weight_dq"].shape is not None:
        yield from _shaped(case, "weight_dq", (None, None))
    if case.specs["weight_uk"].shape is not None:
        yield from _shaped(case, "weight_uk", (None, None, None))
    he = case.dim("token_x", -1)
    yield from _shaped(case, "weight_dq", (he, None))
    yield from _shaped(case, "weight_uq_qr", (q_rank(case), columns(case)))
    yield from _shaped(case, "weight_dkv_kr", (he, kv_rank(case) + rope(case)))


def mx_rows(case: Case) -> Iterator[Finding]:
    if weight_mode(case) == 3:
        for name, size in (("He", hidden), ("Hcq", q_rank)):
            if size(case) % MX_BLOCK:
                yield f"{name} {size(case)}", f"a multiple of {MX_BLOCK}"


def row_shapes(case: Case) -> Iterator[Finding]:
    yield from _shaped(case, "rmsnorm_gamma_cq", (q_rank(case),))
    yield from _shaped(case, "rmsnorm_gamma_ckv", (kv_rank(case),))
    for name in ("rope_sin", "rope_cos"):
        yield from _shaped(case, name, (*case.shape("token_x")[:-1], rope(case)))


def tile_size(case: Case) -> Iterator[Finding]:
    size = int(case.attrs["tile_size"])  # type: ignore[arg-type]
    if cache_quant(case) == 3 and (size < 1 or kv_rank(case) % size):
        yield f"tile_size {size}", f"a divisor of Hckv = {kv_rank(case)}"


def _wanted_types(case: Case) -> Iterator[tuple[str, tuple[str, ...]]]:
    plain, weights, cache = case.dtype("weight_uk"), weight_mode(case), cache_quant(case)
    for name in ("rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos"):
        yield name, (plain,)
    small = {2: "int8", 3: "float8_e4m3fn", 4: "float8_e4m3fn", 5: "hifloat8"}
    for name in ("token_x", "weight_dq", "weight_dkv_kr"):
        yield name, (small.get(weights, plain),)
    yield "weight_uq_qr", ({1: "int8", **small}.get(weights, plain),)
    eight = ("int8", "float8_e4m3fn", "hifloat8")
    if (caches := {0: kept_as(plain), 1: eight, 2: ("int8",), 3: eight}.get(cache)) is not None:
        yield "kv_cache", caches
    yield "kr_cache", {0: (case.dtype("kv_cache"),), 2: ("int8",)}.get(cache, (plain,))
    for name in ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr"):
        yield name, ("float8_e8m0", "uint8") if weights == 3 else ("float32",)


def types_of_modes(case: Case) -> Iterator[Finding]:
    for name, wanted in _wanted_types(case):
        if case.has(name) and case.dtype(name) not in wanted:
            modes = f"weight_quant_mode {weight_mode(case)}, kv_cache_quant_mode {cache_quant(case)}"
            yield f"{name} {case.dtype(name)}", f"{' | '.join(wanted)} with {modes}"


Sized = Callable[[Case], tuple[Shape, ...]]


def _scales(case: Case) -> Iterator[tuple[str, str, Sized]]:
    """Name, "x" required, "o" optional or "-" absent, and the accepted shapes of the quantisation parameters."""
    weights, cache, mx = weight_mode(case), cache_quant(case), weight_mode(case) == 3

    def per_column(count: Callable[[Case], int], rows: Callable[[Case], int]) -> Sized:
        return lambda c: ((count(c), rows(c) // MX_BLOCK) if mx else (1, count(c)),)

    x_width: Sized = lambda c: ((tokens(c), hidden(c) // MX_BLOCK if mx else 1),)  # noqa: E731
    yield "dequant_scale_x", "x" if weights >= 2 else "-", x_width
    yield "dequant_scale_w_dq", "x" if weights >= 2 else "-", per_column(q_rank, hidden)
    yield "dequant_scale_w_uq_qr", "x" if weights >= 1 else "-", per_column(columns, q_rank)
    kv_columns: Callable[[Case], int] = lambda c: kv_rank(c) + rope(c)  # noqa: E731
    yield "dequant_scale_w_dkv_kr", "x" if weights >= 2 else "-", per_column(kv_columns, hidden)
    rows: Sized = lambda c: (((1,),) if cache == 1 else ()) + ((1, kv_rank(c)),)  # noqa: E731
    yield "quant_scale_ckv", "x" if cache in (1, 2) else "-", rows
    yield "quant_scale_ckr", "x" if cache == 2 else "-", lambda c: ((1, rope(c)),)
    yield "smooth_scales_cq", "o" if weights in (1, 2, 4, 5) else "-", lambda c: ((1, q_rank(c)),)
    clips = cache == 3 and (case.dtype("kv_cache") == "int8" or weights in (4, 5))
    yield "k_nope_clip_alpha", "x" if clips else "-", lambda c: ((1,),)


def optional_inputs(case: Case) -> Iterator[Finding]:
    modes = f"with weight_quant_mode {weight_mode(case)}, kv_cache_quant_mode {cache_quant(case)}"
    for name, presence, shapes in _scales(case):
        if presence == "x" and not case.has(name):
            yield f"no {name}", f"{name} {modes}"
        elif presence == "-" and case.has(name):
            yield name, f"no {name} {modes}"
        elif case.has(name):
            yield from _shaped(case, name, *shapes(case))


def one_scale(case: Case) -> Iterator[Finding]:
    if cache_quant(case) == 1 and np.unique(case.value("quant_scale_ckv")).size > 1:
        yield "quant_scale_ckv with unequal entries", "one scale for the tensor"


def cache_shapes(case: Case) -> Iterator[Finding]:
    lead: Shape = case.shape("token_x")[:-1] if not mode(case).paged else (None, None)
    yield from _shaped(case, "kv_cache", (*lead, 1, cache_width(case)))
    if cache_quant(case) != 3:
        pages = case.shape("kv_cache")[:-2]
        yield from _shaped(case, "kr_cache", (*pages, 1, rope(case)))


def nz_width(case: Case) -> Iterator[Finding]:
    if mode(case).order == "NZ":
        for name in ("kv_cache", "kr_cache"):
            d0 = nz_block(case.dtype(name))
            if case.dim(name, -1) % d0:
                yield f"{name} width {case.dim(name, -1)}", f"a multiple of {d0}"


def packed_leaves_kr_empty(case: Case) -> Iterator[Finding]:
    if cache_quant(case) == 3 and None not in case.shape("kr_cache") and 0 not in case.shape("kr_cache"):
        yield f"kr_cache {shape_text(case.shape('kr_cache'))}", "an empty tensor such as [0]"


def sequence_lengths(case: Case) -> Iterator[Finding]:
    wanted = by_page(case) and fused(case)
    if case.has("actual_seq_len") != wanted:
        with_ = f"cache_mode {mode(case).name} and token_x {shape_text(case.shape('token_x'))}"
        yield ("no actual_seq_len", f"it with {with_}") if wanted else ("actual_seq_len", f"none with {with_}")
    elif wanted:
        if len(case.shape("actual_seq_len")) != 1:
            yield f"actual_seq_len {shape_text(case.shape('actual_seq_len'))}", "[B]"
            return
        ends = case.value("actual_seq_len").astype(np.int64)
        steps = np.diff(ends, prepend=0)
        last = int(ends[-1]) if ends.size else 0
        if (steps < 0).any():
            place = int(np.flatnonzero(steps < 0)[0])
            yield f"actual_seq_len[{place}] = {int(ends[place])}", f"at least {int(ends[place - 1]) if place else 0}"
        elif last != tokens(case):
            yield f"the last element {last}", f"T = {tokens(case)}"


def _pages(lengths: Array, rows: int) -> int:
    return int((-(-lengths // rows)).sum())


def index_shape(case: Case) -> Iterator[Finding]:
    found = mode(case)
    if case.has("cache_index") != found.paged:
        given = "cache_index" if case.has("cache_index") else "no cache_index"
        yield given, f"{'' if found.paged else 'no '}cache_index in mode {found.name}"
        return
    if not found.paged or (by_page(case) and no_slots(case)):
        return
    if found.slot == "slot":
        yield from _shaped(case, "cache_index", case.shape("token_x")[:-1])
        return
    rows = case.dim("kv_cache", 1)
    if fused(case):
        lengths = np.diff(case.value("actual_seq_len").reshape(-1).astype(np.int64), prepend=0)
        yield from _shaped(case, "cache_index", (_pages(lengths, rows),))
    else:
        batch, pages = case.dim("token_x", 0), -(-case.dim("token_x", 1) // rows)
        yield from _shaped(case, "cache_index", (batch, pages), (batch * pages,))


def index_values(case: Case) -> Iterator[Finding]:
    if not mode(case).paged or no_slots(case):
        return
    index = case.value("cache_index").reshape(-1)
    limit = case.dim("kv_cache", 0) * (1 if by_page(case) else case.dim("kv_cache", 1))
    outside = np.flatnonzero((index < -1) | (index >= limit))
    if outside.size:
        place = int(outside[0])
        yield f"cache_index[{place}] = {int(index[place])}", f"-1 (skip) to {limit - 1}"
        return
    places = np.flatnonzero(index >= 0)
    again = repeats(index[places])
    if again.size:
        place = int(places[again[0]])
        yield (
            f"cache_index[{place}] = {int(index[place])} again",
            "distinct pages" if by_page(case) else "distinct slots",
        )

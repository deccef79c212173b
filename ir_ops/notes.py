"""Sections of operator pages that several operators share."""

from __future__ import annotations

from collections.abc import Mapping

from ir_ops.declaration import Note
from ir_ops.layout import ORDER_TEXT, CacheMode

_SLOTS = {
    "row": ("[B, S]", "row in the token's own batch, 0 to Scache-1"),
    "slot": ("[B*S]", "flat slot page*block_size + row, 0 to block_num*block_size-1"),
    "block": ("[B*ceil(S/block_size)]", "first slot of the page that takes block_size consecutive tokens of a batch"),
}


def cache_modes(modes: Mapping[str, CacheMode]) -> Note:
    """What each cache mode means for the shape, the memory and the index."""
    rows = [("mode", "declared shape", "memory", "index", "an index element is")]
    for mode in modes.values():
        declared = ORDER_TEXT["BSND" if mode.paged else "BNSD"]
        rows.append((mode.name, declared, ORDER_TEXT[mode.order], *_SLOTS[mode.slot]))
    return Note(
        "Cache modes and layouts",
        tuple(rows),
        (
            "-1 leaves the slot alone, a skipped page with all its tokens; every byte that is not addressed stays.",
            "d0 is 32 bytes of the cache's own type: 8 columns of float32, 16 of a 16-bit, 32 of an 8-bit type.",
            "A cache is updated in place where its output shares the input's buffer.",
        ),
    )


def quantisation(formula: str) -> Note:
    """Which inputs go with which cache type; ``formula`` is how a value becomes an 8-bit one."""
    return Note(
        "Quantisation",
        (
            ("scale", "offset", "cache", "meaning"),
            ("absent", "absent", "type of the input", "plain"),
            ("given", "absent", "8-bit", "symmetric"),
            ("given", "given", "8-bit", "asymmetric"),
            ("absent", "given", "", "refused"),
        ),
        (
            f"{formula}; the value is the unrounded float32 one.",
            "int8: rounded half to even, clamped to -128..127, NaN becomes 0.",
            "The two caches are quantised independently; if both are 8-bit they have one type.",
        ),
    )

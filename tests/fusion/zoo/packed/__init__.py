"""Composes DequantRopeQuantKvcache preambles: packed rows of heads, split, rotated, quantised and written.

Parts come from the other zoo modules (rotations, quantisations, paged writes); here are the ways to have the rows
(floats, int32 sums, products of 8-bit numbers), to split them, and to write caches in the order of tokens.
"""

from tests.fusion.zoo.packed.meaning import expected, feeds
from tests.fusion.zoo.packed.preamble import PackedPreamble
from tests.fusion.zoo.packed.spec import BLOCK, DEQUANTS, LENGTH, ROWS, SPLITS, Packed, legal
from tests.fusion.zoo.packed.writes import TOKEN_WRITES, by_token, contiguous_pairs

__all__ = [
    "BLOCK", "DEQUANTS", "LENGTH", "ROWS", "SPLITS", "TOKEN_WRITES", "Packed", "PackedPreamble", "by_token",
    "contiguous_pairs", "expected", "feeds", "legal",
]  # fmt: skip

"""Choices for a preamble with packed rows, which of them go together, and its constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.fusion.zoo.graph import NUMPY, Array
from tests.fusion.zoo.packed.writes import TOKEN_WRITES
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES

BLOCK, PAGES, LENGTH, HIDDEN = 4, 9, 12, 24

ROWS = ("float", "sums", "matmul", "matmul_bias", "separate", "separate_bias", "integer", "integer_bias",
        "integer_separate", "integer_separate_bias")  # fmt: skip
"""Where the rows come from: an input, or a product of ``hidden`` by one weight or by three."""
DEQUANTS = ("plain", "factors_first", "tokens_first", "divided", "linear", "heads_first", "scale_by_number")
SPLITS = ("split", "slices", "heads", "gather", "strided")


@dataclass(frozen=True)
class Packed:
    """Choices for one preamble.

    Attributes:
        rows: one of :data:`ROWS`; ``dequant``, ``activation`` (tokens, number, none) and ``bias`` (none, float32,
            float16, int32) matter for ``sums``.
        layout: ``heads`` rotates ``[B, N, S, D]``, ``tokens`` rotates ``[B, S, N, D]``.
        rank: of a float or int32 x; 2 means a token a batch entry.
        outs: keys and values before quantisation are graph outputs.
    """

    rows: str = "sums"
    dequant: str = "plain"
    activation: str = "tokens"
    bias: str = "float32"
    split: str = "split"
    layout: str = "heads"
    rope: str = "half_slices"
    quant: str = "divide"
    write: str = "contiguous_pairs"
    opset: int = 18
    dtype: str = "float32"
    style: str = "dynamo"
    queries: int = 4
    heads: int = 2
    columns: int = 16
    rank: int = 3
    offset: bool = True
    outs: bool = False

    @property
    def width(self) -> int:
        return (self.queries + 2 * self.heads) * self.columns

    @property
    def sizes(self) -> list[int]:
        return [count * self.columns for count in (self.queries, self.heads, self.heads)]


def legal(spec: Packed) -> bool:
    rope, quant, write = ROPES[spec.rope], QUANTS[spec.quant], TOKEN_WRITES[spec.write]
    if spec.opset < max(rope.since, quant.since, write.since):
        return False
    if write.one_head and spec.heads != 1:
        return False
    if "standard_op" in spec.rope and (spec.layout != "heads" or spec.dtype == "bfloat16"):
        return False
    if spec.rank == 2 and (spec.rows not in ("float", "sums") or write.slots in ("shared", "rows")):
        return False
    if spec.dequant == "linear" and (spec.opset < 13 or spec.bias == "int32"):
        return False
    if spec.quant == "linear_zero_point" and spec.dtype != "float32":
        return False
    if spec.quant == "offset_inside" and spec.dtype != "float32":
        return False  # the value that is quantised would be float32, rows of another type
    return spec.opset >= 18 or spec.style == "ts" or spec.opset >= 15


def parameters(spec: Packed) -> dict[str, Array]:
    rng = np.random.default_rng(11)
    d, n = spec.columns, spec.heads
    per_column = QUANTS[spec.quant].per_column and not spec.quant.startswith("linear")
    shape = (n, d) if per_column else (1, d) if spec.quant == "linear_columns" else (1, 1)
    if spec.quant.startswith("linear") and shape == (1, d):
        shape = (d,)
    found: dict[str, Array] = {
        "weight_scale": rng.uniform(0.5, 2.0, spec.width).astype(np.float32) * np.float32(2e-3),
        "scale_k": rng.uniform(15.0, 40.0, shape).astype(np.float32),
        "scale_v": rng.uniform(15.0, 40.0, shape).astype(np.float32),
        "offset_k": rng.integers(-9, 9, shape).astype(np.float32),
        "offset_v": rng.integers(-9, 9, shape).astype(np.float32),
        "weight": rng.integers(-63, 64, (HIDDEN, spec.width)).astype(np.int8),
        "weight_step": rng.uniform(2e-3, 4e-3, spec.width).astype(np.float32),
    }
    kind = spec.bias if spec.rows == "sums" else spec.dtype
    bias = rng.integers(-200, 200, spec.width) if kind == "int32" else rng.uniform(-0.5, 0.5, spec.width)
    found["bias"] = bias.astype(NUMPY["float32" if kind == "none" else kind])
    if QUANTS[spec.quant].offset == "none" or not spec.offset:
        del found["offset_k"], found["offset_v"]
    return found

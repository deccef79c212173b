"""One attention preamble with queries, described; values for it, and what they should give, in plain numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fusion.zoo import expected as define
from tests.fusion.zoo.graph import NUMPY, Array
from tests.fusion.zoo.norms import NORM_SINCE
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES, Rope
from tests.fusion.zoo.writes import WRITES, Sizes, Write

PAGES, BLOCK, HIDDEN, POSITIONS, WIDTH = 12, 4, 24, 16, 64
SOURCES = (
    "input", "inputs", "matmul", "gemm", "bias", "separate", "separate_bias", "separate_gemm", "separate_turned",
    "some_bias", "kv_joint", "computed",
)  # fmt: skip
SPLITS = ("split", "slice", "gather", "view")
ROWS = ("bnsd", "bsnd", "tokens", "late")
QUERIES = ("flat", "bnsd", "bsnd", "rows")


@dataclass(frozen=True)
class Spec:
    """A complete QkvRmsNormRopeCache preamble of heads of 64 columns.

    Attributes:
        norm, rope, quant, write: names in NORMS, ROPES, QUANTS (or ``none``) and WRITES, those of NZ caches.
        source: where qkv comes from: one input, three (``inputs``), one product (``matmul``, ``gemm``, ``bias``), three
            products (``separate..``; ``some_bias``: queries and values have one; ``computed``: weights that are no
            constants) or one for queries and one for keys and values (``kv_joint``).
        split: how a packed qkv is taken apart.
        rows: heads in front of tokens for norm and rotation (``bnsd``), behind them (``bsnd``), no batch axis
            (``tokens``), or the norm behind tokens and the rotation in front of them (``late``, as transformers).
        query: in which form the queries are delivered.
        heads: Nq, Nk, Nv.
        raw: keys before quantisation are a result too, and values.
        Others as in :class:`tests.fusion.zoo.spec.Spec`.
    """

    norm: str = "hf_reciprocal"
    rope: str = "half_slices"
    quant: str = "none"
    write: str = "nz_permuted"
    opset: int = 18
    dtype: str = "float32"
    style: str = "dynamo"
    source: str = "matmul"
    split: str = "split"
    rows: str = "bnsd"
    query: str = "flat"
    heads: tuple[int, int, int] = (4, 2, 2)
    quantised: str = "both"
    offset: bool = False
    per_column: bool = True
    cos: str = "input"
    dims: str = "named"
    raw: bool = False
    layers: int = 1
    eps: float = 1e-5
    sizes: tuple[int, int] = (2, 3)
    seed: int = 0

    @property
    def is_packed(self) -> bool:
        return self.source in ("input", "matmul", "gemm", "bias")

    @property
    def how_rotated(self) -> Rope:
        return ROPES[self.rope]

    @property
    def how_written(self) -> Write:
        return WRITES[self.write]

    def is_quantised(self, which: str) -> bool:
        return self.quant != "none" and self.quantised in ("both", which)

    def cache_dtype(self, which: str) -> str:
        return "int8" if self.is_quantised(which) else self.dtype

    def count(self, which: str) -> int:
        return self.heads["qkv".index(which)]

    def cache_sizes(self, which: str) -> Sizes:
        itemsize = np.dtype(NUMPY[self.cache_dtype(which)]).itemsize
        return Sizes(self.count(which), WIDTH, BLOCK, 32 // itemsize)

    def cache_shape(self, which: str) -> list[int]:
        n = self.cache_sizes(which)
        fractals = WIDTH // n.fractal
        if self.how_written.cache == "nz5":
            return [PAGES, n.heads, fractals, BLOCK, n.fractal]
        return [PAGES, n.heads * fractals, BLOCK, n.fractal]

    @property
    def table_width(self) -> int:
        return WIDTH // 2 if self.how_rotated.width == "half" else WIDTH


def legal(spec: Spec) -> bool:
    """Whether this combination of spellings exists."""
    since = [NORM_SINCE.get(spec.norm, 11), spec.how_rotated.since, spec.how_written.since]
    if spec.quant != "none":
        quant = QUANTS[spec.quant]
        since.append(quant.since)
        if (spec.offset and quant.offset == "none") or (spec.per_column and not quant.per_column):
            return False
        if spec.quant == "linear_columns":
            return False  # one scale a column and head is no axis of its rows
    if spec.opset < max(since) or (spec.dtype == "bfloat16" and (spec.opset < 13 or spec.norm == "runtime_op")):
        return False
    if spec.rope.endswith("standard_op") and (spec.cos == "batch1" or spec.rows not in ("bnsd", "late")):
        return False
    if spec.quant == "offset_inside" and spec.offset and spec.is_quantised("v") and spec.dtype != "float32":
        return False  # a summand in front of the scale reads as a bias in float32
    if spec.source == "inputs" and spec.raw:
        return False  # an input that is moved to an output looks like a cache that is not written
    return not (spec.rows == "tokens" and spec.cos == "batch1")


@dataclass(frozen=True)
class Parameters:
    """The constants of one layer, by ``q``, ``k`` and ``v``; scales multiply rows ``[B, N, S, D]``."""

    gamma: dict[str, Array]
    weight: dict[str, Array]
    bias: dict[str, Array]
    scale: dict[str, Array]
    offset: dict[str, Array | None]


def parameters(spec: Spec, layer: int) -> Parameters:
    rng = np.random.default_rng([spec.seed, layer])
    real = NUMPY[spec.dtype]
    gamma = {which: (1 + 0.3 * rng.standard_normal(WIDTH)).astype(real) for which in "qk"}
    weight, bias, scale, offset = {}, {}, {}, {}
    for which in "qkv":
        columns = spec.count(which) * WIDTH
        weight[which] = (rng.standard_normal((HIDDEN, columns)) / np.sqrt(HIDDEN)).astype(real)
        bias[which] = (0.3 * rng.standard_normal(columns)).astype(real)
    for which in "kv":
        shape = (spec.count(which), 1, WIDTH) if spec.per_column else (1,)
        scale[which] = rng.uniform(10, 40, shape).astype(np.float32)
        whole = rng.integers(-20, 20, shape).astype(np.float32)
        integer = spec.quant != "none" and QUANTS[spec.quant].offset == "integer"
        offset[which] = (whole if integer else whole + np.float32(0.25)) if spec.offset else None
    return Parameters(gamma, weight, bias, scale, offset)


def tables(spec: Spec) -> tuple[Array, Array]:
    """cos and sin by position for ``cos="table"``."""
    angle = np.random.default_rng(spec.seed + 77).uniform(0, 6.3, (POSITIONS, spec.table_width))
    return np.cos(angle).astype(NUMPY[spec.dtype]), np.sin(angle).astype(NUMPY[spec.dtype])


def inverse_frequencies(spec: Spec) -> Array:
    half = WIDTH // 2
    return (10.0 ** (-np.arange(half) / half)).astype(np.float32)


def feeds(spec: Spec, batch: int, length: int, seed: int) -> dict[str, Array]:
    """Random inputs. cos and sin of the left and the right half differ where nothing in the graph makes them equal."""
    rng = np.random.default_rng([seed, batch, length])
    real = NUMPY[spec.dtype]
    out: dict[str, Array] = {}
    if spec.source == "input":
        out["qkv"] = rng.standard_normal((batch, length, sum(spec.heads) * WIDTH)).astype(real)
    elif spec.source == "inputs":
        for which in "qkv":
            out[which] = rng.standard_normal((batch, length, spec.count(which) * WIDTH)).astype(real)
    else:
        out["hidden"] = rng.standard_normal((batch, length, HIDDEN)).astype(real)
    if spec.cos in ("table", "freq"):
        out["positions"] = rng.integers(0, POSITIONS, (batch, length))
    else:
        angle = rng.uniform(0, 6.3, (1 if spec.cos == "batch1" else batch, length, spec.table_width))
        out["cos"], out["sin"] = np.cos(angle).astype(real), np.sin(angle).astype(real)
    kind = spec.how_written.slots
    out["slots"] = define.slot_values(rng, kind, batch, length, PAGES, BLOCK, 0)
    for layer in range(spec.layers):
        for which in "kv":
            shape = spec.cache_shape(which)
            values = rng.integers(-128, 128, shape) if spec.is_quantised(which) else rng.standard_normal(shape)
            out[f"{which}_cache_{layer}"] = values.astype(NUMPY[spec.cache_dtype(which)])
    return out


def expected(spec: Spec, given: dict[str, Array]) -> dict[str, Array]:
    """The graph's outputs by definition, in float64 up to the last rounding."""
    wide = {name: value.astype(np.float64) for name, value in given.items() if name != "slots"}
    cos, sin = _cos_sin(spec, given, wide)
    batch, length = next(wide[name] for name in ("qkv", "q", "hidden") if name in wide).shape[:2]
    page, row = define.places(given["slots"], spec.how_written.slots, batch, length, BLOCK)
    out: dict[str, Array] = {}
    real = NUMPY[spec.dtype]
    for layer in range(spec.layers):
        p = parameters(spec, layer)
        rows = _rows(spec, p, wide)
        for which in "qk":
            y = define.rms_norm(rows[which], p.gamma[which].astype(np.float64), spec.eps)
            rows[which] = define.rotate(y, cos, sin, spec.how_rotated.kind)
        out[f"q_out_{layer}"] = query_form(spec, rows["q"]).astype(real)
        for which in "kv":
            cache, n = given[f"{which}_cache_{layer}"], spec.cache_sizes(which)
            value = rows[which]
            if spec.is_quantised(which):
                value = define.quantise(value, p.scale[which], p.offset[which])
            shape = spec.how_written.cache
            out[f"{which}_cache_out_{layer}"] = define.write(
                cache, value.astype(cache.dtype), page, row, shape, BLOCK, n.fractal
            )
            if spec.raw:
                out[f"{which}_raw_{layer}"] = rows[which].astype(real)
    return out


def query_form(spec: Spec, rows: Array) -> Array:
    """Queries ``[B, N, S, D]`` in the form in which the graph delivers them."""
    batch, heads, length, width = rows.shape
    by_token = rows.transpose(0, 2, 1, 3)
    forms: dict[str, Array] = {
        "bnsd": rows,
        "bsnd": by_token,
        "flat": by_token.reshape(batch, length, heads * width),
        "rows": by_token.reshape(batch * length, heads * width),
    }
    return forms[spec.query]


def _cos_sin(spec: Spec, given: dict[str, Array], wide: dict[str, Array]) -> tuple[Array, Array]:
    if spec.cos == "freq":
        angle = given["positions"][:, None, :, None].astype(np.float32) * inverse_frequencies(spec)
        half = np.cos(angle).astype(NUMPY[spec.dtype]), np.sin(angle).astype(NUMPY[spec.dtype])
        cos, sin = (np.concatenate([v, v], -1).astype(np.float64) for v in half)
        return cos, sin
    if spec.cos == "table":
        found = [table[given["positions"]][:, None].astype(np.float64) for table in tables(spec)]
    else:
        found = [wide["cos"][:, None], wide["sin"][:, None]]
    if spec.how_rotated.width != "full":
        found = [np.concatenate([v[..., : WIDTH // 2]] * 2, -1) for v in found]
    return found[0], found[1]


def biased(spec: Spec, which: str) -> bool:
    """Whether the projection of queries, keys or values has a bias."""
    return spec.source in ("gemm", "bias", "separate_bias", "separate_gemm") or (
        spec.source == "some_bias" and which != "k"
    )


def _rows(spec: Spec, p: Parameters, wide: dict[str, Any]) -> dict[str, Array]:
    rows: dict[str, Array] = {}
    first = 0
    for which in "qkv":
        columns = spec.count(which) * WIDTH
        if spec.source == "input":
            x = wide["qkv"][..., first : first + columns]
        elif spec.source == "inputs":
            x = wide[which]
        else:
            x = wide["hidden"] @ p.weight[which].astype(np.float64)
            x = x + p.bias[which].astype(np.float64) * biased(spec, which)
        first += columns
        rows[which] = x.reshape(*x.shape[:2], spec.count(which), WIDTH).transpose(0, 2, 1, 3)
    return rows

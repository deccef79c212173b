"""One preamble, described: which spelling of every part, and which sizes. Values for it and what they should give."""

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

PAGES, BLOCK, LENGTH, HIDDEN, POSITIONS = 5, 4, 13, 24, 16


@dataclass(frozen=True)
class Spec:
    """A complete KvRmsNormRopeCache preamble.

    Attributes:
        norm, rope, quant, write: names in NORMS, ROPES, QUANTS (or ``none``) and WRITES.
        form: ``v1`` (one joined kv, 64 + 32 columns, one head), ``v2`` (k and v apart, 2 heads, all 64 columns of k
            rotated) or ``v2part`` (the left 32 of 64 rotated).
        quantised: which caches: ``both``, ``k`` or ``v``.
        offset: quantise with an offset.
        per_column: one scale a column (and head), else one for all.
        kv: where kv comes from: ``input``, ``matmul``, ``gemm`` (rank 2, transposed weight, bias inside) or ``bias``.
        cos: where cos and sin come from: ``input``, ``batch1`` (an input of batch 1), ``table`` (rows gathered at
            positions), ``freq`` (computed from positions), ``pairs`` (so, as scaled complex numbers) or ``grids`` (so,
            each column of one of three grids).
        dims: names of the dynamic sizes: ``named`` (equal sizes share a name), ``own`` (none is shared), ``static``.
        outs: k_rope and c_kv are graph outputs.
        layers: preambles in one graph, sharing cos, sin and slots.
        sizes: batch and tokens, used for ``static`` dims.
    """

    norm: str = "hf_reciprocal"
    rope: str = "deint_view"
    quant: str = "none"
    write: str = "flat_scatter_nd"
    opset: int = 18
    dtype: str = "float32"
    style: str = "dynamo"
    form: str = "v1"
    quantised: str = "both"
    offset: bool = False
    per_column: bool = True
    kv: str = "input"
    cos: str = "input"
    dims: str = "named"
    outs: bool = False
    layers: int = 1
    eps: float = 1e-5
    sizes: tuple[int, int] = (2, 3)
    seed: int = 0

    @property
    def heads(self) -> int:
        return 1 if self.form == "v1" else 2

    @property
    def value_columns(self) -> int:
        return 64 if self.form == "v1" else 32

    @property
    def key_columns(self) -> int:
        return 32 if self.form == "v1" else 64

    @property
    def rotated(self) -> int:
        return 64 if self.form == "v2" else 32

    @property
    def normalised(self) -> int:
        return 64

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

    def columns(self, which: str) -> int:
        return self.key_columns if which == "k" else self.value_columns

    def cache_sizes(self, which: str) -> Sizes:
        itemsize = np.dtype(NUMPY[self.cache_dtype(which)]).itemsize
        return Sizes(self.heads, self.columns(which), BLOCK, 32 // itemsize)

    def cache_shape(self, which: str, batch: Any) -> list[Any]:
        n = self.cache_sizes(which)
        fractals = n.columns // n.fractal
        return {
            "page": [PAGES, BLOCK, n.heads, n.columns],
            "flat": [PAGES * BLOCK, n.heads, n.columns],
            "batch": [batch, n.heads, LENGTH, n.columns],
            "bmd": [batch, LENGTH, n.columns],
            "nz4": [PAGES, n.heads * fractals, BLOCK, n.fractal],
            "nz5": [PAGES, n.heads, fractals, BLOCK, n.fractal],
        }[self.how_written.cache]


def legal(spec: Spec) -> bool:
    """Whether this combination of spellings exists."""
    since = [NORM_SINCE.get(spec.norm, 11), spec.how_rotated.since, spec.how_written.since]
    if spec.quant != "none":
        quant = QUANTS[spec.quant]
        since.append(quant.since)
        if (spec.offset and quant.offset == "none") or (spec.per_column and not quant.per_column):
            return False
        if spec.quant == "linear_columns" and (spec.form != "v1" or not spec.per_column):
            return False
    if spec.opset < max(since) or (spec.dtype == "bfloat16" and (spec.opset < 13 or spec.norm == "runtime_op")):
        return False
    if spec.how_written.one_head and spec.heads > 1:
        return False
    return not (spec.rope.endswith("standard_op") and spec.cos == "batch1")


@dataclass(frozen=True)
class Parameters:
    """The constants of one layer; scales are multipliers, of a shape that broadcasts against ``[B, N, S, D]``."""

    gamma: Array
    weight_k: Array
    weight_v: Array
    bias_k: Array
    bias_v: Array
    scale: dict[str, Array]
    offset: dict[str, Array | None]


def parameters(spec: Spec, layer: int) -> Parameters:
    rng = np.random.default_rng([spec.seed, layer])
    real = NUMPY[spec.dtype]
    gamma = (1 + 0.3 * rng.standard_normal(spec.normalised)).astype(real)
    joined = spec.key_columns + spec.value_columns
    widths = (joined, 1) if spec.form == "v1" else (spec.heads * spec.key_columns, spec.heads * spec.value_columns)
    weights = [(rng.standard_normal((HIDDEN, w)) / np.sqrt(HIDDEN)).astype(real) for w in widths]
    biases = [(0.3 * rng.standard_normal(w)).astype(real) for w in widths]
    scale, offset = {}, {}
    for which in "kv":
        shape: tuple[int, ...] = (spec.columns(which),) if spec.form == "v1" else (spec.heads, 1, spec.columns(which))
        shape = shape if spec.per_column else (1,)
        scale[which] = rng.uniform(10, 40, shape).astype(np.float32)
        whole = rng.integers(-20, 20, shape).astype(np.float32)
        integer = spec.quant != "none" and QUANTS[spec.quant].offset == "integer"
        offset[which] = (whole if integer else whole + np.float32(0.25)) if spec.offset else None
    return Parameters(gamma, weights[0], weights[1], biases[0], biases[1], scale, offset)


def tables(spec: Spec) -> tuple[Array, Array]:
    """cos and sin by position for ``cos="table"``, as wide as the rotation's spelling reads them."""
    rng = np.random.default_rng(spec.seed + 77)
    width = spec.rotated // 2 if spec.how_rotated.width == "half" else spec.rotated
    angle = rng.uniform(0, 6.3, (POSITIONS, width))
    return np.cos(angle).astype(NUMPY[spec.dtype]), np.sin(angle).astype(NUMPY[spec.dtype])


def inverse_frequencies(spec: Spec) -> Array:
    half = spec.rotated // 2
    return (10.0 ** (-np.arange(half) / half)).astype(np.float32)


PAIR_SCALE = 1.25


def grid_frequencies(spec: Spec) -> Array:
    """``[3, 1, 1, D / 2]``."""
    return np.array([1, 0.5, 2], np.float32)[:, None, None, None] * inverse_frequencies(spec)


def feeds(spec: Spec, batch: int, length: int, seed: int) -> dict[str, Array]:
    """Random inputs. cos and sin of the left and the right half differ where nothing in the graph makes them equal."""
    rng = np.random.default_rng([seed, batch, length])
    real = NUMPY[spec.dtype]
    out: dict[str, Array] = {}
    if spec.kv != "input":
        out["hidden"] = rng.standard_normal((batch, length, HIDDEN)).astype(real)
    elif spec.form == "v1":
        out["kv"] = rng.standard_normal((batch, 1, length, spec.key_columns + spec.value_columns)).astype(real)
    else:
        out["k"] = rng.standard_normal((batch, spec.heads, length, spec.key_columns)).astype(real)
        out["v"] = rng.standard_normal((batch, spec.heads, length, spec.value_columns)).astype(real)
    if spec.cos not in ("input", "batch1"):
        out["positions"] = rng.integers(0, POSITIONS, (batch, length))
    else:
        width = spec.rotated // 2 if spec.how_rotated.width == "half" else spec.rotated
        angle = rng.uniform(0, 6.3, (1 if spec.cos == "batch1" else batch, 1, length, width))
        out["cos"], out["sin"] = np.cos(angle).astype(real), np.sin(angle).astype(real)
    out["slots"] = define.slot_values(rng, spec.how_written.slots, batch, length, PAGES, BLOCK, LENGTH)
    for layer in range(spec.layers):
        for which, name in (("k", "k_cache"), ("v", "ckv_cache")):
            shape = spec.cache_shape(which, batch)
            quantised = spec.is_quantised(which)
            values = rng.integers(-128, 128, shape) if quantised else rng.standard_normal(shape)
            out[f"{name}_{layer}"] = values.astype(NUMPY[spec.cache_dtype(which)])
    return out


def expected(spec: Spec, given: dict[str, Array]) -> dict[str, Array]:
    """The graph's outputs by definition, in float64 up to the last rounding."""
    wide = {name: value.astype(np.float64) for name, value in given.items() if name != "slots"}
    cos, sin = _cos_sin(spec, given, wide)
    some = wide.get("hidden", wide.get("kv", wide.get("k")))
    assert some is not None
    batch, length = some.shape[0], some.shape[1] if "hidden" in wide else some.shape[2]
    page, row = define.places(given["slots"], spec.how_written.slots, batch, length, BLOCK)
    out: dict[str, Array] = {}
    for layer in range(spec.layers):
        p = parameters(spec, layer)
        rows = _rows(spec, p, wide, cos, sin)
        for which, name in (("k", "k_cache"), ("v", "ckv_cache")):
            cache, n = given[f"{name}_{layer}"], spec.cache_sizes(which)
            value = rows[which]
            if spec.is_quantised(which):
                value = define.quantise(value, p.scale[which], p.offset[which])
            value = value.astype(cache.dtype)
            out[f"{name}_out_{layer}"] = define.write(cache, value, page, row, spec.how_written.cache, BLOCK, n.fractal)
            if spec.outs:
                out[f"{'k_rope' if which == 'k' else 'c_kv'}_{layer}"] = rows[which].astype(NUMPY[spec.dtype])
    return out


def _cos_sin(spec: Spec, given: dict[str, Array], wide: dict[str, Array]) -> tuple[Array, Array]:
    if spec.cos in ("freq", "pairs", "grids"):
        column = np.arange(spec.rotated // 2)
        frequency = grid_frequencies(spec)[column % 3, 0, 0, column] if spec.cos == "grids" else (
            inverse_frequencies(spec))  # fmt: skip
        angle = given["positions"][:, None, :, None].astype(np.float32) * frequency
        scale = PAIR_SCALE if spec.cos == "pairs" else 1.0
        half = [(scale * f(angle)).astype(NUMPY[spec.dtype]) for f in (np.cos, np.sin)]
        cos, sin = (np.concatenate([v, v], -1).astype(np.float64) for v in half)
        return cos, sin
    if spec.cos == "table":
        found = [table[given["positions"]][:, None].astype(np.float64) for table in tables(spec)]
    else:
        found = [wide["cos"], wide["sin"]]
    half_width = spec.rotated // 2
    if spec.how_rotated.width != "full":
        found = [np.concatenate([v[..., :half_width]] * 2, -1) for v in found]
    return found[0], found[1]


def _rows(spec: Spec, p: Parameters, wide: dict[str, Array], cos: Array, sin: Array) -> dict[str, Array]:
    gamma = p.gamma.astype(np.float64)
    kind = spec.how_rotated.kind
    if spec.form == "v1":
        kv = wide["kv"] if spec.kv == "input" else _project(spec, wide["hidden"], p.weight_k, p.bias_k, 1)
        left, right = kv[..., : spec.value_columns], kv[..., spec.value_columns :]
        return {"k": define.rotate(right, cos, sin, kind), "v": define.rms_norm(left, gamma, spec.eps)}
    if spec.kv == "input":
        k, v = wide["k"], wide["v"]
    else:
        k = _project(spec, wide["hidden"], p.weight_k, p.bias_k, spec.heads)
        v = _project(spec, wide["hidden"], p.weight_v, p.bias_v, spec.heads)
    y = define.rms_norm(k, gamma, spec.eps)
    r = spec.rotated
    return {"k": np.concatenate([define.rotate(y[..., :r], cos, sin, kind), y[..., r:]], -1), "v": v}


def _project(spec: Spec, hidden: Array, weight: Array, bias: Array, heads: int) -> Array:
    x: Array = hidden @ weight.astype(np.float64) + (bias.astype(np.float64) if spec.kv in ("gemm", "bias") else 0)
    columns = x.shape[-1] // heads
    rows: Array = x.reshape(*x.shape[:2], heads, columns).transpose(0, 2, 1, 3)
    return rows

"""What a preamble with packed rows computes, in numpy."""

from __future__ import annotations

import numpy as np

from tests.fusion.zoo.graph import NUMPY, Array
from tests.fusion.zoo.packed.spec import BLOCK, HIDDEN, LENGTH, PAGES, Packed, parameters
from tests.fusion.zoo.packed.writes import TOKEN_WRITES
from tests.fusion.zoo.ropes import ROPES


def feeds(spec: Packed, batch: int, length: int, seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    kind, tokens = NUMPY[spec.dtype], batch * length
    lead = (batch, length) if spec.rank == 3 else (batch,)
    width = spec.columns // 2 if ROPES[spec.rope].width == "half" else spec.columns
    rows = (1, length) if spec.layout == "heads" else (length, 1)
    angles = rng.uniform(-3, 3, (batch, *rows, width))
    if width == spec.columns and ROPES[spec.rope].width == "full":
        angles[..., width // 2 :] = angles[..., : width // 2]
    how = TOKEN_WRITES[spec.write]
    slots = {
        "tokens": rng.permutation(PAGES * BLOCK)[:tokens],
        "shared": rng.permutation(LENGTH)[:length],
        "start": rng.integers(0, LENGTH - length + 1, batch),
        "rows": np.stack([rng.permutation(LENGTH)[:length] for _ in range(batch)]),
    }[how.slots]
    n, d = spec.heads, spec.columns
    caches = {"page": (PAGES, BLOCK, n, d), "flat": (PAGES * BLOCK, n, d), "bmnd": (batch + 1, LENGTH, n, d),
              "batch": (batch, n, LENGTH, d), "bmd": (batch, LENGTH, d)}[how.cache]  # fmt: skip
    if spec.write in ("shared_rows", "contiguous_tensor_scatter"):
        caches = (batch, LENGTH, n, d)
    x = (
        rng.standard_normal((*lead, spec.width))
        if spec.rows == "float"
        else rng.integers(-900, 900, (*lead, spec.width))
    )
    return {
        "x": x.astype(kind if spec.rows == "float" else np.int32),
        "hidden": rng.standard_normal((batch, length, HIDDEN)).astype(kind),
        "activation": rng.uniform(0.5, 1.5, tokens if spec.activation == "tokens" else 1).astype(np.float32),
        "cos": np.cos(angles).astype(kind), "sin": np.sin(angles).astype(kind), "slots": slots.astype(np.int64),
        "k_cache": rng.integers(-100, 100, caches).astype(np.int8),
        "v_cache": rng.integers(-100, 100, caches).astype(np.int8),
    }  # fmt: skip


def expected(spec: Packed, given: dict[str, Array]) -> dict[str, Array]:
    """The definition, in float64."""
    p, d = parameters(spec), spec.columns
    rows = _rows(spec, given, p)
    tokens = given["cos"].astype(np.float64)
    cos, sin = (given[name].astype(np.float64).reshape(len(rows), 1, -1) for name in ("cos", "sin"))
    del tokens
    q, k, v = (part.reshape(len(rows), -1, d) for part in np.split(rows, np.cumsum(spec.sizes)[:-1], axis=1))
    q, k = (_turned(spec, part, cos, sin) for part in (q, k))
    found = {name: _laid_out(spec, part, given) for name, part in (("q", q), ("k", k), ("v", v))}
    if not spec.outs:
        del found["k"], found["v"]
    for which, part in (("k", k), ("v", v)):
        scale, offset = (
            None if item is None else item.astype(np.float64)
            for item in (p[f"scale_{which}"], p.get(f"offset_{which}"))
        )
        steps_ = np.rint(part * scale + (0 if offset is None else offset))
        found[f"{which}_cache_out"] = _written(
            spec, given, f"{which}_cache", np.clip(steps_, -128, 127).astype(np.int8)
        )
    return found


def _rows(spec: Packed, given: dict[str, Array], p: dict[str, Array]) -> Array:
    if spec.rows == "float":
        return given["x"].reshape(-1, spec.width).astype(np.float64)
    bias = p["bias"].astype(np.float64)
    if spec.rows == "sums":
        x = given["x"].reshape(-1, spec.width).astype(np.float64) + (bias if spec.bias == "int32" else 0)
        x = x * p["weight_scale"]
        x = x if spec.activation == "none" else x * given["activation"].reshape(-1, 1)
        return x + (bias if spec.bias in ("float32", "float16") else 0)
    hidden = given["hidden"].reshape(-1, HIDDEN).astype(np.float32)
    if spec.rows.startswith("integer"):
        scale = np.float32((max(hidden.max(), 0) - min(hidden.min(), 0)) / np.float32(255))
        zero = np.clip(np.rint(-min(hidden.min(), 0) / scale), 0, 255)
        hidden = (np.clip(np.rint(hidden / scale) + zero, 0, 255) - zero).astype(np.float64) * scale
        rows = hidden @ (p["weight"].astype(np.float64) * p["weight_step"])
    else:
        rows = hidden.astype(np.float64) @ (p["weight"] * p["weight_step"]).astype(NUMPY[spec.dtype]).astype(np.float64)
    return np.asarray(rows + (bias if spec.rows.endswith("bias") else 0))


def _turned(spec: Packed, x: Array, cos: Array, sin: Array) -> Array:
    half = spec.columns // 2
    if ROPES[spec.rope].kind == "half":
        low, high = x[..., :half], x[..., half:]
    else:
        low, high = x[..., 0::2], x[..., 1::2]
    c, s = cos[..., :half], sin[..., :half]
    return np.concatenate([low * c - high * s, high * c + low * s], axis=-1)


def _laid_out(spec: Packed, rows: Array, given: dict[str, Array]) -> Array:
    shape = given["cos"].shape
    batch, length = shape[0], shape[2] if spec.layout == "heads" else shape[1]
    view = rows.reshape(batch, length, -1, spec.columns)
    return (view if spec.layout == "tokens" else view.transpose(0, 2, 1, 3)).astype(NUMPY[spec.dtype])


def _written(spec: Packed, given: dict[str, Array], name: str, rows: Array) -> Array:
    how, cache, slots = TOKEN_WRITES[spec.write], given[name].copy(), given["slots"]
    length = given["cos"].shape[2 if spec.layout == "heads" else 1]
    if how.slots == "tokens":
        cache.reshape(-1, spec.heads, spec.columns)[slots] = rows
        return cache
    for token, row in enumerate(rows):
        b, s = divmod(token, length)
        place = slots[b] + s if how.slots == "start" else slots[s] if how.slots == "shared" else slots[b, s]
        if how.cache == "bmnd":
            cache[b, place] = row
        elif how.cache == "batch":
            cache[b, :, place] = row
        else:
            cache[b, place] = row[0]
    return cache

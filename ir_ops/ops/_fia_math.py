"""The computation of FusedInferAttentionScore: every entry of the batch padded to the longest one.

A dense form of the operator's sum: it reads what the reference reads and the function body can say in standard
operators. The kernel walks the same sum in tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ir_ops.numeric import Numeric
from ir_ops.ops._fia_call import head_counts, sides

_LOWEST = -3.0e38
"""Score of a key that is not seen; only a maximum sees it."""
_INFINITY = float("inf")


def attention(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """attention_out and softmax_lse."""
    axes, out = sides(str(attrs["input_layout"]))
    rows = _padded_rows(xp, x, axes) if "T" in axes else _plain_rows(xp, x, axes)
    keys = _packed_keys(xp, x, rows) if "T" in axes and "block_table" not in x else _plain_keys(xp, x, rows, axes)
    heads, kv_heads = head_counts(attrs)
    group = heads // kv_heads
    batch, length = rows.batch, rows.length

    q, factor = _queries(xp, x, axes, heads)
    q = xp.transpose(rows.pad(q), (0, 2, 1, 3))
    q = xp.reshape(q, [batch, kv_heads, group * length, xp.dim(q, 3)])
    k = _tokens_of(xp, x, attrs, "key", keys, axes, kv_heads)
    if "key_rope" in x:
        k = xp.concat_columns([k, _tokens_of(xp, x, attrs, "key_rope", keys, axes, kv_heads)])
    v = xp.where(xp.reshape(keys.valid, [batch, keys.length, 1, 1]), _tokens_of(xp, x, attrs, "value", keys, axes,
                 kv_heads), 0.0)  # fmt: skip
    scores = xp.matmul(q, xp.transpose(k, (0, 2, 3, 1))) * attrs["scale"]
    if factor is not None:
        scores = scores * factor
    scores = xp.reshape(scores, [batch, kv_heads, group, length, keys.length])
    kept = xp.reshape(_kept(xp, x, attrs, rows, keys), [batch, 1, 1, length, keys.length])
    weights, total, lse, alive = _softmax(xp, x, scores, kept, [batch, kv_heads, group, length])
    y = xp.matmul(xp.reshape(weights, [batch, kv_heads, group * length, keys.length]),
                  xp.transpose(v, (0, 2, 1, 3)))  # fmt: skip
    width = xp.dim(y, 3)
    y = xp.reshape(y, [batch, kv_heads, group, length, width])
    y = xp.where(alive, y / total, 0.0)
    kind = xp.dtype(x["query_rope" if xp.dtype(x["query"]) == "int8" else "query"])
    y = xp.cast(_restored(xp, rows, xp.reshape(y, [batch, heads, length, width]), 0.0, out, heads), kind)
    lse = _restored(xp, rows, xp.reshape(lse, [batch, heads, length, 1]), _INFINITY, "TND" if "T" in out else "BNSD",
                    heads)  # fmt: skip
    if not attrs["softmax_lse_flag"]:
        lse = xp.zeros([xp.dim(lse, axis) for axis in range(3 if "T" in out else 4)], "float32")
    return {"attention_out": y, "softmax_lse": lse}


@dataclass(frozen=True)
class _Rows:
    """The query tokens as ``[batch, length]``.

    Attributes:
        lengths: valid tokens of each entry.
        source: for a packed layout the token behind each place, for a plain one None.
        place: for a packed layout the place of each token, and whether it has one.
    """

    xp: Numeric
    batch: Any
    length: Any
    lengths: Any
    source: Any = None
    place: Any = None
    placed: Any = None

    def pad(self, tokens: Any) -> Any:
        """``[B, S, N, D]`` of the tokens ``[T, N, D]`` or ``[B, S, N, D]``."""
        return tokens if self.source is None else self.xp.take(tokens, self.source)


@dataclass(frozen=True)
class _Keys:
    """The keys as ``[batch, length]``; ``source`` is the row behind each place of a packed layout."""

    length: Any
    lengths: Any
    valid: Any
    source: Any = None


def _count(xp: Numeric, size: Any) -> Any:
    """A size as a tensor ``[1]``."""
    return xp.sum_columns(xp.arange(size) * 0 + 1)


def _flag(xp: Numeric, condition: Any) -> Any:
    return xp.cast(condition, "int64")


def _both(xp: Numeric, first: Any, *others: Any) -> Any:
    product = xp.cast(first, "int32")
    for other in others:
        product = product * xp.cast(other, "int32")
    return xp.cast(product, "bool")


def _spread(xp: Numeric, lengths: Any, batch: Any) -> Any:
    """The length of each entry where one stands for all."""
    return xp.slice(xp.cast(lengths, "int64"), 0, batch, 0) + xp.arange(batch) * 0


def _longest(xp: Numeric, lengths: Any) -> Any:
    return xp.reshape(xp.max_columns(lengths), [1])


def _parts(xp: Numeric, ends: Any) -> tuple[Any, Any]:
    """Starts and lengths behind running sums."""
    starts = xp.concat_columns([xp.arange(1), xp.slice(ends, 0, -1, 0)])
    return starts, ends - starts


def _plain_rows(xp: Numeric, x: Mapping[str, Any], axes: str) -> _Rows:
    batch, length = xp.dim(x["query"], 0), xp.dim(x["query"], axes.index("S"))
    full = _count(xp, length) + xp.arange(batch) * 0
    if "actual_seq_lengths" not in x:
        return _Rows(xp, batch, length, full)
    lengths = _spread(xp, x["actual_seq_lengths"], batch)
    if "query_rope" not in x:  # the length of a single token is not looked at
        lengths = xp.where(full >= 2, lengths, full)
    return _Rows(xp, batch, length, lengths)


def _padded_rows(xp: Numeric, x: Mapping[str, Any], axes: str) -> _Rows:
    tokens, ends = xp.dim(x["query"], axes.index("T")), x["actual_seq_lengths"]
    batch = xp.dim(ends, 0)
    starts, lengths = _parts(xp, ends)
    longest = _longest(xp, lengths)
    # one place at least where there are tokens: those that belong to no entry need one to point at
    some = _flag(xp, _count(xp, tokens) >= 1)
    length = xp.size(longest + (1 - _flag(xp, longest >= 1)) * some)
    step = xp.reshape(xp.arange(length), [1, length])
    source = xp.where(xp.reshape(lengths, [batch, 1]) - 1 >= step, xp.reshape(starts, [batch, 1]) + step, 0)
    token = xp.arange(tokens)
    passed = _flag(xp, xp.reshape(token, [tokens, 1]) >= xp.reshape(ends, [1, batch]))
    entry = xp.first_column(xp.sum_columns(passed))
    placed = _count(xp, batch) - 1 >= entry
    entry = xp.where(placed, entry, 0)
    place = xp.where(placed, entry * length + token - xp.take(starts, entry), 0)
    return _Rows(xp, batch, length, lengths, source, place, placed)


def _plain_keys(xp: Numeric, x: Mapping[str, Any], rows: _Rows, axes: str) -> _Keys:
    if "actual_seq_lengths_kv" in x:
        lengths = _spread(xp, x["actual_seq_lengths_kv"], rows.batch)
        length = xp.size(_longest(xp, lengths))
    else:
        length = xp.dim(x["key"], axes.index("S"))
        lengths = _count(xp, length) + xp.arange(rows.batch) * 0
    return _Keys(length, lengths, _valid(xp, rows.batch, length, lengths))


def _packed_keys(xp: Numeric, x: Mapping[str, Any], rows: _Rows) -> _Keys:
    starts, lengths = _parts(xp, x["actual_seq_lengths_kv"])
    length = xp.size(_longest(xp, lengths))
    valid = _valid(xp, rows.batch, length, lengths)
    step = xp.reshape(xp.arange(length), [1, length])
    return _Keys(length, lengths, valid, xp.where(valid, xp.reshape(starts, [rows.batch, 1]) + step, 0))


def _valid(xp: Numeric, batch: Any, length: Any, lengths: Any) -> Any:
    return xp.reshape(lengths, [batch, 1]) - 1 >= xp.reshape(xp.arange(length), [1, length])


def _queries(xp: Numeric, x: Mapping[str, Any], axes: str, heads: int) -> tuple[Any, Any]:
    """Query tokens in fp32, heads behind tokens, with their rope part; and the factor of quantised scores."""
    parts = [x[name] for name in ("query", "query_rope") if name in x]
    if axes == "BSH":
        parts = [xp.reshape(p, [xp.dim(p, 0), xp.dim(p, 1), heads, xp.dim(p, 2) // heads]) for p in parts]
    q = xp.concat_columns([xp.cast(part, "float32") for part in parts])
    factor = None
    if "dequant_scale_query" in x:
        scale = x["dequant_scale_query"]
        dims = [xp.dim(scale, axis) for axis in range(2 if "T" in axes else 3)]
        q = q * xp.reshape(scale, [*dims, 1])
        factor = x["key_antiquant_scale"]
    swapped = {"BNSD": (0, 2, 1, 3), "NTD": (1, 0, 2)}.get(axes)
    return (q if swapped is None else xp.transpose(q, swapped)), factor


def _tokens_of(
    xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any], name: str, keys: _Keys, axes: str, heads: int
) -> Any:
    """key, value or key_rope in fp32 as ``[B, L, N, D]``."""
    raw = x[name]
    if "block_table" in x:
        tokens = _paged(xp, raw, x["block_table"], keys, attrs["block_size"], heads)
    elif keys.source is not None:
        tokens = xp.take(xp.transpose(raw, (1, 0, 2)) if axes == "NTD" else raw, keys.source)
    else:
        tokens = raw
        if axes == "BSH":
            tokens = xp.reshape(raw, [xp.dim(raw, 0), xp.dim(raw, 1), heads, xp.dim(raw, 2) // heads])
        tokens = xp.slice(xp.transpose(tokens, (0, 2, 1, 3)) if axes == "BNSD" else tokens, 0, keys.length, 1)
    tokens = xp.cast(tokens, "float32")
    if f"{name}_antiquant_scale" not in x:
        return tokens
    if "dequant_scale_query" in x:
        return tokens if name == "key" else tokens * x["value_antiquant_scale"]
    return _dequantised(xp, x, tokens, name, int(attrs[f"{name}_antiquant_mode"]), keys)


def _paged(xp: Numeric, cache: Any, table: Any, keys: _Keys, page: int, heads: int) -> Any:
    batch = xp.dim(table, 0)
    used = xp.size(_longest(xp, (keys.lengths + (page - 1)) // page))
    numbers = xp.cast(xp.slice(table, 0, used, 1), "int64")
    first = xp.reshape(xp.arange(used) * page, [1, used])
    numbers = xp.where(xp.reshape(keys.lengths, [batch, 1]) - 1 >= first, numbers, 0)
    pages = xp.take(cache, numbers)
    rank = xp.rank(cache)
    if rank == 4:
        pages = xp.transpose(pages, (0, 1, 3, 2, 4))
    elif rank == 5:
        pages = xp.transpose(pages, (0, 1, 4, 2, 3, 5))
    width = xp.dim(cache, 2) // heads if rank == 3 else xp.dim(cache, 3)
    if rank == 5:
        width = xp.dim(cache, 2) * xp.dim(cache, 4)
    return xp.slice(xp.reshape(pages, [batch, used * page, heads, width]), 0, keys.length, 1)


def _dequantised(xp: Numeric, x: Mapping[str, Any], tokens: Any, name: str, mode: int, keys: _Keys) -> Any:
    """``(x + offset) * scale``."""
    dims = [xp.dim(tokens, axis) for axis in range(4)]
    batch, length, heads, width = dims

    def shaped(parameter: str) -> Any:
        p = xp.cast(x[parameter], "float32")
        if mode == 0:
            return xp.reshape(p, [-1])
        if mode == 2:
            return xp.reshape(p, [heads, 1])
        room = xp.dim(p, xp.rank(p) - 1)
        return xp.reshape(xp.slice(xp.reshape(p, [batch, room]), 0, length, 1), [batch, length, 1, 1])

    if mode == 0:  # one number, or one for every column of all heads
        tokens = xp.reshape(tokens, [batch, length, heads * width])
    if f"{name}_antiquant_offset" in x:
        tokens = tokens + shaped(f"{name}_antiquant_offset")
    return xp.reshape(tokens * shaped(f"{name}_antiquant_scale"), dims)


def _kept(xp: Numeric, x: Mapping[str, Any], attrs: Mapping[str, Any], rows: _Rows, keys: _Keys) -> Any:
    """Which keys a query token sees, ``[B, S, L]``."""
    batch, mode = rows.batch, attrs["sparse_mode"]
    i = xp.reshape(xp.arange(rows.length), [1, rows.length, 1])
    j = xp.reshape(xp.arange(keys.length), [1, 1, keys.length])
    seen = [
        xp.reshape(rows.lengths, [batch, 1, 1]) - 1 >= i,
        xp.reshape(keys.valid, [batch, 1, keys.length]),
    ]
    corner = xp.reshape(keys.lengths - rows.lengths, [batch, 1, 1])
    if mode == 2:
        seen.append(i >= j)
    elif mode == 3:
        seen.append(i + corner >= j)
    elif mode == 4:
        seen += [i + corner + attrs["next_tokens"] >= j, j >= i + corner - attrs["pre_tokens"]]
    elif "atten_mask" in x:
        masked = xp.cast(xp.cast(_mask(xp, x["atten_mask"], rows, keys), "bool"), "int32")
        seen.append(masked * -1 >= 0)
    return _both(xp, *seen)


def _mask(xp: Numeric, mask: Any, rows: _Rows, keys: _Keys) -> Any:
    rank = xp.rank(mask)
    mask = xp.slice(mask, 0, keys.length, rank - 1)
    if rank == 2:
        # rows of tokens, but rows of the batch where there is one token
        several = _flag(xp, _count(xp, rows.length) >= 2)
        entry = xp.reshape(xp.arange(rows.batch), [rows.batch, 1])
        return xp.take(mask, entry * (1 - several) + xp.reshape(xp.arange(rows.length), [1, rows.length]) * several)
    mask = xp.slice(mask, 0, rows.length, rank - 2)
    return xp.reshape(mask, [xp.dim(mask, 0), rows.length, keys.length])


def _softmax(xp: Numeric, x: Mapping[str, Any], scores: Any, kept: Any, dims: list[Any]) -> tuple[Any, Any, Any, Any]:
    """Weights that are not yet divided by their sum, the sum, its logarithm, and which rows see a key."""
    _, kv_heads, group, _ = dims
    nobody = xp.zeros([*dims, 1], "float32")
    sink = nobody + _LOWEST
    if "learnable_sink" in x:
        sink = nobody + xp.reshape(xp.cast(x["learnable_sink"], "float32"), [1, kv_heads, group, 1, 1])
    highest = xp.max_columns(xp.concat_columns([xp.where(kept, scores, _LOWEST), sink]))
    weights = xp.where(kept, xp.exp(scores - highest), 0.0)
    extra = xp.exp(sink - highest) if "learnable_sink" in x else nobody
    total = xp.sum_columns(xp.concat_columns([weights, extra]))
    counted = xp.broadcast(xp.cast(kept, "float32"), [*dims, xp.dim(scores, 4)])
    alive = xp.sum_columns(xp.concat_columns([counted, nobody])) >= 1.0
    lse = xp.where(alive, xp.log(total) + highest, _INFINITY)
    return weights, total, lse, alive


def _restored(xp: Numeric, rows: _Rows, y: Any, absent: float, axes: str, heads: int) -> Any:
    """``[B, N, S, D]`` in an output layout; tokens that belong to no entry get ``absent``."""
    width = xp.dim(y, 3)
    if rows.source is not None:
        flat = xp.reshape(xp.transpose(y, (0, 2, 1, 3)), [rows.batch * rows.length, heads, width])
        tokens = xp.dim(rows.place, 0)
        y = xp.where(xp.reshape(rows.placed, [tokens, 1, 1]), xp.take(flat, rows.place), absent)
        return y if axes == "TND" else xp.transpose(y, (1, 0, 2))
    if axes in ("BNSD", "NBSD"):
        return y if axes == "BNSD" else xp.transpose(y, (1, 0, 2, 3))
    y = xp.transpose(y, (0, 2, 1, 3))
    return y if axes == "BSND" else xp.reshape(y, [rows.batch, rows.length, heads * width])

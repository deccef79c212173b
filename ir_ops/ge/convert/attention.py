"""Attention: as GE's attention operator where that is provably the same, else as plain operators.

Spelled out (two products, a softmax, a mask) the meaning needs no conventions of an attention operator (mask polarity,
layouts, limits).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, by_name
from ir_ops.ge.convert.call import FLOATS, NodeCall
from ir_ops.ge.convert.matmul import product
from ir_ops.ge.convert.registry import MICROSOFT, Result, converts, refuses
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.infer.fused import to_spec
from ir_ops.ge.model import TensorType
from ir_ops.ge.tensor import Tensor
from ir_ops.ops import OPS

refuses(
    "GroupQueryAttention",
    domain=MICROSOFT,
    reason="packed attention with a cache of its own has no plain spelling here",
    nearest="a decoder that `kvfuse fuse --cache auto` converts, or an export with standard attention",
)
refuses("Loop", "Scan", reason="control flow", nearest="an export without control flow (fixed shapes, unrolled)")
refuses("If", reason="a branch that is chosen at run time (one known at export is taken)", nearest="fixed input shapes")


@converts(
    "Attention",
    since=23,
    dtypes="float32, float16, bfloat16",
    ge="FusedInferAttentionScore; or BatchMatMulV2, Muls, Add, SelectV2, SoftmaxV2, ConcatD, Reshape",
    note="fused where that is provably the same: float16 or bfloat16, no softcap, no valid lengths, a bool mask for "
    "all heads (true: keep; GE's is inverted), a constant additive mask of zeros and lowest values, or causal; a fully "
    "masked row is 0 then, as the standard says. Spelled out otherwise: there it is a mean of v, as in ONNX Runtime",
)
def attention(n: NodeCall) -> Result:
    n.require(*FLOATS)
    _refuse_extras(n)
    call = _Attention.of(n)
    y = fused(n, call) or _plain(n, call)
    if n.rank(0) == 3:
        last = n.emit("Transpose", {"x": y, "perm": n.vector([0, 2, 1, 3])}, part="heads_last")
        y = n.reshape(last, [(n.x(0), 0), (n.x(0), 1), -1 if call.width < 0 else call.heads * call.width])
    return [y, call.k, call.v][: len(n.used)]


@dataclass
class _Attention:
    """The operands with heads first, ``[B, N, S, D]``, keys and values behind those of the past.

    Attributes:
        past: the tensor whose dim 2 counts the tokens before the query's first, None without a past.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    past: Tensor | None

    @classmethod
    def of(cls, n: NodeCall) -> _Attention:
        names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
        q, k, v = (_heads_first(n, i, int(n.attr(name, 0)), "qkv"[i]) for i, name in enumerate(names))
        past = n.x(4) if n.has(4) else None
        if past is not None:
            k = n.emit("ConcatD", {"x": [past, k]}, {"concat_dim": 2}, "present_key")
            v = n.emit("ConcatD", {"x": [n.x(5), v]}, {"concat_dim": 2}, "present_value")
        width = (q.shape or (-1,))[-1]
        if width < 0 and n.attr("scale") is None:
            raise Unsupported("Attention with a head size that is not known", "the attribute scale")
        if min((x.shape or (-1, -1))[1] for x in (q, k, v)) < 1:
            raise Unsupported("Attention with a number of heads that is not known", "a static number of heads")
        return cls(q, k, v, float(n.attr("scale") or 1.0 / math.sqrt(width)), past)

    @property
    def heads(self) -> int:
        return (self.q.shape or (-1, -1))[1]

    @property
    def kv_heads(self) -> int:
        return (self.k.shape or (-1, -1))[1]

    @property
    def width(self) -> int:
        """Columns of a head of v, and so of the result."""
        return (self.v.shape or (-1,))[-1]

    def lengths(self) -> tuple[int, int]:
        """Tokens of query and key, -1 where not known."""
        return (self.q.shape or (-1,) * 4)[2], (self.k.shape or (-1,) * 4)[2]


def _refuse_extras(n: NodeCall) -> None:
    if any(n.used[3:]):
        raise Unsupported("Attention that delivers its scores", "the first three outputs")
    if n.has(4) != n.has(5):
        raise Unsupported("Attention with a past key or value alone", "both")
    if n.has(6) and n.has(4):
        raise Unsupported("Attention with a past and valid lengths", "one of them")
    if max(n.attr("left_window_size", -1), n.attr("right_window_size", -1)) >= 0:
        raise Unsupported("Attention with a window", "a mask")
    if n.rank(0) not in (3, 4) or any(n.rank(i) != n.rank(0) for i in (1, 2)):
        raise Unsupported("Attention on inputs of other ranks", "[batch, heads, length, size] or [batch, length, all]")


def _heads_first(n: NodeCall, index: int, heads: int, part: str) -> Tensor:
    if n.rank(index) == 4:
        return n.x(index)
    whole = n.shape(index)[2]
    if heads < 1 or whole < 0 or whole % heads:
        raise Unsupported("Attention on 3-D inputs of unknown width", "a static last dim that the heads divide")
    split = n.reshape(n.x(index), [(n.x(index), 0), (n.x(index), 1), heads, whole // heads], f"{part}_heads")
    return n.emit("Transpose", {"x": split, "perm": n.vector([0, 2, 1, 3])}, part=f"{part}_first")


# ------------------------------------------------------------------------------------------------------ spelled out


def _plain(n: NodeCall, call: _Attention) -> Tensor:
    k, v = call.k, call.v
    if call.heads != call.kv_heads:
        k, v = (_repeated(n, x, call.heads, call.kv_heads, part) for x, part in ((k, "key"), (v, "value")))
    scores = n.scaled(product(n, call.q, k, "scores", right=True), call.scale, "scaled")
    cap = float(n.attr("softcap", 0.0))
    if cap > 0:
        bent = n.emit("Tanh", {"x": n.scaled(scores, 1.0 / cap, "capped")}, part="tanh")
        scores = n.scaled(bent, cap, "softcap")
    weights = n.emit("SoftmaxV2", {"x": _masked(n, call, scores)}, {"axes": [-1]}, "weights")
    return product(n, weights, v, "heads" if n.rank(0) == 3 else "")


def _repeated(n: NodeCall, x: Tensor, heads: int, kv_heads: int, part: str) -> Tensor:
    """``[B, Nkv, S, D]`` with every head repeated for its group: ``[B, N, S, D]``."""
    if heads < 0 or kv_heads < 1 or heads % kv_heads:
        raise Unsupported(f"{kv_heads} key heads for {heads} query heads", "a multiple")
    group = n.emit("Unsqueeze", {"x": x}, {"axes": [2]}, f"{part}_group")
    copies = [group] * (heads // kv_heads)
    wide = n.emit("ConcatD", {"x": copies}, {"concat_dim": 2}, f"{part}_groups")
    return n.reshape(wide, [(x, 0), heads, (x, 2), (x, 3)], part)


def _masked(n: NodeCall, call: _Attention, scores: Tensor) -> Tensor:
    lowest = n.scalar(_lowest(scores.dtype.name), scores.dtype)

    def keep(condition: object, part: str) -> Tensor:
        return n.emit("SelectV2", {"condition": condition, "then": scores, "else": lowest}, part=part)

    if n.attr("is_causal", 0):
        scores = keep(_causal(n, call), "causal")
    if n.has(6):
        last = n.emit("Unsqueeze", {"x": n.x(6)}, {"axes": [1, 2, 3]}, "valid")
        scores = keep(n.emit("Less", {"x1": _count(n, call.k, "keys"), "x2": last}, part="is_valid"), "padded")
    if not n.has(3):
        return scores
    keys = (1, *n.shape(3))[-1]
    if 0 <= keys < call.lengths()[1] and keys != 1:
        raise Unsupported("Attention with a mask shorter than the keys", "a mask for every key")
    if n.dtype(3).name == "bool":
        return keep(n.x(3), "masked")
    return n.emit("Add", {"x1": scores, "x2": n.cast(n.x(3), scores.dtype, "mask_cast")}, part="masked")


def _lowest(dtype: str) -> float:
    """What a masked score becomes: the lowest finite value, so that a fully masked row stays finite as in ONNX."""
    return -65504.0 if dtype == "float16" else -3.3895313892515355e38


def _count(n: NodeCall, x: Tensor, part: str) -> object:
    """0, 1, ... for every token of a heads-first tensor: a constant, or made at run time."""
    length = (x.shape or (-1,) * 4)[2]
    if length >= 0:
        return np.arange(length, dtype=np.int64)
    dims = n.dims([(x, 2)], f"{part}_length")
    limit = n.emit("Squeeze", {"x": dims}, {"axis": [0]}, f"{part}_limit")
    return n.emit("Range", {"start": n.scalar(0, "int64"), "limit": limit, "delta": n.scalar(1, "int64")}, part=part)


def _causal(n: NodeCall, call: _Attention) -> object:
    """Which keys a query sees: those up to its own place behind the past, or before the end of the valid ones."""
    rows, columns = _count(n, call.q, "queries"), _count(n, call.k, "columns")
    before: object = None
    if call.past is not None:
        before = n.emit("Unsqueeze", {"x": n.dims([(call.past, 2)], "past_length")}, {"axes": [1]}, "past")
    elif n.has(6):
        own = n.dims([(call.q, 2)], "own_length")
        first = n.emit("Sub", {"x1": n.x(6), "x2": own}, part="first_place")
        before = n.emit("Unsqueeze", {"x": first}, {"axes": [1, 2, 3]}, "before")
    elif isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray):
        return columns <= rows[:, None]
    places = n.emit("Unsqueeze", {"x": n.builder.const(rows)}, {"axes": [1]}, "rows")  # type: ignore[arg-type]
    if before is not None:
        places = n.emit("Add", {"x1": places, "x2": before}, part="places")
    return n.emit("LessEqual", {"x1": columns, "x2": places}, part="is_seen")


# ------------------------------------------------------------------------------------------------------------ fused

_FUSED = "FusedInferAttentionScore"
_TRIANGLE = 2048
_LEFT_UP_CAUSAL = 2
_EXACT_WITH_EMPTY_ROWS = 2


def attend(n: NodeCall) -> Tensor | None:
    """The attention operator for inputs with heads first, None where it is not certain to compute the same."""
    return fused(n, _Attention.of(n))


def fused(n: NodeCall, call: _Attention) -> Tensor | None:
    """The attention operator where it computes provably the same, else None."""
    if n.attention != "auto" or n.dtype(0).name == "float32" or n.attr("softcap", 0.0) or n.has(6):
        return None
    mask = _mask(n, call)
    if mask is None or min(call.heads, call.kv_heads, *(call.q.shape or (-1,))[3:]) < 1:
        return None
    attrs: dict[str, Any] = {
        "num_heads": call.heads, "num_key_value_heads": call.kv_heads, "scale": call.scale, "input_layout": "BNSD",
        "inner_precise": _EXACT_WITH_EMPTY_ROWS, "sparse_mode": mask.mode,
    }  # fmt: skip
    specs = {"query": to_spec(call.q.type), "key": to_spec(call.k.type), "value": to_spec(call.v.type)}
    if mask.spec is not None:
        specs["atten_mask"] = to_spec(mask.spec)
    if any(found.severity == "error" for found in OPS[_FUSED].check(specs, attrs, n.product)):
        return None
    inputs = {"query": call.q, "key": [call.k], "value": [call.v], "atten_mask": mask.make()}
    return n.emit(_FUSED, inputs, attrs, "heads" if n.rank(0) == 3 else "")


@dataclass
class _Mask:
    """GE's mask (true: hidden): its type, and how it is made once the operator is certain."""

    mode: int
    spec: TensorType | None
    make: Callable[[], Tensor | None]


def _mask(n: NodeCall, call: _Attention) -> _Mask | None:
    """The mask in GE's form, None where it has none that is certain to mean the same."""
    rows, keys = call.lengths()
    if n.attr("is_causal", 0):
        # one query token takes no notice of the mode, so the length has to be known
        if n.has(3) or call.past is not None or rows < 0 or (rows == 1 and keys != 1):
            return None
        if rows == 1:
            return _Mask(0, None, lambda: None)
        hidden = np.triu(np.ones((_TRIANGLE, _TRIANGLE), np.bool_), 1)
        kind = TensorType(by_name("bool"), hidden.shape)
        return _Mask(_LEFT_UP_CAUSAL, kind, lambda: n.builder.shared_const("causal_triangle", hidden))
    if not n.has(3):
        return _Mask(0, None, lambda: None)
    dims = n.shape(3)
    if not dims or (len(dims) == 4 and dims[1] != 1) or (len(dims) == 3 and dims[0] != 1) or 0 <= dims[-1] < keys:
        return None
    batch = (call.q.shape or (-1,))[0]
    kind = TensorType(by_name("bool"), (batch, 1, rows, keys))
    if n.dtype(3).name == "bool":
        return _Mask(0, kind, lambda: _inverted(n, call))
    constant = _hidden(n)
    return None if constant is None else _Mask(0, kind, lambda: _wide(n, call, n.builder.const(constant)))


def _hidden(n: NodeCall) -> Array | None:
    """A constant additive mask as GE's, if it has but zeros and lowest values and hides no whole row."""
    values = n.arg(3).constant() if n.arg(3).is_constant else None
    if values is None:
        return None
    wide = values.astype(np.float64)
    hidden = wide <= 0.99 * _lowest(n.dtype(0).name)
    return hidden if ((wide == 0) | hidden).all() and not hidden.all(axis=-1).any() else None


def _inverted(n: NodeCall, call: _Attention) -> Tensor:
    return _wide(n, call, n.emit("LogicalNot", {"x": n.x(3)}, part="hidden"))


def _wide(n: NodeCall, call: _Attention, mask: Tensor) -> Tensor:
    """The mask in the full shape ``[B, 1, S, Skv]``: GE broadcasts only some of what ONNX does."""
    target = n.dims([(call.q, 0), 1, (call.q, 2), (call.k, 2)], "mask_shape")
    return n.emit("BroadcastTo", {"x": mask, "shape": target}, part="mask")

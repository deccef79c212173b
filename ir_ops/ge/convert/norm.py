"""Normalisations and rotary embeddings."""

from __future__ import annotations

import numpy as np

from ir_ops.ge.convert.call import FLOATS, NodeCall
from ir_ops.ge.convert.registry import MICROSOFT, Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor


def _check_trailing(n: NodeCall, gamma: int) -> None:
    """GE normalises over as many trailing dims as gamma has; ONNX says where to begin."""
    axis = n.axis(int(n.attr("axis", -1)), n.rank(0))
    if n.rank(gamma) != n.rank(0) - axis:
        raise Unsupported(
            f"a norm over axes {axis}.. with a scale of rank {n.rank(gamma)}", "a scale of the normalised shape"
        )


def _gamma(n: NodeCall, index: int) -> Tensor:
    """The scale in x's type. A constant is converted only when that loses nothing."""
    if n.dtype(index) == n.dtype(0):
        return n.x(index)
    values, target = n.arg(index).constant(), n.dtype(0).np
    if values is None or target is None or not np.array_equal(values.astype(target).astype(values.dtype), values):
        raise Unsupported(
            f"a scale of type {n.dtype(index).name} for x of type {n.dtype(0).name}", "a scale of x's type"
        )
    return n.builder.const(values.astype(target), name=f"{n.name}/gamma")


@converts("RMSNormalization", dtypes="float32, float16, bfloat16", ge="RmsNorm", since=23,
          note="epsilon is always written; float32 inside")  # fmt: skip
@converts("SimplifiedLayerNormalization", dtypes="float32, float16, bfloat16", ge="RmsNorm", note="as RMSNormalization")
def rms_norm(n: NodeCall) -> Result:
    n.require(*FLOATS)
    _check_trailing(n, 1)
    if n.attr("stash_type", 1) != 1:
        raise Unsupported(f"stash_type {n.attr('stash_type')}", "stash_type 1 (float32)")
    out = n.emit_all("RmsNorm", {"x": n.x(0), "gamma": _gamma(n, 1)}, {"epsilon": float(n.attr("epsilon", 1e-5))})
    return [out.y, out.rstd][: len(n.used)]


@converts(
    "SkipSimplifiedLayerNormalization",
    domain=MICROSOFT,
    dtypes="float32, float16, bfloat16",
    ge="AddRmsNorm, Add",
    note="the outputs mean and inv_std_var are not delivered",
)
def skip_rms_norm(n: NodeCall) -> Result:
    n.require(*FLOATS)
    if any(n.used[1:3]):
        raise Unsupported(
            "mean or inv_std_var of SkipSimplifiedLayerNormalization", "only output and input_skip_bias_sum"
        )
    skip = n.x(1) if not n.has(3) else n.emit("Add", {"x1": n.x(1), "x2": n.x(3)}, part="skip_bias")
    inputs = {"x1": n.x(0), "x2": skip, "gamma": _gamma(n, 2)}
    out = n.emit_all("AddRmsNorm", inputs, {"epsilon": float(n.attr("epsilon", 1e-5))})
    return [out.y, None, None, out.x][: len(n.used)]


def _zeros(n: NodeCall, like: int) -> Tensor:
    """Zeros in the shape of an input."""
    if -1 in n.shape(like):
        return n.emit("ZerosLike", {"x": n.x(like)}, part="zeros")
    return n.builder.const(np.zeros(n.shape(like), n.dtype(like).np))


@converts("LayerNormalization", dtypes="float32, float16, bfloat16", ge="LayerNorm", since=17,
          note="the third GE output is the variance, ONNX's the inverse deviation: not delivered")  # fmt: skip
def layer_norm(n: NodeCall) -> Result:
    n.require(*FLOATS)
    if any(n.used[1:]):
        raise Unsupported("mean or inv_std_dev of LayerNormalization", "only the first output")
    axis = n.axis(int(n.attr("axis", -1)), n.rank(0))
    beta = n.x(2) if n.has(2) else _zeros(n, 1)
    attrs = {"begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": float(n.attr("epsilon", 1e-5))}
    return n.emit_all("LayerNorm", {"x": n.x(0), "gamma": n.x(1), "beta": beta}, attrs).flat()[0]


# ---------------------------------------------------------------------------------------------------- rotary


@converts(
    "RotaryEmbedding",
    since=23,
    dtypes="float32, float16, bfloat16",
    ge="RotaryPositionEmbedding, GatherV2, ConcatD, Transpose, SplitV",
    note="half-width cos/sin are doubled (interleaved: repeated); 3-D x needs num_heads; partial rotation is split off",
)
def rotary(n: NodeCall) -> Result:
    return _rotary(n, cos=1, sin=2, positions=3, interleaved=bool(n.attr("interleaved", 0)))


@converts(
    "RotaryEmbedding",
    domain=MICROSOFT,
    dtypes="float32, float16, bfloat16",
    ge="RotaryPositionEmbedding, GatherV2, ConcatD, Transpose",
    note="as the standard operator; position_ids [1] (an offset) refused",
)
def rotary_microsoft(n: NodeCall) -> Result:
    if n.rank(1) != 2:
        raise Unsupported("position_ids as an offset", "position_ids [batch, sequence]")
    return _rotary(n, cos=2, sin=3, positions=1, interleaved=bool(n.attr("interleaved", 0)))


def _rotary(n: NodeCall, cos: int, sin: int, positions: int, interleaved: bool) -> Tensor:
    n.require(*FLOATS)
    flat = n.rank(0) == 3
    width = n.shape(cos)[-1]
    if width < 0:
        raise Unsupported("cos of unknown width", "a static last dim")
    x = _heads_first(n, 2 * width) if flat else n.x(0)
    tables = [_table(n, index, positions, interleaved, part) for index, part in ((cos, "cos"), (sin, "sin"))]
    whole = (x.shape or (-1,))[-1]
    if whole < 0:
        raise Unsupported("a head size that is not known", "a static last dim")
    turned, rest = x, None
    if whole != 2 * width:
        sizes = {"size_splits": n.vector([2 * width, whole - 2 * width]), "split_dim": n.scalar(-1, "int32")}
        turned, rest = n.emit_all("SplitV", {"x": x, **sizes}, {"num_split": 2}, "parts").flat()
    direct = rest is None and not flat
    inputs = {"x": turned, "cos": tables[0], "sin": tables[1]}
    y = n.emit("RotaryPositionEmbedding", inputs, {"mode": 1 if interleaved else 0}, "" if direct else "rotated")
    if rest is not None:
        y = n.emit("ConcatD", {"x": [y, rest]}, {"concat_dim": -1}, "joined" if flat else "")
    return _heads_last(n, y) if flat else y


def _heads_first(n: NodeCall, size: int) -> Tensor:
    """``[B, S, N*D]`` as ``[B, N, S, D]``; D is ``size`` where the number of heads is not given."""
    heads = int(n.attr("num_heads", 0)) or n.shape(0)[2] // size
    if heads == 0 or n.shape(0)[2] % heads or n.shape(0)[2] < 0:
        raise Unsupported("a 3-D x without num_heads", "num_heads, or a 4-D x")
    x = n.x(0)
    split = n.reshape(x, [(x, 0), (x, 1), heads, n.shape(0)[2] // heads], "heads")
    return n.emit("Transpose", {"x": split, "perm": n.vector([0, 2, 1, 3])}, part="heads_first")


def _heads_last(n: NodeCall, y: Tensor) -> Tensor:
    back = n.emit("Transpose", {"x": y, "perm": n.vector([0, 2, 1, 3])}, part="heads_last")
    return n.reshape(back, [(n.x(0), axis) for axis in range(3)])


def _table(n: NodeCall, index: int, positions: int, interleaved: bool, part: str) -> Tensor:
    """cos or sin as ``[B, 1, S, D]``: gathered by position, doubled, with an axis for the heads."""
    rows = n.x(index)
    if n.has(positions):
        if n.rank(index) != 2:
            raise Unsupported("position_ids with a table that is not [positions, width]", "a 2-D table")
        inputs = {"x": rows, "indices": n.x(positions), "axis": n.scalar(0, "int64")}
        rows = n.emit("GatherV2", inputs, part=f"{part}_rows")
    elif n.rank(index) != 3:
        raise Unsupported("cos without position_ids that is not [batch, sequence, width]", "a 3-D cos")
    if interleaved:
        pair = n.emit("Unsqueeze", {"x": rows}, {"axes": [3]}, f"{part}_pair")
        pairs = n.emit("ConcatD", {"x": [pair, pair]}, {"concat_dim": 3}, f"{part}_pairs")
        wide = n.reshape(pairs, [(rows, 0), (rows, 1), 2 * (rows.shape or (-1,))[-1]], f"{part}_wide")
    else:
        wide = n.emit("ConcatD", {"x": [rows, rows]}, {"concat_dim": 2}, f"{part}_wide")
    return n.emit("Unsqueeze", {"x": wide}, {"axes": [1]}, f"{part}_heads")

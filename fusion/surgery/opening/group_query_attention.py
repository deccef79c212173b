"""com.microsoft.GroupQueryAttention: rotation, append to the cache and attention, as onnxruntime's CPU computes them.

Handled: q, k and v apart or in one value; do_rotary with tables of a part of the columns, neighbours or halves,
positions from the lengths or given; scale, softcap, local_window_size; first prompts with padding behind the tokens,
chunks, steps of sequences of different lengths.

New rows stand behind all cached ones. The operator writes them behind the tokens of each sequence; where all are as
long as the cache that is the same place, elsewhere what lies between is seen by nobody.

Not handled: everything else that a node may say (:data:`_NEUTRAL`, :data:`_OPERANDS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.graph import GraphView, dims_of, dtype_name
from fusion.facts.trial.settle import Survey
from fusion.surgery.opening.opened import Opened
from fusion.surgery.opening.rotation import columns, rotated
from fusion.surgery.opening.tokens import SharedTokens
from ir_ops.dtypes import by_name

_KNOWN = ("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "do_rotary", "rotary_interleaved")
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "causal": (1,), "smooth_softmax": (0, -1), "qk_output": (0,), "sliding_window_cache": (0,),
    "k_quant_type": ("NONE",), "v_quant_type": ("NONE",),
}  # fmt: skip
"""Attributes that may be there when they say nothing."""
_IDLE = ("kv_cache_bit_width", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon")
"""Attributes that say something about operands which are not handled."""
_OPERANDS = ("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
             "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight",
             "k_norm_weight", "query_seqlens")  # fmt: skip
_HANDLED = 10
"""So many of them."""


@dataclass(frozen=True)
class _Node:
    """A node as it is written.

    Attributes:
        operands: by the names of :data:`_OPERANDS`; None where there is none.
        width: columns of a head.
        turned: columns of a head that are rotated, 0 for none.
        window: tokens that a token sees, -1 for all.
    """

    operands: dict[str, ir.Value | None]
    heads: int
    kv_heads: int
    width: int
    scale: float
    softcap: float
    window: int
    turned: int
    interleaved: bool

    def __getitem__(self, name: str) -> ir.Value:
        value = self.operands[name]
        assert value is not None
        return value


def open_group_query_attention(
    view: GraphView, survey: Survey, node: ir.Node, emit: Emitter, shared: SharedTokens
) -> Opened:
    """The steps of a node.

    Raises:
        Refused: an attribute, an operand or a result that is not handled.
    """
    read = _read(view, survey, node)
    form = survey.shape(read["query"]) or ()
    tokens = shared.tokens(emit, read["query"], read["seqlens_k"], read["total_sequence_length"], form)
    query, key, value = _by_head(emit, read)
    if read.turned:
        positions = read.operands["position_ids"] or tokens.positions
        query, key = (rotated(emit, shared, rows, read["cos_cache"], read["sin_cache"], positions, read.turned,
                              read.width, interleaved=read.interleaved) for rows in (query, key))  # fmt: skip
    keys = emit.node("Concat", [read["past_key"], key], "keys", {"axis": 2})
    values = emit.node("Concat", [read["past_value"], value], "values", {"axis": 2})
    out = _attended(emit, read, query, keys, values, shared.seen(emit, tokens, read.window))
    return Opened(list(zip(node.outputs, (out, keys, values), strict=False)), _shapes(read))


def _read(view: GraphView, survey: Survey, node: ir.Node) -> _Node:
    attrs = {name: item for name, item in view.attrs(node).items() if not name.startswith("@")}
    for name, item in attrs.items():
        found = item.decode() if isinstance(item, bytes) else item
        if name not in (*_KNOWN, *_IDLE) and found not in _NEUTRAL.get(name, ()):
            wanted = " or ".join(str(number) for number in _NEUTRAL.get(name, ())) or "no such attribute"
            _refuse(node, f"{name} = {found}", wanted)
    operands = dict.fromkeys(_OPERANDS, None) | dict(zip(_OPERANDS, node.inputs, strict=False))
    for name in _OPERANDS[_HANDLED:]:
        if operands[name] is not None:
            _refuse(node, f"the operand {name}", "none")
    if len(node.inputs) > len(_OPERANDS):
        _refuse(node, f"{len(node.inputs)} operands", f"at most {len(_OPERANDS)}")
    if any(output.uses() or output.is_graph_output() for output in node.outputs[3:]):
        _refuse(node, "the output output_qk", "attention, keys and values")
    _check_caches(node, operands)
    heads, kv_heads = int(attrs.get("num_heads", 0)), int(attrs.get("kv_num_heads", 0))
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        _refuse(node, f"num_heads = {heads}, kv_num_heads = {kv_heads}", "a whole number of heads for each of keys")
    width = _width(survey, node, operands, heads, kv_heads)
    turned = _turned(node, operands, width) if int(attrs.get("do_rotary", 0)) else 0
    window = int(attrs.get("local_window_size", -1))
    if window == 0:
        _refuse(node, "local_window_size = 0", "-1, or tokens of a window")
    softcap = float(attrs.get("softcap", 0.0))
    if softcap < 0:
        _refuse(node, f"softcap = {softcap:g}", "0, or a cap")
    scale = float(attrs.get("scale", 0.0)) or 1.0 / math.sqrt(width)
    return _Node(operands, heads, kv_heads, width, scale, softcap, window, turned,
                 bool(int(attrs.get("rotary_interleaved", 0))))  # fmt: skip


def _check_caches(node: ir.Node, operands: dict[str, ir.Value | None]) -> None:
    """Both caches grow: from an input of the graph to an output of it."""
    for name in ("query", "seqlens_k", "total_sequence_length"):
        if operands[name] is None:
            _refuse(node, f"no operand {name}", "one")
    if (operands["key"] is None) != (operands["value"] is None):
        _refuse(node, "one of the operands key and value", "both, or packed rows")
    for name, place in (("past_key", 1), ("past_value", 2)):
        past = operands[name]
        if past is None or not past.is_graph_input() or len(dims_of(past) or ()) != 4:
            _refuse(node, f"{name} {'none' if past is None else past.name}", "an input of the model, [B, N, P, D]")
        elif dtype_name(past) != dtype_name(operands["query"]):
            _refuse(node, f"{name} of {dtype_name(past)}", f"{dtype_name(operands['query'])}, as the queries are")
        if len(node.outputs) <= place or not node.outputs[place].is_graph_output():
            _refuse(node, f"a present of {name} that is no output of the model", "an output")


def _width(survey: Survey, node: ir.Node, operands: dict[str, ir.Value | None], heads: int, kv_heads: int) -> int:
    """Columns of a head."""
    query = operands["query"]
    assert query is not None
    shape = survey.shape(query)
    in_all = heads if operands["key"] is not None else heads + 2 * kv_heads
    if shape is None or len(shape) != 3 or shape[2] % in_all:
        found = "unknown" if shape is None else str(list(shape))
        _refuse(node, f"queries of the shape {found}", f"[B, S, {in_all} heads of columns]")
    assert shape is not None
    width = shape[2] // in_all
    for name in ("key", "value"):
        rows = operands[name]
        own_shape = None if rows is None else survey.shape(rows)
        if rows is not None and (own_shape is None or own_shape[2:] != (kv_heads * width,)):
            _refuse(node, f"{name} of the shape {'unknown' if own_shape is None else list(own_shape)}",
                    f"[B, S, {kv_heads} heads of {width}]")  # fmt: skip
    for name in ("past_key", "past_value"):
        dims = dims_of(operands[name]) or ()  # type: ignore[arg-type]
        for own, wanted, what in zip(dims[1::2], (kv_heads, width), ("heads", "columns"), strict=False):
            if isinstance(own, int) and own != wanted:
                _refuse(node, f"{name} with {own} {what}", f"{wanted}, as the operator has")
    return width


def _turned(node: ir.Node, operands: dict[str, ir.Value | None], width: int) -> int:
    """Columns of a head that the tables rotate."""
    sizes = []
    for name in ("cos_cache", "sin_cache"):
        table = operands[name]
        dims = None if table is None else dims_of(table)
        if dims is None or len(dims) != 2 or not isinstance(dims[1], int) or not 0 < 2 * dims[1] <= width:
            found = "none" if table is None else "of unknown dims" if dims is None else str(list(dims))
            _refuse(node, f"do_rotary with {name} {found}",
                    f"a table of [M, up to {width // 2}]")  # fmt: skip
        else:
            sizes.append(2 * dims[1])
    if sizes[0] != sizes[1]:
        _refuse(node, f"tables of {sizes[0] // 2} and {sizes[1] // 2} columns", "as many in both")
    return sizes[0]


def _refuse(node: ir.Node, found: str, wanted: str) -> None:
    raise Refused("open-operator", f"{node.op_type} whose steps can be told apart", found, wanted, "", node.outputs[0])


def _by_head(emit: Emitter, read: _Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values as ``[B, N, S, D]``."""
    if read.operands["key"] is not None:
        flat = [read["query"], read["key"], read["value"]]
    else:
        ends = np.cumsum([0, read.heads, read.kv_heads, read.kv_heads]) * read.width
        flat = [columns(emit, read["query"], int(start), int(stop), part)
                for start, stop, part in zip(ends, ends[1:], ("query", "key", "value"), strict=False)]  # fmt: skip
    found = []
    for rows, heads, part in zip(flat, (read.heads, read.kv_heads, read.kv_heads), ("q", "k", "v"), strict=True):
        apart = emit.reshape(rows, [0, 0, heads, read.width], part + "_by_token")
        found.append(emit.node("Transpose", [apart], part + "_by_head", {"perm": [0, 2, 1, 3]}))
    return found[0], found[1], found[2]


def _attended(
    emit: Emitter, read: _Node, query: ir.Value, keys: ir.Value, values: ir.Value, seen: ir.Value
) -> ir.Value:
    """``[B, S, N * D]``."""
    numpy_type = by_name(dtype_name(query)).np
    assert numpy_type is not None

    def number(value: float, part: str) -> ir.Value:
        return emit.constant(np.array(value, numpy_type), part)

    sides = [keys, values]
    if read.heads > read.kv_heads:
        own = np.repeat(np.arange(read.kv_heads), read.heads // read.kv_heads)
        groups = emit.ints(own.tolist(), "head_of_query")
        sides = [emit.node("Gather", [side, groups], "by_query", {"axis": 1}) for side in sides]
    turned = emit.node("Transpose", [sides[0]], "keys_turned", {"perm": [0, 1, 3, 2]})
    scores = emit.node("Mul", [emit.node("MatMul", [query, turned], "products"), number(read.scale, "scale")], "scores")
    if read.softcap:
        cap = number(read.softcap, "softcap")
        scores = emit.node("Mul", [emit.node("Tanh", [emit.node("Div", [scores, cap], "bent")], "tanh"), cap], "capped")
    masked = emit.node("Where", [seen, scores, number(-np.inf, "hidden")], "masked", dtype=scores.dtype)
    weights = emit.node("Softmax", [masked], "weights", {"axis": -1})
    by_token = emit.node("Transpose", [emit.node("MatMul", [weights, sides[1]], "attended")], "attended_by_token",
                         {"perm": [0, 2, 1, 3]})  # fmt: skip
    return emit.reshape(by_token, [0, 0, read.heads * read.width], "attention")


def _shapes(read: _Node) -> list[tuple[ir.Value, ir.Shape]]:
    """Of the caches: heads and columns are those of the operator, whatever the file calls them."""
    found = []
    for name in ("past_key", "past_value"):
        shape = read[name].shape
        assert shape is not None
        found.append((read[name], ir.Shape([shape[0], read.kv_heads, shape[2], read.width])))
    return found

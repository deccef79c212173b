"""A decoder of one layer with caches in place, in standard operators but for the write: small, and checked in numpy.

Attention of token t reads all tokens of its sequence up to t, with keys and values that depend on id and position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ir_ops.decode_plan import KEY, CachePort, DecodePlan
from ir_ops.dtypes import Array

VOCABULARY, HEADS, COLUMNS, BLOCK = 23, 2, 16, 4
_RNG = np.random.default_rng(7)
KEYS, VALUES, QUERIES = (_RNG.standard_normal((VOCABULARY, HEADS, COLUMNS)).astype(np.float32) for _ in range(3))
OUT = _RNG.standard_normal((HEADS * COLUMNS, VOCABULARY)).astype(np.float32)
PLACES = _RNG.standard_normal((128, 1, COLUMNS)).astype(np.float32)


def logits_of(ids: list[int], positions: list[int] | None = None) -> Array:
    """``[V]``: the logits of the last of these tokens, from the formula."""
    places = PLACES[list(range(len(ids))) if positions is None else positions]
    keys, values, query = KEYS[ids] + places, VALUES[ids] + places, QUERIES[ids[-1]]
    scores = np.einsum("nd,tnd->nt", query, keys)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("nt,tnd->nd", weights, values).reshape(-1) @ OUT


def continuation(ids: list[int], count: int) -> list[int]:
    """Greedy decoding by the formula."""
    made = list(ids)
    for _ in range(count):
        made.append(int(logits_of(made).argmax()))
    return made[len(ids) :]


class Builder:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else names


def plan(paged: bool, **changes: Any) -> DecodePlan:
    """The plan of :func:`model`."""
    order = "BSND" if paged else "BNSD"
    shape = (-1, BLOCK, HEADS, COLUMNS) if paged else (-1, HEADS, -1, COLUMNS)
    ports = tuple(CachePort(part, f"{part}_out", 0, part, order, HEADS, COLUMNS, shape) for part in ("key", "value"))
    inputs = {role: role for role in ("ids", "positions", "slots", "query_lengths", "kv_lengths")}
    fields: dict[str, Any] = {
        "inputs": inputs | ({"block_table": "block_table"} if paged else {}),
        "logits": "logits",
        "slot_form": "flat" if paged else "row",
        "block_size": BLOCK if paged else 0,
        "capacity": 0,
        "caches": ports,
    }
    return DecodePlan(**(fields | changes))


def model(paged: bool, metadata: str | None = None) -> onnx.ModelProto:
    """The decoder; its metadata is the plan unless told."""
    make = Builder()
    new = {name: make.op("Add", make.op("Gather", make.const(table), "ids"),
                         make.op("Gather", make.const(PLACES), "positions"))
           for name, table in (("key", KEYS), ("value", VALUES))}  # fmt: skip
    rows = _paged(make, new) if paged else _contiguous(make, new)
    # rows: [B, T, N, D]; token i of the call is number kv_length - query_length + i of its sequence
    query = make.op("Transpose", make.op("Gather", make.const(QUERIES), "ids"), perm=[0, 2, 1, 3])
    keys, values = (make.op("Transpose", rows[name], perm=perm) for name, perm in
                    (("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])))  # fmt: skip
    scores = make.op("MatMul", query, keys)
    span = make.op("Range", make.const(np.int64(0)), make.op("Squeeze", make.op("Shape", rows["key"], start=1, end=2)),
                   make.const(np.int64(1)))  # fmt: skip
    own = make.op("Range", make.const(np.int64(0)), make.op("Squeeze", make.op("Shape", "ids", start=1, end=2)),
                  make.const(np.int64(1)))  # fmt: skip
    before = make.op("Sub", "kv_lengths", "query_lengths")
    limit = make.op("Add", make.op("Unsqueeze", before, make.const([1])), make.op("Unsqueeze", own, make.const([0])))
    seen = make.op("LessOrEqual", make.op("Unsqueeze", span, make.const([0, 1, 2])),
                   make.op("Unsqueeze", limit, make.const([1, 3])))  # fmt: skip
    weights = make.op("Softmax", make.op("Where", seen, scores, make.const(np.float32(-1e30))), axis=-1)
    attended = make.op("Transpose", make.op("MatMul", weights, values), perm=[0, 2, 1, 3])
    flat = make.op("Reshape", attended, make.const([0, 0, HEADS * COLUMNS]))
    make.nodes.append(helper.make_node("MatMul", [flat, make.const(OUT)], ["logits"]))
    return _proto(make, paged, plan(paged).to_json() if metadata is None else metadata)


def _paged(make: Builder, new: dict[str, str]) -> dict[str, str]:
    flat = [make.op("Reshape", new[name], make.const([-1, HEADS, COLUMNS])) for name in ("key", "value")]
    make.nodes.append(helper.make_node(
        "ScatterPaKvCache", [flat[0], "key", "slots", flat[1], "value"], ["key_out", "value_out"], domain="ai.ascend",
    ))  # fmt: skip
    pages = {name: make.op("Gather", f"{name}_out", "block_table") for name in ("key", "value")}
    batch = make.op("Shape", "ids", start=0, end=1)
    dims = make.op("Concat", batch, make.const([-1, HEADS, COLUMNS]), axis=0)
    return {name: make.op("Reshape", value, dims) for name, value in pages.items()}


def _contiguous(make: Builder, new: dict[str, str]) -> dict[str, str]:
    """Rows by ScatterND, for which -1 is the last row: sequences of the tests do not come that far."""
    rows = {}
    for name in ("key", "value"):
        batch = make.op("Range", make.const(np.int64(0)), make.op("Squeeze", make.op("Shape", "ids", start=0, end=1)),
                        make.const(np.int64(1)))  # fmt: skip
        numbers = make.op("Add", make.op("Unsqueeze", batch, make.const([1])),
                          make.op("Mul", "slots", make.const(np.int64(0))))  # fmt: skip
        index = make.op("Concat", make.op("Unsqueeze", numbers, make.const([2])),
                        make.op("Unsqueeze", "slots", make.const([2])), axis=2)  # fmt: skip
        turned = make.op("Transpose", name, perm=[0, 2, 1, 3])
        written = make.op("ScatterND", turned, index, new[name])
        make.nodes.append(helper.make_node("Transpose", [written], [f"{name}_out"], perm=[0, 2, 1, 3]))
        rows[name] = written
    return rows


def _proto(make: Builder, paged: bool, metadata: str) -> onnx.ModelProto:
    value, integer = helper.make_tensor_value_info, TensorProto.INT64
    dims: list[Any] = ["P", BLOCK, HEADS, COLUMNS] if paged else ["B", HEADS, "M", COLUMNS]
    inputs = [value("ids", integer, ["B", "S"]), value("positions", integer, ["B", "S"]),
              value("slots", integer, ["T"] if paged else ["B", "S"]), value("query_lengths", integer, ["B"]),
              value("kv_lengths", integer, ["B"])]  # fmt: skip
    if paged:
        inputs.append(value("block_table", TensorProto.INT32, ["B", "W"]))
    inputs += [value(name, TensorProto.FLOAT, dims) for name in ("key", "value")]
    outputs = [value("logits", TensorProto.FLOAT, ["B", "S", VOCABULARY])]
    outputs += [value(f"{name}_out", TensorProto.FLOAT, dims) for name in ("key", "value")]
    graph = helper.make_graph(make.nodes, "tiny", inputs, outputs, make.constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.ascend", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    if metadata:
        helper.set_model_props(proto, {KEY: metadata})
    return proto

"""Decoders that carry on more than keys and values: refused, and for that reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusion
from ir_ops.errors import BadModel
from tests.conftest import DATA

FLOAT = TensorProto.FLOAT
COLUMNS = 32
"""Of the hidden rows."""


def decoder() -> onnx.ModelProto:
    """One layer; logits ``[batch, seq, 64]``."""
    return onnx.load_model(DATA / "families" / "glm4.onnx")


def carried(name: str, dims: list[str | int], out_dims: list[str | int], *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """The decoder with ``past.NAME`` as an input and ``present.NAME`` as an output of these nodes."""
    model = decoder()
    model.graph.input.append(helper.make_tensor_value_info(f"past.{name}", FLOAT, dims))
    model.graph.output.append(helper.make_tensor_value_info(f"present.{name}", FLOAT, out_dims))
    model.graph.node.extend(nodes)
    return model


def names() -> list[str]:
    """Those of the batch, the tokens and the logits' columns."""
    dims = next(value for value in decoder().graph.output if value.name == "logits").type.tensor_type.shape.dim
    return [dim.dim_param or str(dim.dim_value) for dim in dims]


def test_a_state_that_is_computed_anew_is_named() -> None:
    batch = names()[0]
    model = carried("recurrent_states", [batch, 4, 8, 8], [batch, 4, 8, 8],
                    helper.make_node("Tanh", ["past.recurrent_states"], ["present.recurrent_states"]))  # fmt: skip
    with pytest.raises(BadModel, match="past.recurrent_states, a state that each call replaces"):
        fusion.fuse(model, cache="auto")


def test_a_cache_that_grows_for_something_else_than_attention_is_named() -> None:
    batch, tokens, columns = names()
    node = helper.make_node("Concat", ["past.indexer", "logits"], ["present.indexer"], axis=1)
    model = carried("indexer", [batch, "past", int(columns)], [batch, f"past + {tokens}", int(columns)], node)
    with pytest.raises(BadModel, match="past.indexer, a cache that grows, but no keys or values of heads"):
        fusion.fuse(model, cache="auto")


def test_a_cache_that_keeps_the_last_tokens_only_is_named() -> None:
    """As transformers keeps a window: the past and the new rows, of which the last ones are given back."""
    batch = names()[0]
    nodes = [helper.make_node("Unsqueeze", ["logits", "axis"], ["rows"]),
             helper.make_node("Concat", ["past.window", "rows"], ["joined"], axis=2),
             helper.make_node("Slice", ["joined", "start", "end", "places"], ["present.window"])]  # fmt: skip
    model = carried("window", [batch, 1, "past", 32], [batch, 1, "kept", 32], *nodes)
    for name, numbers in (("axis", [1]), ("start", [-15]), ("end", [2**31 - 1]), ("places", [2])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
    with pytest.raises(BadModel, match="past.window, a cache that is not its past with new rows behind"):
        fusion.fuse(model, cache="auto")


def test_blocks_behind_a_convolution_fuse_like_any() -> None:
    """It hides no shape from what comes behind it."""
    plain, convolved = decoder(), decoder()
    graph = convolved.graph
    place, embedding = next((place, node) for place, node in enumerate(graph.node) if node.op_type == "Gather")
    rows, embedding.output[0] = embedding.output[0], "embedded"
    nodes = [
        helper.make_node("Transpose", ["embedded"], ["channels"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["channels", "taps"], ["mixed"], group=COLUMNS, pads=[2, 0]),
        helper.make_node("Transpose", ["mixed"], [rows], perm=[0, 2, 1]),
    ]
    for offset, node in enumerate(nodes, start=place + 1):
        graph.node.insert(offset, node)
    graph.initializer.append(numpy_helper.from_array(np.full((COLUMNS, 1, 3), 0.3, np.float32), "taps"))
    ops = [site.op for site in fusion.fuse(plain).sites]
    assert [site.op for site in fusion.fuse(convolved).sites] == ops
    assert {"RmsNorm", "ApplyRotaryPosEmb", "SwiGlu"} <= set(ops)

"""One GroupQueryAttention as a model, and calls of it as onnxruntime's generators make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ir_ops.dtypes import Array

ROWS = 40
"""Of the tables of cosines and sines."""


@dataclass(frozen=True)
class Form:
    """A form of the operator.

    Attributes:
        turned: columns of a head that are rotated; 0: do_rotary = 0.
        attrs: others than the heads' and the rotation's.
    """

    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    packed: bool = False
    turned: int = 0
    interleaved: bool = False
    given_positions: bool = False
    attrs: tuple[tuple[str, Any], ...] = ()

    def model(self) -> onnx.ModelProto:
        """The operator as a model, with its lengths as inputs."""
        attrs = dict(self.attrs) | {"num_heads": self.heads, "kv_num_heads": self.kv_heads}
        in_all = self.heads + 2 * self.kv_heads if self.packed else self.heads
        declared = {"query": ["B", "S", in_all * self.width]}
        if not self.packed:
            declared |= {name: ["B", "S", self.kv_heads * self.width] for name in ("key", "value")}
        declared |= {name: ["B", self.kv_heads, "P", "D"] for name in ("past_key", "past_value")}
        names = ["query", *([""] * 2 if self.packed else ["key", "value"]), "past_key", "past_value", "last", "total"]
        ints = {"last": (TensorProto.INT32, ["B"]), "total": (TensorProto.INT32, [])}
        tables = []
        if self.turned:
            attrs |= {"do_rotary": 1, "rotary_interleaved": int(self.interleaved)}
            names += ["cos", "sin"]
            angles: Array = np.random.default_rng(5).uniform(-3, 3, (ROWS, self.turned // 2)).astype(np.float32)
            tables = [numpy_helper.from_array(np.cos(angles), "cos"), numpy_helper.from_array(np.sin(angles), "sin")]
        if self.given_positions:
            names += ["positions"]
            ints["positions"] = (TensorProto.INT64, ["B", "S"])
        outputs = {"out": ["B", "S", self.heads * self.width]}
        outputs |= {name: ["B", self.kv_heads, "T", "D"] for name in ("present_key", "present_value")}
        node = helper.make_node("GroupQueryAttention", names, list(outputs), "gqa", domain="com.microsoft", **attrs)
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in declared.items()]
        inputs += [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in ints.items()]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()]
        graph = helper.make_graph([node], "one", inputs, results, tables)
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def call(self, rng: np.random.Generator, before: list[int], new: list[int]) -> dict[str, Array]:
        """Inputs of a call.

        Args:
            before: tokens of each sequence in the cache, which is as long as the longest.
            new: new tokens of each; others are padding behind them.
        """
        batch, tokens, past = len(before), max(new), max(before)
        in_all = self.heads + 2 * self.kv_heads if self.packed else self.heads
        feeds = {"query": rng.standard_normal((batch, tokens, in_all * self.width))}
        if not self.packed:
            feeds |= {
                name: rng.standard_normal((batch, tokens, self.kv_heads * self.width)) for name in ("key", "value")
            }
        feeds |= {
            name: rng.standard_normal((batch, self.kv_heads, past, self.width)) for name in ("past_key", "past_value")
        }
        typed = {name: array.astype(np.float32) for name, array in feeds.items()}
        typed["last"] = np.array([old + own - 1 for old, own in zip(before, new, strict=True)], np.int32)
        typed["total"] = np.array(past + tokens, np.int32)
        if self.given_positions:
            typed["positions"] = np.array(before)[:, None] + np.arange(tokens)[None]
        return typed


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """All outputs, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results

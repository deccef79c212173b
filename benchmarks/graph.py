"""What the benchmarked graphs are written with: nodes, constants, sessions with everything bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import custom_ort
from ir_ops.dtypes import Array, by_name, by_numpy
from ir_ops.ops import DOMAIN

EPSILON = 1e-5
WIDE = "float32"


def aligned(array: Array) -> Array:
    """A copy where onnxruntime's own allocator would put it."""
    copy = custom_ort.aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class Graph:
    """Nodes in writing order; values are named by the node that makes them."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    @property
    def arithmetic(self) -> str:
        """The type that exporters compute in: onnxruntime has no bfloat16 arithmetic."""
        return WIDE if self.dtype == "bfloat16" else self.dtype

    def op(self, kind: str, *inputs: str, outputs: Sequence[str] = (), **attrs: Any) -> str:
        names = list(outputs) or [f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attrs))
        return names[0]

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def cast(self, value: str, dtype: str) -> str:
        return value if dtype == self.dtype else self.op("Cast", value, to=by_name(dtype).onnx)

    def back(self, value: str, dtype: str) -> str:
        """From ``dtype`` back to the graph's type."""
        return value if dtype == self.dtype else self.op("Cast", value, to=by_name(self.dtype).onnx)

    def reshape(self, value: str, *shape: int, out: str = "") -> str:
        return self.op("Reshape", value, self.const(list(shape)), outputs=[out] if out else [])

    def exporters_norm(self, value: str, gamma: str) -> str:
        """Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul in float32, and Mul gamma: RMSNorm as torch.onnx writes it."""
        x = self.cast(value, WIDE)
        mean = self.op("ReduceMean", self.op("Pow", x, self.const(2, np.float32)), self.const([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.const(EPSILON, np.float32)))
        normed = self.op("Mul", x, self.op("Reciprocal", root))
        if self.arithmetic == WIDE:
            return self.back(self.op("Mul", normed, self.cast(gamma, WIDE)), WIDE)
        return self.op("Mul", self.back(normed, WIDE), gamma)

    def runtimes_norm(self, value: str, gamma: str) -> str:
        """onnxruntime's own RMSNormalization."""
        x, gamma = self.cast(value, self.arithmetic), self.cast(gamma, self.arithmetic)
        return self.back(self.op("RMSNormalization", x, gamma, axis=-1, epsilon=EPSILON, stash_type=1), self.arithmetic)

    def exporters_rotation(self, value: str, cos: str, sin: str, width: int) -> str:
        """x * cos + Concat(-high, low) * sin."""
        x, cos, sin = (self.cast(name, self.arithmetic) for name in (value, cos, sin))
        axis, half = self.const([-1]), self.const([width // 2])
        low = self.op("Slice", x, self.const([0]), half, axis)
        high = self.op("Slice", x, half, self.const([width]), axis)
        swapped = self.op("Concat", self.op("Neg", high), low, axis=-1)
        rotated = self.op("Add", self.op("Mul", x, cos), self.op("Mul", swapped, sin))
        return self.back(rotated, self.arithmetic)

    def halves(self, name: str, width: int, *shape: int) -> str:
        """The first half of a row of cos or sin, as onnxruntime's RotaryEmbedding takes it."""
        cut = self.op("Slice", name, self.const([0]), self.const([width // 2]), self.const([-1]))
        return self.cast(self.reshape(cut, *shape, width // 2), self.arithmetic)

    def runtimes_rotation(self, value: str, cos: str, sin: str, **attrs: Any) -> str:
        """onnxruntime's own RotaryEmbedding, by halves."""
        x = self.cast(value, self.arithmetic)
        return self.back(self.op("RotaryEmbedding", x, cos, sin, **attrs), self.arithmetic)

    def scatter(self, rows: str, cache: str, index: str = "index") -> None:
        self.op("ScatterND", cache, index, rows, outputs=[f"{cache}_out"])

    def model(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, str], fixed: Mapping[str, Array]
    ) -> onnx.ModelProto:
        """The model: inputs of known shapes, outputs with their element types, initializers."""
        values = [_value(name, by_numpy(array.dtype).name, array.shape) for name, array in inputs.items()]
        results = [_value(name, dtype, None) for name, dtype in outputs.items()]
        tensors = [
            helper.make_tensor(name, by_numpy(array.dtype).onnx or 0, array.shape, array.tobytes(), raw=True)
            for name, array in fixed.items()
        ]
        built = helper.make_graph(self.nodes, "bench", values, results, [*tensors, *self.constants])
        imports = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(built, opset_imports=imports, ir_version=10)


def _value(name: str, dtype: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, by_name(dtype).onnx or 0, shape)


def bound(
    model: onnx.ModelProto, feeds: Mapping[str, Array], aliases: Mapping[str, str], threads: int = 1
) -> custom_ort.Binding:
    """A session at ORT_ENABLE_ALL with copies of the arrays bound, caches in place."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = custom_ort.session(model, sess_options=options)
    return custom_ort.bind(session, {name: aligned(array) for name, array in feeds.items()}, aliases)

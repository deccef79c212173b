"""One KvRmsNormRopeCache call as three graphs: our operator, and two spellings that exporters write.

All take ``kv [B, 1, S, 576]``, ``gamma [512]``, ``cos`` and ``sin`` ``[B, 1, S, 64]``, slots, and caches that are bound
in place on both sides. ``exporter`` spells the norm with Reciprocal and the rotation with Slice, Neg and Concat, as
torch.onnx does; ``fused-ort`` uses onnxruntime's own RMSNormalization and RotaryEmbedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import custom_ort
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import DOMAIN

NORM, ROPE = 512, 64
VARIANTS = ("kvfuse", "exporter", "fused-ort")
EPSILON = 1e-5


def aligned(array: Array) -> Array:
    """A copy where onnxruntime's own allocator would put it."""
    copy = custom_ort.aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


@dataclass
class Problem:
    """Sizes and arrays of one call."""

    dtype: str
    batch: int
    tokens: int
    spare_rows: int = 64
    arrays: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        kind = by_name(self.dtype).np
        half = rng.standard_normal((2, self.batch, 1, self.tokens, ROPE // 2)).astype(np.float32)
        cos, sin = np.concatenate([half, half], axis=-1)
        self.rows = self.batch * self.tokens
        self.slots = self.rows + self.spare_rows
        self.arrays = {
            "kv": rng.standard_normal((self.batch, 1, self.tokens, NORM + ROPE)).astype(kind),
            "cos": cos.astype(kind),
            "sin": sin.astype(kind),
        }
        self.gamma = rng.standard_normal(NORM).astype(kind)
        self.index = np.arange(3, 3 + self.rows, dtype=np.int64)

    def binding(self, variant: str, threads: int = 1) -> custom_ort.Binding:
        """A session of the variant with its own caches bound in place."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = custom_ort.session(self.model(variant), sess_options=options)
        ours = variant == "kvfuse"
        shape = (1, self.slots, 1) if ours else (self.slots,)
        kind = by_name(self.dtype).np
        feeds: dict[str, Array] = {
            **self.arrays,
            "index": self.index if ours else self.index.reshape(-1, 1),
            "k_cache": np.zeros((*shape, ROPE), kind),
            "ckv_cache": np.zeros((*shape, NORM), kind),
        }
        feeds = {name: aligned(array) for name, array in feeds.items()}
        return custom_ort.bind(session, feeds, {"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"})

    def model(self, variant: str) -> onnx.ModelProto:
        return {"kvfuse": _ours, "exporter": _exporter, "fused-ort": _fused_ort}[variant](self)


class _Graph:
    """Nodes in writing order; values are named by the node that makes them."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

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


def _model(problem: Problem, graph: _Graph, cache: Sequence[int], index: Sequence[int]) -> onnx.ModelProto:
    kind = by_name(problem.dtype).onnx
    assert kind is not None

    def value(name: str, shape: Sequence[int], number: int = kind) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, number, list(shape))

    caches = {"k_cache": (*cache, ROPE), "ckv_cache": (*cache, NORM)}
    inputs = [value(name, array.shape) for name, array in problem.arrays.items()]
    inputs.append(value("index", index, TensorProto.INT64))
    inputs += [value(name, shape) for name, shape in caches.items()]
    outputs = [value(f"{name}_out", shape) for name, shape in caches.items()]
    gamma = helper.make_tensor("gamma", kind, [NORM], problem.gamma.tobytes(), raw=True)
    built = helper.make_graph(graph.nodes, "kv", inputs, outputs, [gamma, *graph.constants])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(built, opset_imports=imports, ir_version=10)


def _ours(problem: Problem) -> onnx.ModelProto:
    graph = _Graph(problem.dtype)
    inputs = ["kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache"]
    graph.op("KvRmsNormRopeCache", *inputs, outputs=["k_cache_out", "ckv_cache_out"], domain=DOMAIN, cache_mode="PA")
    return _model(problem, graph, (1, problem.slots, 1), (problem.rows,))


def _deinterleaved(problem: Problem, graph: _Graph, rope: str) -> str:
    pairs = graph.op("Reshape", rope, graph.const([problem.batch, 1, problem.tokens, ROPE // 2, 2]))
    turned = graph.op("Transpose", pairs, perm=[0, 1, 2, 4, 3])
    return graph.op("Reshape", turned, graph.const([problem.batch, 1, problem.tokens, ROPE]))


def _scatter(graph: _Graph, value: str, cache: str, width: int) -> None:
    rows = graph.op("Reshape", value, graph.const([-1, width]))
    graph.op("ScatterND", cache, "index", rows, outputs=[f"{cache}_out"])


def _exporter(problem: Problem) -> onnx.ModelProto:
    graph = _Graph(problem.dtype)
    wide = "float32"
    arithmetic = wide if problem.dtype == "bfloat16" else problem.dtype  # onnxruntime has no bf16 arithmetic
    graph.op("Split", "kv", graph.const([NORM, ROPE]), outputs=["left", "right"], axis=-1)
    x = graph.cast("left", wide)
    mean = graph.op("ReduceMean", graph.op("Pow", x, graph.const(2, np.float32)), graph.const([-1]), keepdims=1)
    root = graph.op("Sqrt", graph.op("Add", mean, graph.const(EPSILON, np.float32)))
    normed = graph.op("Mul", x, graph.op("Reciprocal", root))
    if arithmetic == wide:
        scaled = graph.back(graph.op("Mul", normed, graph.cast("gamma", wide)), wide)
    else:
        scaled = graph.op("Mul", graph.back(normed, wide), "gamma")
    _scatter(graph, scaled, "ckv_cache", NORM)
    turned = graph.cast(_deinterleaved(problem, graph, "right"), arithmetic)
    cos, sin = graph.cast("cos", arithmetic), graph.cast("sin", arithmetic)
    axis, half = graph.const([-1]), graph.const([ROPE // 2])
    low = graph.op("Slice", turned, graph.const([0]), half, axis)
    high = graph.op("Slice", turned, half, graph.const([ROPE]), axis)
    swapped = graph.op("Concat", graph.op("Neg", high), low, axis=-1)
    rotated = graph.op("Add", graph.op("Mul", turned, cos), graph.op("Mul", swapped, sin))
    _scatter(graph, graph.back(rotated, arithmetic), "k_cache", ROPE)
    return _model(problem, graph, (problem.slots,), (problem.rows, 1))


def _fused_ort(problem: Problem) -> onnx.ModelProto:
    graph = _Graph(problem.dtype)
    kind = "float32" if problem.dtype == "bfloat16" else problem.dtype
    graph.op("Split", "kv", graph.const([NORM, ROPE]), outputs=["left", "right"], axis=-1)
    gamma = graph.cast("gamma", kind)
    normed = graph.op("RMSNormalization", graph.cast("left", kind), gamma, axis=-1, epsilon=EPSILON, stash_type=1)
    _scatter(graph, graph.back(normed, kind), "ckv_cache", NORM)
    turned = graph.cast(_deinterleaved(problem, graph, "right"), kind)
    halves = []
    for name in ("cos", "sin"):
        cut = graph.op("Slice", name, graph.const([0]), graph.const([ROPE // 2]), graph.const([-1]))
        halves.append(graph.cast(graph.op("Squeeze", cut, graph.const([1])), kind))
    rotated = graph.op("RotaryEmbedding", turned, *halves)
    _scatter(graph, graph.back(rotated, kind), "k_cache", ROPE)
    return _model(problem, graph, (problem.slots,), (problem.rows, 1))

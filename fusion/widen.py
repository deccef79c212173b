"""A copy of a model with every bfloat16 tensor widened to float32, for runtimes without bfloat16 arithmetic.

ONNX Runtime's CPU provider moves bfloat16 but hardly computes with it. Widening changes rounding, never structure: the
same graph in float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto

_TYPE_ATTRIBUTES = {"to", "dtype", "output_dtype", "stash_type"}


def has_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether an input, output, initializer or constant of the model, or a Cast, is bfloat16."""
    graph = model.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    if any(value.type.tensor_type.elem_type == TensorProto.BFLOAT16 for value in values):
        return True
    if any(tensor.data_type == TensorProto.BFLOAT16 for tensor in graph.initializer):
        return True
    return any(
        attribute.t.data_type == TensorProto.BFLOAT16
        or (attribute.name == "to" and attribute.i == TensorProto.BFLOAT16)
        for node in graph.node
        for attribute in node.attribute
    )


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float32 where it was bfloat16. Weights must be inside it (they are converted)."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _graph(wide.graph)
    for function in wide.functions:
        _values(function.value_info)
        _nodes(function.node)
    return wide


def _graph(graph: onnx.GraphProto) -> None:
    _values([*graph.input, *graph.output, *graph.value_info])
    for tensor in graph.initializer:
        _tensor(tensor)
    _nodes(graph.node)


def _values(values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT


def _nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _tensor(attribute.t)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _graph(graph)


def _tensor(tensor: TensorProto) -> None:
    if tensor.data_type != TensorProto.BFLOAT16:
        return
    values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

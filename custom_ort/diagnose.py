"""Saying why onnxruntime did not take a model: its own words for a wrong type combination say nothing."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import by_onnx
from ir_ops.ops import DOMAIN, OPS


def broken_rules(model: onnx.ModelProto) -> Iterator[str]:
    """One line for each rule that a node of ours breaks by its attributes and the element types known in the graph."""
    types = _types(model.graph)
    for node in model.graph.node:
        operator = OPS.get(node.op_type)
        if node.domain != DOMAIN or operator is None:
            continue
        given = zip(operator.inputs, node.input, strict=False)
        specs = {entry.name: TensorSpec(types[name], None) for entry, name in given if name in types}
        attrs = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        if all(entry.optional or entry.name in specs for entry in operator.inputs):
            for found in operator.check(specs, attrs):
                if found.severity == "error":
                    yield f"{operator.name} node '{node.name}': {found}"


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Element type of every value that declares one."""
    numbers = {entry.name: entry.data_type for entry in graph.initializer}
    for entry in (*graph.input, *graph.value_info, *graph.output):
        numbers[entry.name] = entry.type.tensor_type.elem_type
    names = {}
    for name, number in numbers.items():
        try:
            names[name] = by_onnx(number).name
        except KeyError:
            names[name] = f"ONNX type {number}"
    return names

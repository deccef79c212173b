"""Small graphs for the tests of facts: written in ONNX's text form, read back as a view."""

from __future__ import annotations

import onnx_ir as ir
from onnx import parser

from fusion.facts.graph import GraphView
from fusion.facts.types import fill_types


def view_of(text: str, opset: int = 18) -> GraphView:
    """The view of ``name (inputs) => (outputs) <initializers> {nodes}``."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "custom" : 1]>'
    model = ir.from_proto(parser.parse_model(header + text))
    fill_types(model.graph)
    return GraphView(model.graph, opset)


def value(view: GraphView, name: str) -> ir.Value:
    """The input, initializer or result of that name."""
    for item in view.graph.inputs:
        if item.name == name:
            return item
    for node in view.graph:
        for output in node.outputs:
            if output.name == name:
                return output
    return view.graph.initializers[name]

"""Whether a node has the inputs and attributes that its operator's standard gives it.

Converters rely on that; a reader of ONNX files checks little of it.
"""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir

from ir_ops.ge.convert.unsupported import Unsupported


@cache
def _schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None


def check_node(node: ir.Node, version: int) -> None:
    """Raises Unsupported for a node of the standard domain that is none of its operator's. Unknown operators pass."""
    schema = _schema(node.op_type, version)
    if schema is None:
        return
    count = len(node.inputs)
    while count and node.inputs[count - 1] is None:
        count -= 1
    if not schema.min_input <= count <= schema.max_input:
        wanted = f"{schema.min_input} to {schema.max_input}"
        raise Unsupported(f"{node.op_type} of opset {version} with {count} inputs", f"{wanted} inputs")
    for name, declared in schema.attributes.items():
        if declared.required and name not in node.attributes:
            raise Unsupported(f"{node.op_type} of opset {version} without the attribute {name}", "a valid node")
    for name, attr in node.attributes.items():
        found = schema.attributes.get(name)
        if found is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise Unsupported(f"{node.op_type} of opset {version} has no attribute {name}", f"attributes: {known}")
        wanted = str(found.type).rpartition(".")[2]
        if wanted != attr.type.name:
            raise Unsupported(f"attribute {name} of type {attr.type.name}", f"type {wanted}")

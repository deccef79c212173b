"""New nodes that several fused nodes need alike are computed once: tables cut to columns, slots in another shape."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import onnx_ir as ir

from fusion.candidate import Candidate

_PLAIN = (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING)


def compute_once(candidates: Iterable[Candidate]) -> None:
    """Lets readers of new nodes that compute the same of the same values read the first of them.

    The others are left without readers. Nodes of ai.onnx only: each fused node has caches of its own. Concats that may
    become packed projections stay, too.
    """
    known: dict[Hashable, ir.Value] = {}
    for candidate in candidates:
        constants = {id(value) for value in candidate.emitter.constants}
        joins = {id(join.value) for join in candidate.joins}
        for node in candidate.emitter.nodes:
            out = node.outputs[0]
            if node.domain or len(node.outputs) != 1 or out.is_graph_output() or id(out) in joins:
                continue
            if all(attr.type in _PLAIN for attr in node.attributes.values()):
                first = known.setdefault(_key(node, constants), out)
                if first is not out:
                    out.replace_all_uses_with(first)


def _key(node: ir.Node, constants: set[int]) -> Hashable:
    attrs = sorted((name, str(attr.value)) for name, attr in node.attributes.items())
    return node.op_type, tuple(attrs), tuple(_operand(item, constants) for item in node.inputs)


def _operand(value: ir.Value | None, constants: set[int]) -> Hashable:
    """A value, or the content of a new constant: each site has its own."""
    tensor = None if value is None or id(value) not in constants else value.const_value
    if tensor is None:
        return id(value)
    return int(tensor.dtype), tuple(tensor.shape.numpy()), tensor.tobytes()

"""Equal rewrites of operators that the facts do not read: sequences that are only taken apart again."""

from __future__ import annotations

import onnx_ir as ir


def unroll_sequences(model: ir.Model) -> int:
    """Turns ``SequenceAt(SplitToSequence(x, sizes), constant)`` into ``Split``; returns how many were turned.

    Unoptimised exports write torch's split so. Sequences used in any other way stay.
    """
    turned = 0
    for node in list(model.graph):
        if node.op_type == "SplitToSequence" and node.domain in ("", "ai.onnx") and _unroll(model.graph, node):
            turned += 1
    return turned


def tell_casts(model: ir.Model) -> int:
    """Turns CastLike, as unoptimised exports write it, into Cast where the type is told; returns how many were turned.

    Of the other operand only the type counts: it need not be computed, nor be known.
    """
    turned = 0
    for node in list(model.graph):
        kind = node.inputs[1].dtype if node.op_type == "CastLike" and len(node.inputs) > 1 and node.inputs[1] else None
        if kind is None or node.domain not in ("", "ai.onnx") or "saturate" in node.attributes:
            continue
        old = node.outputs[0]
        told = ir.Value(name=old.name, shape=old.shape, type=ir.TensorType(kind))
        cast = ir.node("Cast", [node.inputs[0]], {"to": int(kind)}, outputs=[told], name=node.name)
        model.graph.insert_before(node, cast)
        for place in [place for place, output in enumerate(model.graph.outputs) if output is old]:
            model.graph.outputs[place] = told
        old.replace_all_uses_with(told)
        model.graph.remove(node, safe=True)
        turned += 1
    return turned


def _unroll(graph: ir.Graph, node: ir.Node) -> bool:
    sizes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if sizes is None else ir.convenience.get_const_tensor(sizes)
    if tensor is None or tensor.size < 2 or len(tensor.shape) != 1:
        return False
    readers: list[tuple[ir.Node, int]] = []
    for use in node.outputs[0].uses():
        position = use.node.inputs[1] if use.node.op_type == "SequenceAt" else None
        index = None if position is None else ir.convenience.get_const_tensor(position)
        if index is None or node.outputs[0].is_graph_output():
            return False
        readers.append((use.node, int(index.numpy().reshape(-1)[0]) % tensor.size))
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    names = [f"{node.outputs[0].name}/{part}" for part in range(tensor.size)]
    parts = [ir.Value(name=name, type=node.inputs[0].type if node.inputs[0] else None) for name in names]
    split = ir.node("Split", [node.inputs[0], sizes], {"axis": axis}, outputs=parts, name=node.name)
    graph.insert_before(node, split)
    for reader, place in readers:
        _take_over(graph, reader, parts[place])
    graph.remove(node, safe=True)
    return True


def _take_over(graph: ir.Graph, reader: ir.Node, part: ir.Value) -> None:
    """``part`` stands where SequenceAt's result stood."""
    old = reader.outputs[0]
    part.shape = part.shape or old.shape
    part.type = old.type or part.type
    if old.is_graph_output():
        copy = ir.node("Identity", [part], outputs=[ir.Value(name=old.name, shape=old.shape, type=old.type)])
        graph.insert_before(reader, copy)
        places = [place for place, output in enumerate(graph.outputs) if output is old]
        for place in places:
            graph.outputs[place] = copy.outputs[0]
    old.replace_all_uses_with(part)
    graph.remove(reader, safe=True)

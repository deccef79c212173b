"""Random edits of a model: those that keep its meaning, and those that may break it."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Edit = Callable[[onnx.ModelProto, random.Random], None]


def identities(model: onnx.ModelProto, rng: random.Random) -> None:
    """An Identity on some of the edges."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name and rng.random() < 0.15:
                node.input[place] = f"identity_{len(nodes)}"
                nodes.append(helper.make_node("Identity", [name], [node.input[place]]))
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def commuted(model: onnx.ModelProto, rng: random.Random) -> None:
    for node in model.graph.node:
        if node.op_type in ("Add", "Mul") and rng.random() < 0.5:
            node.input[:] = list(node.input)[::-1]


def without_value_info(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.value_info[:]


def own_names(model: onnx.ModelProto, rng: random.Random) -> None:
    """Every symbolic dim has a name of its own."""
    for entry in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            if dim.dim_param:
                dim.dim_param = f"{entry.name}_{axis}"


def unnamed(model: onnx.ModelProto, rng: random.Random) -> None:
    """Some symbolic dims have no name at all."""
    for entry in (*model.graph.input, *model.graph.output):
        for dim in entry.type.tensor_type.shape.dim:
            if dim.dim_param and rng.random() < 0.5:
                dim.ClearField("dim_param")


def another_order(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another order that is topological too."""
    nodes, ordered = list(model.graph.node), []
    known = {"", *(item.name for item in (*model.graph.input, *model.graph.initializer))}
    while nodes:
        node = rng.choice([node for node in nodes if set(node.input) <= known])
        nodes.remove(node)
        ordered.append(node)
        known |= set(node.output)
    del model.graph.node[:]
    model.graph.node.extend(ordered)


def declared_in_another_order(model: onnx.ModelProto, rng: random.Random) -> None:
    """Inputs and outputs come in another order: callers name them."""
    for entries in (model.graph.input, model.graph.output):
        shuffled = rng.sample(list(entries), len(entries))
        del entries[:]
        entries.extend(shuffled)


KEEPING: list[Edit] = [
    identities, commuted, without_value_info, own_names, unnamed, another_order, declared_in_another_order,
]  # fmt: skip


def deleted(model: onnx.ModelProto, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 5))):
        del model.graph.node[rng.randrange(len(model.graph.node))]


def shuffled(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def rewired(model: onnx.ModelProto, rng: random.Random) -> None:
    """One operand is another value, anywhere in the graph."""
    names = [name for node in model.graph.node for name in node.output] + [item.name for item in model.graph.input]
    node = rng.choice([node for node in model.graph.node if node.input])
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def other_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = rng.choice([attr for node in model.graph.node for attr in node.attribute])
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice((0, 1, 2, -1, -2, 5, 99))
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice((0, 1, 2, 3, -1, 7))


def other_constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """One number of an integer constant."""
    tensors = [*model.graph.initializer, *(attr.t for node in model.graph.node for attr in node.attribute)]
    tensors = [tensor for tensor in tensors if tensor.data_type == TensorProto.INT64]
    if tensors:
        tensor = rng.choice(tensors)
        numbers = np.array(numpy_helper.to_array(tensor))
        if numbers.size:
            numbers.reshape(-1)[rng.randrange(numbers.size)] = rng.choice((0, 1, 2, 3, 4, -1, 32, 64, 1000, 2**62))
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def other_dim(model: onnx.ModelProto, rng: random.Random) -> None:
    dims = rng.choice(list(model.graph.input)).type.tensor_type.shape.dim
    if dims:
        rng.choice(dims).dim_value = rng.choice((0, 1, 2, 3, 7))


def other_type(model: onnx.ModelProto, rng: random.Random) -> None:
    entry = rng.choice([*model.graph.input, *model.graph.output])
    entry.type.tensor_type.elem_type = rng.choice((1, 10, 16, 3, 7, 9, 11))


BREAKING: list[Edit] = [deleted, shuffled, rewired, other_attribute, other_constant, other_dim, other_type]

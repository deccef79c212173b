"""Experts seen once: what a mixture spells hundreds of times, with other weights each time, is read as one.

Nine of ten nodes of a DeepSeek-V3 are feed-forward parts of experts that read one value and have one structure. Rules
leave experts alone and say so once for a layer, so a graph in which one expert stands for all answers the same as the
whole graph. `explain` works on that graph; what it finds must not touch the experts, else it reads the whole.

Handled: gated parts of products, sums, casts and views, whatever joins them. Left as they are: parts that read
different values, quantised ones, models with subgraphs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from ir_ops.ops import DOMAIN

FEWEST = 8
"""Feed-forward parts that read one value, from which on they count as experts."""
EXPERTS = "swiglu-experts"
"""The code of the refusal that says so."""
_GATES = ("Sigmoid", "Swish")
_PLAIN = frozenset((*_GATES, "MatMul", "Gemm", "Add", "Mul", "Cast", "Identity", "Transpose", "Unsqueeze"))
_SMALL = 64
"""Constants up to this many elements count by their content, larger ones by type and shape."""
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Folded:
    """A smaller model.

    Attributes:
        model: it.
        stands_for: result of a node -> how many nodes of the whole model it stands for.
        names: of these nodes and results.
        left_out: the operators of the nodes that are not in it.
    """

    model: onnx.ModelProto
    stands_for: dict[str, int]
    names: frozenset[str]
    left_out: Counter[str]


def fold(model: onnx.ModelProto) -> Folded | None:
    """The model with one expert for all that are alike; None where there are none. Nodes must be in order."""
    if any(function.domain != DOMAIN for function in model.functions):
        return None  # what is inlined is named by its number
    classes = _Classes(model.graph)
    alike = classes.experts({item.name for item in model.graph.output})
    if not alike:
        return None
    plain = classes.plain
    instead = {plain[member].output: plain[group[0]].output for group in alike for member in group[1:]}
    left_out = {member for group in alike for member in group[1:]}
    read = {name for place in left_out for name in plain[place].inputs}
    stands_for = {plain[group[0]].output: len(group) for group in alike}
    return Folded(
        _smaller(model, [node for place, node in enumerate(classes.nodes) if place not in left_out], read, instead),
        stands_for,
        frozenset(stands_for).union(classes.nodes[group[0]].name for group in alike),
        Counter(plain[place].op_type for place in left_out),
    )


class _Plain(NamedTuple):
    """A node of one result whose meaning is told by type and attributes."""

    op_type: str
    inputs: tuple[str, ...]
    output: str


class _Classes:
    """Nodes that compute the same but for their weights, from values that are the same but for weights."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        given = {item.name for item in graph.input}
        self.nodes = list(graph.node)
        self.plain: dict[int, _Plain] = {}
        self._constants = {item.name: item for item in graph.initializer if item.name not in given}
        self._class_of: dict[str, int] = {}
        self._keys: dict[_Key, int] = {}
        self._members: dict[int, list[int]] = {}
        self._key_of: dict[int, _Key] = {}
        self._has_subgraph = False
        for place, node in enumerate(self.nodes):
            self._enter(place, node)

    def _enter(self, place: int, node: NodeProto) -> None:
        op_type, attributes = node.op_type, node.attribute
        if op_type not in _PLAIN or node.domain or len(node.output) != 1:
            self._has_subgraph |= any(item.type in _GRAPHS for item in attributes)
            return
        output, inputs = node.output[0], tuple(node.input)
        self.plain[place] = _Plain(op_type, inputs, output)
        told = tuple(item.SerializeToString() for item in attributes) if attributes else ()
        class_of = self._class_of
        key = (op_type, told, *[class_of[name] if name in class_of else self._given(name) for name in inputs])
        number = class_of[output] = self._keys.setdefault(key, len(self._keys))
        if number in self._members:
            self._members[number].append(place)
        else:
            self._members[number], self._key_of[number] = [place], key

    def _given(self, name: str) -> int:
        """The class of a value that no plain node computes."""
        tensor = self._constants.get(name)
        key = ("value", name) if tensor is None else _content(tensor)
        known = self._class_of[name] = self._keys.setdefault(key, len(self._keys))
        return known

    def experts(self, results: set[str]) -> list[list[int]]:
        """Nodes that are alike and belong to experts, by class, in graph order."""
        if self._has_subgraph:
            return []
        alike = {number: members for number, members in self._members.items() if len(members) >= FEWEST}
        part = {number: number for number in alike}
        broken = {self._class_of[name] for name in results if name in self._class_of}

        def whole(number: int) -> int:
            while part[number] != number:
                number = part[number]
            return number

        for number in alike:
            for operand in self._operands(number):
                if operand in alike:
                    part[whole(number)] = whole(operand)
                elif len(self._members.get(operand, ())) > 1:
                    broken.add(number)  # some, but not all, read the same value
        spoilt = {whole(number) for number in broken if number in alike}
        gated = {whole(number) for number in alike if self._key_of[number][0] in _GATES}
        return [members for number, members in alike.items() if whole(number) in gated - spoilt]

    def _operands(self, number: int) -> Iterable[int]:
        return self._key_of[number][2:]  # type: ignore[return-value]


def _content(tensor: TensorProto) -> _Key:
    dims = tuple(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(dims) > _SMALL:
        return ("weight", tensor.data_type, dims)
    unnamed = TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.ClearField("name")
    return ("constant", unnamed.SerializeToString())


def _smaller(
    model: onnx.ModelProto, kept: list[NodeProto], given_up: set[str], instead: dict[str, str]
) -> onnx.ModelProto:
    """The model with some of its nodes, which read other values in place of those that are no longer computed.

    Args:
        given_up: names that the other nodes read.
    """
    whole = model.graph
    small = onnx.ModelProto(ir_version=model.ir_version)
    small.opset_import.extend(model.opset_import)
    small.functions.extend(model.functions)
    graph = small.graph
    graph.name = whole.name
    graph.input.extend(whole.input)
    graph.output.extend(whole.output)
    graph.quantization_annotation.extend(whole.quantization_annotation)
    graph.node.extend(kept)
    for node in graph.node:
        if not instead.keys().isdisjoint(node.input):
            node.input[:] = [instead.get(name, name) for name in node.input]
        given_up.difference_update(node.input)
    graph.initializer.extend(item for item in whole.initializer if item.name not in given_up)
    graph.value_info.extend(item for item in whole.value_info if item.name not in instead)
    return small

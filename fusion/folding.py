"""Experts seen once: what a mixture spells hundreds of times, with other weights each time, is read as one.

Nine of ten nodes of a DeepSeek-V3 are feed-forward parts of experts that read one value and have one structure. Rules
leave experts alone and say so once for a layer, so a graph in which one expert stands for all answers the same as the
whole graph. `explain` works on that graph; what it finds must not touch the experts, else it reads the whole.

Handled: parts of products, sums, casts and views around one gate, written one after the other, whatever joins them.
Left as they are: parts that read different values or are mixed with each other, quantised ones, models with subgraphs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

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
_LONGEST = 64
"""Nodes of the longest part."""
Names = Sequence[tuple[Sequence[str], Sequence[str]]]
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


def fold(model: onnx.ModelProto, names: Names) -> Folded | None:
    """The model with one expert for all that are alike; None where there are none.

    Args:
        model: its nodes are in order.
        names: what each of them reads and gives, as :func:`fusion.model_check.check_proto` has found.
    """
    if any(function.domain != DOMAIN for function in model.functions):
        return None  # what is inlined is named by its number
    parts = _Parts(model.graph, names)
    instead: dict[str, str] = {}
    left_out: set[int] = set()
    stands_for: dict[str, int] = {}
    for first, length, count in parts.alike():
        results = [names[first + place][1][0] for place in range(length)]
        stands_for |= dict.fromkeys(results, count)
        for start in range(first + length, first + count * length, length):
            left_out |= set(range(start, start + length))
            instead |= {names[start + place][1][0]: result for place, result in enumerate(results)}
    if not instead or any(item.name in instead for item in model.graph.output):
        return None
    kept = [node for place, node in enumerate(parts.nodes) if place not in left_out]
    return Folded(
        _smaller(model, kept, {name for place in left_out for name in names[place][0]}, instead),
        stands_for,
        frozenset(stands_for).union(node.name for node in kept if node.output[:1] and node.output[0] in stands_for),
        Counter(parts.nodes[place].op_type for place in left_out),
    )


class _Parts:
    """Runs of nodes that are alike, one behind the other.

    Attributes:
        nodes: those of the graph.
    """

    def __init__(self, graph: onnx.GraphProto, names: Names) -> None:
        given = {item.name for item in graph.input}
        self.nodes = list(graph.node)
        self._names = names
        self._constants = {item.name: item for item in graph.initializer if item.name not in given}
        self._told = [
            _told(node) if len(given) == 1 else None for node, (_, given) in zip(self.nodes, names, strict=True)
        ]
        """What a node does; None for what an expert has none of."""

    def alike(self) -> Iterator[tuple[int, int, int]]:
        """(place of the first node, nodes of a part, number of parts) of each run."""
        if any(_has_subgraph(node) for node, told in zip(self.nodes, self._told, strict=True) if told is None):
            return
        gates = [place for place, told in enumerate(self._told) if told is not None and told[0] in _GATES]
        at = 0
        while at + FEWEST <= len(gates):
            length = gates[at + 1] - gates[at]
            first, count = self._run(gates[at], length) if length <= _LONGEST else (0, 0)
            if count >= FEWEST:
                yield first, length, count
            at += max(count, 1)

    def _run(self, gate: int, length: int) -> tuple[int, int]:
        """Where the run around a gate begins, and how many parts it has; a part may begin in front of its gate."""
        for first in range(gate, max(gate - length, -1), -1):
            if self._told[first] is None:
                break
            if None in self._told[first : first + length]:
                continue
            part, count = self._part(first, length), 1
            while part is not None and part == self._part(first + count * length, length):
                count += 1
            if count > 1:
                return first, count
        return gate, 1

    def _part(self, first: int, length: int) -> list[Hashable] | None:
        """What each node of a part does with what; None where the graph ends before it."""
        if first + length > len(self.nodes):
            return None
        place_of: dict[str, int] = {}
        found: list[Hashable] = []
        for place in range(first, first + length):
            read, given = self._names[place]
            operands = [place_of[name] if name in place_of else self._outside(name) for name in read]
            found.append((self._told[place], *operands))
            place_of[given[0]] = place - first
        return found

    def _outside(self, name: str) -> Hashable:
        """A value that is not computed inside: a constant counts by what it looks like."""
        tensor = self._constants.get(name)
        return name if tensor is None else _content(tensor)


def _told(node: NodeProto) -> _Key | None:
    """Type and attributes of a node that an expert may have."""
    op_type = node.op_type
    if op_type not in _PLAIN or node.domain:
        return None
    attributes = node.attribute
    return (op_type, *[item.SerializeToString() for item in attributes]) if attributes else (op_type,)


def _has_subgraph(node: NodeProto) -> bool:
    return any(item.type in _GRAPHS for item in node.attribute)


def _content(tensor: TensorProto) -> _Key:
    dims = tuple(tensor.dims[:])  # a slice is made at once, a tuple item by item
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(dims) > _SMALL:
        return ("weight", tensor.data_type, dims)
    unnamed = TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.ClearField("name")
    return ("constant", unnamed.SerializeToString())


def _smaller(
    model: onnx.ModelProto, kept: list[NodeProto], constants: set[str], instead: dict[str, str]
) -> onnx.ModelProto:
    """The model with some of its nodes, which read other values in place of those that are no longer computed.

    Args:
        constants: those that the other nodes may have read; they stay only where they are read.
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
    constants.difference_update(item.name for item in whole.output)
    for node in graph.node:
        if not instead.keys().isdisjoint(node.input):
            node.input[:] = [instead.get(name, name) for name in node.input]
        constants.difference_update(node.input)
    graph.initializer.extend(item for item in whole.initializer if item.name not in constants)
    graph.value_info.extend(item for item in whole.value_info if item.name not in instead)
    return small

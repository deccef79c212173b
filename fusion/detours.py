"""The graph as recognition sees it: readers of a node that changes nothing read what is in front of it.

The values are equal bit by bit, so whatever is found holds for the graph as it is written, and the graph is put back
afterwards. Only readers of what a fusion replaces stay in front: behind the idle node nothing would be computed less.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from fusion.facts.graph import GraphView, dims_of
from fusion.facts.idle import computed_alike, idle_source
from fusion.facts.trial.settle import Survey

_ASKING = ("Shape", "Size")
_OF_SHAPES = (None, ir.DataType.INT64, ir.DataType.BOOL)
"""Types of shapes, slots and masks."""

Shortcut = tuple[ir.Node, int, ir.Value]
"""A node, which of its operands, and the value of equal content that recognition read there."""


def _maker(reader: ir.Node) -> ir.Node | None:
    """The node whose only result a node reads."""
    node = reader.inputs[0].producer() if reader.inputs[0] is not None else None
    return node if node is not None and len(node.outputs) == 1 and node.op_type != "Constant" else None


def _has_like(node: ir.Node) -> bool:
    """Whether another node may compute the same as one with a single result: a quick look."""
    first = node.inputs[0] if node.inputs and len(node.outputs) == 1 else None
    uses = () if first is None else first.uses()
    return any(use.node is not node and use.node.op_type == node.op_type for use in uses)


class Detours:
    """Leads readers past idle nodes, takes these and unread ones out of the graph, and puts everything back.

    Args:
        view: of the graph; it has not been looked at yet.
        joined: whether what is computed twice is read as one, see :meth:`has_copies_of_data`.
    """

    def __init__(self, view: GraphView, joined: bool = False) -> None:
        self._view = view
        self._survey: Survey | None = None
        self._before = list(view.graph)
        self._read: dict[tuple[int, int], tuple[ir.Node, int, ir.Value]] = {}
        """What an operand of a node is in the graph as it is written."""
        self._out: dict[int, tuple[ir.Value | None, ...]] = {}
        """Id of a node that was taken out -> its operands."""
        unread = (node for node in self._before if not any(item.uses() for item in node.outputs))
        self._take_out(list(unread))
        if joined:
            self._join_copies()
        self._past_copies()  # first: of an idle pair, one node may be there twice
        self._past_idle_nodes()
        if self._read:
            view.forget()  # numbers: what was told apart by an idle node is no longer
        if joined:
            self._join_copies()
        if self._past_copies():
            self._past_idle_nodes()
        if self._read:
            view.forget()  # numbers, and trial sizes that were chosen before caches were known

    def _past_idle_nodes(self) -> None:
        for node in list(self._view.graph):
            source = None if node.graph is None else idle_source(self._view, node, self._shape)
            if source is not None and not self._is_asked_between(node, source):
                readers = [use.node for use in node.outputs[0].uses()]
                self._lead(node.outputs[0], source)
                self._take_out([node])  # at once: whoever is dead reads nothing
                self._join_twins(source, readers)

    def _is_asked_between(self, node: ir.Node, source: ir.Value) -> bool:
        """Whether a value between ``source`` and the node has another reader, and all that these ask is its shape.

        It would stay, and read the source, for a shape that is told without it as long as it is part of a match.
        """
        value = None if any(item is source for item in node.inputs) else node.inputs[0]
        while value is not None and value is not source:
            if self._is_only_asked(value, node):
                return True
            maker = value.producer()
            node, value = (maker, maker.inputs[0]) if maker is not None and maker.inputs else (node, None)
        return False

    def _is_only_asked(self, value: ir.Value, reader: ir.Node) -> bool:
        """Whether a value has other readers than one, and these, behind what changes nothing, ask its shape."""
        others = [use.node for use in value.uses() if use.node is not reader]
        found = bool(others)
        for other in others:  # grows while it is walked
            if other.op_type in _ASKING:
                continue
            behind = [other]
            if not self._gives_back(other, value):  # the first of an idle pair?
                behind = [use.node for item in other.outputs for use in item.uses()]
                ends = not behind or any(item.is_graph_output() for item in other.outputs)
                if ends or not all(self._gives_back(node, value) for node in behind):
                    return False
            others += [use.node for node in behind for use in node.outputs[0].uses()]
        return found

    def _gives_back(self, node: ir.Node, value: ir.Value) -> bool:
        inside = node.graph is self._view.graph and not any(item.is_graph_output() for item in node.outputs)
        return inside and idle_source(self._view, node, self._shape) is value

    def _join_twins(self, source: ir.Value, readers: list[ir.Node]) -> None:
        """Of three signs in a row two are idle: the third has become what the first one is."""
        for reader in readers:
            for other in [use.node for use in source.uses() if use.node is not reader]:
                inside = reader.graph is other.graph is self._view.graph
                if inside and computed_alike(self._view, reader.outputs[0], other.outputs[0]):
                    first, second = sorted((reader, other), key=self._view.order)
                    self._lead(second.outputs[0], first.outputs[0])
                    self._take_out([second])
                    break

    def copies(self) -> Iterator[tuple[ir.Node, ir.Node]]:
        """Nodes that compute the same, the first of its kind first."""
        first: dict[int, ir.Node] = {}
        for node in self._view.graph:
            if len(node.outputs) == 1 and node.op_type != "Constant":
                like = first.setdefault(self._view.number(node.outputs[0]), node)
                if like is not node:
                    yield like, node

    def has_copies_of_data(self) -> bool:
        """Whether data is computed twice. Shapes, slots and masks do not count: exporters write such over and over.

        As a rule each copy belongs to the place that reads it, a layer or a table of its own. But one place may read
        both.
        """
        return any(
            item is not None and item.dtype not in _OF_SHAPES
            for _, node in self.copies()
            if node.op_type not in _ASKING
            for item in (*node.inputs, *node.outputs)
        )

    def _join_copies(self) -> None:
        found: list[ir.Node] = []
        for first, second in self.copies():
            kept, left = (second, first) if second.outputs[0].is_graph_output() else (first, second)
            if all(self._is_before(kept, use.node) for use in left.outputs[0].uses()):
                self._lead(left.outputs[0], kept.outputs[0])
                found.append(left)
        self._take_out(found)

    def _past_copies(self) -> bool:
        """Of values that are computed twice, one for its shape alone, the shape is asked of the other.

        Where one is a result of the graph that nobody else reads, readers of the other read it. Copies whose content
        is read stay apart: each belongs to the place that reads it.

        Returns:
            Whether there are such values.
        """
        asked = [node for node in self._view.graph if node.op_type in _ASKING]
        ends = [item.producer() for item in self._view.graph.outputs]
        made = [*(_maker(item) for item in asked), *(node for node in ends if node is not None and _has_like(node))]
        makers = {id(node): node for node in made if node is not None}
        alone = [node for node in makers.values() if all(use.node.op_type in _ASKING for use in node.outputs[0].uses())]
        if not alone:
            return False
        read = self._first_read({self._view.number(node.outputs[0]) for node in alone})
        found: list[ir.Node] = []
        for node in alone:
            like = read.get(self._view.number(node.outputs[0]))
            if like is None:
                continue
            left, kept = (like, node) if node.outputs[0].is_graph_output() else (node, like)
            if all(self._is_before(kept, use.node) for use in left.outputs[0].uses()):
                self._lead(left.outputs[0], kept.outputs[0])
                found.append(left)
        self._take_out(list(found))
        return bool(found)

    def _first_read(self, numbers: set[int]) -> dict[int, ir.Node]:
        """Number -> the first node that gives such a value and is read for more than its shape."""
        found: dict[int, ir.Node] = {}
        for node in self._view.graph:
            number = self._view.number(node.outputs[0]) if node.outputs else -1
            if number in numbers and any(use.node.op_type not in _ASKING for use in node.outputs[0].uses()):
                found.setdefault(number, node)
        return found

    def _is_before(self, node: ir.Node, reader: ir.Node) -> bool:
        return reader.graph is self._view.graph and self._view.order(node) < self._view.order(reader)

    def _shape(self, value: ir.Value) -> tuple[object, ...] | None:
        dims = dims_of(value)
        if dims is None:
            self._survey = self._survey or Survey(self._view)
            shape = self._survey.shape(value)
            dims = None if shape is None else (None,) * len(shape)
        return dims

    def _lead(self, old: ir.Value, new: ir.Value) -> None:
        """Readers of ``old`` read ``new``."""
        for use in tuple(old.uses()):
            self._read.setdefault((id(use.node), use.idx), (use.node, use.idx, old))
            use.node.replace_input_with(use.idx, new)

    def _take_out(self, nodes: list[ir.Node]) -> None:
        """Takes out what nobody reads any more, and then perhaps what is in front of it."""
        while nodes:
            node = nodes.pop()
            if node.graph is None or any(item.uses() or item.is_graph_output() for item in node.outputs):
                continue
            self._out[id(node)] = tuple(node.inputs)
            nodes += [maker for item in node.inputs if item is not None and (maker := item.producer()) is not None]
            self._view.graph.remove(node, safe=True)

    def end(self) -> list[Shortcut]:
        """Puts nodes and readers back; gives the shortcuts that were taken."""
        graph, before = self._view.graph, None
        for node in self._before:
            if id(node) in self._out:
                for place, item in enumerate(self._out[id(node)]):
                    node.replace_input_with(place, item)
                if before is None:
                    graph.insert_before(graph[0], node)
                else:
                    graph.insert_after(before, node)
            before = node
        taken = [(node, place, node.inputs[place]) for node, place, _ in self._read.values()]
        for node, place, value in self._read.values():
            node.replace_input_with(place, value)
        return [(node, place, source) for node, place, source in taken if source is not None]

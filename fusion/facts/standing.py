"""What a graph still computes once accepted fusions are in it; smaller fusions look at nothing else.

Kept up to date fusion by fusion: a node is gone when nobody reads its results any more, and then perhaps those in front
of it. The work is that of the nodes that go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from fusion.facts.graph import idle, uses

Pairs = Sequence[tuple[ir.Value, ir.Value]]


class Standing:
    """Starts with the whole graph."""

    def __init__(self) -> None:
        self._replaced: dict[int, ir.Value] = {}
        self._gone: set[int] = set()
        self._new: set[int] = set()
        self._elsewhere: dict[int, ir.Value] = {}
        self._kept: list[ir.Value] = []
        """The keys are ids, so what they stand for is kept alive."""

    def accept(self, replaced: Pairs, nodes: Iterable[ir.Node], stand_ins: Pairs = ()) -> None:
        """Counts a fusion as done: readers of each old value now read the new one.

        Args:
            replaced: old value -> new value.
            nodes: the new nodes.
            stand_ins: values whose shape is asked of another value from now on.
        """
        self._new |= {id(node) for node in nodes}
        self._elsewhere |= {id(old): source for old, source in stand_ins}
        self._replaced |= {id(old): new for old, new in replaced}
        self._kept += [old for old, _ in (*replaced, *stand_ins)]
        pending = [old.producer() for old, _ in (*replaced, *stand_ins)]
        while pending:
            node = pending.pop()
            if node is None or id(node) in self._gone or any(self.is_read(item) for item in node.outputs):
                continue
            self._gone.add(id(node))
            pending += [item.producer() for item in node.inputs if item is not None]

    def is_replaced(self, value: ir.Value) -> bool:
        """Whether an accepted fusion delivers the value."""
        return id(value) in self._replaced

    def stands(self, value: ir.Value) -> bool:
        """Whether the graph's own node still computes the value."""
        node = value.producer()
        return not self.is_replaced(value) and (node is None or id(node) not in self._gone)

    def is_read(self, value: ir.Value) -> bool:
        """Whether the value itself, not what replaced it, is a result or has a reader that stays."""
        if self.is_replaced(value):
            return False
        return value.is_graph_output() or any(self._reads(node, value) for node, _ in uses(value))

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """Nodes that stay, or are new, and read the value."""
        return [node for node, _ in uses(value) if self._reads(node, value)]

    def _reads(self, node: ir.Node, value: ir.Value) -> bool:
        if id(node) in self._gone or idle(node) or (node.graph is None and id(node) not in self._new):
            return False
        return node.op_type not in ("Shape", "Size") or id(value) not in self._elsewhere

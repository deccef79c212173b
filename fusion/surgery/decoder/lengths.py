"""What is left of the growing length once attention has gone: sizes and positions, told from other inputs.

Exporters read the batch size off a cache, and count positions from its length. Whatever of that is still alive is
evaluated at several sizes: numbers that are fixed, the batch or the new tokens are taken from the ids; the positions of
the new tokens from the input of positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.evaluate import Evaluation
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.surgery.decoder.roles import Roles, Trial, role_feeds
from fusion.surgery.decoder.spread import spread
from ir_ops.dtypes import Array

_SIZES_ONLY = ("Shape", "Size", "Squeeze", "Unsqueeze", "Gather", "Slice", "Cast", "Add", "Sub", "Concat", "Identity")
"""Steps on the way from a cache's shape to what is worth naming in a message."""
LONGEST = 16
"""Elements of the longest vector of sizes."""


class Retelling:
    """Replaces values that depend on the old caches.

    Args:
        view: the graph, as it was when the trials were made.
        trials: evaluations at different sizes.
        roles: the inputs by meaning.
        positions: ``[B, S]``.
        emit: takes the new nodes.
    """

    def __init__(
        self, view: GraphView, trials: Sequence[Trial], roles: Roles, positions: ir.Value, emit: Emitter
    ) -> None:
        self._view, self._trials, self._emit, self._roles = view, trials, emit, roles
        self._ids, self._positions = roles.ids, positions
        self._sizes: dict[str, ir.Value] = {}
        self._living: set[int] = set()
        self._asking: set[int] = set()
        """Nodes that ask for shapes which are other ones now: those of positions for each sequence."""
        self._views: dict[int, tuple[ir.Node, Array]] = {}
        """Reshapes of these, and the targets that they have as long as there is one row of positions."""

    def retell(self, gone: Sequence[ir.Value]) -> None:
        """Cuts every live way from the inputs that go to the outputs.

        Raises:
            Refused: something else than sizes and positions depends on them.
        """
        dirty = {id(value) for value in gone}
        living = self._living = alive(self._view.graph)
        for node in list(self._view.graph):
            if id(node) not in living or not any(id(item) in dirty for item in _reads(node)):
                continue
            for output in node.outputs:
                new = self._told(output)
                if new is None:
                    dirty.add(id(output))
                elif output.uses() or output.is_graph_output():
                    output.replace_all_uses_with(new)
        for node, target in self._views.values():
            node.replace_input_with(1, self._emit.ints([0, *target[1:].tolist()], "each"))
            node.attributes.pop("allowzero", None)
        living = alive(self._view.graph)
        for node in self._view.graph:
            computes = node.op_type not in _SIZES_ONLY and id(node) in living
            if computes and any(id(item) in dirty for item in _reads(node)):
                self._refuse(node, dirty)
        for output in self._view.graph.outputs:
            if id(output) in dirty:
                fact = "outputs do not depend on the length of the caches"
                raise Refused("decode-lengths", fact, str(output.name), "logits")

    def tell_shapes(self) -> None:
        """Shapes of other values are told from the ids too: what is asked for its shape alone need not be computed."""
        living = alive(self._view.graph)
        for node in list(self._view.graph):
            asks = node.op_type == "Shape" and id(node) in living and id(node) not in self._asking
            if not asks or node.inputs[0] is self._ids:
                continue
            new = self._told(node.outputs[0])
            if new is not None and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(new)

    def _refuse(self, node: ir.Node, dirty: set[int]) -> None:
        name = next(item.name for item in _reads(node) if id(item) in dirty)
        raise Refused(
            "decode-lengths", "only attention, its mask, sizes and positions depend on the growing caches",
            f"{node.op_type} {node.name or node.outputs[0].name} reads {name}", "no other reader",
            "leave the cache as it is, or export without this", node.outputs[0],
        )  # fmt: skip

    def _told(self, value: ir.Value) -> ir.Value | None:
        """The same numbers from ids and positions; None where they are others."""
        arrays: list[Array] = []
        for trial in self._trials:
            try:
                known = trial.probe.known(value)
            except (Conflict, OutOfRange, Unsupported):  # not at this size: no number of the graph's
                return None
            if known.taint and self._counts_real(value):
                return self._emit.cast(self._positions, dtype_name(value), "positions")
            if known.array is None or known.taint or known.array.dtype.kind not in "iub":
                return None
            arrays.append(known.array)
        axis = self._axis_of_positions(arrays)
        if axis is not None:
            if arrays[0].shape[0] == 1 and not self._by_sequence(value):
                return None
            return self._positions_along(axis, arrays[0].ndim, _name(arrays[0]))
        if any(array.shape != arrays[0].shape or array.ndim > 1 or array.size > LONGEST for array in arrays):
            return None
        if all(np.array_equal(array, arrays[0]) for array in arrays):
            return self._emit.constant(np.asarray(arrays[0]), "fixed")
        return self._vector(arrays)

    def _counts_real(self, value: ir.Value) -> bool:
        """Whether ``[B, S]`` are, of all that is no padding, the places in its sequence, whatever the padding."""
        if self._roles.padding is None or dtype_name(value) not in ("int64", "int32"):
            return False
        rng = np.random.default_rng(11)
        for trial in self._trials:
            if trial.probe.shape(value) != (trial.batch, trial.tokens):
                return False
            feeds, real = role_feeds(self._roles, trial, rng)
            try:
                places = Evaluation(self._view, trial.probe, feeds, wide=True).value(value)
            except (Conflict, OutOfRange, Unsupported):
                return False
            wanted = np.maximum(real.cumsum(axis=1) - 1, 0)
            if (places != wanted[:, trial.past :])[real[:, trial.past :]].any():
                return False
        return True

    def _axis_of_positions(self, arrays: list[Array]) -> int | None:
        """The axis of the tokens in an array of their positions, ``[1 or B, S]`` with further axes of 1."""
        rank = arrays[0].ndim
        for axis in range(1, rank):
            inner = [1] * (axis - 1)
            outer = [1] * (rank - axis - 1)
            if all(
                array.shape in ((1, *inner, trial.tokens, *outer), (trial.batch, *inner, trial.tokens, *outer))
                and (array.reshape(array.shape[0], -1) == trial.past + np.arange(trial.tokens)).all()
                for array, trial in zip(arrays, self._trials, strict=True)
            ):
                return axis
        return None

    def _positions_along(self, axis: int, rank: int, dtype: str) -> ir.Value:
        """The input of positions with its tokens along an axis."""
        found = self._emit.cast(self._positions, dtype, "positions")
        dims = [0, *[1] * (axis - 1), -1, *[1] * (rank - axis - 1)]
        return found if rank == 2 else self._emit.reshape(found, dims, "positions_apart")

    def _by_sequence(self, value: ir.Value) -> bool:
        """Whether ``[1, S]`` may become ``[B, S]``: that is tried where there are sequences to tell apart."""
        trial = next((trial for trial in self._trials if trial.batch > 1), None)
        if trial is None:
            return True
        way = spread(self._view, value, trial, self._living)
        if way is not None:
            self._asking |= way.asking
            self._views |= way.views
        return way is not None

    def _vector(self, arrays: list[Array]) -> ir.Value | None:
        """Each number fixed, the batch, the new tokens, or both multiplied."""
        parts: list[int | ir.Value] = []
        for column in np.stack([array.reshape(-1) for array in arrays]).T.tolist():
            part = self._size(column)
            if part is None:
                return None
            parts.append(part)
        if arrays[0].dtype.kind == "b" or not parts:
            return None
        vector = self._emit.shape_vector(parts, "sizes")
        if arrays[0].ndim == 0:
            vector = self._emit.reshape(vector, self._emit.ints([], "scalar"), "size")
        return self._emit.cast(vector, _name(arrays[0]), "sizes_typed")

    def _size(self, column: list[int]) -> int | ir.Value | None:
        if len(set(column)) == 1:
            return column[0]
        if column == [trial.batch for trial in self._trials]:
            return self._axis("batch", 0)
        if column == [trial.tokens for trial in self._trials]:
            return self._axis("tokens", 1)
        if column == [trial.batch * trial.tokens for trial in self._trials]:
            if "both" not in self._sizes:
                both = [self._axis("batch", 0), self._axis("tokens", 1)]
                self._sizes["both"] = self._emit.node("Mul", both, "batch_tokens")
            return self._sizes["both"]
        return None

    def _axis(self, name: str, axis: int) -> ir.Value:
        if name not in self._sizes:
            self._sizes[name] = self._emit.dim(self._ids, axis, name)
        return self._sizes[name]


def _name(array: Array) -> str:
    return str(array.dtype)


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, in bodies that it has too."""
    yield from (item for item in node.inputs if item is not None)
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            for inner in attr.as_graph():
                yield from _reads(inner)


def alive(graph: ir.Graph) -> set[int]:
    """Ids of the nodes that outputs need."""
    found: set[int] = set()
    pending = [value.producer() for value in graph.outputs]
    while pending:
        node = pending.pop()
        if node is not None and id(node) not in found:
            found.add(id(node))
            pending += [item.producer() for item in _reads(node)]
    return found

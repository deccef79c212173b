"""A read-only view of a graph for recognition: attributes, constants, canonical values, places for messages."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.facts.numbering import SMALL, Numbering, exact_leaf, trial_leaf
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported, lookup
from ir_ops.dtypes import Array, by_onnx

STRUCTURAL = 1 << 20
"""Integer constants up to this many elements are structure (shapes, axes, indices) and are read."""


_SCALAR = ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Neg", "Reciprocal")


def dtype_name(value: ir.Value | None) -> str:
    """kvfuse's name of a value's element type, "" when the graph does not say."""
    if value is None or value.dtype is None:
        return ""
    try:
        return by_onnx(int(value.dtype)).name
    except KeyError:
        return ""


def dims_of(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """The declared dims: ints, symbol names, None where nothing is said; None for an unknown rank.

    Some exporters write a static size as a name of digits.
    """
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else _size_or_name(dim.value) for dim in value.shape)


def _size_or_name(name: str | None) -> int | str | None:
    return int(name) if name is not None and name.isascii() and name.isdigit() else name


class GraphView:
    """Wraps a graph whose functions are inlined. Nothing is changed through it.

    Args:
        graph: the main graph.
        opset: version of the ai.onnx domain.
    """

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        self.graph, self.opset = graph, opset
        self.outputs = {id(value) for value in graph.outputs}
        self._output_places = {id(value): place for place, value in enumerate(graph.outputs)}
        self.caches: set[int] = set()
        """Graph inputs whose elements an output carries on; filled by the cache recogniser."""
        self.shrunk: set[int] = set()
        """Values in which large static sizes stand for small ones, see :mod:`fusion.facts.trial.large_caches`."""
        self.large: tuple[tuple[int, int], ...] = ()
        """These sizes, each with a number that what stands for it must be divisible by."""
        self.largest_cache = 0
        """Elements of the largest cache."""
        self.stands_for: Mapping[str, int] = {}
        """Result of a node -> how many nodes it stands for, where that is more than itself (:mod:`fusion.folding`)."""
        self.kept: dict[Hashable, Any] = {}
        """What recognisers want to find again: evaluations that several facts share."""
        # the keys are ids, so what they stand for is kept alive beside them
        self._attrs: dict[int, tuple[ir.Node, dict[str, Any]]] = {}
        self._structural: dict[int, tuple[ir.Value, Array | None]] = {}
        self._order: dict[int, int] | None = None
        self._exact: Numbering | None = None
        self._trial: Numbering | None = None

    def forget(self) -> None:
        """Drops what has been looked up and evaluated: the memory is wanted for writing the model."""
        self.kept.clear()
        self._attrs.clear()
        self._structural.clear()
        self._exact = self._trial = None

    def output_place(self, value: ir.Value) -> int:
        """Which graph output a value is."""
        return self._output_places[id(value)]

    def order(self, node: ir.Node) -> int:
        """Position of a node in the graph."""
        if self._order is None:
            self._order = {id(entry): place for place, entry in enumerate(self.graph)}
        return self._order[id(node)]

    def following(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """(node, operand position) of each reader that a match may go on with.

        A reader in a subgraph is none, it may compute once for each turn of a loop; nor is one still to be put in.
        """
        return [(node, place) for node, place in uses(value) if node.graph is self.graph]

    def only_reader(self, value: ir.Value) -> tuple[ir.Node, int] | None:
        """(node, operand position) of the one reader of a value, where a match may go on with it."""
        found = self.following(value)
        return found[0] if len(uses(value)) == len(found) == 1 else None

    def attrs(self, node: ir.Node) -> dict[str, Any]:
        """Attributes as Python values (tensors as arrays), plus ``@outputs``, the number of outputs."""
        known = self._attrs.get(id(node))
        if known is not None:
            return known[1]
        read: dict[str, Any] = {"@outputs": len(node.outputs)}
        for name, attr in node.attributes.items():
            if attr.type == ir.AttributeType.TENSOR:
                read[name] = attr.value.numpy()
            elif not _is_graph(attr):
                read[name] = attr.value
        self._attrs[id(node)] = (node, read)
        return read

    def constant(self, value: ir.Value | None, limit: int = STRUCTURAL) -> Array | None:
        """The content of an initializer or Constant node of at most ``limit`` elements, None for anything else.

        Content that cannot be read (external data out of reach) counts as not constant.
        """
        tensor = self.tensor(value)
        if tensor is None or tensor.size > limit:
            return None
        try:
            return np.asarray(tensor.numpy())
        except (OSError, ValueError, TypeError):
            return None

    def folded(self, value: ir.Value, limit: int) -> Array | None:
        """The content of a value that is computed from constants of at most ``limit`` elements, None otherwise."""
        array = self.constant(value, limit)
        node = value.producer()
        if array is not None or node is None or node.op_type == "Constant":
            return array
        definition = lookup(node.domain, node.op_type)
        if definition is None or definition.kind not in ("move", "elementwise"):
            return None
        operands: list[Array | None] = []
        for item in node.inputs:
            operands.append(None if item is None else self.folded(item, limit))
            if item is not None and operands[-1] is None:
                return None
        try:
            return np.asarray(definition.run(self.attrs(node), operands)[value.index() or 0])
        except (Conflict, OutOfRange, Unsupported, ValueError):
            return None

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor behind an initializer or a Constant node, unread."""
        if value is None:
            return None
        node = value.producer()
        if node is None:
            # an initializer that is also a graph input may be replaced by the caller
            return None if value.is_graph_input() else value.const_value
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
            return None
        for name, attr in node.attributes.items():
            if name == "value":
                return attr.value  # type: ignore[no-any-return]
            if name in ("value_int", "value_ints"):
                return ir.tensor(np.asarray(attr.value, np.int64))
            if name in ("value_float", "value_floats"):
                return ir.tensor(np.asarray(attr.value, np.float32))
        return None

    def is_constant(self, value: ir.Value | None) -> bool:
        return self.tensor(value) is not None

    def structural(self, value: ir.Value) -> Array | None:
        """A constant that is structure, not a parameter: integers, float scalars, masks of one number and 0."""
        known = self._structural.get(id(value))
        if known is None:
            known = self._structural[id(value)] = (value, self._read_structural(value))
        return known[1]

    def _read_structural(self, value: ir.Value) -> Array | None:
        tensor = self.tensor(value)
        if tensor is None:
            return None
        if not by_kind_float(tensor):
            return self.constant(value)
        if tensor.size > SMALL:
            return None
        array = self.constant(value)
        if array is None or array.size <= 1:
            return array
        wide = array.astype(np.float64)
        mask = np.isin(np.abs(wide), (0.0, np.abs(wide).max())).all() and wide.min() != wide.max()
        return array if mask else None

    def scalar(self, value: ir.Value | None) -> float | None:
        """The number a value holds when it is a constant of one element.

        Looked up through shape and type changes, signs and reciprocals.
        """
        sign, inverse = 1.0, False
        for _ in range(16):
            if value is None:
                return None
            array = self.constant(value, 1)
            if array is not None:
                number = sign * float(array.reshape(-1)[0]) if array.size == 1 else None
                return number if number is None or not inverse else 1 / number if number else None
            node = value.producer()
            if node is None or node.op_type not in _SCALAR or node.domain not in ("", "ai.onnx"):
                return None
            sign, inverse = -sign if node.op_type == "Neg" else sign, inverse != (node.op_type == "Reciprocal")
            value = node.inputs[0]
        return None

    def root(self, value: ir.Value) -> ir.Value:
        """The value behind Identity, Casts to the same type, and Concats of one input."""
        while True:
            node = value.producer()
            if node is None or not node.inputs or node.inputs[0] is None or node.domain not in ("", "ai.onnx"):
                return value
            source = node.inputs[0]
            if (
                node.op_type == "Identity"
                or (node.op_type == "Concat" and len(node.inputs) == 1)
                or (node.op_type == "Cast" and dtype_name(source) and dtype_name(source) == self.cast_target(node))
            ):
                value = source
            else:
                return value

    def cast_target(self, node: ir.Node) -> str:
        """The type that a Cast converts to, "?" for a number that no type has."""
        try:
            return by_onnx(int(self.attrs(node)["to"])).name
        except KeyError:
            return "?"

    def number(self, value: ir.Value) -> int:
        """Value number: equal for values that are computed in the same way from the same values."""
        if self._exact is None:
            self._exact = Numbering(self, exact_leaf(self), self.root)
        return self._exact.of(value)

    def trial_number(self, value: ir.Value) -> int:
        """Equal for values that no trial evaluation can tell apart."""
        if self._trial is None:
            self._trial = Numbering(self, trial_leaf(self), declared=True)
        return self._trial.of(value)

    def trial_kind(self, node: ir.Node) -> Hashable:
        """Equal for nodes to which a trial evaluation does the same; of nodes whose results have trial numbers."""
        assert self._trial is not None
        return self._trial.kind(node)

    def declared(self, value: ir.Value) -> tuple[int, ...] | None:
        """The declared dims when they may serve as a shape: all static, none 0 (exporters print unknown dims as 0)."""
        shape = value.shape
        if shape is None:
            return None
        dims = shape.dims
        return dims if all(isinstance(dim, int) and dim for dim in dims) else None  # type: ignore[return-value]

    def layer_of(self, *values: ir.Value | None) -> int | None:
        """The decoder layer that names of values and of the nodes around them tell, None when they do not."""
        for value in values:
            node = value.producer() if value is not None else None
            texts = [value.name if value is not None else None, node.name if node is not None else None]
            if node is not None:
                texts += [item.name for item in node.inputs if item is not None]
                texts.append(node.metadata_props.get("pkg.torch.onnx.name_scopes"))
            for text in texts:
                found = re.search(r"layers?[./_]+(\d+)|(?:key|value|cache\w*|past\w*|present)\.(\d+)", text or "")
                if found:
                    return int(found.group(1) or found.group(2))
        return None

    def place(self, value: ir.Value, layer: int | None = None) -> str:
        """Where a value is, for a message: layer, node name or value name."""
        node = value.producer()
        if node is not None:
            text = f"node {node.name}" if node.name else f"{node.op_type} giving {value.name}"
        else:
            text = f"input {value.name}"
        return text if layer is None else f"layer {layer}, {text}"


def _is_graph(attr: ir.Attr) -> bool:
    return attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def by_kind_float(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor holds floating point numbers."""
    try:
        return by_onnx(int(tensor.dtype)).is_float
    except KeyError:
        return False


def all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs, initializers and results of a graph and of its subgraphs."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """(node, operand position) of each reader, subgraph readers included."""
    return [(use.node, use.idx) for use in value.uses()]


def idle(node: ir.Node) -> bool:
    """Whether nobody reads what a node of the graph computes; nodes that are still to be put in are none of it."""
    return node.graph is not None and not any(output.uses() or output.is_graph_output() for output in node.outputs)


def content_readers(value: ir.Value, inside: Container[int] = ()) -> list[ir.Node]:
    """Readers that are not in ``inside`` and look at more than the shape; Identity is looked through.

    A reader whose results nobody reads is none: it goes with the match.
    """
    found: list[ir.Node] = []
    for node, _ in uses(value):
        if id(node) in inside or node.op_type in ("Shape", "Size") or idle(node):
            continue
        if node.op_type == "Identity" and not node.outputs[0].is_graph_output():
            found += content_readers(node.outputs[0], inside)
        else:
            found.append(node)
    return found

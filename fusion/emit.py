"""Building replacement nodes: a detached list that is proven first and only then put into the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import dtype_name
from ir_ops.dtypes import Array, by_name


class Emitter:
    """Collects new nodes and constants.

    Only operator forms that are valid from opset 11 to the newest are used: shapes and indices as operands, no axes
    attributes.

    Args:
        prefix: names of new values and nodes start with it.
        taken: names that exist; new ones are added.
    """

    def __init__(self, prefix: str, taken: set[str]) -> None:
        self.prefix, self._taken = prefix, taken
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.copied: set[int] = set()
        """Ids of values whose content went into new constants."""

    def beside(self) -> Emitter:
        """Another collector that gives names of the same prefix."""
        return Emitter(self.prefix, self._taken)

    def name(self, part: str) -> str:
        """A new unique name."""
        name, number = f"{self.prefix}/{part}", 1
        while name in self._taken:
            number += 1
            name = f"{self.prefix}/{part}_{number}"
        self._taken.add(name)
        return name

    def discard(self) -> None:
        """Takes the new nodes out of the use lists of what they read: they will not be part of the graph."""
        for node in self.nodes:
            for place in range(len(node.inputs)):
                node.replace_input_with(place, None)
        self.nodes.clear()

    def constant(self, array: Array, part: str) -> ir.Value:
        """A new initializer."""
        name = self.name(part)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def ints(self, numbers: Sequence[int], part: str) -> ir.Value:
        return self.constant(np.array(numbers, np.int64), part)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        part: str,
        attrs: Mapping[str, Any] | None = None,
        *,
        dtype: ir.DataType | None = None,
        domain: str = "",
    ) -> ir.Value:
        """A node with one output; its element type is the first input's unless told."""
        name = self.name(part)
        kind = dtype if dtype is not None else (inputs[0].dtype if inputs and inputs[0] is not None else None)
        output = ir.Value(name=name, type=None if kind is None else ir.TensorType(kind))
        node = ir.node(op_type, list(inputs), dict(attrs or {}), domain=domain, outputs=[output], name=name)
        self.nodes.append(node)
        return output

    def reshape(self, x: ir.Value, dims: Sequence[int] | ir.Value, part: str) -> ir.Value:
        if isinstance(dims, ir.Value):
            return self.node("Reshape", [x, dims], part)
        result = self.node("Reshape", [x, self.ints(dims, part + "_shape")], part)
        result.shape = ir.Shape([dim if dim > 0 else None for dim in dims])
        return result

    def cast(self, x: ir.Value, dtype: str, part: str) -> ir.Value:
        """x itself when it has that type."""
        if dtype_name(x) == dtype:
            return x
        number = by_name(dtype).onnx
        assert number is not None
        return self.node("Cast", [x], part, {"to": number}, dtype=ir.DataType(number))

    def pick_columns(self, x: ir.Value, columns: Array, width: int, part: str) -> ir.Value:
        """Columns of the last axis; nothing for all of them in order."""
        if len(columns) == width and (columns == np.arange(width)).all():
            return x
        return self.node("Gather", [x, self.ints(columns.tolist(), part + "_columns")], part, {"axis": -1})

    def concat(self, parts: Sequence[ir.Value], part: str, axis: int = -1) -> ir.Value:
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, part, {"axis": axis})

    def dim(self, x: ir.Value, axis: int, part: str) -> ir.Value:
        """One dim of x as an int64 vector of one element."""
        shape = self.node("Shape", [x], part + "_of", dtype=ir.DataType.INT64)
        return self.node("Gather", [shape, self.ints([axis], part + "_axis")], part, {"axis": 0})

    def shape_vector(self, dims: Sequence[int | ir.Value], part: str) -> ir.Value:
        """A shape operand from numbers and one-element vectors."""
        if all(isinstance(dim, int) for dim in dims):
            return self.ints([dim for dim in dims if isinstance(dim, int)], part)
        pieces: list[ir.Value] = []
        run: list[int] = []
        for dim in dims:
            if isinstance(dim, int):
                run.append(dim)
                continue
            if run:
                pieces.append(self.ints(run, part + "_fixed"))
                run = []
            pieces.append(dim)
        if run:
            pieces.append(self.ints(run, part + "_fixed"))
        return self.concat(pieces, part, axis=0)

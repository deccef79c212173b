"""A small writer of ONNX graphs that knows how each opset wants an operator spelled.

The zoo and the traps are written with it. It uses ``onnx.helper`` only, and nothing of the project: what it builds is
judged by the project, so it must not share its mistakes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Dim = int | str | tuple[str, int]
"""A size in a reshape target: a number, ``-1``, or ``(value name, axis)`` for "as long as that axis of that value"."""

NUMPY: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float64": np.float64,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}
ONNX: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
END = 2**63 - 1
"""The open end of a Slice, as every exporter writes it."""


class Graph:
    """Nodes, constants and the interface of one model under construction.

    Args:
        opset: of the default domain, 11..24.
        dtype: activation type: ``float32``, ``float16`` or ``bfloat16``.
        style: ``dynamo`` (initializers, sliced Shape, no idle Casts) or ``ts`` (Constant nodes, Shape-Gather-Unsqueeze
            chains, Casts kept where they do nothing), the two habits of the exporters.
    """

    def __init__(self, opset: int, dtype: str = "float32", style: str = "dynamo") -> None:
        self.opset, self.dtype, self.style = opset, dtype, style
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.domains = {"": opset}
        self._count = 0

    # -- values -----------------------------------------------------------------------------------------------------

    def name(self, hint: str) -> str:
        self._count += 1
        return f"{hint.lower()}_{self._count}"

    def input(self, name: str, dtype: str, shape: list[int | str | None]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, ONNX[dtype], shape))
        return name

    def output(self, value: str, name: str, dtype: str, shape: list[int | str | None]) -> None:
        """Make ``value`` the graph output ``name``; the value is renamed, as exporters do, where that is possible."""
        makers = [node for node in self.nodes if value in node.output]
        taken = {entry.name for entry in [*self.outputs, *self.inputs]}
        if makers and value not in taken:
            for node in self.nodes:
                node.input[:] = [name if entry == value else entry for entry in node.input]
                node.output[:] = [name if entry == value else entry for entry in node.output]
        else:
            self.nodes.append(helper.make_node("Identity", [value], [name], name=self.name("out")))
        self.outputs.append(helper.make_tensor_value_info(name, ONNX[dtype], shape))

    def const(self, array: Any, dtype: str | None = None) -> str:
        data = np.asarray(array, dtype=NUMPY[dtype] if dtype else None)
        name = self.name("val")
        tensor = numpy_helper.from_array(data, name)
        if self.style == "ts":
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"/Constant_{name}", value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, dtype=np.int64))

    def scalar(self, value: float, dtype: str = "float32") -> str:
        return self.const(np.array(value), dtype)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def many(self, kind: str, *inputs: str, count: int, domain: str = "", **attributes: Any) -> list[str]:
        outputs = [self.name(kind) for _ in range(count)]
        if domain:
            self.domains.setdefault(domain, 1)
        node = helper.make_node(kind, list(inputs), outputs, name=f"node_{outputs[0]}", domain=domain, **attributes)
        self.nodes.append(node)
        return outputs

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.many(kind, *inputs, count=1, domain=domain, **attributes)[0]

    def cast(self, x: str, dtype: str) -> str:
        return self.op("Cast", x, to=ONNX[dtype])

    def up(self, x: str) -> str:
        """To float32; a float32 graph keeps the idle Cast only in TorchScript style."""
        return x if self.dtype == "float32" and self.style != "ts" else self.cast(x, "float32")

    def down(self, x: str) -> str:
        """Back to the activation type."""
        return x if self.dtype == "float32" and self.style != "ts" else self.cast(x, self.dtype)

    def reduce(self, kind: str, x: str, axis: int = -1, keepdims: int = 1) -> str:
        """A reduction over one axis: the axes are an attribute before opset 18 (ReduceSum: 13), an input since."""
        if self.opset < (13 if kind == "ReduceSum" else 18):
            return self.op(kind, x, axes=[axis], keepdims=keepdims)
        return self.op(kind, x, self.ints(axis), keepdims=keepdims)

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self._axes("Unsqueeze", x, axes)

    def squeeze(self, x: str, *axes: int) -> str:
        return self._axes("Squeeze", x, axes)

    def _axes(self, kind: str, x: str, axes: tuple[int, ...]) -> str:
        if self.opset < 13:
            return self.op(kind, x, axes=list(axes))
        return self.op(kind, x, self.ints(*axes))

    def split(self, x: str, sizes: list[int], axis: int = -1) -> list[str]:
        if self.opset < 13:
            return self.many("Split", x, count=len(sizes), axis=axis, split=sizes)
        return self.many("Split", x, self.ints(*sizes), count=len(sizes), axis=axis)

    def halves(self, x: str, axis: int = -1) -> list[str]:
        """Split into two equal parts without naming the sizes."""
        more: dict[str, Any] = {"num_outputs": 2} if self.opset >= 18 else {}
        return self.many("Split", x, count=2, axis=axis, **more)

    def slice(self, x: str, start: int, end: int, axis: int, step: int | None = 1) -> str:
        tail = [] if step is None else [self.ints(step)]
        return self.op("Slice", x, self.ints(start), self.ints(end), self.ints(axis), *tail)

    def size(self, x: str, axis: int) -> str:
        """The length of one axis as ``int64[1]``."""
        if self.style == "dynamo" and self.opset >= 15:
            return self.op("Shape", x, start=axis, end=axis + 1)
        picked = self.op("Gather", self.op("Shape", x), self.const(np.array(axis, dtype=np.int64)), axis=0)
        return self.unsqueeze(picked, 0)

    def shape(self, *dims: Dim) -> str:
        """A shape vector of numbers and of lengths read from values."""
        if all(isinstance(dim, int) for dim in dims):
            return self.ints(*[int(dim) for dim in dims if isinstance(dim, int)])
        parts = [self.size(*dim) if isinstance(dim, tuple) else self.ints(int(dim)) for dim in dims]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def reshape(self, x: str, *dims: Dim) -> str:
        return self.op("Reshape", x, self.shape(*dims))

    def transpose(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=list(perm))

    def clip(self, x: str, low: float, high: float, dtype: str = "float32") -> str:
        return self.op("Clip", x, self.scalar(low, dtype), self.scalar(high, dtype))

    # -- the whole --------------------------------------------------------------------------------------------------

    def model(self, name: str) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10 if self.opset > 18 else 8)

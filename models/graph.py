"""Writing an ONNX graph the way ``torch.onnx.export(dynamo=True)`` does: names, shared constants, shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from ir_ops.dtypes import Array, by_name
from models.weights import Weights

Dim = int | str
Dims = tuple[Dim, ...]
INT64_MAX = 2**63 - 1
_T = TypeVar("_T")

_NAMES = {
    "Pow": "pow", "ReduceMean": "mean", "ReduceSum": "sum", "Reciprocal": "rsqrt", "Mul": "mul", "Add": "add",
    "Sub": "sub", "Div": "div", "Neg": "neg", "Cast": "_to_copy", "MatMul": "linear", "Gemm": "linear",
    "Reshape": "view", "Transpose": "transpose", "Slice": "slice", "Unsqueeze": "unsqueeze", "Concat": "cat",
    "Cos": "cos", "Sin": "sin", "Gather": "select", "Expand": "expand", "Range": "arange", "Split": "split_with_sizes",
    "TopK": "topk", "Einsum": "einsum", "LessOrEqual": "le", "Sigmoid": "sigmoid", "RMSNormalization": "rms_norm",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A value: name, element type (kvfuse's name) and dims; symbolic ones are expressions such as ``s44*s70``."""

    name: str
    dtype: str
    dims: Dims


class Graph:
    """One ONNX graph under construction.

    Args:
        opset: version of ai.onnx.
        weights: what fills weights.
    """

    def __init__(self, opset: int, weights: Weights) -> None:
        self.model = onnx.ModelProto(ir_version=10, producer_name="pytorch", producer_version="2.13.0+cpu")
        self.model.opset_import.add(domain="", version=opset)
        self.opset = opset
        self._graph = self.model.graph
        self._graph.name = "main_graph"
        self._weights = weights
        self._count: dict[str, int] = {}
        self._constants: dict[Any, Tensor] = {}
        self._once: dict[str, Any] = {}
        self._dim_of: dict[str, tuple[Tensor, int]] = {}
        self._vector_of: dict[str, Tensor] = {}

    # --- values --------------------------------------------------------------------------------------------------

    def fresh(self, base: str) -> str:
        number = self._count.get(base, 0)
        self._count[base] = number + 1
        return f"{base}_{number}" if number else base

    def input(self, name: str, dtype: str, dims: Dims) -> Tensor:
        tensor = Tensor(name, dtype, dims)
        _describe(self._graph.input.add(), tensor)
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                self._dim_of.setdefault(dim, (tensor, axis))
        return tensor

    def output(self, tensor: Tensor, first: bool = False) -> None:
        """Declares a graph output, behind or before those declared so far."""
        others = list(self._graph.output) if first else []
        if first:
            self._graph.ClearField("output")
        _describe(self._graph.output.add(), tensor)
        self._graph.output.extend(others)

    def constant(self, array: Any, dtype: str = "int64", name: str = "") -> Tensor:
        """A constant of the file; equal ones are one initializer."""
        data: Array = np.asarray(array, by_name(dtype).np)
        key = (dtype, data.shape, data.tobytes())
        if key not in self._constants:
            tensor = Tensor(name or self.fresh("val"), dtype, data.shape)
            proto = self._initializer(tensor)
            proto.raw_data = data.tobytes()
            self._constants[key] = tensor
        return self._constants[key]

    def weight(self, dtype: str, dims: tuple[int, ...], name: str = "", gain: bool = False) -> Tensor:
        """A parameter; exporters keep the names of gammas and lose those of transposed projections."""
        tensor = Tensor(name or self.fresh("val"), dtype, dims)
        self._weights.fill(self._initializer(tensor), dtype, dims, gain)
        return tensor

    def _initializer(self, tensor: Tensor) -> TensorProto:
        return self._graph.initializer.add(name=tensor.name, data_type=by_name(tensor.dtype).onnx, dims=tensor.dims)

    def once(self, key: str, make: Callable[[], _T]) -> _T:
        """What all layers share, as after the exporter's elimination of common subexpressions."""
        if key not in self._once:
            self._once[key] = make()
        result: _T = self._once[key]
        return result

    # --- nodes ---------------------------------------------------------------------------------------------------

    def op(
        self, op_type: str, inputs: Sequence[Tensor], dims: Dims, dtype: str = "", name: str = "", **attrs: Any
    ) -> Tensor:
        """A node of one output; its element type is the first input's unless told."""
        base = _NAMES.get(op_type, "val")
        return self.ops(op_type, inputs, [(dtype or inputs[0].dtype, dims)], [name or self.fresh(base)], **attrs)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        results: Sequence[tuple[str, Dims]],
        names: Sequence[str],
        **attrs: Any,
    ) -> list[Tensor]:
        """A node of several outputs."""
        node = self._graph.node.add(op_type=op_type, name=f"node_{names[0]}")
        node.input.extend(item.name for item in inputs)
        node.output.extend(names)
        for key, value in attrs.items():
            _set_attribute(node.attribute.add(name=key), value)
        found = [Tensor(name, dtype, dims) for name, (dtype, dims) in zip(names, results, strict=True)]
        for tensor in found:
            _describe(self._graph.value_info.add(), tensor)
        return found

    # --- shapes --------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Tensor:
        """A dim as an int64 vector of one element."""
        if isinstance(dim, int):
            return self.constant([dim])
        if dim not in self._vector_of:
            tensor, axis = self._dim_of[dim]
            self._vector_of[dim] = self.op("Shape", [tensor], (1,), "int64", start=axis, end=axis + 1)
        return self._vector_of[dim]

    def define_size(self, dim: str, vector: Tensor) -> None:
        """Tells how a dim is computed that is no input's."""
        self._vector_of[dim] = vector

    def shape(self, dims: Dims, exact: bool = False) -> Tensor:
        """A shape operand; with one unknown it is a constant with -1, unless it has to be ``exact``."""
        unknown = [dim for dim in dims if isinstance(dim, str)]
        if not unknown or (len(unknown) == 1 and not exact):
            return self.constant([-1 if isinstance(dim, str) else dim for dim in dims])
        parts = [self.constant([-1]) if isinstance(dim, str) and "*" in dim else self.size(dim) for dim in dims]
        key = "shape " + " ".join(part.name for part in parts)
        return self.once(key, lambda: self.op("Concat", parts, (len(dims),), "int64", self.fresh("val"), axis=0))

    def reshape(self, x: Tensor, dims: Dims, allowzero: int = 1, name: str = "") -> Tensor:
        return self.op("Reshape", [x, self.shape(dims)], dims, name=name, allowzero=allowzero)

    def transpose(self, x: Tensor, *perm: int, name: str = "") -> Tensor:
        return self.op("Transpose", [x], tuple(x.dims[axis] for axis in perm), name=name, perm=list(perm))

    def unsqueeze(self, x: Tensor, *axes: int) -> Tensor:
        rank = len(x.dims) + len(axes)
        places = {axis % rank for axis in axes}
        rest = iter(x.dims)
        dims = tuple(1 if place in places else next(rest) for place in range(rank))
        return self.op("Unsqueeze", [x, self.constant(list(axes))], dims)

    def slice(self, x: Tensor, start: int, stop: int, axis: int, step: int = 1) -> Tensor:
        size = x.dims[axis]
        assert isinstance(size, int)
        count = len(range(start, min(stop, size), step))
        bounds = [self.constant([number]) for number in (start, stop, axis, step)]
        return self.op("Slice", [x, *bounds], (*x.dims[:axis], count, *x.dims[axis + 1 :]))

    def split(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        base = self.fresh("split_with_sizes")
        results = [(x.dtype, (*x.dims[:axis], size, *x.dims[axis + 1 :])) for size in sizes]
        names = [f"{base}_split_{number}" for number in range(len(sizes))]
        return self.ops("Split", [x, self.constant(list(sizes))], results, names, axis=axis)

    # --- arithmetic ----------------------------------------------------------------------------------------------

    def binary(self, op_type: str, a: Tensor, b: Tensor, name: str = "") -> Tensor:
        """Mul, Add, Sub, Div with broadcasting."""
        return self.op(op_type, [a, b], broadcast(a.dims, b.dims), name=name)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """x itself when it has that type."""
        return x if x.dtype == dtype else self.op("Cast", [x], x.dims, dtype, to=by_name(dtype).onnx)

    def matmul(self, a: Tensor, b: Tensor, name: str = "") -> Tensor:
        lead = broadcast(a.dims[:-2], b.dims[:-2]) if len(b.dims) > 2 else a.dims[:-2]
        return self.op("MatMul", [a, b], (*lead, a.dims[-2], b.dims[-1]), name=name)

    def linear(self, x: Tensor, width: int, name: str = "") -> Tensor:
        """A projection of the last axis without bias."""
        size = x.dims[-1]
        assert isinstance(size, int)
        return self.matmul(x, self.weight(x.dtype, (size, width)), name=name)


def broadcast(a: Dims, b: Dims) -> Dims:
    """numpy's broadcast, where a symbolic dim wins over 1."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def zero_tensor(dtype: str) -> TensorProto:
    """One zero, as ConstantOfShape has it."""
    kind = by_name(dtype)
    return TensorProto(data_type=kind.onnx, dims=[1], raw_data=bytes(kind.itemsize))


def _describe(info: onnx.ValueInfoProto, tensor: Tensor) -> None:
    info.name = tensor.name
    kind = info.type.tensor_type
    kind.elem_type = by_name(tensor.dtype).onnx or 0
    kind.shape.SetInParent()
    for dim in tensor.dims:
        if isinstance(dim, int):
            kind.shape.dim.add(dim_value=dim)
        else:
            kind.shape.dim.add(dim_param=dim)


def _set_attribute(attribute: AttributeProto, value: Any) -> None:
    if isinstance(value, int):
        attribute.type, attribute.i = AttributeProto.INT, value
    elif isinstance(value, float):
        attribute.type, attribute.f = AttributeProto.FLOAT, value
    elif isinstance(value, str):
        attribute.type, attribute.s = AttributeProto.STRING, value.encode()
    elif isinstance(value, TensorProto):
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(value)
    else:
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(value)

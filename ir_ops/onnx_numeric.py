"""The ONNX backend of :class:`ir_ops.numeric.Numeric`: it records a computation as standard ONNX nodes.

Nothing of a recorded computation depends on sizes: they are read from the tensors when it runs. Nor does it depend on
the inputs' element types where the computation only passes them on (``CastLike``, opset 15). One recording serves
every node that has the same inputs and takes the same branches.

Only operators that ONNX Runtime's CPU provider has for these types are used: bfloat16 is cast and moved, never
computed with; the cache is updated by one ScatterND on its own shape, which works in place where it is bound so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from ir_ops.dtypes import by_name

_ATTRIBUTE_FIELDS = {
    "float32": ("value_float", AttributeProto.FLOAT),
    "int64": ("value_int", AttributeProto.INT),
    "int64s": ("value_ints", AttributeProto.INTS),
    "string": ("value_string", AttributeProto.STRING),
}
Operand: TypeAlias = "Value | int | float"


class TypeOf(str):
    """An element type's name that remembers whose type it is."""

    like: Value

    def __new__(cls, name: str, like: Value) -> TypeOf:
        made = super().__new__(cls, name)
        made.like = like
        return made


@dataclass(frozen=True, eq=False)
class Value:
    """A recorded tensor: its name, element type, and rank where that is known. Sizes are int64 tensors ``[1]``."""

    owner: OnnxNumeric
    name: str
    dtype: str
    rank: int | None = None

    def __add__(self, other: Operand) -> Value:
        return self.owner.binary("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.owner.binary("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.owner.binary("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.owner.binary("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.owner.binary("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.owner.binary("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.owner.binary("Div", self.owner.real(self), other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.owner.binary("Div", other, self.owner.real(self))

    def __floordiv__(self, other: Operand) -> Value:
        return self.owner.binary("Div", self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return self.owner.binary("Div", other, self)

    def __mod__(self, other: Operand) -> Value:
        return self.owner.binary("Mod", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.owner.node("Not", [self.owner.binary("Less", self, other, "bool")], "bool")


class OnnxNumeric:
    """Records nodes for one opset (11 or later). Equal nodes are recorded once."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self._seen: dict[tuple[Any, ...], str] = {}

    def node(self, op_type: str, inputs: Sequence[Value], dtype: str, rank: int | None = None, **attrs: Any) -> Value:
        """Records a standard node with one output."""
        protos = [helper.make_attribute(name, value) for name, value in sorted(attrs.items())]
        return Value(self, self._record(op_type, [value.name for value in inputs], protos), str(dtype), rank)

    def _record(self, op_type: str, inputs: list[str], attrs: list[AttributeProto]) -> str:
        key = (op_type, tuple(inputs), tuple(proto.SerializeToString(deterministic=True) for proto in attrs))
        if key not in self._seen:
            name = f"{op_type.lower()}_{len(self.nodes)}"
            made = helper.make_node(op_type, inputs, [name], name)
            made.attribute.extend(attrs)
            self.nodes.append(made)
            self._seen[key] = name
        return self._seen[key]

    def constant(self, value: Any, dtype: str) -> Value:
        """A constant of a Python number, a list of them, or an array."""
        array = np.asarray(value, by_name(dtype).np)
        return self.node("Constant", [], dtype, array.ndim, value=numpy_helper.from_array(array))

    def strings(self, words: Sequence[str]) -> Value:
        """A constant vector of strings."""
        tensor = numpy_helper.from_array(np.array(words, object))
        return self.node("Constant", [], "string", 1, value=tensor)

    def attribute(self, name: str, dtype: str) -> Value:
        """An attribute of the function's node: a float32, int64 or string scalar, or a vector of ``int64s``.

        Opset 12 or later.
        """
        field, kind = _ATTRIBUTE_FIELDS[dtype]
        proto = AttributeProto(name=field, type=kind, ref_attr_name=name)
        return Value(self, self._record("Constant", [], [proto]), dtype.removesuffix("s"), int(dtype.endswith("s")))

    def binary(self, op_type: str, left: Operand, right: Operand, dtype: str = "") -> Value:
        kind = left.dtype if isinstance(left, Value) else right.dtype if isinstance(right, Value) else ""
        both = [side if isinstance(side, Value) else self.constant(side, kind) for side in (left, right)]
        ranks = [side.rank for side in both]
        rank = max(rank for rank in ranks if rank is not None) if None not in ranks else None
        return self.node(op_type, both, dtype or kind, rank)

    def real(self, x: Value) -> Value:
        """``x`` itself if it is a float, else as float32: what ``/`` divides."""
        return x if by_name(x.dtype).is_float else self.cast(x, "float32")

    def sizes(self, dims: Sequence[Any]) -> Value:
        """Sizes as one int64 vector."""
        parts = [dim if isinstance(dim, Value) else self.constant([dim], "int64") for dim in dims]
        if not any(isinstance(dim, Value) for dim in dims):
            return self.constant(list(dims), "int64")
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, "int64", 1, axis=0)

    # The operations of Numeric, see there.

    def dtype(self, x: Value) -> str:
        return TypeOf(x.dtype, x)

    def cast(self, x: Value, dtype: str) -> Value:
        if isinstance(dtype, TypeOf) and self.opset >= 15:
            return self.node("CastLike", [x, dtype.like], dtype, x.rank)
        return self.node("Cast", [x], dtype, x.rank, to=by_name(dtype).onnx)

    def dim(self, x: Value, axis: int) -> Value:
        shape = self.node("Shape", [x], "int64", 1)
        return self.node("Gather", [shape, self.constant([axis], "int64")], "int64", 1, axis=0)

    def rank(self, x: Value) -> int:
        if x.rank is None:
            raise ValueError(f"the rank of {x.name} must be known")
        return x.rank

    def reshape_like(self, x: Value, like: Value) -> Value:
        return self.node("Reshape", [x, self.node("Shape", [like], "int64", 1)], x.dtype, like.rank)

    def reshape(self, x: Value, dims: Sequence[Any]) -> Value:
        measured = any(isinstance(dim, Value) for dim in dims) and not any(
            dim in (0, -1) for dim in dims if isinstance(dim, int)
        )
        # a size that is read may be 0, which else would mean the size of the input's axis
        exact = {"allowzero": 1} if measured and self.opset >= 14 else {}
        return self.node("Reshape", [x, self.sizes(dims)], x.dtype, len(dims), **exact)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return self.node("Transpose", [x], x.dtype, len(perm), perm=list(perm))

    def columns(self, x: Value, start: Any, stop: Any, step: int = 1) -> Value:
        return self.slice(x, start, stop, -1, step)

    def slice(self, x: Value, start: Any, stop: Any, axis: int, step: int = 1) -> Value:
        """``x[start:stop:step]`` along an axis."""
        bounds = [
            self.sizes([start]),
            self.sizes([stop]),
            self.constant([axis], "int64"),
            self.constant([step], "int64"),
        ]
        return self.node("Slice", [x, *bounds], x.dtype, x.rank)

    def take_columns(self, x: Value, index: Value) -> Value:
        return self.node("Gather", [x, index], x.dtype, x.rank, axis=-1)

    def first_column(self, x: Value) -> Value:
        rank = None if x.rank is None else x.rank - 1
        if self.opset < 13:
            return self.node("Squeeze", [x], x.dtype, rank, axes=[-1])
        return self.node("Squeeze", [x, self.constant([-1], "int64")], x.dtype, rank)

    def column(self, x: Value) -> Value:
        rank = None if x.rank is None else x.rank + 1
        if self.opset < 13:
            return self.node("Unsqueeze", [x], x.dtype, rank, axes=[-1])
        return self.node("Unsqueeze", [x, self.constant([-1], "int64")], x.dtype, rank)

    def concat_columns(self, parts: Sequence[Value]) -> Value:
        return self.node("Concat", parts, parts[0].dtype, parts[0].rank, axis=-1)

    def broadcast(self, x: Value, dims: Sequence[Any]) -> Value:
        return self.node("Expand", [x, self.sizes(dims)], x.dtype, len(dims))

    def arange(self, stop: Any) -> Value:
        bounds = [self.constant(0, "int64"), self.reshape(self.sizes([stop]), []), self.constant(1, "int64")]
        return self.node("Range", bounds, "int64", 1)

    def take(self, x: Value, rows: Value) -> Value:
        rank = None if x.rank is None or rows.rank is None else x.rank + rows.rank - 1
        return self.node("Gather", [x, rows], x.dtype, rank, axis=0)

    def sqrt(self, x: Value) -> Value:
        return self.node("Sqrt", [x], x.dtype, x.rank)

    def exp(self, x: Value) -> Value:
        return self.node("Exp", [x], x.dtype, x.rank)

    def log(self, x: Value) -> Value:
        return self.node("Log", [x], x.dtype, x.rank)

    def from_bits(self, x: Value) -> Value:
        """ONNX does not reinterpret bits: the number is put together from its parts."""
        bits = self.cast(x, "int64") % 2**32
        fraction, power, sign = bits % 2**23, bits // 2**23 % 256, bits // 2**31
        steps = self.constant([2.0 ** (max(exponent, 1) - 150) for exponent in range(256)], "float32")
        whole = fraction + self.cast(power >= 1, "int64") * 2**23
        finite = self.cast(whole, "float32") * self.take(steps, power)
        other = self.where(fraction >= 1, self.constant(np.nan, "float32"), self.constant(np.inf, "float32"))
        return self.where(power >= 255, other, finite) * (1.0 - 2.0 * self.cast(sign, "float32"))

    def copy(self, x: Value) -> Value:
        return self.node("Identity", [x], x.dtype, x.rank)

    def size(self, x: Value) -> Value:
        return x

    def abs(self, x: Value) -> Value:
        return self.node("Abs", [x], x.dtype, x.rank)

    def matmul(self, x: Value, y: Value) -> Value:
        return self.node("MatMul", [x, y], x.dtype, x.rank)

    def matmul_integer(self, x: Value, y: Value) -> Value:
        return self.node("MatMulInteger", [x, y], "int32", x.rank)

    def cumsum(self, x: Value) -> Value:
        return self.node("CumSum", [x, self.constant(0, "int64")], x.dtype, 1)

    def sum_columns(self, x: Value, axes: int = 1) -> Value:
        last = list(range(-axes, 0))
        if self.opset < 13:
            return self.node("ReduceSum", [x], x.dtype, x.rank, axes=last, keepdims=1)
        return self.node("ReduceSum", [x, self.constant(last, "int64")], x.dtype, x.rank, keepdims=1)

    def max_columns(self, x: Value) -> Value:
        if self.opset < 18:
            return self.node("ReduceMax", [x], x.dtype, x.rank, axes=[-1], keepdims=1)
        return self.node("ReduceMax", [x, self.constant([-1], "int64")], x.dtype, x.rank, keepdims=1)

    def round(self, x: Value) -> Value:
        return self.node("Round", [x], x.dtype, x.rank)

    def floor(self, x: Value) -> Value:
        return self.node("Floor", [x], x.dtype, x.rank)

    def ceil(self, x: Value) -> Value:
        return self.node("Ceil", [x], x.dtype, x.rank)

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self.node("Clip", [x, self.constant(low, x.dtype), self.constant(high, x.dtype)], x.dtype, x.rank)

    def nan_to_zero(self, x: Value) -> Value:
        return self.where(self.node("IsNaN", [x], "bool", x.rank), self.constant(0, x.dtype), x)

    def where(self, condition: Value, yes: Operand, no: Operand) -> Value:
        kind = next(side.dtype for side in (yes, no) if isinstance(side, Value))
        both = [side if isinstance(side, Value) else self.constant(side, kind) for side in (yes, no)]
        return self.node("Where", [condition, *both], kind, both[1].rank or both[0].rank)

    def zeros(self, dims: Sequence[Any], dtype: str) -> Value:
        return self.cast(self.node("ConstantOfShape", [self.sizes(dims)], "float32", len(dims)), dtype)

    def scatter(self, x: Value, places: Value, values: Value) -> Value:
        return self.node("ScatterND", [x, places, values], x.dtype, x.rank)

    def write(self, cache: Value, offsets: Value, values: Value, valid: Value, *, rows: bool) -> Value:
        """One ScatterND. A token that is not valid repeats the write of the first valid one, which changes nothing;
        where no token is valid, all of them write the cache's first element or row back.
        """
        if cache.rank is None:
            raise ValueError("the rank of a written cache must be known")
        axes = cache.rank - 1 if rows else cache.rank
        if rows:
            place = offsets // self.dim(cache, cache.rank - 1)
            row_shape: list[Any] = [1, self.dim(values, 1), axes]
        else:
            place = self.reshape(offsets, [0, 0, 0, 1])
            row_shape = [1, self.dim(values, 1), self.dim(values, 2), axes]
        start = self.node(
            "ConstantOfShape", [self.sizes(row_shape)], "int64", value=helper.make_tensor("", 7, [1], [0])
        )
        old = self.node("GatherND", [cache, start], cache.dtype)
        places = self.node("Concat", [self._indices(cache, place, axes), start], "int64", axis=0)
        stored = self.node("Concat", [values, old], cache.dtype, axis=0)
        source = self._writer(valid)
        return self.node(
            "ScatterND", [cache, self.take(places, source), self.take(stored, source)], cache.dtype, cache.rank
        )

    def _writer(self, valid: Value) -> Value:
        """For each token the one whose write it does: itself, the first valid one, or the one after the last."""
        ended = self.node("Concat", [valid, self.constant([True], "bool")], "bool", 1, axis=0)
        first = self.node("ArgMax", [self.cast(ended, "int32")], "int64", 1, axis=0, keepdims=1)
        return self.where(valid, self.arange(self.dim(valid, 0)), first)

    def _indices(self, cache: Value, place: Value, axes: int) -> Value:
        """Flat positions over the first ``axes`` axes of the cache, ``[..., 1]``, as an index per axis."""
        parts: list[Value] = []
        for axis in range(axes - 1, 0, -1):
            size = self.dim(cache, axis)
            parts.insert(0, place % size)
            place = place // size
        return self.concat_columns([place, *parts])

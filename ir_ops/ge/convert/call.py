"""What a converter sees of one ONNX node, and how it adds GE nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ir_ops.dtypes import Array, DType, by_name
from ir_ops.ge.attrs import make_attr
from ir_ops.ge.builder import GraphBuilder
from ir_ops.ge.convert.operand import Operand
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.infer.call import Known
from ir_ops.ge.model import Attr, Shape
from ir_ops.ge.tensor import Outputs, Tensor, TensorLike


@dataclass
class NodeCall:
    """One ONNX node under conversion.

    Attributes:
        name: the node's name (its first output's where it has none).
        version: opset of the node's domain.
        used: which outputs anything reads.
        in_place: whether the node's in-place input is a RefData of its own (else a converter copies it first).
        product: whose limits apply to fused operators.
        store: keeps a weight that a converter made where the model's weights are kept.
        attention: "auto" takes GE's attention operator where it is provably the same, "plain" never.
    """

    builder: GraphBuilder
    op_type: str
    domain: str
    name: str
    version: int
    inputs: Sequence[Operand | None]
    attrs: Mapping[str, Any]
    used: Sequence[bool] = (True,)
    in_place: frozenset[int] = frozenset()
    product: str = "generic"
    notes: list[str] = field(default_factory=list)
    attention: str = "auto"
    store: Callable[[Array, str], Tensor] | None = None

    # ------------------------------------------------------------------------------------------------ reading

    def has(self, index: int) -> bool:
        """Whether input ``index`` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def arg(self, index: int) -> Operand:
        """Input ``index``. Raises Unsupported when it is not given."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise Unsupported(f"input {index} is missing")
        return operand

    def x(self, index: int) -> Tensor:
        """Input ``index`` as a GE tensor."""
        return self.arg(index).tensor()

    def dtype(self, index: int) -> DType:
        return self.arg(index).dtype

    def shape(self, index: int) -> Shape:
        """The dims of an input (-1 unknown). Raises Unsupported when not even the rank is known."""
        shape = self.arg(index).shape
        if shape is None:
            raise Unsupported(f"the rank of input {index} is not known")
        return shape

    def rank(self, index: int) -> int:
        return len(self.shape(index))

    def axis(self, value: int, rank: int) -> int:
        """``value`` as a non-negative axis."""
        if not -rank <= value < max(rank, 1):
            raise Unsupported(f"axis {value} of a tensor of rank {rank}")
        return value % rank if rank else 0

    def constant(self, index: int) -> Array:
        """The content of a constant input. Raises Unsupported when it is computed at run time."""
        values = self.arg(index).constant()
        if values is None:
            raise Unsupported(f"input {index} is not constant", "fix the input shapes (input_shapes) so that it folds")
        return values

    def ints(self, index: int) -> list[int]:
        """A constant integer input as a flat list."""
        return [int(item) for item in self.constant(index).reshape(-1)]

    def known(self, index: int) -> Known | None:
        return self.arg(index).known

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def axes(self, index: int) -> list[int] | None:
        """Axes from input ``index`` or from the attribute older opsets have; None when given by neither."""
        if self.has(index):
            return self.ints(index)
        axes = self.attr("axes")
        return None if axes is None else [int(axis) for axis in axes]

    # ------------------------------------------------------------------------------------------------ writing

    def emit(
        self, ge: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, part: str = "", **kwargs: Any
    ) -> Tensor:
        """Adds a GE node and returns its first output. ``part`` names a helper node beside the node's own name."""
        return self.emit_all(ge, inputs, attrs, part, **kwargs).flat()[0]

    def emit_all(
        self, ge: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, part: str = "", **kwargs: Any
    ) -> Outputs:
        """Adds a GE node and returns all its outputs."""
        placed = {key: value.tensor() if isinstance(value, Operand) else value for key, value in inputs.items()}
        return self.builder.add(ge, placed, attrs, name=f"{self.name}/{part}" if part else self.name, **kwargs)

    def emit_wide(
        self, ge: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, part: str = ""
    ) -> Tensor:
        """As :meth:`emit` for operators whose older prototypes lack bfloat16: its inputs and result pass float32.

        Exact for operators that select or compare; for the others one rounding, as bfloat16 arithmetic has.
        """
        first = next(iter(inputs.values()))
        if first.dtype.name != "bfloat16":
            return self.emit(ge, inputs, attrs, part)
        name = part or "wide"
        wide = {key: self.cast(value, "float32", f"{name}_{key}") for key, value in inputs.items()}
        return self.emit(
            "Cast", {"x": self.emit(ge, wide, attrs, name)}, {"dst_type": first.dtype}, part and f"{part}_bf16"
        )

    def scaled(self, x: Tensor, factor: float, part: str = "") -> Tensor:
        """``x * factor``."""
        return self.emit_wide("Muls", {"x": x}, {"value": factor}, part)

    def vector(self, values: Sequence[int], dtype: str = "int64") -> Array:
        """A 1-D integer constant."""
        return np.asarray(values, dtype=by_name(dtype).np).reshape(len(values))

    def scalar(self, value: Any, dtype: DType | str) -> Array:
        """A 0-d constant."""
        row = by_name(dtype) if isinstance(dtype, str) else dtype
        if row.np is None:
            raise Unsupported(f"no constant of type {row.name}")
        return np.asarray(value).astype(row.np)

    def cast(self, x: TensorLike, dtype: DType | str, part: str = "cast") -> Tensor:
        """``x`` as another type; no node when it has it already."""
        row = by_name(dtype) if isinstance(dtype, str) else dtype
        tensor = self.builder.const(x) if not isinstance(x, Tensor) else x
        return tensor if tensor.dtype == row else self.emit("Cast", {"x": tensor}, {"dst_type": row}, part)

    def reshape(self, x: Tensor, dims: Sequence[int | tuple[Tensor, int]], part: str = "") -> Tensor:
        """``x`` in another shape. A dim is a number, or (tensor, axis): the same as that dim, known or not."""
        sizes = [dim if isinstance(dim, int) else (dim[0].shape or ())[dim[1]] for dim in dims]
        if sizes.count(-1) <= 1:
            return self.emit("Reshape", {"x": x, "shape": self.vector(sizes)}, part=part)
        return self.emit("Reshape", {"x": x, "shape": self.dims(dims, part)}, part=part)

    def dims(self, dims: Sequence[int | tuple[Tensor, int]], part: str = "") -> Tensor:
        """A shape as an int64 vector, made at run time; its dims are given as to :meth:`reshape`."""
        sizes = [dim if isinstance(dim, int) else (dim[0].shape or ())[dim[1]] for dim in dims]
        parts = [self._dim(dim, size, f"{part}_dim{i}") for i, (dim, size) in enumerate(zip(dims, sizes, strict=True))]
        target = self.emit("ConcatD", {"x": parts}, {"concat_dim": 0}, f"{part}_target")
        known = np.asarray([None if size < 0 else size for size in sizes], dtype=object)
        return replace(target, known=known)

    def _dim(self, dim: int | tuple[Tensor, int], size: int, part: str) -> Tensor:
        """One dim as an int64 vector of length 1, read at run time where it is not known."""
        if isinstance(dim, int) or size >= 0:
            return self.builder.const(self.vector([size]))
        whole = self.emit("Shape", {"x": dim[0]}, {"dtype": 9}, part=f"{part}_shape")
        cut = {"begin": self.vector([dim[1]]), "end": self.vector([dim[1] + 1]), "axes": self.vector([0])}
        return self.emit("StridedSliceV2", {"x": whole, **cut, "strides": self.vector([1])}, part=part)

    def mark(self, name: str, ge_type: str, value: Any) -> dict[str, Attr]:
        """A private attribute (name begins with an underscore) for :meth:`emit`."""
        return {name: make_attr(ge_type, value, where=self.name)}

    def weight(self, array: Array, part: str) -> Tensor:
        """A constant of any size that the conversion made."""
        name = f"{self.name}/{part}"
        return self.builder.const(array, name=name) if self.store is None else self.store(array, name)

    def note(self, text: str) -> None:
        """Something the user of the exported file has to know."""
        self.notes.append(text)

    def note_once(self, text: str) -> None:
        """A note that does not depend on the node."""
        if text not in self.notes:
            self.notes.append(text)

    def require(self, *names: str, index: int = 0) -> None:
        """Raises Unsupported unless the type of input ``index`` is one of ``names``."""
        if self.dtype(index).name not in names:
            raise Unsupported(f"element type {self.dtype(index).name}", f"Cast to {names[0]}")


FLOATS = ("float32", "float16", "bfloat16")

"""Projections: from which value rows were projected, by which constant weight and bias.

Handled: MatMul, Gemm (alpha and beta 1, the weight stored either way) and MatMulInteger; a constant bias as Gemm's C or
as an Add behind the product; Identity, Cast and Transpose of the weight, Reshapes that keep whole rows, Identity
anywhere. Not a projection: a weight that is computed or that the caller may replace, a bias that differs by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import lookup
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import by_onnx

_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger")
_FAR = 24
"""Nodes between a projection and what is done with its rows."""


@dataclass(frozen=True)
class Weight:
    """A constant matrix.

    Attributes:
        value: the initializer or Constant that stores it.
        tensor: its content, unread.
        transposed: it is stored as ``[columns, hidden]``, not ``[hidden, columns]``.
        hidden, columns: its dims.
        dtype: the element type that the product reads, which a Cast may have made of the stored one.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    transposed: bool
    hidden: int
    columns: int
    dtype: str


@dataclass(frozen=True)
class Projection:
    """``value = input @ weight + bias``, row by row.

    Attributes:
        value: the projected rows, ``[.., columns]``.
        input: the operand of the product, ``[.., hidden]``.
        weight: the constant matrix.
        bias: a constant with one number for each column, None without one.
        product: the MatMul, Gemm or MatMulInteger node.
        input_zero, weight_zero: zero points of MatMulInteger; that of the weight is a constant.
        rank: dims of ``value``.
    """

    value: ir.Value
    input: ir.Value
    weight: Weight
    bias: ir.Value | None
    product: ir.Node
    input_zero: ir.Value | None
    weight_zero: ir.Value | None
    rank: int

    @property
    def columns(self) -> int:
        return self.weight.columns

    @property
    def is_turned(self) -> bool:
        """Whether the product takes its weight as ``[columns, hidden]``: Gemm with transB."""
        attrs = self.product.attributes
        return self.product.op_type == "Gemm" and "transB" in attrs and bool(attrs["transB"].as_int())


def projection_of(view: GraphView, value: ir.Value, probes: Sequence[Probe]) -> Projection | None:
    """The projection that computes ``value``, None when it is none.

    Args:
        probes: trial sizes; whether a Reshape keeps rows is told by the shapes under them.
    """
    root = view.root(value)
    node = root.producer()
    shape = probes[0].shape(root)
    if node is None or shape is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _PRODUCTS:
        return _product(view, node, root, None, len(shape))
    if node.op_type != "Add":
        return None
    for inner, other in ((0, 1), (1, 0)):
        summand, bias = node.inputs[inner], node.inputs[other]
        if summand is None or bias is None:
            continue
        product = source_of_rows(view, summand, probes).producer()
        if product is None or product.op_type not in ("MatMul", "Gemm") or product.domain not in ("", "ai.onnx"):
            continue
        found = _product(view, product, root, bias, len(shape))
        if found is not None:
            return found
    return None


def source_of_rows(view: GraphView, value: ir.Value, probes: Sequence[Probe]) -> ir.Value:
    """The value with the same rows in the same order, behind Identity and Reshapes that keep the last dim."""
    while True:
        value = view.root(value)
        node = value.producer()
        if node is None or node.op_type not in ("Reshape", "Flatten", "Unsqueeze", "Squeeze"):
            return value
        inner = node.inputs[0]
        if inner is None or not all(_keeps_rows(probe.shape(inner), probe.shape(value)) for probe in probes):
            return value
        value = inner


def origin(view: GraphView, value: ir.Value) -> ir.Value:
    """What a value was projected from, or moved from where no product is behind it; a hint to what belongs together.

    Not followed with any care: who joins rows of one origin has to read them.
    """
    rows = _moved_from(view, value)
    node = rows.producer()
    if node is None or node.op_type not in _PRODUCTS or node.inputs[0] is None:
        return rows
    return source_of_rows(view, node.inputs[0], ())


def is_projected(view: GraphView, value: ir.Value) -> bool:
    """Whether a product is what :func:`origin` looks through."""
    node = _moved_from(view, value).producer()
    return node is not None and node.op_type in _PRODUCTS


def _moved_from(view: GraphView, value: ir.Value) -> ir.Value:
    """What a value is taken from by movement, casts and constant summands."""
    for _ in range(_FAR):
        value = view.root(value)
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return value
        definition = lookup(node.domain, node.op_type)
        if node.op_type == "Add":
            inner = [item for item in node.inputs if item is not None and not view.is_constant(view.root(item))]
            if len(inner) != 1:
                return value
            value = inner[0]
        elif node.op_type == "Cast" or (definition is not None and definition.moves == (0,)):
            value = node.inputs[0]
        else:
            return value
    return value


def _keeps_rows(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> bool:
    return bool(before) and bool(after) and before is not None and after is not None and before[-1] == after[-1]


def siblings(view: GraphView, projections: Sequence[Projection], probes: Sequence[Probe]) -> bool:
    """Whether all project the same rows by products of one kind: their columns may stand side by side."""
    first = projections[0]
    number = view.number(source_of_rows(view, first.input, probes))
    return all(
        view.number(source_of_rows(view, item.input, probes)) == number
        and dtype_name(item.input) == dtype_name(first.input)
        and item.weight.hidden == first.weight.hidden
        and item.weight.tensor.dtype == first.weight.tensor.dtype
        and (item.product.op_type == "MatMulInteger") == (first.product.op_type == "MatMulInteger")
        and _same_number(view, item.input_zero, first.input_zero)
        for item in projections
    )


def _same_number(view: GraphView, a: ir.Value | None, b: ir.Value | None) -> bool:
    return a is b if a is None or b is None else view.number(a) == view.number(b)


def _product(view: GraphView, node: ir.Node, value: ir.Value, added: ir.Value | None, rank: int) -> Projection | None:
    operands = [*node.inputs, None, None]
    x, stored = operands[0], operands[1]
    turned, bias = False, added
    input_zero: ir.Value | None = None
    weight_zero: ir.Value | None = None
    if x is None or stored is None:
        return None
    if node.op_type == "Gemm":
        attrs = view.attrs(node)
        inner = operands[2]
        if attrs.get("alpha", 1.0) != 1.0 or attrs.get("transA", 0) or (inner is not None and added is not None):
            return None
        if inner is not None and attrs.get("beta", 1.0) != 1.0:
            return None
        turned, bias = bool(attrs.get("transB", 0)), inner if inner is not None else added
    elif node.op_type == "MatMulInteger":
        input_zero, weight_zero = operands[2:4]
    weight = _weight(view, stored, turned)
    if weight is None:
        return None
    if weight_zero is not None and (weight_zero := _vector(view, weight_zero, weight.columns, or_one=True)) is None:
        return None
    if bias is not None:
        bias = _vector(view, bias, weight.columns)
        if bias is None:
            return None
    return Projection(value, x, weight, bias, node, input_zero, weight_zero, rank)


def _weight(view: GraphView, value: ir.Value, transposed: bool) -> Weight | None:
    """The stored matrix behind Identity, Transpose and Casts between float types."""
    kind = dtype_name(value)
    while True:
        tensor = view.tensor(value)
        if tensor is not None:
            dims = tuple(tensor.shape.numpy())
            if len(dims) != 2:
                return None
            hidden, columns = dims[::-1] if transposed else dims
            return Weight(value, tensor, transposed, hidden, columns, kind or by_onnx(int(tensor.dtype)).name)
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Transpose" and list(view.attrs(node).get("perm", (1, 0))) == [1, 0]:
            transposed = not transposed
        elif (node.op_type == "Cast" and not _between_floats(view, node)) or node.op_type not in ("Identity", "Cast"):
            return None
        value = node.inputs[0]


def _between_floats(view: GraphView, node: ir.Node) -> bool:
    return "float" in dtype_name(node.inputs[0]) and "float" in view.cast_target(node)


def _vector(view: GraphView, value: ir.Value, columns: int, or_one: bool = False) -> ir.Value | None:
    """The constant behind Identity that has a number for each column, the same for every row, or one for all."""
    root = view.root(value)
    tensor = view.tensor(root)
    if tensor is None:
        return None
    dims = tuple(tensor.shape.numpy())
    if or_one and tensor.size == 1:
        return root
    return root if dims and dims[-1] == columns and all(dim == 1 for dim in dims[:-1]) else None

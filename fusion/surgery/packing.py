"""Packing of projections: several products of one value by constant weights become one product by all of them.

A rule whose operator takes one value lays the projected rows side by side with :func:`side_by_side`: a Concat, and with
it the site is proven. What comes back beside it, a :class:`Join`, goes to ``Candidate.joins``. Once the fusions are in
the graph, :func:`pack` turns the Concats of those joins into one product each where that is wanted; ``x @ [A | B]`` is
``[x @ A | x @ B]`` column by column, whatever the numbers. No weight is read here: packed ones are
:class:`~fusion.packed.PackedTensor`, put together block by block when the model is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from fusion.emit import Emitter
from fusion.facts.attention.projection import Projection, projection_of, siblings
from fusion.facts.graph import GraphView
from fusion.facts.trial.probe import Probe
from fusion.packed import PackedTensor, Piece, stored_outside
from ir_ops.dtypes import Array, by_onnx

Pack = Literal["auto", "always", "never"]
LIMIT = 256 * 2**20
"""Bytes of external weights that ``auto`` rewrites in a model: about a second of reading and writing."""


@dataclass(frozen=True)
class Join:
    """Projected rows side by side.

    Attributes:
        value: what the new Concat gives.
        parts: the projections, in the order of their columns; all of one value.
        flat: the parts were reshaped to ``[rows, columns]`` in front of the Concat.
        rank: dims of what the first part's operand gives for a product.
        emit: the emitter of the site, for names.
    """

    value: ir.Value
    parts: tuple[Projection, ...]
    flat: bool
    rank: int
    emit: Emitter

    @property
    def outside(self) -> int:
        """Bytes of external weights that packing rewrites."""
        return sum(part.weight.tensor.nbytes for part in self.parts if stored_outside(part.weight.tensor))

    @property
    def row_bytes(self) -> int:
        """Bytes that the Concat moves for each row."""
        return int(sum(part.columns for part in self.parts) * by_onnx(int(self.value.dtype or 1)).itemsize)

    @property
    def names(self) -> str:
        return ", ".join(part.weight.value.name or "?" for part in self.parts)


def side_by_side(
    emit: Emitter, view: GraphView, values: Sequence[ir.Value], probes: Sequence[Probe], part: str
) -> tuple[ir.Value, Join | None]:
    """Rows of several values next to each other as ``[rows, columns]``, the first value's columns first.

    Args:
        values: ``[.., columns]`` each, of one element type, with equal rows in equal order.
        probes: trial sizes; the last dims are the same under all of them.
        part: names the new values.

    Returns:
        The joined rows, and the join when all values are projections of one value that could be packed.
    """
    shapes = [probes[0].shape(value) or () for value in values]
    width = sum(shape[-1] for shape in shapes)
    flat = len({len(shape) for shape in shapes}) != 1
    rows = list(values)
    if flat:
        rows = [
            emit.reshape(value, [-1, shape[-1]], f"{part}_rows") for value, shape in zip(values, shapes, strict=True)
        ]
    joined = emit.concat(rows, f"{part}_joined")
    whole = joined if flat or len(shapes[0]) == 2 else emit.reshape(joined, [-1, width], part)
    return whole, _join(emit, view, joined, values, probes, flat)


def _join(
    emit: Emitter, view: GraphView, joined: ir.Value, values: Sequence[ir.Value], probes: Sequence[Probe], flat: bool
) -> Join | None:
    found = [projection_of(view, value, probes) for value in values]
    parts = tuple(part for part in found if part is not None)
    if len(values) < 2 or len(parts) < len(values) or not siblings(view, parts, probes):
        return None
    if parts[0].weight.tensor.dtype.itemsize not in (1, 2, 4, 8):
        return None
    rank = len(probes[0].shape(parts[0].input) or ())
    return Join(joined, parts, flat, rank, emit) if flat or rank == parts[0].rank else None


def pack(graph: ir.Graph, joins: Sequence[Join], how: Pack) -> list[str]:
    """Turns joins into single products where that is cheaper, and says for each what was done and why.

    ``auto``: weights inside the model file are written anew with it in any case, so packing costs nothing; external
    ones are rewritten up to :data:`LIMIT` bytes in a model. ``always`` and ``never`` do what they say.

    The graph must hold no dead readers of the projections: who still reads one is given its columns of the product.
    """
    total = sum(join.outside for join in joins)
    packed: dict[tuple[object, ...], ir.Value] = {}
    notes = []
    for join in joins:
        reason = _why_not(join, how, total)
        if not reason:
            _pack(graph, join, packed)
        notes.append(_note(join, reason))
    return notes


def _why_not(join: Join, how: Pack, total: int) -> str:
    if how == "never":
        return "packing is switched off"
    if any(part.rank != join.rank and _is_read(part.value, join) for part in join.parts):
        return "a projection of another rank is read elsewhere too"
    if how == "auto" and join.outside and total > LIMIT:
        tokens = join.outside // join.row_bytes
        return (
            f"packing would rewrite {_size(total)} of external weights, more than {_size(LIMIT)}; "
            f"--pack always does so, which pays after about {tokens} tokens"
        )
    return ""


def _note(join: Join, reason: str) -> str:
    weights = _size(sum(part.weight.tensor.nbytes for part in join.parts))
    if reason:
        return f"{join.names} are joined by a Concat, {_size(2 * join.row_bytes)} moved for each token: {reason}"
    product = join.parts[0].product.op_type
    return f"{join.names} are packed into one {product}: {weights} of weights rewritten once, no Concat"


def _size(count: int) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000  # type: ignore[assignment]
    return f"{count} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"


def _other_readers(value: ir.Value, join: Join) -> list[tuple[ir.Node, int]]:
    """Live readers of a projection beside the join."""
    own = {id(join.value.producer())}
    node = join.value.producer()
    if join.flat and node is not None:
        own |= {id(item.producer()) for item in node.inputs if item is not None}
    return [(use.node, use.idx) for use in value.uses() if id(use.node) not in own]


def _is_read(value: ir.Value, join: Join) -> bool:
    return value.is_graph_output() or bool(_other_readers(value, join))


def _pack(graph: ir.Graph, join: Join, packed: dict[tuple[object, ...], ir.Value]) -> None:
    emit = join.emit.beside()
    product = _product(emit, join, packed)
    starts = np.cumsum([0, *(part.columns for part in join.parts)]).tolist()
    for part, start in zip(join.parts, starts, strict=False):
        if _is_read(part.value, join):
            _hand_out(graph, emit, part, product, start, _other_readers(part.value, join))
    rows = emit.reshape(product, [-1, starts[-1]], "packed_rows") if join.flat else product
    graph.extend(emit.nodes)
    for constant in emit.constants:
        graph.register_initializer(constant)
    for use in tuple(join.value.uses()):
        use.node.replace_input_with(use.idx, rows)


def _hand_out(
    graph: ir.Graph, emit: Emitter, part: Projection, product: ir.Value, start: int, readers: list[tuple[ir.Node, int]]
) -> None:
    """Readers of one projection read its columns of the packed product; a graph output keeps its name."""
    bounds = [emit.ints([number], "bound") for number in (start, start + part.columns, -1)]
    own = emit.node("Slice", [product, *bounds], "columns")
    own.type, own.shape = part.value.type, part.value.shape
    for node, place in readers:
        node.replace_input_with(place, own)
    if part.value.is_graph_output():
        name, part.value.name = part.value.name, f"{part.value.name}/unpacked"
        own.name = name
        for place, output in enumerate(graph.outputs):
            if output is part.value:
                graph.outputs[place] = own


def _product(emit: Emitter, join: Join, packed: dict[tuple[object, ...], ir.Value]) -> ir.Value:
    """``input @ [weights] + [biases]`` by the operator of the first part.

    The operands are those that its node reads now: what computed them may have been replaced by another fusion.
    """
    first = join.parts[0]
    x = first.product.inputs[0]
    assert x is not None
    kind = first.product.op_type
    turned = first.is_turned
    weight = _weight(emit, join, turned, packed)
    biases = [part.bias for part in join.parts]
    bias = _vector(emit, join, biases, "packed_bias") if any(item is not None for item in biases) else None
    if kind == "MatMulInteger":
        zeros = [part.weight_zero for part in join.parts]
        zero = _vector(emit, join, zeros, "packed_zero") if any(item is not None for item in zeros) else None
        operands = [x, weight, first.product.inputs[2] if first.input_zero is not None else None, zero]
        while operands[-1] is None:
            operands.pop()
        return emit.node(kind, operands, "packed", dtype=join.value.dtype)
    if kind == "Gemm":
        operands = [x, weight] if bias is None else [x, weight, bias]
        return emit.node(kind, operands, "packed", {"transB": int(turned)}, dtype=join.value.dtype)
    product = emit.node(kind, [x, weight], "packed", dtype=join.value.dtype)
    return product if bias is None else emit.node("Add", [product, bias], "packed_biased")


def _weight(emit: Emitter, join: Join, turned: bool, packed: dict[tuple[object, ...], ir.Value]) -> ir.Value:
    key = (turned, *((id(part.weight.value), part.weight.transposed) for part in join.parts))
    if key not in packed:
        pieces = [Piece(part.weight.tensor, part.weight.transposed != turned) for part in join.parts]
        packed[key] = _constant(emit, PackedTensor(pieces, 0 if turned else 1, emit.name("packed_weight")))
    return emit.cast(packed[key], join.parts[0].weight.dtype, "packed_weight_cast")


def _constant(emit: Emitter, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(
        name=tensor.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    emit.constants.append(value)
    return value


def _vector(emit: Emitter, join: Join, values: Sequence[ir.Value | None], name: str) -> ir.Value:
    """Numbers of all columns from a vector or a single number each, zeros where a part has none; read when written."""
    widths = [part.columns for part in join.parts]
    tensors = [None if item is None else _tensor(item) for item in values]
    kind = next(tensor for tensor in tensors if tensor is not None).dtype

    def whole() -> ir.TensorProtocol:
        parts: list[Array] = []
        for tensor, width in zip(tensors, widths, strict=True):
            numbers = np.zeros(1, kind.numpy()) if tensor is None else np.asarray(tensor.numpy()).reshape(-1)
            parts.append(np.broadcast_to(numbers, (width,)))
        return ir.Tensor(np.concatenate(parts), dtype=kind)

    lazy = ir.LazyTensor(whole, kind, ir.Shape((sum(widths),)), name=emit.name(name))
    return _constant(emit, lazy)


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    """What an initializer or a Constant node holds."""
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None
    return tensor

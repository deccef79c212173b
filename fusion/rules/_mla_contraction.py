"""The absorbed query: each head's nope part times that head's matrix, whatever operator contracts them.

MatMul with batches, Einsum, and Mul with ReduceSum are brought to one form: an axis letter for each axis of the
operands and of the result. From the letters follow which axis counts heads, which is summed, and what stays.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView
from fusion.facts.semantics.table import axes_of
from fusion.facts.symbols.parameters import single
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.trial.probe import Probe
from fusion.rules._mla_memo import Structure, shared
from ir_ops.dtypes import Array

NO_AXIS = "1"
"""Stands for an axis of size 1 that no letter names."""


@dataclass(frozen=True)
class Contraction:
    """``out`` is the sum over shared letters of ``data`` times ``weight``; axes as letters."""

    out: ir.Value
    data: ir.Value
    weight: ir.Value
    data_axes: str
    weight_axes: str
    out_axes: str


@dataclass(frozen=True)
class Absorbed:
    """A contraction read as ``out[t, n, c] = sum over d of m[t, n, nope[d]] * weight[n, d, c]``.

    Attributes:
        order: the axes of the weight in the order (head, summed, kept); the head axis is left out for one head.
        sizes: N, D, C.
        nope: columns of a head in the up-projection, in the order of the sum.
        position: where each element of ``out`` lies in ``[T, N, C]``.
    """

    contraction: Contraction
    order: tuple[int, ...]
    sizes: tuple[int, int, int]
    nope: Array
    position: Array


class NotAbsorbed(Exception):
    """Why a contraction is not that of the operator: ``found`` and ``wanted``."""

    def __init__(self, fact: str, found: str, wanted: str) -> None:
        super().__init__(fact)
        self.fact, self.found, self.wanted = fact, found, wanted


def may_contract(view: GraphView, node: ir.Node) -> bool:
    """Whether a node is of a kind that :func:`contractions` reads."""
    if node.op_type == "Mul":
        reader = view.only_reader(node.outputs[0])
        return reader is not None and reader[0].op_type == "ReduceSum"
    return node.op_type in ("MatMul", "Einsum")


def contractions(view: GraphView, node: ir.Node, data: ir.Value, probe: Probe) -> list[Contraction]:
    """How a node contracts ``data`` with its other operand; usually one reading, none for other nodes."""
    if node.domain not in ("", "ai.onnx") or len(node.inputs) != 2 or None in node.inputs:
        return []
    left, right = node.inputs
    assert left is not None and right is not None
    shapes = probe.shape(left), probe.shape(right)
    if shapes[0] is None or shapes[1] is None or left is right:
        return []
    if node.op_type == "Einsum":
        axes = _equation(str(view.attrs(node)["equation"]), len(shapes[0]), len(shapes[1]))
        found = [] if axes is None else [(node.outputs[0], axes)]
    elif node.op_type == "MatMul" and min(len(shapes[0]), len(shapes[1])) >= 2:
        found = [(node.outputs[0], _matmul(len(shapes[0]), len(shapes[1])))]
    elif node.op_type == "Mul":
        found = _summed_product(view, node, len(shapes[0]), len(shapes[1]))
    else:
        return []
    swapped = right is data
    return [
        Contraction(out, data, left, axes[1], axes[0], axes[2]) if swapped
        else Contraction(out, data, right, axes[0], axes[1], axes[2])
        for out, axes in found
    ]  # fmt: skip


Axes = tuple[str, str, str]


def _equation(equation: str, left: int, right: int) -> Axes | None:
    """The letters of an Einsum of two operands, an ellipsis spelled out."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if len(parts) != 2:
        return None
    if not arrow:
        letters = sorted(letter for letter in set(inputs) - set(",.") if inputs.count(letter) == 1)
        out = ("..." if "..." in inputs else "") + "".join(letters)
    free = [letter for letter in string.ascii_uppercase if letter not in equation]
    counts = [rank - len(part.replace("...", "")) for part, rank in zip(parts, (left, right), strict=True)]
    longest = max((count for part, count in zip(parts, counts, strict=True) if "..." in part), default=0)
    dots = free[:longest]
    spelled = [
        part.replace("...", "".join(dots[len(dots) - count :]) if "..." in part else "")
        for part, count in zip(parts, counts, strict=True)
    ]
    axes = (*spelled, out.replace("...", "".join(dots)))
    fits = len(axes[0]) == left and len(axes[1]) == right
    return (axes[0], axes[1], axes[2]) if fits and all(len(set(part)) == len(part) for part in axes) else None


def _matmul(left: int, right: int) -> Axes:
    batch = string.ascii_lowercase[: max(left, right) - 2]
    return batch[len(batch) - left + 2 :] + "IK", batch[len(batch) - right + 2 :] + "KJ", batch + "IJ"


def _summed_product(view: GraphView, node: ir.Node, left: int, right: int) -> list[tuple[ir.Value, Axes]]:
    """A product with broadcasting whose only use is a sum over one axis."""
    rank = max(left, right)
    letters = string.ascii_lowercase[:rank]
    reader = view.only_reader(node.outputs[0])
    if reader is None or reader[0].op_type != "ReduceSum" or reader[1] != 0:
        return []
    total = reader[0]
    attrs = view.attrs(total)
    operand = total.inputs[1] if len(total.inputs) > 1 else None
    axes = axes_of(attrs, None if operand is None else view.constant(view.root(operand)), rank)
    if axes is None or len(axes) != 1:
        return []
    kept = NO_AXIS if attrs.get("keepdims", 1) == 1 else ""
    out = letters[: axes[0]] + kept + letters[axes[0] + 1 :]
    return [(total.outputs[0], (letters[rank - left :], letters[rank - right :], out))]


def read_absorbed(view: GraphView, probe: Probe, made: Contraction, up: ir.Value, factor: float) -> Absorbed:
    """Reads a contraction of (moved) elements of ``up[.., N*(D+Dr)]``, which come times ``factor``.

    Raises:
        NotAbsorbed: axes, columns or order are not those of one matrix a head.
    """
    what = ("absorbed", factor, made.data_axes, made.weight_axes, made.out_axes, probe.shape(made.weight),
            probe.shape(made.out))  # fmt: skip
    found: Absorbed = shared(
        view,
        what,
        Structure(view, probe, [made.data], up),
        lambda: _read_absorbed(view, probe, made, up, factor),
        lambda known, *_: replace(known, contraction=made),
    )
    return found


def _read_absorbed(view: GraphView, probe: Probe, made: Contraction, up: ir.Value, factor: float) -> Absorbed:
    shapes = [probe.shape(value) for value in (made.data, made.weight, made.out, up)]
    if any(shape is None for shape in shapes):
        raise NotAbsorbed("the absorbed query", "values of unknown shape", "known shapes")
    data, weight, out, rows = (shape or () for shape in shapes)
    data_axes, weight_axes = _named(made.data_axes, data, made, weight), _named(made.weight_axes, weight, made, data)
    size = dict(zip(data_axes, data, strict=True)) | dict(zip(weight_axes, weight, strict=True))
    head, summed, kept, tokens = _roles(made, data_axes, weight_axes, size)
    heads = size[head] if head else 1
    place = _positions(view, probe, made.data, up, factor)
    unit = [axis for axis, letter in enumerate(data_axes) if letter == NO_AXIS]
    place = place.transpose([*unit, *(data_axes.index(letter) for letter in (*tokens, *head, summed))])
    place = place.reshape(-1, heads, size[summed])
    token, nope = _columns(place, rows[-1], heads)
    order = tuple(weight_axes.index(letter) for letter in (*head, summed, kept))
    sizes = (heads, size[summed], size[kept])
    lead = [size[letter] for letter in tokens]
    index = (token[:, None, None] * heads + np.arange(heads)[:, None]) * sizes[2] + np.arange(sizes[2])
    index = index.reshape(*lead, *([heads] if head else []), sizes[2])
    letters = "".join((*tokens, *head, kept))
    index = index.transpose([letters.index(letter) for letter in made.out_axes if letter in letters])
    return Absorbed(made, order, sizes, nope, index.reshape(out))


def _named(axes: str, dims: tuple[int, ...], made: Contraction, others: tuple[int, ...]) -> str:
    """The letters of one operand, without those of axes of size 1 that only follow the other operand."""
    size = {
        letter: dim
        for letters, sizes in ((made.data_axes, dims if axes is made.data_axes else others),
                               (made.weight_axes, others if axes is made.data_axes else dims))
        for letter, dim in zip(letters, sizes, strict=True)
        if dim != 1
    }  # fmt: skip
    return "".join(
        NO_AXIS if dim == 1 and size.get(letter, 1) != 1 else letter for letter, dim in zip(axes, dims, strict=True)
    )


def _roles(made: Contraction, data_axes: str, weight_axes: str, size: dict[str, int]) -> tuple[str, str, str, str]:
    """Letters of the head (empty for one head), of the sum, of what the weight adds, and of the tokens."""
    in_data, in_weight, in_out = set(data_axes) - {NO_AXIS}, set(weight_axes) - {NO_AXIS}, set(made.out_axes)
    summed = [letter for letter in data_axes if letter in in_weight and letter not in in_out]
    heads = [letter for letter in data_axes if letter in in_weight and letter in in_out]
    large = [letter for letter in heads if size[letter] > 1]
    kept = [letter for letter in weight_axes if letter in in_out - in_data]
    tokens = "".join(letter for letter in data_axes if letter in in_out - in_weight and letter != NO_AXIS)
    lost = (in_data | in_weight) - in_out - set(summed)
    if len(summed) != 1 or len(kept) != 1 or len(large) > 1 or lost:
        raise NotAbsorbed(
            "the absorbed query", f"{made.data_axes},{made.weight_axes}->{made.out_axes}",
            "one matrix for each head: heads shared, one axis summed, one added",
        )  # fmt: skip
    head = large[0] if large else heads[-1] if heads else ""
    return head, summed[0], kept[0], "".join(letter for letter in heads if letter != head) + tokens


def _positions(view: GraphView, probe: Probe, data: ir.Value, up: ir.Value, factor: float) -> Array:
    """Where each element of ``data`` lies in ``up``."""
    symbolic = Symbolic(view, probe, {id(up)})
    sym = symbolic.read(data, 0 if factor == 1 else 2)
    if factor != 1:
        sym.coef = np.where(np.isclose(sym.coef, factor, rtol=1e-12), 1.0, sym.coef)
    part = single(symbolic, sym)
    if part is None or part.value is not up:
        raise NotAbsorbed("the absorbed query", "a mixture of values", "columns of the up-projection")
    return part.position


def _columns(place: Array, width: int, heads: int) -> tuple[Array, Array]:
    """The token of each row of ``place[T, N, D]``, and the columns of a head that it holds."""
    row, column = place // width, place % width
    if (row != row[:, :1, :1]).any() or width % heads or len(np.unique(row[:, 0, 0])) != len(row):
        raise NotAbsorbed("the absorbed query", "rows of several tokens together", "one token a row")
    own = width // heads
    head, nope = column // own, column % own
    if (head != np.arange(heads)[:, None]).any() or (nope != nope[:1, :1]).any():
        raise NotAbsorbed(
            "the absorbed query", "columns of other heads, or other columns by head", "one range of columns a head"
        )
    return row[:, 0, 0], nope[0, 0]

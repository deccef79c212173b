"""RMSNorm as algebra: a product ``x^1 * (mean(x^2) + epsilon)^(-1/2) * gamma^1`` in whatever order it is written.

Handled: Pow or Mul squares, ReduceMean, ReduceSum with a factor 1/n, ReduceSumSquare, any mixture of Mul, Div, Pow,
Sqrt, Reciprocal, Neg, Cast and Identity, gamma before or after a cast, recomputed sub-expressions; and the operators
that are a norm by themselves. Refused by construction: another axis, another n, epsilon outside the root, centring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dims_of
from fusion.facts.norms.product import Algebra, Product
from fusion.facts.strip import signless, stripped
from fusion.facts.trial.settle import Survey

_FUSED = ("RMSNormalization", "SimplifiedLayerNormalization")
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
_STEP = ("Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Cast", "Identity")
_ROUNDED = 1e-6
"""How far a float32 constant may be from a number, its reciprocal or its root."""
_PARTS = 3
"""Factors in which a sum of squares may be divided by its number."""
_VIEWS = ("Identity", "Cast", "Unsqueeze", "Reshape", "Squeeze", "Expand")
"""What may stand between the steps of the mean; that a view is no other axis is for the proof to say."""


@dataclass(frozen=True)
class NormFact:
    """``y`` is the RMSNorm of ``x`` over its last axis.

    Attributes:
        y: the normalised value, at its earliest (casts behind it are movement).
        x: the squared value, with casts, Identity and Neg stripped.
        gamma: the weight, casts stripped; None for a norm without one.
        epsilon: what is added to the mean square.
        count: the number of elements the mean divides by, or the value that holds it; None for a mean over the axis.
        nodes: the nodes between x and y.
        factor: a number that every element is multiplied by as well: the weight is gamma times it.
    """

    y: ir.Value
    x: ir.Value
    gamma: ir.Value | None
    epsilon: float
    count: float | ir.Value | None
    nodes: tuple[ir.Node, ...]
    factor: float = 1.0

    def slack(self, width: int) -> float:
        """How far the result may move because the number of elements is written as a rounded reciprocal."""
        off = abs(self.count / width - 1) if isinstance(self.count, float) and width else 0.0
        return off if off < _ROUNDED else 0.0


@dataclass(frozen=True)
class _Mean:
    """A value that is the mean square, or (``raw``) the sum of squares, whose factor then shows in the product."""

    value: ir.Value
    count: float | ir.Value | None
    nodes: tuple[ir.Node, ...]
    raw: bool = False


def find_norms(view: GraphView, survey: Survey) -> list[NormFact]:
    """All RMSNorms of a graph, in its order."""
    found: list[NormFact] = []
    for node in view.graph:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _FUSED:
            found.extend(_fused(view, survey, node))
        elif node.op_type in _REDUCTIONS:
            found.extend(_spelled(view, survey, node))
    return found


def _fused(view: GraphView, survey: Survey, node: ir.Node) -> list[NormFact]:
    attrs = view.attrs(node)
    x, gamma = node.inputs[0], node.inputs[1]
    if x is None or int(attrs.get("axis", -1)) not in _last_axis(survey, x):
        return []
    fact = NormFact(
        node.outputs[0],
        stripped(view, x),
        None if gamma is None else stripped(view, gamma),
        float(attrs.get("epsilon", 1e-5)),
        None,
        (node,),
    )
    return [fact]


def _last_axis(survey: Survey, x: ir.Value) -> tuple[int, ...]:
    dims = dims_of(x) or survey.shape(x)
    return (-1,) if dims is None else (-1, len(dims) - 1)


def _spelled(view: GraphView, survey: Survey, reduction: ir.Node) -> list[NormFact]:
    squared = _squared(view, survey, reduction)
    if squared is None:
        return []
    x, square_nodes = squared
    facts: list[NormFact] = []
    for mean in _means(view, reduction):
        for value in _views(view, mean.value):
            for use, _ in view.following(value):
                epsilon = _other_scalar(view, use, value)
                if use.op_type == "Add" and epsilon is not None:
                    facts.extend(_products(view, survey, x, use, epsilon, mean, (*square_nodes, *mean.nodes, use)))
    return facts


def _views(view: GraphView, value: ir.Value) -> list[ir.Value]:
    """The value and its views."""
    found = [value]
    for item in found:
        found += [use.outputs[0] for use, place in view.following(item) if use.op_type in _VIEWS and place == 0]
    return found


def _squared(view: GraphView, survey: Survey, reduction: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """The value whose squares a reduction sums over the last axis, and the nodes that square it."""
    if reduction.inputs[0] is None or not _reduces_last(view, survey, reduction):
        return None
    return _square(view, reduction)


def squared_value(view: GraphView, reduction: ir.Node) -> ir.Value | None:
    """The value whose squares a reduction sums, over whatever axes; None where it sums something else."""
    found = None if reduction.inputs[0] is None else _square(view, reduction)
    return None if found is None else found[0]


def _square(view: GraphView, reduction: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    operand = reduction.inputs[0]
    assert operand is not None
    if reduction.op_type in ("ReduceSumSquare", "ReduceL2"):
        return signless(view, operand)[1], (reduction,)
    square = stripped(view, operand)
    node = square.producer()
    if node is None or len(node.inputs) < 2:
        return None
    first = node.inputs[0]
    if node.op_type == "Pow" and view.scalar(node.inputs[1]) == 2.0 and first is not None:
        return signless(view, first)[1], (node, reduction)
    if node.op_type == "Mul" and first is not None and node.inputs[1] is not None:
        left, right = signless(view, first)[1], signless(view, node.inputs[1])[1]
        if view.number(left) == view.number(right):
            return left, (node, reduction)
    return None


def _reduces_last(view: GraphView, survey: Survey, reduction: ir.Node) -> bool:
    attrs = view.attrs(reduction)
    if reduction.inputs[0] is None:
        return False
    axes = attrs.get("axes")
    if axes is None and len(reduction.inputs) > 1:
        constant = view.constant(_plain_constant(view, reduction.inputs[1]))
        axes = None if constant is None else constant.reshape(-1).tolist()
    return axes is not None and len(axes) == 1 and int(axes[0]) in _last_axis(survey, reduction.inputs[0])


def _plain_constant(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """A constant seen through reshapes and casts, as unoptimised exports write it."""
    while value is not None and not view.is_constant(value):
        node = value.producer()
        if node is None or node.op_type not in ("Identity", "Reshape", "Cast", "Unsqueeze"):
            return None
        value = node.inputs[0]
    return value


def _means(view: GraphView, reduction: ir.Node) -> list[_Mean]:
    """Values that are the mean square."""
    if reduction.op_type == "ReduceMean":
        return [_Mean(reduction.outputs[0], None, ())]
    totals: list[tuple[ir.Value, tuple[ir.Node, ...]]] = [(item, ()) for item in _views(view, reduction.outputs[0])]
    if reduction.op_type == "ReduceL2":
        totals = [(node.outputs[0], (node,)) for item, _ in totals for node in _squares_of(view, item)]
    found = [_Mean(total, None, nodes, raw=True) for total, nodes in totals]
    divided = [(total, 1.0, nodes) for total, nodes in totals]
    for value, count, nodes in divided:  # grows while it is walked: the number may come in parts
        for use, position in view.following(value):
            factor = _other_scalar(view, use, value)
            if factor and (use.op_type == "Mul" or (use.op_type == "Div" and position == 0)):
                now = count / factor if use.op_type == "Mul" else count * factor
                found.append(_Mean(use.outputs[0], now, (*nodes, use)))
                if len(nodes) < _PARTS:
                    divided.append((use.outputs[0], now, (*nodes, use)))
            elif use.op_type == "Div" and position == 0 and use.inputs[1] is not None and count == 1:
                # a width taken from a shape; the trial sizes tell whether it is one
                found.append(_Mean(use.outputs[0], use.inputs[1], (*nodes, use)))
    return found


def _squares_of(view: GraphView, value: ir.Value) -> list[ir.Node]:
    """Nodes that square a value."""
    own = view.number(value)
    return [
        use
        for use, place in view.following(value)
        if (use.op_type == "Mul" and all(item is not None and view.number(item) == own for item in use.inputs))
        or (use.op_type == "Pow" and place == 0 and view.scalar(use.inputs[1]) == 2.0)
    ]


def _other_scalar(view: GraphView, node: ir.Node, value: ir.Value) -> float | None:
    """The constant number on the other side of a binary operator."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    return view.scalar(right) if left is value else view.scalar(left) if right is value else None


def _products(
    view: GraphView, survey: Survey, x: ir.Value, root: ir.Node, epsilon: float, mean: _Mean,
    nodes: tuple[ir.Node, ...],
) -> list[NormFact]:  # fmt: skip
    """Follows the mean forward as long as it stays a product, and picks the values that are the norm of x."""
    base, target = view.number(root.outputs[0]), view.number(x)
    algebra = Algebra(view, {base, target})
    algebra.enter(root.outputs[0], Product(1.0, {base: 1.0}))
    inner: dict[int, tuple[ir.Node, ...]] = {id(root.outputs[0]): nodes}
    queue, complete = [root.outputs[0]], []
    while queue:
        value = queue.pop(0)
        for use, _ in view.following(value):
            if use.domain not in ("", "ai.onnx") or id(use.outputs[0]) in inner:
                continue
            if use.op_type in _STEP:
                form = algebra.step(use)
            else:
                # a view of the inverse root alone; of the whole row it would be movement
                form = algebra.form(value)
                form = form if use.op_type in _VIEWS and target not in form.powers else None
            if form is None or form.powers.get(base, 0.0) == 0.0:
                continue
            algebra.enter(use.outputs[0], form)
            path = tuple(node for item in use.inputs if item is not None for node in inner.get(id(item), ()))
            inner[id(use.outputs[0])] = (*path, use)
            queue.append(use.outputs[0])
            # of a sum of squares the factor tells the count, which has no sign
            is_number = form.coef > 0 if mean.raw else np.isfinite(form.coef) and form.coef != 0
            if form.powers.get(base) == -0.5 and form.powers.get(target) == 1.0 and is_number:
                complete.append((use.outputs[0], form))
    return _chosen(view, survey, x, complete, base, target, epsilon, mean, inner)


def _chosen(
    view: GraphView,
    survey: Survey,
    x: ir.Value,
    complete: list[tuple[ir.Value, Product]],
    base: int,
    target: int,
    epsilon: float,
    mean: _Mean,
    inner: dict[int, tuple[ir.Node, ...]],
) -> list[NormFact]:
    """One fact per gamma, at its earliest value without a factor; the bare norm only when no gamma follows it."""
    chosen: dict[int | None, NormFact] = {}
    for value, form in complete:
        extra = {number: power for number, power in form.powers.items() if number not in (base, target)}
        if not extra:
            key, gamma = None, None
        elif len(extra) == 1 and list(extra.values()) == [1.0]:
            key = next(iter(extra))
            gamma = form.values[key]
            if not _may_be_gamma(view, gamma):
                continue
        else:
            continue
        nodes = tuple(dict.fromkeys(inner[id(value)]))
        fact = _fact(survey, value, x, gamma, epsilon, mean, nodes, form.coef)
        before = chosen.get(key)
        if before is None or _rank(view, fact) < _rank(view, before):
            chosen[key] = fact
    if len(chosen) > 1:
        chosen.pop(None, None)
    return list(chosen.values())


def _fact(
    survey: Survey, y: ir.Value, x: ir.Value, gamma: ir.Value | None, epsilon: float, mean: _Mean,
    nodes: tuple[ir.Node, ...], factor: float,
) -> NormFact:  # fmt: skip
    if not mean.raw:
        return NormFact(y, x, gamma, epsilon, mean.count, nodes, factor)
    # x * sqrt(n) / sqrt(sum + n * epsilon): what is not the root of the width belongs to gamma
    width = _width(survey, x)
    rest = factor / width**0.5 if isinstance(width, int) and width > 0 else 1.0
    count, rest = (factor**2, 1.0) if abs(rest - 1) < _ROUNDED else ((factor / rest) ** 2, rest)
    return NormFact(y, x, gamma, epsilon / count, count, nodes, rest)


def _width(survey: Survey, x: ir.Value) -> int | None:
    """The last dim: a weight has as many elements, so that it is the same at every size that is tried."""
    dims = dims_of(x) or survey.shape(x)
    return dims[-1] if dims and isinstance(dims[-1], int) else None


def _rank(view: GraphView, norm: NormFact) -> tuple[bool, bool, int]:
    """Norms without a factor first, then those whose sign is settled, then the earliest."""
    node = norm.y.producer()
    assert node is not None
    return norm.factor != 1, norm.factor < 0, view.order(node)


def _may_be_gamma(view: GraphView, value: ir.Value) -> bool:
    """A vector along the last axis: rank 1, or leading dims of 1. An unknown shape is settled by the probe."""
    tensor = view.tensor(value)
    dims = tuple(tensor.shape) if tensor is not None else dims_of(value)
    return dims is None or all(dim == 1 for dim in dims[:-1])

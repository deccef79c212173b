"""Softmax attention that a model spells out in small operators, as GE's attention operator where that is the same.

Read from the second product backwards: ``softmax(q @ k^T * scale + mask) @ v``. GE's operator gives 0 for a row that
sees no key, the spelled form whatever its mask adds there; so a mask is taken only where no such row can be or where
the model says 0 itself:

* none, or a constant one of zeros and lowest values that leaves every row a key;
* one of zeros and minus infinity, added or chosen by a Where, behind which the model puts 0 in the place of NaN.

Everything else stays spelled out: masks of finite lowest values made at run time (a padded row is a mean of v), biases,
capped scores, sinks, dropout, scores or weights that something else reads, float32 (the devices' operator has none).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ir_ops.ge.convert.attention import attend
from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.load import plain_domain
from ir_ops.ge.convert.operand import Operand
from ir_ops.ge.tensor import Tensor

Values = Mapping[ir.Value, Operand | None]
_DEPTH = 8
_MOVES = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Slice", "Transpose", "Cast")


@dataclass(frozen=True)
class _Mask:
    """What hides keys.

    Attributes:
        value: what is added to the scores (``by`` "added"), or the condition under which a score is kept or hidden.
    """

    value: ir.Value
    by: str


@dataclass(frozen=True)
class _Scores:
    """``q @ turned``, what they are multiplied by and what is hidden of them."""

    query: ir.Value
    turned: ir.Value
    product: ir.Value
    scale: float = 1.0
    mask: _Mask | None = None


@dataclass(frozen=True)
class _Found:
    """The scores, what the softmax takes, and whether rows of NaN become 0 behind it."""

    scores: _Scores
    inner: ir.Value
    guarded: bool

    def operands(self, product: ir.Node) -> list[ir.Value]:
        """Query, keys (turned) and values."""
        return [item for item in (self.scores.query, self.scores.turned, product.inputs[1]) if item is not None]


def spelled_attention(n: NodeCall, node: ir.Node, values: Values) -> Tensor | None:
    """The attention whose second product a MatMul is, None where it is none, or not provably GE's."""
    if n.attention != "auto" or node.op_type != "MatMul" or plain_domain(node.domain) or n.dtype(1).bits != 16:
        return None
    found = _Reader(values, n.version).read(node)
    if found is None or not _fits(node, found, values):
        return None
    scores, query, turned, value = found.scores, *(values[item] for item in found.operands(node))
    assert query is not None and turned is not None and value is not None
    mask = _mask(n, scores.mask, found.guarded, values)
    if mask is None and scores.mask is not None:
        return None
    inputs = [query, _key(n, scores.turned, turned, values), value, *([mask] if mask is not None else [])]
    call = replace(n, op_type="Attention", inputs=inputs, attrs={"scale": scores.scale}, used=(True,))
    return attend(call)


def _fits(node: ir.Node, found: _Found, values: Values) -> bool:
    """Whether the operands are ``[B, N, S, D]``, ``[B, Nkv, D, T]`` and ``[B, Nkv, T, Dv]`` of one type and one B.

    And whether no mask is larger than the scores: sizes that broadcasting would spread are another thing.
    """
    sources = found.operands(node)
    operands = [values.get(item) for item in sources]
    if any(operand is None for operand in operands) or len({operand.dtype for operand in operands if operand}) != 1:
        return False
    dims = [_dims(item, values) for item in (*sources, found.scores.product, found.inner)]
    if any(len(item) != 4 for item in dims):
        return False
    query, turned, value, product, inner = dims
    heads = (query[1], turned[1], value[1])
    if any(not isinstance(count, int) for count in heads) or heads[1] != heads[2] or heads[1] not in (1, heads[0]):
        return False
    return None not in product and product == inner and query[0] is not None and query[0] == turned[0] == value[0]


def _dims(value: ir.Value, values: Values) -> tuple[int | str | None, ...]:
    """The dims of a value, by the model's name where the size varies, None where nothing is known."""
    operand = values.get(value)
    sizes = operand.shape if operand is not None and operand.shape is not None else ()
    names = list(value.shape) if value.shape is not None else []
    if len(names) != len(sizes):
        names = [None] * len(sizes)  # type: ignore[list-item]
    return tuple(
        size if size >= 0 else name.value if isinstance(name, ir.SymbolicDim) else None
        for size, name in zip(sizes, names, strict=True)
    )


def _key(n: NodeCall, value: ir.Value, turned: Operand, values: Values) -> Operand:
    """The keys ``[B, Nkv, T, D]``: in front of the Transpose that turned them, or turned back."""
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else ()
        source = values.get(node.inputs[0])
        if tuple(perm) == (0, 1, 3, 2) and source is not None:
            return source
    made = n.emit("Transpose", {"x": turned, "perm": n.vector([0, 1, 3, 2])}, part="key")
    return Operand("key", made.type, made=made)


def _mask(n: NodeCall, mask: _Mask | None, guarded: bool, values: Values) -> Operand | None:
    """The mask as Attention takes it (bool: true keeps), None where there is none or it proves nothing."""
    operand = None if mask is None else values.get(mask.value)
    if mask is None or operand is None:
        return None
    if mask.by == "added" and operand.is_constant:
        return operand
    if not guarded:
        return None
    if mask.by == "keep":
        return operand
    if mask.by == "hide":
        made = n.emit("LogicalNot", {"x": operand}, part="seen")
    elif _is_zero_or_infinite(mask.value, values):
        made = n.emit("GreaterEqual", {"x1": operand, "x2": n.scalar(-1.0, operand.dtype)}, part="seen")
    else:
        return None
    return Operand("seen", made.type, made=made)


def _is_zero_or_infinite(value: ir.Value | None, values: Values) -> bool:
    """Whether every element is 0 or minus infinity, whatever the condition that chooses."""
    for _ in range(_DEPTH):
        node = None if value is None else value.producer()
        if node is None or plain_domain(node.domain):
            return False
        if node.op_type == "Where":
            return {_scalar(item, values) for item in node.inputs[1:]} == {0.0, -math.inf}
        if node.op_type not in _MOVES:
            return False
        value = node.inputs[0]
    return False


def _scalar(value: ir.Value | None, values: Values) -> float | None:
    """The number that a value is, None where it is none."""
    operand = None if value is None else values.get(value)
    if operand is None or operand.type.numel != 1 or not operand.dtype.is_float or len(operand.shape or ()) > 1:
        return None
    known = operand.constant()
    return None if known is None else float(np.asarray(known, np.float64).reshape(-1)[0])


Step = Callable[[ir.Node, int], _Scores | None]


class _Reader:
    """Follows the way from the second product to the first; every value on it has one reader."""

    def __init__(self, values: Values, version: int) -> None:
        self._values, self._version = values, version

    def read(self, product: ir.Node) -> _Found | None:
        weights, guarded = product.inputs[0], False
        for _ in range(_DEPTH):
            node = None if weights is None else weights.producer()
            if weights is None or node is None or plain_domain(node.domain) or not _inner(weights, 1 + guarded):
                return None
            if node.op_type == "Softmax":
                inner = node.inputs[0]
                scores = self._scores(inner, _DEPTH) if inner is not None and self._is_over_keys(node) else None
                return None if scores is None or inner is None else _Found(scores, inner, guarded)
            if node.op_type == "Cast":
                weights = node.inputs[0]
            elif node.op_type == "Where":
                weights, guarded = self._guarded(node), True
            else:
                return None
        return None

    def _guarded(self, node: ir.Node) -> ir.Value | None:
        """x of ``Where(IsNaN(x), 0, x)``, None where it is something else."""
        chosen, zero, x = node.inputs
        test = None if chosen is None else chosen.producer()
        if test is None or test.op_type != "IsNaN" or test.inputs[0] is not x or _scalar(zero, self._values) != 0.0:
            return None
        maker = None if x is None else x.producer()
        return x if maker is not None and maker.op_type == "Softmax" else None

    def _is_over_keys(self, node: ir.Node) -> bool:
        """Whether a softmax goes over the last of four axes."""
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else None
        return axis in (-1, 3) or (axis is None and self._version >= 13)

    def _scores(self, value: ir.Value, depth: int) -> _Scores | None:
        node = value.producer()
        if node is None or not depth or plain_domain(node.domain) or not _inner(value, 1):
            return None
        step: Step | None = {
            "MatMul": self._product, "Cast": self._cast, "Mul": self._scaled, "Div": self._scaled, "Add": self._added,
            "Where": self._chosen,
        }.get(node.op_type)  # fmt: skip
        return None if step is None else step(node, depth - 1)

    def _product(self, node: ir.Node, depth: int) -> _Scores | None:
        query, turned = node.inputs
        return None if query is None or turned is None else _Scores(query, turned, node.outputs[0])

    def _cast(self, node: ir.Node, depth: int) -> _Scores | None:
        return None if node.inputs[0] is None else self._scores(node.inputs[0], depth)

    def _scaled(self, node: ir.Node, depth: int) -> _Scores | None:
        """Multiplied or divided by a number; not behind the mask, which it would scale, too."""
        sides = [node.inputs, node.inputs[::-1]] if node.op_type == "Mul" else [node.inputs]
        for x, number in sides:
            factor = _scalar(number, self._values)
            if x is None or not factor or not math.isfinite(factor):
                continue
            found = self._scores(x, depth)
            if found is not None and found.mask is None:
                factor = factor if node.op_type == "Mul" else 1.0 / factor
                return replace(found, scale=found.scale * factor)
        return None

    def _added(self, node: ir.Node, depth: int) -> _Scores | None:
        for x, mask in (node.inputs, node.inputs[::-1]):
            found = None if x is None or mask is None else self._scores(x, depth)
            if found is not None and found.mask is None and mask is not None:
                return replace(found, mask=_Mask(mask, "added"))
        return None

    def _chosen(self, node: ir.Node, depth: int) -> _Scores | None:
        """Where between scores and minus infinity."""
        condition, kept, other = node.inputs
        for x, lowest, by in ((kept, other, "keep"), (other, kept, "hide")):
            if condition is None or x is None or _scalar(lowest, self._values) != -math.inf:
                continue
            found = self._scores(x, depth)
            if found is not None and found.mask is None:
                return replace(found, mask=_Mask(condition, by))
        return None


def _inner(value: ir.Value, readers: int) -> bool:
    """Whether nothing else looks at a value."""
    return not value.is_graph_output() and len(value.uses()) <= readers

"""Nodes that change nothing: each gives one of its operands back, bit by bit but for a NaN's sign, whatever the sizes.

Handled: Identity, Cast to the own type, operators of many operands with one, a factor or divisor of 1, zero taken off,
Neg or Not twice, Transposes that undo each other, Squeeze and Unsqueeze of the same axes, Reshape to the own shape,
Expand to ones. Not handled: adding a float zero, or Sum (of -0 both may make 0), and whatever needs sizes that are not
told.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.numbering import gives_one_result

Shape = Callable[[ir.Value], tuple[object, ...] | None]
"""The dims of a value: numbers where they are static, anything else where they are not; None for an unknown rank."""
_Rule = Callable[[GraphView, ir.Node, Shape], ir.Value | None]

_FLAT = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that keep every element in its order."""
_CONTENT = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS, ir.AttributeType.SPARSE_TENSOR,
            ir.AttributeType.SPARSE_TENSORS, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)  # fmt: skip
"""Attributes that are not compared: two If with other branches are not one."""
_MOST = 8
"""Elements of the longest constant that is looked at."""


def idle_source(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    """The value whose content, type and shape the result of ``node`` has; None where it is a value of its own."""
    if len(node.outputs) != 1 or not node.inputs or node.domain not in ("", "ai.onnx"):
        return None
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(view, node, shape)


def _first(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    return node.inputs[0]


def _alone(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _cast(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    value = node.inputs[0]
    return value if value is not None and value.dtype is not None and int(value.dtype) == _target(view, node) else None


def _target(view: GraphView, node: ir.Node) -> int:
    if node.op_type == "Cast":
        return int(view.attrs(node)["to"])
    like = node.inputs[1]
    return -1 if like is None or like.dtype is None else int(like.dtype)


def _one(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    """A factor of 1 on either side, or a divisor."""
    for place, other in ((0, 1), (1, 0)):
        if (node.op_type == "Mul" or place == 0) and _is_number(view, node.inputs[other], 1):
            return _unbroadcast(view, node.inputs[place], node.inputs[other], shape)
    return None


def _nothing_less(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    """``x - 0``; 0 - 0 is 0 and -0 - 0 is -0."""
    if not _is_number(view, node.inputs[1], 0):
        return None
    return _unbroadcast(view, node.inputs[0], node.inputs[1], shape)


def _nothing_more(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    """``x + 0`` of integers."""
    for place, other in ((0, 1), (1, 0)):
        value = node.inputs[place]
        if dtype_name(value) in ("int32", "int64") and _is_number(view, node.inputs[other], 0):
            return _unbroadcast(view, value, node.inputs[other], shape)
    return None


def _is_number(view: GraphView, value: ir.Value | None, wanted: int) -> bool:
    array = view.constant(value, 1)
    if array is None or array.size != 1 or array.dtype.kind == "b":
        return False
    number = float(array.reshape(-1)[0])
    return number == wanted and not np.signbit(number)


def _unbroadcast(view: GraphView, value: ir.Value | None, number: ir.Value | None, shape: Shape) -> ir.Value | None:
    """``value`` where a constant of one element beside it adds no axes."""
    tensor = view.tensor(number)
    if value is None or tensor is None:
        return None
    count = len(tensor.shape)
    own = shape(value) if count else ()
    return value if own is not None and len(own) >= count else None


def _sign(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    """A sign that is changed twice, by Neg or a factor of -1 without axes."""
    value = _unsigned(view, node)
    before = None if value is None else value.producer()
    return None if before is None or before.domain not in ("", "ai.onnx") else _unsigned(view, before)


def _unsigned(view: GraphView, node: ir.Node) -> ir.Value | None:
    """What a node changes the sign of, exactly; None for other nodes."""
    if node.op_type == "Neg":
        return node.inputs[0]
    for place, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ():
        tensor = view.tensor(node.inputs[other])
        if tensor is not None and len(tensor.shape) == 0 and view.scalar(node.inputs[other]) == -1:
            return node.inputs[place]
    return None


def _factor(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    return _one(view, node, shape) or _sign(view, node, shape)


def _twice(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    before = _before(node, (node.op_type,))
    return None if before is None else before.inputs[0]


def _transpose(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    order, before = view.attrs(node).get("perm"), _before(node, ("Transpose",))
    if order is not None and list(order) == list(range(len(order))):
        return node.inputs[0]
    if before is None:
        return None
    first = view.attrs(before).get("perm")
    if order is None or first is None:  # without an order the axes turn around: twice, they are back
        return before.inputs[0] if order is first else None
    undone = len(order) == len(first) and all(first[axis % len(first)] == at for at, axis in enumerate(order))
    return before.inputs[0] if undone else None


def _axes_put_back(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    """Squeeze behind Unsqueeze, or the other way, of the same axes, which both count in the longer shape."""
    before = _before(node, ("Unsqueeze",) if node.op_type == "Squeeze" else ("Squeeze",))
    if before is None:
        return None
    axes, its = _axes(view, node), _axes(view, before)
    return before.inputs[0] if axes is not None and axes == its else None


def _axes(view: GraphView, node: ir.Node) -> list[int] | None:
    axes = view.attrs(node).get("axes")
    if axes is None and len(node.inputs) > 1:
        constant = view.constant(node.inputs[1], _MOST)
        axes = None if constant is None else constant.reshape(-1).tolist()
    return None if axes is None else sorted(int(axis) for axis in axes)


def _before(node: ir.Node, kinds: tuple[str, ...]) -> ir.Node | None:
    """The node of one of these kinds that gives the first operand."""
    value = node.inputs[0]
    before = None if value is None else value.producer()
    if before is None or before.op_type not in kinds or before.domain not in ("", "ai.onnx"):
        return None
    return before


def _reshape(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    value, target = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if value is None or target is None:
        return None
    sizes = view.constant(target, _MOST)
    if sizes is not None:
        own = shape(value)
        if own is None or len(own) != sizes.size or view.attrs(node).get("allowzero", 0):
            return None
        # 0 copies a size; where all others are copied, -1 leaves no choice
        same = all(size in (0, -1) or size == its for size, its in zip(sizes.reshape(-1).tolist(), own, strict=True))
        return value if same and np.count_nonzero(sizes == -1) <= 1 else None
    wanted = _asked_shape(view, target)
    while wanted is not None and not computed_alike(view, value, wanted):
        before = value.producer()
        if before is None or before.op_type not in _FLAT or before.inputs[0] is None:
            return None
        value = before.inputs[0]
    return None if wanted is None else value


def _expand(view: GraphView, node: ir.Node, shape: Shape) -> ir.Value | None:
    value, target = node.inputs[0], node.inputs[1]
    if value is None or target is None:
        return None
    sizes = view.constant(target, _MOST)
    if sizes is None:
        asked = _asked_shape(view, target)
        return value if asked is not None and computed_alike(view, value, asked) else None
    own = shape(value) if (sizes == 1).all() else None
    return value if own is not None and len(own) >= sizes.size else None


def computed_alike(view: GraphView, value: ir.Value, other: ir.Value) -> bool:
    """Whether values are one, or computed by one operator from the same operands: shape and content are equal."""
    node, its = value.producer(), other.producer()
    if value is other or node is None or its is None:
        return value is other
    if any(attr.type in _CONTENT for attr in (*node.attributes.values(), *its.attributes.values())):
        return False
    alike = (node.op_type, node.domain) == (its.op_type, its.domain) and gives_one_result(node)
    operands = len(node.inputs) == len(its.inputs) and all(a is b for a, b in zip(node.inputs, its.inputs, strict=True))
    return alike and operands and len(node.outputs) == len(its.outputs) == 1 and view.attrs(node) == view.attrs(its)


def _asked_shape(view: GraphView, target: ir.Value) -> ir.Value | None:
    """The value whose whole shape ``target`` is."""
    node = target.producer()
    if node is None or node.op_type != "Shape" or {"start", "end"} & view.attrs(node).keys():
        return None
    return node.inputs[0]


_RULES: dict[str, _Rule] = {
    "Identity": _first,
    **dict.fromkeys(("Concat", "Max", "Min"), _alone),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Mul": _factor,
    "Div": _one,
    "Sub": _nothing_less,
    "Add": _nothing_more,
    "Neg": _sign,
    "Not": _twice,
    "Transpose": _transpose,
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _axes_put_back),
    "Reshape": _reshape,
    "Expand": _expand,
}

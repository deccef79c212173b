"""Following shape arithmetic at export: contents of small tensors, element by element, unknown ones as None.

GE computes shapes on the host when they are not constants, and wants constants for many operands; exporters spell
them as chains of Shape, Gather, Slice, Concat and so on. With static dims such a chain is a constant and leaves no
node. With dynamic dims the known elements still tell ranks and most dims.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ir_ops.dtypes import DType, by_name, by_numpy, by_onnx
from ir_ops.ge.convert.operand import KNOWN_LIMIT, Operand, object_array
from ir_ops.ge.infer.call import Known

Attrs = Mapping[str, Any]
Fold = Callable[[Sequence[Operand | None], Attrs, int], "list[Known] | Known | None"]
_FOLDS: dict[str, Fold] = {}


def folds(*op_types: str) -> Callable[[Fold], Fold]:
    """Registers the element-by-element meaning of ONNX operators."""

    def register(fold: Fold) -> Fold:
        for op_type in op_types:
            _FOLDS[op_type] = fold
        return fold

    return register


def fold(
    op_type: str, inputs: Sequence[Operand | None], attrs: Attrs, version: int, outputs: int
) -> list[Known | None]:
    """What is known of a node's outputs; None for an output of which nothing is."""
    nothing: list[Known | None] = [None] * outputs
    rule = _FOLDS.get(op_type)
    if rule is None:
        return nothing
    try:
        with np.errstate(all="ignore"):
            found = rule(inputs, attrs, version)
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, OverflowError):
        # contents that do not fit the operator: the conversion itself reports what is wrong
        return nothing
    if found is None:
        return nothing
    results: list[Known | None] = list(found) if isinstance(found, list) else [found]
    return [None if known is None or known.size > KNOWN_LIMIT else known for known in results] + nothing[len(results) :]


def _known(inputs: Sequence[Operand | None], index: int) -> Known:
    """The content of an input. Raises TypeError (nothing to fold) when nothing is known."""
    operand = inputs[index] if index < len(inputs) else None
    known = operand.known if operand is not None else None
    if known is None:
        raise TypeError("unknown")
    return known


def _ints(inputs: Sequence[Operand | None], index: int) -> list[int]:
    """A completely known integer input as a flat list."""
    return [int(item) for item in _known(inputs, index).reshape(-1)]


def _has(inputs: Sequence[Operand | None], index: int) -> bool:
    return index < len(inputs) and inputs[index] is not None


def _axes(inputs: Sequence[Operand | None], index: int, attrs: Attrs) -> list[int] | None:
    if _has(inputs, index):
        return _ints(inputs, index)
    return [int(axis) for axis in attrs["axes"]] if "axes" in attrs else None


@folds("Shape")
def _shape(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    shape = inputs[0].shape if inputs[0] is not None else None
    if shape is None:
        return None
    dims = [None if dim < 0 else dim for dim in shape]
    part = dims[slice(attrs.get("start", 0), attrs.get("end"))]
    return object_array(part) if part else np.zeros(0, np.int64)


@folds("Size")
def _size(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    count = inputs[0].type.numel if inputs[0] is not None else None
    return None if count is None else np.asarray(count, np.int64)


@folds("Identity")
def _identity(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    return _known(inputs, 0)


@folds("Reshape", "Flatten")
def _reshape(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    x = _known(inputs, 0)
    if not _has(inputs, 1):
        axis = attrs.get("axis", 1)
        return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)
    target = _ints(inputs, 1)
    if not attrs.get("allowzero", 0):
        target = [x.shape[i] if dim == 0 else dim for i, dim in enumerate(target)]
    return x.reshape(target)


@folds("Unsqueeze")
def _unsqueeze(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    axes = _axes(inputs, 1, attrs)
    return np.expand_dims(_known(inputs, 0), tuple(axes or ()))


@folds("Squeeze")
def _squeeze(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    axes = _axes(inputs, 1, attrs)
    return np.squeeze(_known(inputs, 0), axis=None if axes is None else tuple(axes))


@folds("Transpose")
def _transpose(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    return np.transpose(_known(inputs, 0), attrs.get("perm"))


@folds("Concat")
def _concat(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    parts: list[Known] = []
    for i, operand in enumerate(inputs):
        if operand is None:
            return None
        if operand.known is None:
            # an unknown part of known length keeps the places of the others
            if operand.shape is None or len(operand.shape) != 1 or operand.shape[0] < 0 or operand.dtype.is_float:
                return None
            parts.append(np.full(operand.shape, None, dtype=object))
        else:
            parts.append(_known(inputs, i).astype(object))
    if all(item is None for part in parts for item in part.reshape(-1)):
        return None
    return np.concatenate(parts, axis=attrs["axis"])


@folds("Split")
def _split(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> list[Known] | None:
    x = _known(inputs, 0)
    sizes = _ints(inputs, 1) if _has(inputs, 1) else attrs.get("split")
    if sizes is None:
        return None
    return np.split(x, np.cumsum(sizes)[:-1], axis=attrs.get("axis", 0))


@folds("Slice")
def _slice(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    x, starts, ends = _known(inputs, 0), _ints(inputs, 1), _ints(inputs, 2)
    axes = _ints(inputs, 3) if _has(inputs, 3) else list(range(len(starts)))
    steps = _ints(inputs, 4) if _has(inputs, 4) else [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # with a negative step numpy takes nothing where ONNX takes the first element
        cut[axis] = slice(max(start, -x.shape[axis]), end, step)
    return x[tuple(cut)]


@folds("Gather")
def _gather(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    x = _known(inputs, 0)
    # numpy gives a bare element for a scalar index
    return np.asarray(np.take(x, _known(inputs, 1).astype(np.int64), axis=attrs.get("axis", 0)), dtype=x.dtype)


@folds("Expand")
def _expand(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    x, target = _known(inputs, 0), _ints(inputs, 1)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target)))


@folds("Tile")
def _tile(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    return np.tile(_known(inputs, 0), _ints(inputs, 1))


@folds("ConstantOfShape")
def _constant_of_shape(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    dims = _ints(inputs, 0)
    if int(np.prod(dims, dtype=np.int64)) > KNOWN_LIMIT:
        return None
    value = attrs["value"].numpy() if "value" in attrs else np.zeros(1, np.float32)
    return np.full(dims, value.reshape(-1)[0])


@folds("Range")
def _range(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    start, limit, delta = (_known(inputs, i).reshape(-1)[0] for i in range(3))
    if None in (start, limit, delta) or not delta or abs((limit - start) / delta) > KNOWN_LIMIT:
        return None
    return np.arange(start, limit, delta, dtype=_known(inputs, 0).dtype)


@folds("ScatterElements", "ScatterND")
def _scatter(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    """One-dimensional scatters only: exporters use them to replace a dim in a shape."""
    x, updates = _known(inputs, 0), _known(inputs, 2)
    if x.ndim != 1 or attrs.get("reduction", "none") != "none":
        return None
    result = x.astype(object)
    for place, value in zip(_ints(inputs, 1), updates.reshape(-1), strict=True):
        result[place] = value
    return result


def _elementwise(function: Callable[..., Any]) -> Callable[..., Known]:
    def apply(*items: Any) -> Any:
        return None if any(item is None for item in items) else function(*items)

    def whole(*arrays: Known) -> Known:
        return np.asarray(np.frompyfunc(apply, len(arrays), 1)(*arrays), dtype=object)

    return whole


def _truncated(a: Any, b: Any) -> Any:
    if isinstance(a, (int, np.integer)):
        return -(-a // b) if (a < 0) != (b < 0) else a // b
    return a / b


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _truncated, "Mod": operator.mod,
    "Min": min, "Max": max, "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le,
    "Greater": operator.gt, "GreaterOrEqual": operator.ge, "And": operator.and_, "Or": operator.or_,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {"Neg": operator.neg, "Abs": abs, "Not": operator.not_}


def _binary(op_type: str) -> Fold:
    scalar = _elementwise(_BINARY[op_type])

    def fold_binary(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
        if op_type == "Equal":
            decided = _never_equal(inputs)
            if decided is not None:
                return decided
        if attrs.get("fmod"):
            return None
        result = _known(inputs, 0).astype(object)
        for i in range(1, len(inputs)):
            result = scalar(result, _known(inputs, i).astype(object))
        return result

    return fold_binary


def _never_equal(inputs: Sequence[Operand | None]) -> Known | None:
    """A dim never equals -1: the usual test for "keep this dim" is false even when the dim is unknown."""
    for dims, other in ((inputs[0], inputs[1]), (inputs[1], inputs[0])):
        if dims is None or other is None or not dims.nonneg or dims.shape is None or other.known is None:
            continue
        values = other.known.reshape(-1)
        if all(item is not None and item < 0 for item in values) and all(dim >= 0 for dim in dims.shape):
            return np.zeros(np.broadcast_shapes(dims.shape, other.known.shape), np.bool_)
    return None


def _unary(op_type: str) -> Fold:
    scalar = _elementwise(_UNARY[op_type])
    return lambda inputs, attrs, version: scalar(_known(inputs, 0).astype(object))


for _name in _BINARY:
    _FOLDS[_name] = _binary(_name)
for _name in _UNARY:
    _FOLDS[_name] = _unary(_name)


@folds("Where")
def _where(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known:
    condition = _known(inputs, 0)
    shapes = [operand.shape for operand in inputs if operand is not None and operand.shape is not None]
    if condition.dtype != object and len(shapes) == 3 and all(dim >= 0 for shape in shapes for dim in shape):
        # one side may be unknown where the condition never picks it
        if condition.all():
            return np.broadcast_to(_known(inputs, 1), np.broadcast_shapes(*shapes))
        if not condition.any():
            return np.broadcast_to(_known(inputs, 2), np.broadcast_shapes(*shapes))
    pick = np.frompyfunc(lambda c, a, b: None if c is None else a if c else b, 3, 1)
    return np.asarray(pick(condition, _known(inputs, 1), _known(inputs, 2)), dtype=object)


@folds("Cast")
def _cast(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    target = by_onnx(int(attrs["to"]))
    known = _known(inputs, 0)
    if target.np is None or target.bits < 8 or known.dtype == np.dtype(ml_dtypes.int4):
        return None
    if known.dtype != object:
        return known.astype(target.np)
    if target.is_float:
        return None
    # what is known of dims fits every integer type that exporters cast them to
    return known if target.name in ("int64", "int32") else None


@folds("ReduceProd")
def _reduce_prod(inputs: Sequence[Operand | None], attrs: Attrs, version: int) -> Known | None:
    x, axes = _known(inputs, 0), _axes(inputs, 1, attrs)
    if x.ndim != 1 or x.dtype == object or (not axes and attrs.get("noop_with_empty_axes", 0)):
        return None
    result = np.prod(x, dtype=x.dtype)
    return np.asarray([result] if attrs.get("keepdims", 1) == 1 else result)


_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def folded_dtype(op_type: str, inputs: Sequence[Operand | None], attrs: Attrs) -> DType | None:
    """The element type of what an operator makes, where the model does not declare it."""
    if op_type in ("Shape", "Size"):
        return by_name("int64")
    if op_type in _COMPARISONS:
        return by_name("bool")
    if op_type == "Cast":
        return by_onnx(int(attrs["to"]))
    if op_type == "ConstantOfShape":
        return by_numpy(attrs["value"].numpy().dtype) if "value" in attrs else by_name("float32")
    data = inputs[1] if op_type == "Where" else inputs[0]
    return None if data is None else data.dtype


_KEEP_SIGN = {
    "Identity", "Reshape", "Flatten", "Unsqueeze", "Squeeze", "Transpose", "Slice", "Gather", "Expand", "Tile", "Split",
    "Cast", "GatherElements", "GatherND", "CumSum",
}  # fmt: skip
_KEEP_SIGN_ALL = {"Concat", "Add", "Mul", "Div", "Max", "Min"}
_NEVER_NEGATIVE = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Abs"}


def _is_nonneg(operand: Operand | None) -> bool:
    if operand is None:
        return False
    if operand.nonneg or (operand.dtype.name.startswith("uint") or operand.dtype.name == "bool"):
        return True
    known = operand.known
    return known is not None and all(item is not None and item >= 0 for item in known.reshape(-1))


def nonneg_outputs(op_type: str, inputs: Sequence[Operand | None], attrs: Attrs, outputs: int) -> list[bool]:
    """Whether integer outputs are known to have no negative element."""
    if op_type in _NEVER_NEGATIVE:
        return [True] * outputs
    if op_type == "TopK":
        return [_is_nonneg(inputs[0]), True][:outputs]
    if op_type in _KEEP_SIGN and inputs:
        return [_is_nonneg(inputs[0])] * outputs
    if op_type in _KEEP_SIGN_ALL:
        return [all(_is_nonneg(operand) for operand in inputs)] * outputs
    if op_type == "Where":
        return [_is_nonneg(inputs[1]) and _is_nonneg(inputs[2])]
    if op_type == "Range":
        delta = inputs[2].known if inputs[2] is not None else None
        rising = delta is not None and delta.reshape(-1)[0] is not None and delta.reshape(-1)[0] > 0
        return [rising and _is_nonneg(inputs[0])]
    return [False] * outputs

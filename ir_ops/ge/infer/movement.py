"""Output types of operators that move elements or make shapes."""

from __future__ import annotations

import math

from ir_ops.ge.infer.call import OpCall, attr_dtype, broadcast, dim_or_unknown, infers, merge_dim
from ir_ops.ge.model import Shape, TensorType


def _known(dims: list[int]) -> int | None:
    return None if any(dim < 0 for dim in dims) else math.prod(dims)


@infers("Shape")
def shape_of(call: OpCall) -> TensorType:
    shape = call.shape("x")
    return TensorType(attr_dtype(call, "dtype"), (-1,) if shape is None else (len(shape),))


@infers("Size")
def size_of(call: OpCall) -> TensorType:
    return TensorType(attr_dtype(call, "dtype"), ())


@infers("Reshape")
def reshape(call: OpCall) -> TensorType:
    target, shape = call.ints("shape"), call.shape("x")
    if target is None:
        return TensorType(call.dtype("x"))
    if target.count(-1) > 1 or any(dim is not None and dim < -1 for dim in target):
        raise call.error("a target shape that is none", str(target), "dims of 0 or more, one of them -1 at most")
    dims = [dim_or_unknown(dim) for dim in target]
    total = None if shape is None else _known(list(shape))
    if total is not None and dims.count(-1) == 1:
        rest = math.prod(dim for dim in dims if dim >= 0)
        if rest == 0 or total % rest:
            raise call.error("a Reshape changes the number of elements", str(list(shape or ())), str(target))
        dims[dims.index(-1)] = total // rest
    elif total is not None and -1 not in dims and math.prod(dims) != total:
        raise call.error("a Reshape changes the number of elements", str(list(shape or ())), str(target))
    return TensorType(call.dtype("x"), tuple(dims))


@infers("Flatten")
def flatten(call: OpCall) -> TensorType:
    shape = call.shape("x")
    if shape is None:
        return TensorType(call.dtype("x"), (-1, -1))
    axis = int(call.attr("axis"))
    axis = axis + len(shape) if axis < 0 else axis
    left, right = _known(list(shape[:axis])), _known(list(shape[axis:]))
    return TensorType(call.dtype("x"), (dim_or_unknown(left), dim_or_unknown(right)))


@infers("Transpose")
def transpose(call: OpCall) -> TensorType:
    shape, perm = call.shape("x"), call.ints("perm")
    if perm is None:
        return TensorType(call.dtype("x"), None if shape is None else (-1,) * len(shape))
    if shape is None or any(axis is None for axis in perm):
        return TensorType(call.dtype("x"), (-1,) * len(perm))
    if sorted(axis for axis in perm if axis is not None) != list(range(len(shape))):
        raise call.error("perm does not fit the input", str(perm), f"a permutation of {len(shape)} axes")
    return TensorType(call.dtype("x"), tuple(shape[axis] for axis in perm if axis is not None))


def _unsqueezed(call: OpCall, axes: list[int]) -> Shape | None:
    shape = call.shape("x")
    if shape is None:
        return None
    rank = len(shape) + len(axes)
    places = {call.norm_axis(axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise call.error("axes repeat", str(axes))
    rest = iter(shape)
    return tuple(1 if i in places else next(rest) for i in range(rank))


@infers("Unsqueeze")
def unsqueeze(call: OpCall) -> TensorType:
    return TensorType(call.dtype("x"), _unsqueezed(call, list(call.attr("axes"))))


@infers("ExpandDims")
def expand_dims(call: OpCall) -> TensorType:
    axis, shape = call.scalar("axis"), call.shape("x")
    if axis is None:
        return TensorType(call.dtype("x"), None if shape is None else (-1,) * (len(shape) + 1))
    return TensorType(call.dtype("x"), _unsqueezed(call, [axis]))


@infers("Squeeze")
def squeeze(call: OpCall) -> TensorType:
    shape, axes = call.shape("x"), [int(axis) for axis in call.attr("axis") or ()]
    if shape is None:
        return TensorType(call.dtype("x"))
    if not axes and -1 in shape:
        return TensorType(call.dtype("x"))
    places = {call.norm_axis(axis, len(shape)) for axis in axes} or {i for i, dim in enumerate(shape) if dim == 1}
    for place in places:
        if shape[place] > 1:
            raise call.error("a squeezed dim is not 1", f"axis {place} of {list(shape)}")
    return TensorType(call.dtype("x"), tuple(dim for i, dim in enumerate(shape) if i not in places))


def _concatenated(call: OpCall, axis: int | None) -> TensorType:
    parts = call.dynamic["x"]
    shapes = [part.shape for part in parts]
    if any(part.dtype != parts[0].dtype for part in parts):
        raise call.error("parts of different element types", ", ".join(str(part) for part in parts))
    known = [shape for shape in shapes if shape is not None]
    if not known or axis is None:
        return TensorType(parts[0].dtype)
    axis = call.norm_axis(axis, len(known[0]))
    if any(len(shape) != len(known[0]) for shape in known):
        raise call.error("parts of different rank", ", ".join(str(list(shape)) for shape in known))
    dims = list(known[0])
    for shape in known[1:]:
        for i, dim in enumerate(shape):
            if i != axis:
                dims[i] = merge_equal(call, dims[i], dim)
    lengths = [-1 if shape is None else shape[axis] for shape in shapes]
    dims[axis] = -1 if -1 in lengths else sum(lengths)
    return TensorType(parts[0].dtype, tuple(dims))


def merge_equal(call: OpCall, a: int, b: int) -> int:
    """Two dims that must be equal."""
    if a >= 0 and b >= 0 and a != b:
        raise call.error("dims differ", f"{a} and {b}", "equal dims")
    return max(a, b)


@infers("ConcatD")
def concat_d(call: OpCall) -> TensorType:
    return _concatenated(call, int(call.attr("concat_dim")))


@infers("ConcatV2")
def concat_v2(call: OpCall) -> TensorType:
    return _concatenated(call, call.scalar("concat_dim"))


@infers("Pack")
def pack(call: OpCall) -> TensorType:
    first = call.dynamic["x"][0]
    if first.shape is None:
        return TensorType(first.dtype)
    dims = list(first.shape)
    dims.insert(call.axis("axis", len(dims) + 1), len(call.dynamic["x"]))
    return TensorType(first.dtype, tuple(dims))


@infers("SplitV")
def split_v(call: OpCall) -> list[TensorType]:
    count, shape = int(call.attr("num_split")), call.shape("x")
    sizes, axis = call.ints("size_splits") or [None] * count, call.scalar("split_dim")
    if shape is None or axis is None:
        return [TensorType(call.dtype("x"), None if shape is None else (-1,) * len(shape))] * count
    axis = call.norm_axis(axis, len(shape))
    if len(sizes) != count:
        raise call.error("size_splits does not fit num_split", str(len(sizes)), str(count))
    whole, fixed = shape[axis], [size for size in sizes if size is not None and size >= 0]
    if whole >= 0 and len(fixed) == count and sum(fixed) != whole:
        raise call.error("the parts do not add up", f"{fixed} of {whole}")
    return [TensorType(call.dtype("x"), (*shape[:axis], dim_or_unknown(size), *shape[axis + 1 :])) for size in sizes]


@infers("Split")
def split(call: OpCall) -> list[TensorType]:
    count, shape, axis = int(call.attr("num_split")), call.shape("x"), call.scalar("split_dim")
    if shape is None or axis is None:
        return [TensorType(call.dtype("x"), None if shape is None else (-1,) * len(shape))] * count
    axis = call.norm_axis(axis, len(shape))
    if shape[axis] >= 0 and shape[axis] % count:
        raise call.error("a dim does not split evenly", f"{shape[axis]} into {count}")
    size = shape[axis] // count if shape[axis] >= 0 else -1
    return [TensorType(call.dtype("x"), (*shape[:axis], size, *shape[axis + 1 :]))] * count


@infers("StridedSliceV2")
def strided_slice(call: OpCall) -> TensorType:
    shape, begins, ends = call.shape("x"), call.ints("begin"), call.ints("end")
    if shape is None or begins is None or ends is None:
        return TensorType(call.dtype("x"), None if shape is None else (-1,) * len(shape))
    axes = call.ints("axes") if call.has("axes") else list(range(len(begins)))
    steps = call.ints("strides") if call.has("strides") else [1] * len(begins)
    if axes is None or steps is None or None in axes:
        return TensorType(call.dtype("x"), (-1,) * len(shape))
    dims = list(shape)
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        place = call.norm_axis(int(axis or 0), len(dims))
        dims[place] = slice_length(dims[place], begin, end, step)
    return TensorType(call.dtype("x"), tuple(dims))


def slice_length(dim: int, begin: int | None, end: int | None, step: int | None) -> int:
    """Length of ``begin:end:step`` of a dim; -1 when it cannot be told."""
    if dim < 0 or begin is None or end is None or step is None:
        return -1
    return len(range(*slice(begin, end, step).indices(dim)))


@infers("Expand", "BroadcastTo")
def expand(call: OpCall) -> TensorType:
    shape, target = call.shape("x"), call.ints("shape")
    if shape is None or target is None:
        return TensorType(call.dtype("x"), None if target is None else (-1,) * len(target))
    dims = tuple(dim_or_unknown(dim) for dim in target)
    if call.op_type == "Expand":
        # an unknown target of 1 keeps the input's dim, so an unknown one tells nothing but the rank
        return TensorType(call.dtype("x"), broadcast(call, shape, dims))
    padded = (1,) * (len(dims) - len(shape)) + shape
    if len(padded) != len(dims):
        raise call.error("the target has a smaller rank", str(list(dims)), f"rank {len(shape)} or more")
    return TensorType(call.dtype("x"), tuple(merge_dim(call, b, a) for a, b in zip(padded, dims, strict=True)))


@infers("Tile")
def tile(call: OpCall) -> TensorType:
    shape, repeats = call.shape("x"), call.ints("multiples")
    if shape is None or repeats is None:
        return TensorType(call.dtype("x"), None if shape is None else (-1,) * len(shape))
    dims = (-1 if dim < 0 or n is None else dim * n for dim, n in zip(shape, repeats, strict=True))
    return TensorType(call.dtype("x"), tuple(dims))


@infers("PadV3")
def pad_v3(call: OpCall) -> TensorType:
    shape, amounts = call.shape("x"), call.ints("paddings")
    if shape is None:
        return TensorType(call.dtype("x"))
    if amounts is None:
        return TensorType(call.dtype("x"), (-1,) * len(shape))
    if len(amounts) != 2 * len(shape):
        raise call.error("padding of another number of axes", str(len(amounts)), str(2 * len(shape)))
    step, first, second = (2, 0, 1) if call.attr("paddings_contiguous") else (1, 0, len(shape))
    pairs = [(amounts[axis * step + first], amounts[axis * step + second]) for axis in range(len(shape))]
    return TensorType(call.dtype("x"), tuple(
        -1 if dim < 0 or low is None or high is None else dim + low + high
        for dim, (low, high) in zip(shape, pairs, strict=True)
    ))  # fmt: skip


@infers("Fill")
def fill(call: OpCall) -> TensorType:
    dims = call.ints("dims")
    return TensorType(call.dtype("value"), None if dims is None else tuple(dim_or_unknown(dim) for dim in dims))


@infers("Range")
def range_(call: OpCall) -> TensorType:
    start, limit, delta = (call.scalar(name) for name in ("start", "limit", "delta"))
    if call.dtype("start").is_float or start is None or limit is None or not delta:
        return TensorType(call.dtype("start"), (-1,))
    return TensorType(call.dtype("start"), (max(0, -((start - limit) // delta)),))


@infers("NonZero")
def non_zero(call: OpCall) -> TensorType:
    rank = call.inputs["x"].rank
    known = -1 if rank is None else rank
    return TensorType(attr_dtype(call, "dtype"), (known, -1) if call.attr("transpose") else (-1, known))


@infers("OneHot")
def one_hot(call: OpCall) -> TensorType:
    shape, depth = call.shape("x"), call.scalar("depth")
    if shape is None:
        return TensorType(call.dtype("on_value"))
    dims = list(shape)
    dims.insert(call.axis("axis", len(dims) + 1), dim_or_unknown(depth))
    return TensorType(call.dtype("on_value"), tuple(dims))

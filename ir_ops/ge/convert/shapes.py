"""Shapes and movement: Shape, Reshape, Transpose, Concat, Split, Slice, Expand, ..."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ir_ops.ge.convert.call import NodeCall
from ir_ops.ge.convert.registry import Result, converts
from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Tensor

_INT64_MAX = 2**63 - 1


@converts("Constant", dtypes="any", ge="Const", note="0-d and n-d tensors, numbers and lists of numbers")
def constant(n: NodeCall) -> Result:
    """One that is a graph output: all others have become initializers."""
    if "value" in n.attrs:
        return n.weight(n.attr("value").numpy(), "value")
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                        ("value_ints", np.int64)):  # fmt: skip
        if name in n.attrs:
            return n.builder.const(np.asarray(n.attr(name), dtype), name=n.name)
    raise Unsupported("a Constant without a tensor (strings, sparse tensors)", "a dense tensor")


@converts("Shape", dtypes="any", ge="Shape, StridedSliceV2", note="int64; folded where the dims are static")
def shape(n: NodeCall) -> Result:
    start, end = n.attr("start", 0), n.attr("end")
    whole = start == 0 and end is None
    made = n.emit("Shape", {"x": n.x(0)}, {"dtype": 9}, part="" if whole else "shape")
    if whole:
        return made
    inputs = {"x": made, "begin": n.vector([start]), "end": n.vector([_INT64_MAX if end is None else end])}
    return n.emit("StridedSliceV2", {**inputs, "axes": n.vector([0]), "strides": n.vector([1])})


@converts("Size", dtypes="any", ge="Size", note="int64")
def size(n: NodeCall) -> Result:
    return n.emit("Size", {"x": n.x(0)}, {"dtype": 9})


@converts("Reshape", dtypes="any", ge="Reshape", note='zeros ("keep this dim") are resolved at export')
def reshape(n: NodeCall) -> Result:
    known, values = n.known(1), n.arg(1).constant()
    zeros = [] if known is None or n.attr("allowzero", 0) else [i for i, dim in enumerate(known.flat) if dim == 0]
    if any(i >= n.rank(0) for i in zeros):
        raise Unsupported("Reshape keeps a dim the input does not have", "a valid shape")
    if values is None:
        return n.emit("Reshape", {"x": n.x(0), "shape": _kept(n, zeros) if zeros else n.x(1)})
    x = n.x(0)
    if not zeros:
        return n.emit("Reshape", {"x": x, "shape": np.asarray(values, np.int64)})
    return n.reshape(x, [(x, i) if i in zeros else int(dim) for i, dim in enumerate(values.flat)])


def _kept(n: NodeCall, zeros: list[int]) -> Tensor:
    """A computed target whose zeros are replaced by the input's dims at run time."""
    length = n.shape(1)[0]
    if length > n.rank(0):
        raise Unsupported(
            "a computed target with zeros that is longer than the input's shape", "no zeros in the target"
        )
    source = n.emit("Shape", {"x": n.x(0)}, {"dtype": 9}, part="input_shape")
    parts = {"begin": n.vector([0]), "end": n.vector([length]), "axes": n.vector([0]), "strides": n.vector([1])}
    kept = n.emit("StridedSliceV2", {"x": source, **parts}, part="kept_dims")
    mask = np.isin(np.arange(length), zeros)
    return n.emit("SelectV2", {"condition": mask, "then": kept, "else": n.x(1)}, part="target")


@converts("Flatten", dtypes="any", ge="Reshape", note="GE's Flatten has neither bool nor bfloat16")
def flatten(n: NodeCall) -> Result:
    axis, dims = int(n.attr("axis", 1)), n.shape(0)
    axis = axis + len(dims) if axis < 0 else axis
    before, after = dims[:axis], dims[axis:]
    if -1 not in before or -1 not in after:
        # one side is known, the other is what is left
        known = -1 not in before
        return n.emit(
            "Reshape", {"x": n.x(0), "shape": n.vector([math.prod(before), -1] if known else [-1, math.prod(after)])}
        )
    if len(before) == 1:
        return n.reshape(n.x(0), [(n.x(0), 0), -1])
    if len(after) == 1:
        return n.reshape(n.x(0), [-1, (n.x(0), axis)])
    whole = n.emit("Shape", {"x": n.x(0)}, {"dtype": 9}, part="shape")
    cut = {"begin": n.vector([0]), "end": n.vector([axis]), "axes": n.vector([0]), "strides": n.vector([1])}
    head = n.emit("StridedSliceV2", {"x": whole, **cut}, part="head")
    rows = n.emit("ReduceProd", {"x": head, "axes": n.vector([0])}, {"keep_dims": True}, "rows")
    target = n.emit("ConcatD", {"x": [rows, n.vector([-1])]}, {"concat_dim": 0}, "target")
    return n.emit("Reshape", {"x": n.x(0), "shape": target})


@converts("Transpose", dtypes="any", ge="Transpose", note="perm becomes a Const; the default order is made explicit")
def transpose(n: NodeCall) -> Result:
    perm = n.attr("perm")
    perm = list(range(n.rank(0)))[::-1] if perm is None else [int(axis) for axis in perm]
    return n.emit("Transpose", {"x": n.x(0), "perm": n.vector(perm)})


@converts("Unsqueeze", dtypes="any", ge="Unsqueeze", note="constant axes only")
def unsqueeze(n: NodeCall) -> Result:
    axes = n.axes(1)
    if axes is None:
        raise Unsupported("Unsqueeze without axes")
    rank = n.rank(0) + len(axes)
    return n.emit("Unsqueeze", {"x": n.x(0)}, {"axes": sorted(n.axis(axis, rank) for axis in axes)})


@converts("Squeeze", dtypes="any", ge="Squeeze", note="constant axes; without axes the dims must be known")
def squeeze(n: NodeCall) -> Result:
    axes = n.axes(1)
    if axes is None:
        if any(dim < 0 for dim in n.shape(0)):
            raise Unsupported("Squeeze without axes of a shape that is not known", "axes, or input_shapes")
        axes = [i for i, dim in enumerate(n.shape(0)) if dim == 1]
    return n.emit("Squeeze", {"x": n.x(0)}, {"axis": [n.axis(axis, n.rank(0)) for axis in axes]}) if axes else n.x(0)


@converts("Concat", dtypes="any", ge="ConcatD; bool: ConcatV2", note="one operand leaves no node")
def concat(n: NodeCall) -> Result:
    parts = [n.x(i) for i in range(len(n.inputs)) if not _is_empty(n, i)] or [n.x(0)]
    if len(parts) == 1:
        return parts[0]
    axis = int(n.attr("axis"))
    if n.dtype(0).name == "bool":
        return n.emit("ConcatV2", {"x": parts, "concat_dim": n.scalar(axis, "int32")})
    return n.emit("ConcatD", {"x": parts}, {"concat_dim": axis})


def _is_empty(n: NodeCall, index: int) -> bool:
    return n.has(index) and n.arg(index).type.numel == 0


@converts(
    "Split",
    dtypes="any",
    ge="SplitV, Split, StridedSliceV2",
    note="sizes from the input, the attribute or num_outputs; of an unknown dim an even split becomes Split, and one "
    "with num_outputs, whose last part may be smaller, slices",
)
def split(n: NodeCall) -> Result:
    axis, count = n.axis(int(n.attr("axis", 0)), n.rank(0)), len(n.used)
    sizes = n.ints(1) if n.has(1) else n.attr("split")
    whole = n.shape(0)[axis]
    place = n.scalar(axis, "int32")
    if sizes is None:
        if whole < 0:
            if n.attr("num_outputs") is not None:
                return _parts(n, axis, count)
            return n.emit_all("Split", {"split_dim": place, "x": n.x(0)}, {"num_split": count})
        part = -(-whole // count)
        if part * (count - 1) > whole:
            raise Unsupported(f"a dim of {whole} in {count} parts of {part}", "sizes")
        sizes = [part] * (count - 1) + [whole - part * (count - 1)]
    inputs = {"x": n.x(0), "size_splits": n.vector([int(item) for item in sizes]), "split_dim": place}
    return n.emit_all("SplitV", inputs, {"num_split": count})


def _parts(n: NodeCall, axis: int, count: int) -> list[Tensor]:
    """An unknown dim in parts of one size, rounded up; the last one may be smaller."""
    dim = n.dims([(n.x(0), axis)], "whole")
    up = n.emit("Add", {"x1": dim, "x2": n.vector([count - 1])}, part="up")
    size = n.emit("FloorDiv", {"x1": up, "x2": n.vector([count])}, part="size")
    ends: list[Any] = [n.vector([0])]
    ends += [n.emit("Mul", {"x1": size, "x2": n.vector([i + 1])}, part=f"end{i}") for i in range(count)]
    steps = {"axes": n.vector([axis]), "strides": n.vector([1])}
    return [
        n.emit("StridedSliceV2", {"x": n.x(0), "begin": begin, "end": end, **steps}, part=f"part{i}")
        for i, (begin, end) in enumerate(itertools.pairwise(ends))
    ]


@converts(
    "Slice",
    dtypes="any",
    ge="StridedSliceV2",
    note="computed bounds are taken; steps must be constant; negative steps run on GE's aicpu path only",
)
def slice_(n: NodeCall) -> Result:
    axes = n.ints(3) if n.has(3) else list(range(n.shape(1)[0]))
    if not n.has(3) and n.shape(1)[0] < 0:
        raise Unsupported("Slice without axes and with an unknown number of bounds", "axes, or input_shapes")
    steps = n.ints(4) if n.has(4) else [1] * len(axes)
    if any(step < 0 for step in steps):
        n.note(f"{n.name}: a negative step runs on the aicpu path of StridedSliceV2 only")
    places = [n.axis(axis, n.rank(0)) for axis in axes]
    begin = _bounds(n, 1, places) if min(steps, default=1) > 0 else _first_bounds(n, places)
    inputs = {"x": n.x(0), "begin": begin, "end": _bounds(n, 2, places)}
    return n.emit("StridedSliceV2", {**inputs, "axes": n.vector(places), "strides": n.vector(steps)})


def _first_bounds(n: NodeCall, places: list[int]) -> Any:
    """Where a slice with negative steps begins: in front of the first element is the first in ONNX, nothing in GE."""
    dims, values = [n.shape(0)[place] for place in places], n.arg(1).constant()
    if values is not None and all(dim >= 0 or bound >= -1 for dim, bound in zip(dims, values.reshape(-1), strict=True)):
        return n.vector([max(int(bound), -dim) if dim >= 0 else int(bound)
                         for dim, bound in zip(dims, values.reshape(-1), strict=True)])  # fmt: skip
    whole = n.emit("Shape", {"x": n.x(0)}, {"dtype": 9}, part="input_shape")
    picked = {"x": whole, "indices": n.vector(places), "axis": n.scalar(0, "int64")}
    lowest = n.emit("Neg", {"x": n.emit("GatherV2", picked, part="sliced_dims")}, part="lowest")
    return n.emit("Maximum", {"x1": _bounds(n, 1, places), "x2": lowest}, part="begin")


def _bounds(n: NodeCall, index: int, places: list[int]) -> Any:
    """Slice bounds; INT64_MAX becomes the dim where that is known, for tools that compute in int32."""
    values = n.arg(index).constant()
    if values is None:
        return n.cast(n.x(index), "int64", f"bound{index}")
    bounds = [int(item) for item in values.reshape(-1)]
    return n.vector([
        n.shape(0)[place] if bound > n.shape(0)[place] >= 0 else bound
        for bound, place in zip(bounds, places, strict=True)
    ])  # fmt: skip


@converts("Expand", dtypes="any", ge="BroadcastTo, Expand",
          note="BroadcastTo where the result's shape is certain, else Expand (bfloat16 through float32)")  # fmt: skip
def expand(n: NodeCall) -> Result:
    dims, known = n.shape(0), n.known(1)
    length = n.shape(1)[0]
    if length < 0:
        return _expand_at_run_time(n)
    target: list[int | None] = [None] * length if known is None else list(known.reshape(-1))
    rank = max(length, len(dims))
    padded = (1,) * (rank - len(dims)) + tuple(dims)
    wanted = [1] * (rank - length) + target
    final = [_expanded(a, b) for a, b in zip(padded, wanted, strict=True)]
    if all(dim is not None for dim in final):
        if tuple(final) == tuple(dims):
            return n.x(0)
        return n.emit("BroadcastTo", {"x": n.x(0), "shape": n.vector([int(dim or 0) for dim in final])})
    # a computed target is right as it stands where it cannot be a 1 against a larger dim
    if rank == length and all(a == 1 or (b is not None and b > 1) for a, b in zip(padded, wanted, strict=True)):
        return n.emit("BroadcastTo", {"x": n.x(0), "shape": n.x(1)})
    return _expand_at_run_time(n)


def _expand_at_run_time(n: NodeCall) -> Tensor:
    if n.dtype(0).name != "bfloat16":
        return n.emit("Expand", {"x": n.x(0), "shape": n.x(1)})
    wide = n.emit("Expand", {"x": n.cast(n.x(0), "float32", "widen"), "shape": n.x(1)}, part="expand")
    return n.emit("Cast", {"x": wide}, {"dst_type": n.dtype(0)})


def _expanded(dim: int, wanted: int | None) -> int | None:
    """A dim of Expand's result, None when only run time tells."""
    if wanted is None:
        return None
    if wanted == 1:
        return dim if dim >= 0 else None
    return wanted


@converts("Tile", dtypes="any", ge="Tile", note="repeats may be computed")
def tile(n: NodeCall) -> Result:
    return n.emit("Tile", {"x": n.x(0), "multiples": n.x(1)})


@converts("ConstantOfShape", dtypes="any", ge="Fill", note="the shape may be computed")
def constant_of_shape(n: NodeCall) -> Result:
    value = n.attr("value")
    array = np.zeros(1, np.float32) if value is None else value.numpy()
    return n.emit("Fill", {"dims": n.x(0), "value": array.reshape(())})


@converts("Range", dtypes="int64, int32, float32", ge="Range", note="scalars of rank 0")
def range_(n: NodeCall) -> Result:
    return n.emit("Range", {"start": n.x(0), "limit": n.x(1), "delta": n.x(2)})

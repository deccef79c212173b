"""Calls as nobody should make them: legal ones with null inputs, other types, shapes, values and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.declaration import Attr
from ir_ops.dtypes import Array, by_name
from ir_ops.ops import OPS
from tests.custom_ort.calls import Call

Rng = np.random.Generator
TYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool", "float8_e4m3fn")
FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 65504.0, 1e-42, 1.0, -1.0, 1e10)
SIZES = (0, 1, 2, 3, 5, 16, 17, 33, 64, 65)
INTS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 16, 29, 35, 36, 64, 1 << 31, 1 << 32, 1 << 62, 2**63 - 1)
WORDS = ("", "Norm", "PA", "PA_NZ", "BSND", "contiguous", "None", "saturate", "\u00e9" * 9, "x" * 3000, "%s%n")
MOST = 1 << 16
"""Elements that a made-up input may have."""


def pick(rng: Rng, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def name_of(rng: Rng, call: Call) -> str:
    return str(pick(rng, list(call.inputs)))


def value(rng: Rng, call: Call) -> None:
    """Some elements, or all, become what no tensor should hold."""
    name = name_of(rng, call)
    array = call.inputs[name] = call.inputs[name].copy()
    if not array.size:
        return
    flat = array.reshape(-1)
    places = rng.integers(0, flat.size, pick(rng, [1, 1, 3])) if rng.random() < 0.8 else slice(None)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        near = int(flat[0]) + int(rng.integers(-2, 3))
        flat[places] = np.clip(pick(rng, [*INTS, near, near]), limits.min, limits.max)
    else:
        with np.errstate(all="ignore"):
            flat[places] = np.float32(pick(rng, FLOATS)).astype(array.dtype)


def shape(rng: Rng, call: Call) -> None:
    """Another size of one dim, a dim more or less, a scalar, too many dims, or sizes whose product is too large."""
    name = name_of(rng, call)
    array = call.inputs[name]
    sizes = list(array.shape)
    way = rng.random()
    if way < 0.6 and sizes:
        axis = int(rng.integers(len(sizes)))
        sizes[axis] = int(pick(rng, [*SIZES, sizes[axis] + 1, max(0, sizes[axis] - 1), 2 * sizes[axis]]))
    elif way < 0.75:
        sizes.insert(int(rng.integers(len(sizes) + 1)), int(pick(rng, [1, 1, 0, 2])))
    elif way < 0.85 and sizes:
        sizes.pop(int(rng.integers(len(sizes))))
    elif way < 0.9:
        sizes = pick(rng, [[], [1] * 9, [0], [1] * 20, sizes[::-1]])
    elif sizes:
        huge = int(pick(rng, [1 << 30, 1 << 31, 1 << 20]))
        sizes = [0 if size_is_zero else pick(rng, [huge, 1]) for size_is_zero in (rng.random(len(sizes)) < 0.4)]
        sizes[int(rng.integers(len(sizes)))] = 0
    if sum(size > 1 << 16 for size in sizes) > 1 or np.prod([size or 1 for size in sizes if size < 1 << 16]) > MOST:
        return
    if any(size > 1 << 16 for size in sizes) and 0 not in sizes:
        return
    call.inputs[name] = filled(array, sizes)


def filled(array: Array, sizes: list[int]) -> Array:
    """The array's elements, over and over, in another shape."""
    made = np.zeros(sizes, array.dtype)
    if made.size and array.size:
        made.reshape(-1)[:] = np.resize(array.reshape(-1), made.size)
    return made


def dtype(rng: Rng, call: Call) -> None:
    """Another element type for one input, or for all that had the same."""
    name, kind = name_of(rng, call), by_name(str(pick(rng, TYPES))).np
    old = call.inputs[name].dtype
    names = [name] if rng.random() < 0.5 else [other for other, array in call.inputs.items() if array.dtype == old]
    with np.errstate(all="ignore"):
        call.inputs.update({other: call.inputs[other].astype(np.float32).astype(kind) for other in names})


def absence(rng: Rng, call: Call) -> None:
    """One input less, optional or not."""
    if len(call.inputs) > 1:
        call.inputs.pop(name_of(rng, call))


def presence(rng: Rng, call: Call, operator: str) -> None:
    """One optional input more, made of another's elements."""
    absent = [entry for entry in OPS[operator].inputs if entry.name not in call.inputs]
    if absent:
        entry, model = pick(rng, absent), call.inputs[name_of(rng, call)]
        with np.errstate(all="ignore"):
            kind = by_name(str(pick(rng, OPS[operator].onnx_types(entry.type)))).np
            call.inputs[entry.name] = model.astype(np.float32).astype(kind)


def exchange(rng: Rng, call: Call) -> None:
    """Two inputs change places, or one stands in for the other."""
    first, second = name_of(rng, call), name_of(rng, call)
    call.inputs[first], kept = call.inputs[second], call.inputs[first]
    if rng.random() < 0.5:
        call.inputs[second] = kept
    else:
        call.inputs[first] = call.inputs[first].copy()


def attribute(rng: Rng, call: Call, operator: str) -> None:
    """One attribute is gone, has a strange value, or another type."""
    declared = OPS[operator].attrs
    if not declared:
        return
    attr = pick(rng, declared)
    if rng.random() < 0.1:
        call.attrs.pop(attr.name, None)
        return
    others = ["Float", "String", "ListInt"] if attr.type == "Float" else ["Int", "Float", "String", "ListInt"]
    kind = attr.type if rng.random() < 0.85 else pick(rng, others)  # Python's 1 is a Float too
    call.attrs[attr.name] = strange(rng, attr, kind, call.attrs.get(attr.name))


def strange(rng: Rng, attr: Attr, kind: str, old: Any) -> Any:
    if kind == "Float":
        return float(pick(rng, FLOATS))
    if kind == "Int":
        return int(pick(rng, INTS))
    if kind == "Bool":
        return int(pick(rng, [0, 1, 1, 0, 2, -1]))
    if kind == "String":
        return str(pick(rng, [*WORDS, *attr.allowed, *attr.allowed]))
    items = list(old) if isinstance(old, list) else [1, 1, 1, 1]
    way = rng.random()
    if way < 0.6 and items:
        place = int(rng.integers(len(items)))
        items[place] = int(pick(rng, [*INTS, items[place] + 1, items[place] - 1]))
    elif way < 0.8:
        items = [int(pick(rng, INTS)) for _ in items]
    else:
        items = pick(rng, [[], items[1:], [*items, 1], items[::-1], items * 9])
    return items


def spoil_configuration(rng: Rng, call: Call, operator: str) -> None:
    """Changes what a session is made for: types, which inputs are given, attributes."""
    for _ in range(int(pick(rng, [0, 0, 1, 1, 2]))):
        way = rng.random()
        if way < 0.5:
            attribute(rng, call, operator)
        elif way < 0.65:
            presence(rng, call, operator)
        elif way < 0.8:
            absence(rng, call)
        else:
            dtype(rng, call)


def spoil_arrays(rng: Rng, call: Call) -> None:
    """Changes what one session may be given: values and shapes."""
    for _ in range(int(pick(rng, [0, 1, 1, 1, 2, 3]))):
        way = rng.random()
        if way < 0.45:
            value(rng, call)
        elif way < 0.9:
            shape(rng, call)
        else:
            kinds = {name: array.dtype for name, array in call.inputs.items()}
            exchange(rng, call)
            if any(call.inputs[name].dtype != kind for name, kind in kinds.items()):
                with np.errstate(all="ignore"):
                    call.inputs.update({name: call.inputs[name].astype(kind) for name, kind in kinds.items()})

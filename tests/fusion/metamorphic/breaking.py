"""Edits that may break the meaning of a graph: each changes one place, and says whether it found one.

Afterwards the graph means something else, or nothing, or the same by chance: the fused model has to follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fusion import mutations
from tests.fusion.metamorphic.draft import Draft, Kind, attribute, is_float, is_rows, scalar
from tests.fusion.metamorphic.keeping import Edit, whole, wrapped
from tests.fusion.zoo.graph import Array

OTHER = "__other"
"""Ending of an added input that carries other values of the input named in front of it."""
BREAKING: dict[str, Edit] = {}


def edit(function: Edit) -> Edit:
    BREAKING[function.__name__] = function
    return function


def _put(op: str, second: Callable[[Any], float] | None = None) -> Edit:
    """``op`` on one edge, with a random number as second operand."""

    def around(draft: Draft, at: int, name: str, kind: Kind) -> str:
        more = [] if second is None else [draft.constant(scalar(second(draft.rng), kind))]
        return draft.inserted(at, op, [name, *more], kind)

    return wrapped(is_float, around)


BREAKING["sign"] = _put("Neg")
BREAKING["absolute"] = _put("Abs")
BREAKING["cut_off"] = _put("Relu")
BREAKING["factor"] = _put("Mul", lambda rng: rng.choice((2.0, 0.5, 1.01, -1.0, 0.0)))
BREAKING["offset"] = _put("Add", lambda rng: rng.choice((1.0, 0.01, -0.5)))


def _reversed(draft: Draft, at: int, name: str, kind: Kind) -> str:
    axis = draft.rng.randrange(kind.rank)
    bounds = [draft.constant(np.array([number], np.int64)) for number in (-1, -(2**62), axis, -1)]
    return draft.inserted(at, "Slice", [name, *bounds], kind)


def _rolled(draft: Draft, at: int, name: str, kind: Kind) -> str:
    axis = draft.rng.randrange(kind.rank)
    parts = [draft.new("part") for _ in range(2)]
    nodes = []
    for part, (start, end) in zip(parts, ((1, 2**62), (0, 1)), strict=True):
        bounds = [draft.constant(np.array([number], np.int64)) for number in (start, end, axis)]
        nodes.append(helper.make_node("Slice", [name, *bounds], [part], name=part))
    value = draft.inserted(at, "Concat", parts, kind, axis=axis)
    for node in nodes:
        draft.nodes.insert(at, node)
    return value


def _rounded(draft: Draft, at: int, name: str, kind: Kind) -> str:
    """To int8 and back: the fraction is gone."""
    low = draft.new("low")
    node = helper.make_node("Cast", [name], [low], name=low, to=TensorProto.INT32)
    value = draft.inserted(at, "Cast", [low], kind, to=kind.type)
    draft.nodes.insert(at, node)
    return value


BREAKING["reversed"] = wrapped(lambda kind: kind.rank > 0, _reversed)
BREAKING["rolled"] = wrapped(lambda kind: kind.rank > 0, _rolled)
BREAKING["fraction_cut"] = wrapped(is_rows, _rounded)


@edit
def other_operation(draft: Draft) -> bool:
    swap = {"Add": "Sub", "Sub": "Add", "Mul": "Add", "Div": "Mul", "Sqrt": "Exp", "Sin": "Cos", "Cos": "Sin",
            "ReduceMean": "ReduceSum", "ReduceSum": "ReduceMean", "Round": "Floor", "ReduceMax": "ReduceMin",
            "Reciprocal": "Sqrt", "Floor": "Ceil", "Max": "Min", "Min": "Max", "Sigmoid": "Tanh"}  # fmt: skip
    node = draft.pick(node for node in draft.nodes if node.op_type in swap)
    if node is None or (draft.opset >= 13 and node.op_type in ("ReduceMean", "ReduceSum") and draft.opset < 18):
        return False
    node.op_type = swap[node.op_type]
    return True


@edit
def operands_swapped(draft: Draft) -> bool:
    """Also the parts of a Concat: swapped halves."""
    kinds = ("Sub", "Div", "Pow", "Concat", "MatMul", "Where", "Less", "Greater")
    node = draft.pick(node for node in draft.nodes if node.op_type in kinds and len(node.input) > 1)
    if node is None:
        return False
    first, second = draft.rng.sample(range(len(node.input)), 2)
    node.input[first], node.input[second] = node.input[second], node.input[first]
    return True


@edit
def parts_swapped(draft: Draft) -> bool:
    """The results of a Split."""
    node = draft.pick(node for node in draft.nodes if len(node.output) > 1 and "" not in node.output)
    if node is None:
        return False
    first, second = draft.rng.sample(range(len(node.output)), 2)
    node.output[first], node.output[second] = node.output[second], node.output[first]
    return True


@edit
def axes_swapped(draft: Draft) -> bool:
    """Another order of axes: heads for tokens, or columns."""
    perm = draft.pick(item for node in draft.nodes for item in node.attribute if item.name == "perm")
    if perm is None or len(perm.ints) < 2:
        return False
    first, second = draft.rng.sample(range(len(perm.ints)), 2)
    perm.ints[first], perm.ints[second] = perm.ints[second], perm.ints[first]
    return True


@edit
def order_swapped(draft: Draft) -> bool:
    """Two steps in the other order, as epsilon outside of the root instead of inside."""
    readers, held = draft.readers(), draft.constant_names()
    pairs = []
    for at, node in enumerate(draft.nodes):
        found = readers.get(node.output[0], []) if len(node.output) == 1 else []
        if len(found) == 1 and node.output[0] not in draft.results() and _steps(node, held) == 1:
            then, place = found[0]
            other = draft.nodes[then]
            if _steps(other, held) == 1 and len(other.output) == 1:
                pairs.append((at, then, place))
    chosen = draft.pick(pairs)
    if chosen is None:
        return False
    at, then, place = chosen
    first, second = draft.nodes[at], draft.nodes[then]
    source = next(number for number, name in enumerate(first.input) if name and name not in held)
    second.input[place], first.input[source] = first.input[source], second.output[0]
    first.output[0], second.output[0] = second.output[0], first.output[0]
    first.input[source] = second.output[0]
    moved = onnx.NodeProto()
    moved.CopyFrom(first)
    draft.nodes.insert(then + 1, moved)
    del draft.nodes[at]
    return True


def _steps(node: onnx.NodeProto, held: set[str]) -> int:
    """How many values that are no constants the node reads."""
    return sum(bool(name) and name not in held for name in node.input)


@edit
def other_input(draft: Draft) -> bool:
    """One reader of a graph input reads another input instead: other slots, another cache, other tables."""
    names = {item.name: item for item in draft.model.graph.input}
    places = [
        (at, place) for at, node in enumerate(draft.nodes) for place, name in enumerate(node.input) if name in names
    ]
    found = draft.pick(places)
    if found is None:
        return False
    node, place = draft.nodes[found[0]], found[1]
    name = node.input[place]
    if name.endswith(OTHER):
        return False
    if name + OTHER not in names:
        entry = draft.model.graph.input.add()
        entry.CopyFrom(names[name])
        entry.name = name + OTHER
        if name in draft.kinds:
            draft.kinds[entry.name] = draft.kinds[name]
    node.input[place] = name + OTHER
    return True


def feed_of_others(given: dict[str, Array], model: onnx.ModelProto) -> dict[str, Array]:
    """Feeds for the added inputs too: the values of the named one, turned around along all axes."""
    found = dict(given)
    for item in model.graph.input:
        if item.name.endswith(OTHER) and item.name not in found:
            found[item.name] = np.flip(given[item.name.removesuffix(OTHER)]).copy()
    return {item.name: found[item.name] for item in model.graph.input if item.name in found}


@edit
def other_value(draft: Draft) -> bool:
    """An operand is another value of the same type and sizes: a mixed cache, another gamma, another head."""
    found = draft.edge(constants=True)
    if found is None:
        return False
    at, place = found
    kind, name = draft.kinds[draft.nodes[at].input[place]], draft.nodes[at].input[place]
    known = {item.name for item in (*draft.model.graph.input, *draft.model.graph.initializer)}
    known |= {output for node in draft.nodes[:at] for output in node.output}
    other = draft.pick(sorted(item for item in known if item != name and draft.kinds.get(item) == kind))
    if other is None:
        return False
    draft.nodes[at].input[place] = other
    return True


@edit
def second_reader(draft: Draft) -> bool:
    """A value inside, or a cache before it is written, is read by a new output."""
    found = draft.edge(is_float)
    if found is None:
        return False
    name = draft.nodes[found[0]].input[found[1]]
    result = draft.new("read")
    draft.nodes.append(helper.make_node("Neg", [name], [result], name=result))
    kind = draft.kinds[name]
    draft.model.graph.output.append(helper.make_tensor_value_info(result, kind.type, [None] * kind.rank))
    return True


@edit
def left_out(draft: Draft) -> bool:
    """A node that has the kind of its input is passed by."""
    at = draft.pick(
        at
        for at, node in enumerate(draft.nodes)
        if len(node.output) == 1
        and node.output[0] not in draft.results()
        and any(name in draft.kinds and draft.kinds.get(node.output[0]) == draft.kinds[name] for name in node.input)
    )
    if at is None:
        return False
    node = draft.nodes[at]
    old = node.output[0]
    new = draft.pick(name for name in node.input if name in draft.kinds and draft.kinds[name] == draft.kinds[old])
    del draft.nodes[at]
    for other in draft.nodes:
        other.input[:] = [new if name == old else name for name in other.input]
    return True


@edit
def other_float(draft: Draft) -> bool:
    """A float constant: reciprocal, larger, one element different, turned around."""
    tensor = draft.pick(item for item in draft.constants() if item.data_type in (1, 10) and _count(item))
    if tensor is None:
        return False
    numbers = np.array(numpy_helper.to_array(tensor))
    how = draft.rng.choice(("reciprocal", "larger", "one", "turned", "moved", "zero"))
    if how == "reciprocal":
        numbers = 1 / np.where(np.abs(numbers) < 1e-3, 1, numbers)
    elif how == "larger":
        numbers = numbers * 1.5
    elif how == "one":
        numbers.reshape(-1)[draft.rng.randrange(numbers.size)] += 0.75
    elif how == "turned":
        numbers = np.ascontiguousarray(numbers[..., ::-1]) if numbers.ndim else -numbers
    else:
        numbers = numbers + 0.125 if how == "moved" else np.zeros_like(numbers)
    dtype = numpy_helper.to_array(tensor).dtype
    tensor.CopyFrom(numpy_helper.from_array(numbers.astype(dtype), tensor.name))
    return True


def _count(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims))


@edit
def off_by_one(draft: Draft) -> bool:
    """One number of an integer constant is one more, one less, negative or twice as large."""
    tensor = draft.pick(item for item in draft.constants() if item.data_type == TensorProto.INT64 and _count(item))
    if tensor is None:
        return False
    numbers = np.array(numpy_helper.to_array(tensor))
    flat = numbers.reshape(-1)
    at = draft.rng.randrange(flat.size)
    if flat[at] < 2**61:
        flat[at] = draft.rng.choice((flat[at] + 1, flat[at] - 1, -flat[at], 2 * flat[at], flat[at] // 2))
    else:
        flat[at] = draft.rng.choice((-1, 1, 2))
    tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    return True


@edit
def integer_moved(draft: Draft) -> bool:
    """One is added to integers on an edge: slots, positions, sizes."""

    def around(draft: Draft, at: int, name: str, kind: Kind) -> str:
        one = draft.constant(np.array(draft.rng.choice((1, -1)), np.int64))
        return draft.inserted(at, draft.rng.choice(("Add", "Sub")), [name, one], kind)

    return wrapped(lambda kind: kind.type == TensorProto.INT64, around)(draft)


@edit
def other_axis(draft: Draft) -> bool:
    found = []
    for node in draft.nodes:
        axis = attribute(node, "axis")
        kind = draft.kinds.get(node.input[0]) if node.input else None
        if axis is not None and kind is not None and kind.rank > 1:
            found.append((axis, kind.rank))
    chosen = draft.pick(found)
    if chosen is None:
        return False
    axis, rank = chosen
    axis.i = (axis.i + draft.rng.randrange(1, rank)) % rank
    return True


for _function in mutations.BREAKING:
    BREAKING[_function.__name__] = whole(_function)

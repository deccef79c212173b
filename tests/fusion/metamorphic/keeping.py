"""Edits that keep the meaning of a graph: each changes one place, and says whether it found one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from tests.fusion import mutations
from tests.fusion.metamorphic.draft import Draft, Kind, attribute, is_float, is_rows, scalar

Edit = Callable[[Draft], bool]
WRITES = ("ScatterND", "ScatterElements", "TensorScatter", "Scatter")
KEEPING: dict[str, Edit] = {}


def edit(function: Edit) -> Edit:
    KEEPING[function.__name__] = function
    return function


def wrapped(wanted: Callable[[Kind], bool], around: Callable[[Draft, int, str, Kind], str]) -> Edit:
    """An edit that puts ``around`` on one edge."""

    def apply(draft: Draft) -> bool:
        found = draft.edge(wanted)
        if found is None:
            return False
        at, place = found
        node = draft.nodes[at]
        name = node.input[place]
        value = around(draft, at, name, draft.kinds[name])
        node.input[place] = value
        return True

    return apply


# Nodes are inserted in front of position `at`, the last one first.


def _one(op: str, wanted: Callable[[Kind], bool]) -> Edit:
    return wrapped(wanted, lambda draft, at, name, kind: draft.inserted(at, op, [name], kind))


KEEPING["identity"] = _one("Identity", lambda kind: True)
KEEPING["concat_of_one"] = wrapped(
    lambda kind: kind.rank > 0,
    lambda draft, at, name, kind: draft.inserted(at, "Concat", [name], kind, axis=draft.rng.randrange(kind.rank)),
)
KEEPING["idle_cast"] = wrapped(
    lambda kind: True, lambda draft, at, name, kind: draft.inserted(at, "Cast", [name], kind, to=kind.type)
)
KEEPING["one_times"] = wrapped(
    is_float,
    lambda draft, at, name, kind: draft.inserted(at, "Mul", [name, draft.constant(scalar(1, kind))], kind),
)


def _reshapes(draft: Draft, at: int, name: str, kind: Kind) -> str:
    flat = draft.new("flat")
    sizes = draft.new("sizes")
    first = helper.make_node("Reshape", [name, draft.constant(np.array([-1], np.int64))], [flat], name=flat)
    shape = helper.make_node("Shape", [name], [sizes], name=sizes)
    value = draft.inserted(at, "Reshape", [flat, sizes], kind)
    draft.nodes.insert(at, first)
    draft.nodes.insert(at, shape)
    return value


def _copied_sizes(draft: Draft, at: int, name: str, kind: Kind) -> str:
    target = draft.constant(np.zeros(kind.rank, np.int64))
    return draft.inserted(at, "Reshape", [name, target], kind)


def _transposes(draft: Draft, at: int, name: str, kind: Kind) -> str:
    order = draft.rng.sample(range(kind.rank), kind.rank)
    turned = draft.new("turned")
    node = helper.make_node("Transpose", [name], [turned], name=turned, perm=order)
    value = draft.inserted(at, "Transpose", [turned], kind, perm=[order.index(axis) for axis in range(kind.rank)])
    draft.nodes.insert(at, node)
    draft.kinds[turned] = Kind(kind.type, tuple(kind.dims[axis] for axis in order))
    return value


def _unsqueezed(draft: Draft, at: int, name: str, kind: Kind) -> str:
    axis = draft.rng.randint(0, kind.rank)
    wide = draft.new("wide")
    if draft.opset >= 13:
        axes = draft.constant(np.array([axis], np.int64))
        node = helper.make_node("Unsqueeze", [name, axes], [wide], name=wide)
        value = draft.inserted(at, "Squeeze", [wide, axes], kind)
    else:
        node = helper.make_node("Unsqueeze", [name], [wide], name=wide, axes=[axis])
        value = draft.inserted(at, "Squeeze", [wide], kind, axes=[axis])
    draft.nodes.insert(at, node)
    draft.kinds[wide] = Kind(kind.type, (*kind.dims[:axis], 1, *kind.dims[axis:]))
    return value


def _negated_twice(draft: Draft, at: int, name: str, kind: Kind) -> str:
    first = draft.new("neg")
    node = helper.make_node("Neg", [name], [first], name=first)
    value = draft.inserted(at, "Neg", [first], kind)
    draft.nodes.insert(at, node)
    return value


KEEPING["reshape_pair"] = wrapped(lambda kind: kind.rank > 0, _reshapes)
KEEPING["reshape_to_itself"] = wrapped(lambda kind: kind.rank > 0, _copied_sizes)
KEEPING["transpose_pair"] = wrapped(lambda kind: kind.rank > 1, _transposes)
KEEPING["unsqueeze_squeeze"] = wrapped(lambda kind: 0 < kind.rank < 6, _unsqueezed)
KEEPING["negated_twice"] = wrapped(is_rows, _negated_twice)


@edit
def commuted(draft: Draft) -> bool:
    node = draft.pick(node for node in draft.nodes if node.op_type in ("Add", "Mul", "Max", "Min", "And", "Or"))
    if node is not None:
        node.input[:] = list(node.input)[::-1]
    return node is not None


@edit
def factor_in_two(draft: Draft) -> bool:
    """``x * c`` as ``x * 2 * (c / 2)``, which is exact."""
    places = [
        (at, place)
        for at, node in enumerate(draft.nodes)
        if node.op_type == "Mul"
        for place in (0, 1)
        if (value := draft.value_of(node.input[place])) is not None
        and is_float(draft.kinds.get(node.input[place], Kind(0, ())))
        and node.input[1 - place] in draft.kinds
        and np.abs(value.astype(np.float64)).min(initial=1) > 1e-3
        and not (value == 1).all()  # where nothing is multiplied, twice may be too large
    ]
    found = draft.pick(places)
    if found is None:
        return False
    at, place = found
    node = draft.nodes[at]
    value = draft.value_of(node.input[place])
    assert value is not None
    half = draft.constant((value / np.array(2, value.dtype)).astype(value.dtype))
    kind = draft.kinds[node.input[1 - place]]
    two = draft.constant(scalar(2, kind))
    twice = draft.inserted(at, "Mul", [node.input[1 - place], two], kind)
    draft.nodes[at + 1].input[:] = [twice, half]
    return True


def _respelled(draft: Draft, op: str, write: Callable[[Draft, onnx.NodeProto], list[onnx.NodeProto] | None]) -> bool:
    at = draft.pick(
        at
        for at, node in enumerate(draft.nodes)
        if node.op_type == op and node.domain == "" and is_float(draft.kinds.get(node.output[0], Kind(0, ())))
    )
    written = write(draft, draft.nodes[at]) if at is not None else None
    if at is None or written is None:
        return False
    draft.replace(at, written)
    return True


@edit
def difference_as_sum(draft: Draft) -> bool:
    def write(draft: Draft, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        minus = draft.new("minus")
        return [
            helper.make_node("Neg", [node.input[1]], [minus], name=minus),
            helper.make_node("Add", [node.input[0], minus], list(node.output), name=node.name),
        ]

    return _respelled(draft, "Sub", write)


@edit
def quotient_as_product(draft: Draft) -> bool:
    def write(draft: Draft, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        inverse = draft.new("inverse")
        return [
            helper.make_node("Reciprocal", [node.input[1]], [inverse], name=inverse),
            helper.make_node("Mul", [node.input[0], inverse], list(node.output), name=node.name),
        ]

    return _respelled(draft, "Div", write)


@edit
def square_as_product(draft: Draft) -> bool:
    def write(draft: Draft, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        power = draft.value_of(node.input[1])
        if power is None or power.size != 1 or float(power.reshape(-1)[0]) != 2:
            return None
        return [helper.make_node("Mul", [node.input[0]] * 2, list(node.output), name=node.name)]

    return _respelled(draft, "Pow", write)


@edit
def sign_as_factor(draft: Draft) -> bool:
    def write(draft: Draft, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        minus_one = draft.constant(scalar(-1, draft.kinds[node.output[0]]))
        return [helper.make_node("Mul", [node.input[0], minus_one], list(node.output), name=node.name)]

    return _respelled(draft, "Neg", write)


@edit
def negative_axis(draft: Draft) -> bool:
    """The axis counted from the other end."""
    found = []
    for node in draft.nodes:
        axis = attribute(node, "axis")
        kind = draft.kinds.get(node.input[0]) if node.input else None
        if axis is not None and kind is not None and node.op_type in ("Concat", "Split", "Gather", "GatherElements"):
            found.append((axis, kind.rank))
    chosen = draft.pick(found)
    if chosen is not None:
        axis, rank = chosen
        axis.i = axis.i - rank if axis.i >= 0 else axis.i + rank
    return chosen is not None


@edit
def split_as_slices(draft: Draft) -> bool:
    """A Split with known sizes as Slices."""
    places = []
    for at, node in enumerate(draft.nodes):
        sizes = draft.value_of(node.input[1]) if node.op_type == "Split" and len(node.input) > 1 else None
        if sizes is not None:
            places.append((at, sizes))
    found = draft.pick(places)
    if found is None:
        return False
    at, sizes = found
    node = draft.nodes[at]
    axis = attribute(node, "axis")
    along = draft.constant(np.array([axis.i if axis is not None else 0], np.int64))
    ends = np.cumsum(sizes)
    slices = [
        helper.make_node(
            "Slice",
            [
                node.input[0],
                *(draft.constant(np.array([number], np.int64)) for number in (end - size, end)),
                along,
            ],
            [output],
            name=draft.new("slice"),
        )
        for output, size, end in zip(node.output, sizes, ends, strict=True)
    ]
    draft.replace(at, slices)
    return True


@edit
def constant_the_other_way(draft: Draft) -> bool:
    """An initializer becomes a Constant node, or the other way."""
    graph = draft.model.graph
    if draft.rng.random() < 0.5 and graph.initializer:
        at = draft.rng.randrange(len(graph.initializer))
        tensor = onnx.TensorProto()
        tensor.CopyFrom(graph.initializer[at])
        del graph.initializer[at]
        draft.nodes.insert(0, helper.make_node("Constant", [], [tensor.name], name=draft.new("held"), value=tensor))
        return True
    at = draft.pick(
        at
        for at, node in enumerate(draft.nodes)
        if node.op_type == "Constant" and node.attribute[0].HasField("t") and node.output[0] not in draft.results()
    )
    if at is None:
        return False
    tensor = onnx.TensorProto()
    tensor.CopyFrom(draft.nodes[at].attribute[0].t)
    tensor.name = draft.nodes[at].output[0]
    del draft.nodes[at]
    graph.initializer.append(tensor)
    return True


@edit
def shared_value_made_twice(draft: Draft) -> bool:
    """A node with several readers is there twice; one reader reads the copy. Writes of a cache are left alone."""
    readers = draft.readers()
    at = draft.pick(
        at
        for at, node in enumerate(draft.nodes)
        if len(node.output) == 1 and node.op_type not in WRITES and len(readers.get(node.output[0], ())) > 1
    )
    if at is None:
        return False
    copy = onnx.NodeProto()
    copy.CopyFrom(draft.nodes[at])
    old = copy.output[0]
    reader, place = draft.rng.choice(readers[old])
    copy.output[0] = copy.name = draft.new("again")
    draft.nodes[reader].input[place] = copy.output[0]
    draft.nodes.insert(at, copy)
    if old in draft.kinds:
        draft.kinds[copy.output[0]] = draft.kinds[old]
    return True


@edit
def idle_reader(draft: Draft) -> bool:
    """A node whose result nobody reads."""
    found = draft.edge(is_rows)
    if found is None:
        return False
    name = draft.nodes[found[0]].input[found[1]]
    draft.nodes.append(helper.make_node("Neg", [name], [draft.new("idle")], name=draft.new("idle")))
    return True


@edit
def renamed(draft: Draft) -> bool:
    """Every value that is no input or output of the graph gets another name; nodes lose theirs."""
    graph = draft.model.graph
    fixed = {"", *(item.name for item in (*graph.input, *graph.output))}
    names = sorted({name for node in graph.node for name in (*node.input, *node.output)} - fixed)
    draft.rng.shuffle(names)
    new = {name: f"v{draft.step}_{number}" for number, name in enumerate(names)}
    for node in graph.node:
        node.name = ""
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for item in (*graph.initializer, *graph.value_info):
        item.name = new.get(item.name, item.name)
    for old, name in new.items():
        if old in draft.kinds:
            draft.kinds[name] = draft.kinds.pop(old)
    return True


def whole(function: mutations.Edit) -> Edit:
    def apply(draft: Draft) -> bool:
        try:
            function(draft.model, draft.rng)
        except (IndexError, ValueError):  # nothing of the kind in the graph
            return False
        return True

    return apply


def _meeting(draft: Draft) -> set[str]:
    """Inputs that need the names of their dims: with others, one could be broadcast to the other or be cut otherwise.

    These are inputs of one form, and such whose dims stand side by side in a shape.
    """
    forms: dict[tuple[str, ...], list[str]] = {}
    for item in draft.model.graph.input:
        dims = tuple(dim.dim_param or str(dim.dim_value) for dim in item.type.tensor_type.shape.dim)
        forms.setdefault(dims, []).append(item.name)
    moved = {node.output[0]: node.input[0] for node in draft.nodes if node.input}
    asked: dict[str, str] = {}
    for node in draft.nodes:
        if node.op_type == "Shape":
            name = node.input[0]
            while name in moved:  # what an edit before has put in between
                name = moved[name]
            asked[node.output[0]] = name
    groups = [*forms.values(), *({asked.get(name, "") for name in node.input} - {""} for node in draft.nodes)]
    inputs = {item.name for item in draft.model.graph.input}
    return {name for group in groups if len(inputs & set(group)) > 1 for name in group}


@edit
def own_names(draft: Draft) -> bool:
    """Every symbolic dim has a name of its own, or none."""
    held = _meeting(draft)
    for entry in (*draft.model.graph.input, *draft.model.graph.output, *draft.model.graph.value_info):
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            if dim.dim_param and entry.name not in held:
                dim.dim_param = f"{entry.name}_{axis}"
                if draft.rng.random() < 0.3 and entry in draft.model.graph.input:
                    dim.ClearField("dim_param")
    return True


for _name in ("without_value_info", "another_order", "declared_in_another_order"):
    KEEPING[_name] = whole(getattr(mutations, _name))

"""One damage, or several, for every rule of the validator: (rule, severity, what, how)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.ge.attrs import set_list
from ir_ops.ge.model import AttrKind
from tests.ir_ops.ge.damage import Damage, op

E, W, N = {"error"}, {"warning"}, {"note"}


def rename(message: Any, old: str, new: str) -> None:
    """Renames a node and the edges from it."""
    op(message, old).name = new
    for entry in message.graph[0].op:
        for i, text in enumerate(entry.input):
            if text.rpartition(":")[0] == old:
                entry.input[i] = f"{new}:{text.rpartition(':')[2]}"


def set_names(entry: Any, prefix: str, names: list[str]) -> None:
    for key in (f"{prefix}_key", f"{prefix}_value"):
        entry.attr[key].Clear()
    set_list(entry.attr[f"{prefix}_key"], AttrKind.LIST_STRING, names)
    set_list(entry.attr[f"{prefix}_value"], AttrKind.LIST_INT, range(len(names)))


def rename_slot(entry: Any, side: str, index: int, name: str) -> None:
    descs = entry.input_desc if side == "_input_name" else entry.output_desc
    descs[index].name = name
    set_names(entry, side, [desc.name for desc in descs])


def unknown_field(message: Any) -> None:
    raw = op(message, "norm").SerializeToString() + b"\xa0\x06\x01"  # field 100
    op(message, "norm").ParseFromString(raw)


def compiled_field(message: Any) -> None:
    raw = op(message, "norm").SerializeToString() + b"\xb0\x01\x05"  # stream_id
    op(message, "norm").ParseFromString(raw)


def same_graph_twice(message: Any) -> None:
    message.graph.add(name="good")


def second_net_output(message: Any) -> None:
    extra = message.graph[0].op.add()
    extra.CopyFrom(op(message, "NetOutput"))
    extra.name = "NetOutput2"


def swap_indices(message: Any) -> None:
    op(message, "cache").attr["index"].i, op(message, "x").attr["index"].i = 0, 5


def output_of_net_output(message: Any) -> None:
    op(message, "NetOutput").output_desc.add(dtype=1, layout="ND")
    set_names(op(message, "NetOutput"), "_output_name", ["y"])


def cycle(message: Any) -> None:
    op(message, "norm").input.append("split:-1")


def dead_weight(message: Any) -> None:
    extra = message.graph[0].op.add()
    extra.CopyFrom(op(message, "beside"))
    extra.name = "dead"


def behind_its_reader(message: Any) -> None:
    entries = [entry for entry in message.graph[0].op if entry.name != "norm"]
    norm = type(entries[0])()
    norm.CopyFrom(op(message, "norm"))
    copies = [type(norm)() for _ in entries]
    for copy, entry in zip(copies, entries, strict=True):
        copy.CopyFrom(entry)
    del message.graph[0].op[:]
    message.graph[0].op.extend([*copies, norm])


def type_along_an_edge(message: Any) -> None:
    op(message, "split").input_desc[0].shape.dim[0] = 5


def cast_to_bfloat16(message: Any) -> None:
    op(message, "cast").attr["dst_type"].i = 27


def bool_parts(message: Any) -> None:
    for name, descs in (("split", "output_desc"), ("concat", "input_desc")):
        for desc in getattr(op(message, name), descs):
            desc.dtype = 11


def computed_perm(message: Any) -> None:
    perm = op(message, "transpose").input[1].rpartition(":")[0]
    entry = op(message, perm)
    entry.Clear()
    entry.name, entry.type = perm, "Shape"
    entry.input.append("shape:0")
    entry.input_desc.add(name="x").CopyFrom(op(message, "shape").output_desc[0])
    entry.input_desc[0].name = "x"
    entry.output_desc.add().CopyFrom(op(message, "transpose").input_desc[1])
    entry.output_desc[0].name = "y"
    entry.attr["dtype"].i = 9
    set_names(entry, "_input_name", ["x"])
    set_names(entry, "_output_name", ["y"])
    move_behind(message, "shape", perm)


def move_behind(message: Any, first: str, second: str) -> None:
    """Puts ``first`` right in front of ``second`` in the file."""
    entries = list(message.graph[0].op)
    order = [entry.name for entry in entries]
    order.remove(first)
    order.insert(order.index(second), first)
    by_name = {}
    for entry in entries:
        copy = type(entry)()
        copy.CopyFrom(entry)
        by_name[entry.name] = copy
    del message.graph[0].op[:]
    message.graph[0].op.extend(by_name[name] for name in order)


def ref_from_an_ordinary_result(message: Any) -> None:
    # the written buffer becomes the result of Neg, which nothing else reads then
    op(message, "write").input[0] = "old:0"
    op(message, "NetOutput").input[1] = "write:0"


def second_writer(message: Any) -> None:
    extra = message.graph[0].op.add()
    extra.CopyFrom(op(message, "write"))
    extra.name = "write_again"


def unordered_reader(message: Any) -> None:
    del op(message, "write").input[3]


def other_ref_type(message: Any) -> None:
    op(message, "write").output_desc[0].shape.dim[0] = 15
    for i, text in enumerate(op(message, "NetOutput").input):
        if text == "write:0":
            op(message, "NetOutput").input_desc[i].shape.dim[0] = 15


def negative_dim(message: Any) -> None:
    op(message, "split").output_desc[0].shape.dim[0] = -3
    op(message, "concat").input_desc[0].shape.dim[0] = -3


def nchw(message: Any) -> None:
    for desc in (op(message, "norm").output_desc[1],):
        desc.layout = "NCHW"


def device(message: Any) -> None:
    op(message, "norm").output_desc[1].device_type = "GPU"


def drop(name: str, attr: str) -> Damage:
    def damage(message: Any) -> None:
        del op(message, name).attr[attr]

    return damage


def axis_as_vector(message: Any) -> None:
    name = op(message, "gather").input[2].rpartition(":")[0]
    for desc in (
        op(message, "gather").input_desc[2],
        op(message, name).output_desc[0],
        op(message, name).attr["value"].t.desc,
    ):
        desc.shape.dim.extend([1, 1])


def wide_indices(message: Any) -> None:
    op(message, "topk").output_desc[1].dtype = 8
    for i, text in enumerate(op(message, "NetOutput").input):
        if text == "topk:1":
            op(message, "NetOutput").input_desc[i].dtype = 8


def float_mask(message: Any) -> None:
    op(message, "attention").input_desc[4].dtype = 1
    for desc in (op(message, "mask").input_desc[0], op(message, "mask").output_desc[0]):
        desc.dtype = 1


def recovered(name: bytes) -> Damage:
    return lambda m: op(m, "attention").attr["_ir_attr_names"].list.s.append(name)


def scale_not_inverted(message: Any) -> None:
    name = op(message, "quant").input[1].rpartition(":")[0]
    op(message, name).attr["value"].t.data = np.full(8, 0.25, np.float32).tobytes()


def field(path: str, value: Any) -> Damage:
    """Damage that sets ``op.attribute path``: "norm.input_desc[0].layout"."""

    def damage(message: Any) -> None:
        name, _, rest = path.partition(".")
        target, _, last = rest.rpartition(".")
        owner = op(message, name)
        for step in filter(None, target.split(".")):
            step_name, _, index = step.partition("[")
            owner = getattr(owner, step_name)
            owner = (
                owner[index[:-1]] if index and not index[:-1].isdigit() else owner[int(index[:-1])] if index else owner
            )
        setattr(owner, last, value)

    return damage


def do(*steps: Any) -> Damage:
    def damage(message: Any) -> None:
        for step in steps:
            step(message)

    return damage


CASES: list[tuple[int, set[str], str, Damage]] = [
    (1, E, "an unknown field", unknown_field),
    (2, E, "two graphs of one name, one unused", same_graph_twice),
    (2, E, "a graph without a name", lambda m: m.graph[0].ClearField("name")),
    (2, E, "a subgraph nobody has", lambda m: op(m, "norm").subgraph_name.append("body")),
    (3, E, "a stream id", compiled_field),
    (3, N, "attributes of a compiled model", lambda m: setattr(m.attr["memory_size"], "i", 1)),
    (3, N, "GraphDef.input", lambda m: m.graph[0].input.append("x:0")),
    (4, W, "a character file names do not take", lambda m: rename(m, "norm", "no rm")),
    (4, E, "two nodes of one name", lambda m: m.graph[0].op.add().CopyFrom(op(m, "beside"))),
    (4, E, "a colon in a name", lambda m: rename(m, "norm", "norm:1")),
    (5, E, "an operator GE does not have", field("triangle.type", "Trilu9")),
    (6, E, "two NetOutputs", second_net_output),
    (6, E, "an output of NetOutput", output_of_net_output),
    (6, E, "GraphDef.output", lambda m: m.graph[0].output.append("norm:0")),
    (7, E, "RefData in front of Data", swap_indices),
    (7, E, "an index twice", field("at.attr[index].i", 0)),
    (7, E, "no index", drop("at", "index")),
    (7, E, "different descriptors of x and y", lambda m: op(m, "scores").input_desc[0].shape.dim.append(1)),
    (7, E, "an input of Data", lambda m: op(m, "scores").input.append("x:0")),
    (8, E, "too few bytes", field("split_size_splits.attr[value].t.data", b"\0" * 8)),
    (8, E, "another type than the output's", field("split_size_splits.attr[value].t.desc.dtype", 7)),
    (8, E, "a weight file of another length", field("beside.attr[length].i", 60)),
    (8, E, "a weight file that is missing", field("beside.attr[location].s", b"none.bin")),
    (8, E, "a constant without a value", drop("split_split_dim", "value")),
    (9, E, "a range behind the end of the file", field("shared.attr[offset].i", 4090)),
    (9, E, "another shape than the output's", lambda m: op(m, "shared").attr["shape"].list.i.append(1)),
    (9, E, "a length that does not fit", field("shared.attr[length].i", 100)),
    (9, E, "no file", do(drop("shared", "location"))),
    (9, N, "a relative path", field("shared.attr[location].s", b"big.bin")),
    (10, E, "an edge from nowhere", lambda m: op(m, "NetOutput").input.__setitem__(2, "nowhere:0")),
    (10, E, "an edge from no output", lambda m: op(m, "NetOutput").input.__setitem__(2, "concat:7")),
    (11, E, "one edge too many", lambda m: op(m, "cast").input.append("mean:0")),
    (12, E, "a layout on an absent input", field("attention.input_desc[3].layout", "ND")),
    (12, E, "an absent required input", do(
        lambda m: op(m, "topk").input.__setitem__(1, ""), lambda m: op(m, "topk").input_desc[1].Clear(),
        lambda m: setattr(op(m, "topk").input_desc[1].attr["_is_unfed_optional"], "i", 1),
        lambda m: setattr(op(m, "topk").input_desc[1], "name", "k"),
        lambda m: m.graph[0].op.remove(op(m, "topk_k")),
    )),
    (12, E, "no mark on a placeholder", lambda m: op(m, "attention").input_desc[3].attr.clear()),
    (13, W, "a weight nobody reads", dead_weight),
    (14, W, "a node behind its reader", behind_its_reader),
    (15, E, "an input declared otherwise than it comes", type_along_an_edge),
    (16, E, "an input of another name", lambda m: rename_slot(op(m, "cast"), "_input_name", 0, "z")),
    (17, E, "an output of another name", lambda m: rename_slot(op(m, "norm"), "_output_name", 1, "variance")),
    (17, E, "num_split that does not count", field("split.attr[num_split].i", 3)),
    (17, E, "N that does not count", field("concat.attr[N].i", 3)),
    (18, E, "descriptor names that differ", field("cast.input_desc[0].name", "z")),
    (19, E, "an unknown attribute", lambda m: setattr(op(m, "cast").attr["speed"], "i", 1)),
    (19, E, "an attribute of another type", lambda m: setattr(op(m, "norm").attr["epsilon"], "i", 1)),
    (19, E, "a list without val_type", lambda m: op(m, "cast").attr["_list"].list.i.append(1)),
    (19, E, "a list of another type", lambda m: setattr(op(m, "shared").attr["shape"].list, "val_type", 3)),
    (19, E, "recovered prototypes in another order", recovered(b"z")),
    (19, N, "recovered prototypes", recovered(b"num_heads")),
    (20, E, "dst_type that is not the output's", cast_to_bfloat16),
    (20, E, "the number of the other enum", field("cast.attr[dst_type].i", 5)),
    (21, E, "bool in ConcatD", bool_parts),
    (22, E, "a computed perm", computed_perm),
    (23, E, "an ordinary result written in place", ref_from_an_ordinary_result),
    (24, E, "a reader without an order to the writer", unordered_reader),
    (25, E, "another type behind an update", other_ref_type),
    (26, E, "a dim below -2", negative_dim),
    (27, E, "an image layout", nchw),
    (27, E, "an NZ tensor without origin", lambda m: op(m, "nz").output_desc[0].attr.pop("origin_format_is_set")),
    (28, E, "another device", device),
    (29, E, "no keep_dims", drop("mean", "keep_dims")),
    (30, E, "no upper", drop("triangle", "upper")),
    (31, E, "an axis that is no scalar", axis_as_vector),
    (32, E, "int64 indices of TopK", wide_indices),
    (33, E, "no epsilon", drop("norm", "epsilon")),
    (35, E, "a float mask", float_mask),
    (36, E, "a scale that was not inverted", scale_not_inverted),
]  # fmt: skip

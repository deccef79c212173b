"""Graph objects <-> protobuf messages.

Writing adds what GE's loader wants and a person should not have to think of: the four name attributes that carry input
and output names, ``val_type`` of lists, placeholders for absent optional inputs, format attributes of NZ tensors.
Reading takes those away again, together with the spellings in which a file that GE saved itself differs harmlessly.
"""

from __future__ import annotations

from ir_ops.dtypes import UNDEFINED_GE_PROTO, by_ge_proto
from ir_ops.errors import BadModel
from ir_ops.ge import attrs as attr_codec
from ir_ops.ge.messages import GraphDef, Message, ModelDef, TensorDescriptor
from ir_ops.ge.model import (
    FRACTAL_NZ,
    OUTPUT_NAME_ATTR,
    PLACEHOLDER,
    Attr,
    AttrKind,
    ConstTensor,
    Edge,
    Graph,
    Model,
    Node,
    Port,
    Shape,
    Slot,
    TensorType,
)  # fmt: skip

UNKNOWN_RANK = -2
UNFED_ATTR = "_is_unfed_optional"
NAME_ATTRS = ("_input_name_key", "_input_name_value", "_output_name_key", "_output_name_value")
FORMAT_ND, FORMAT_NZ, FORMAT_RESERVED = 2, 29, 40
_FORMAT_NAMES = {FORMAT_ND: "ND", FORMAT_NZ: FRACTAL_NZ, FORMAT_RESERVED: "", 0: "NCHW", 1: "NHWC"}
_UNNAMED_LAYOUTS = ("", "FORMAT_RESERVED", "RESERVED")
_CUSTOM_VERSION = "1"


def is_reserved_attr(name: str) -> bool:
    """Whether an op attribute belongs to the wire form only (names, recovered prototypes)."""
    return name in NAME_ATTRS or name == "_opt_input" or name.startswith("_ir_")


# ---------------------------------------------------------------------------------------------------- writing


class _Encoder:
    def __init__(self) -> None:
        # descriptors and name lists repeat all over a graph: made once, copied after that
        self._descs: dict[TensorType, Message] = {}
        self._names: dict[tuple[str, ...], tuple[Message, Message]] = {}

    def desc(self, message: Message, tensor: TensorType, name: str = "") -> None:
        made = self._descs.get(tensor)
        if made is None:
            made = self._descs[tensor] = _encode_desc(tensor)
        message.CopyFrom(made)
        if name:
            message.name = name

    def tensor(self, message: Message, const: ConstTensor) -> None:
        self.desc(message.desc, const.type)
        message.data = const.data

    def names(self, message: Message, prefix: str, names: tuple[str, ...]) -> None:
        if not names:
            return
        made = self._names.get(names)
        if made is None:
            made = self._names[names] = (attr_codec.new_attr(), attr_codec.new_attr())
            attr_codec.set_list(made[0], AttrKind.LIST_STRING, names)
            attr_codec.set_list(made[1], AttrKind.LIST_INT, range(len(names)))
        message.attr[f"{prefix}_key"].CopyFrom(made[0])
        message.attr[f"{prefix}_value"].CopyFrom(made[1])

    def node(self, message: Message, node: Node) -> None:
        message.name, message.type = node.name, node.type
        for slot in node.inputs:
            self.desc(message.input_desc.add(), slot.type, slot.name)
        if node.type not in ("Data", "RefData"):
            message.input.extend("" if slot.source is None else str(slot.source) for slot in node.inputs)
        message.input.extend(f"{name}:-1" for name in node.controls)
        for port in node.outputs:
            self.desc(message.output_desc.add(), port.type, port.name)
        message.subgraph_name.extend(node.subgraphs)
        self.names(message, "_input_name", tuple(slot.name for slot in node.inputs))
        self.names(message, "_output_name", tuple(port.name for port in node.outputs))
        for key, attr in node.attrs.items():
            if key == OUTPUT_NAME_ATTR:
                for desc, text in zip(message.input_desc, attr.value, strict=True):
                    desc.attr[OUTPUT_NAME_ATTR].s = text.encode()
            else:
                attr_codec.encode_attr(message.attr[key], attr, self.tensor)


def _encode_desc(tensor: TensorType) -> Message:
    message = TensorDescriptor()
    if tensor.dtype is None:
        message.dtype = UNDEFINED_GE_PROTO
        message.attr[UNFED_ATTR].i = 1
        return message
    message.dtype = tensor.dtype.ge_proto
    message.layout = tensor.layout
    message.device_type = tensor.device
    if tensor.layout == FRACTAL_NZ:
        message.shape.dim.extend(tensor.storage or ())
        _encode_nz(message, tensor.shape or ())
    else:
        message.shape.dim.extend((UNKNOWN_RANK,) if tensor.shape is None else tensor.shape)
    message.shape.SetInParent()
    return message


def _encode_nz(message: Message, origin: Shape) -> None:
    message.attr["format_for_int"].i = FORMAT_NZ
    message.attr["origin_format_for_int"].i = FORMAT_ND
    message.attr["origin_format_is_set"].b = True
    message.attr["origin_shape_initialized"].b = True
    attr_codec.set_list(message.attr["origin_shape"], AttrKind.LIST_INT, origin)


def encode_graph(message: Message, graph: Graph, encoder: _Encoder) -> None:
    message.name = graph.name
    for node in graph.nodes:
        encoder.node(message.op.add(), node)


def encode(model: Model) -> Message:
    """The ``ModelDef`` of a model. Equal models give equal messages."""
    message, encoder = ModelDef(), _Encoder()
    message.name, message.version, message.custom_version = model.name, model.version, _CUSTOM_VERSION
    for graph in model.graphs:
        encode_graph(message.graph.add(), graph, encoder)
    return message


def encode_root(model: Model) -> Message:
    """The root graph alone as a ``GraphDef``, for text dumps."""
    message = GraphDef()
    encode_graph(message, model.root, _Encoder())
    return message


# ---------------------------------------------------------------------------------------------------- reading


def layout_of(desc: Message) -> str:
    """A descriptor's storage format by name, "" for the reserved one; ``format_for_int`` wins over ``layout``."""
    if "format_for_int" in desc.attr:
        number = desc.attr["format_for_int"].i
        return _FORMAT_NAMES.get(number, f"format {number}")
    return "" if desc.layout in _UNNAMED_LAYOUTS else str(desc.layout)


def shape_of(desc: Message) -> Shape | None:
    """A descriptor's dims; None for an unknown rank."""
    dims = tuple(desc.shape.dim)
    return None if dims == (UNKNOWN_RANK,) else dims


def decode_desc(desc: Message, where: str) -> TensorType:
    """A descriptor's type. Raises BadModel for an element type kvfuse does not know."""
    layout = layout_of(desc)
    if desc.dtype == UNDEFINED_GE_PROTO:
        return PLACEHOLDER if not layout else TensorType(None, shape_of(desc), layout)
    try:
        dtype = by_ge_proto(desc.dtype)
    except KeyError:
        raise BadModel("unknown element type", where=where, found=f"number {desc.dtype}") from None
    shape, storage = shape_of(desc), None
    if layout == FRACTAL_NZ:
        storage = shape or None
        shape = tuple(desc.attr["origin_shape"].list.i) if "origin_shape" in desc.attr else shape
    return TensorType(dtype, shape, layout or "ND", storage, desc.device_type or "NPU")


def names_of(op: Message, prefix: str, count: int) -> list[str]:
    """The names GE gives an op's inputs (``_input_name``) or outputs, by slot; "" where it has none.

    Key and value lists of different length leave GE without any name.
    """
    names = [""] * count
    if f"{prefix}_key" not in op.attr or f"{prefix}_value" not in op.attr:
        return names
    keys, values = op.attr[f"{prefix}_key"].list.s, op.attr[f"{prefix}_value"].list.i
    if len(keys) != len(values):
        return names
    for key, value in zip(keys, values, strict=True):
        if 0 <= value < count:
            names[value] = key.decode(errors="replace")
    return names


def split_edge(text: str) -> tuple[str, int] | None:
    """``"name:3"`` -> ("name", 3), split at the last colon; None for an unconnected slot."""
    name, mark, index = text.rpartition(":")
    if not mark:
        return None
    try:
        return name, int(index)
    except ValueError:
        return None


def _decode_tensor(message: Message) -> ConstTensor:
    return ConstTensor(decode_desc(message.desc, "value"), bytes(message.data))


def _decode_node(op: Message, where: str) -> Node:
    node = Node(op.name, op.type, subgraphs=list(op.subgraph_name))
    edges: list[Edge | None] = []
    for text in op.input:
        edge = split_edge(text)
        if edge is None:
            edges.append(None)
        elif edge[1] < 0:
            node.controls.append(edge[0])
        else:
            edges.append(Edge(*edge))
    if len(edges) > len(op.input_desc):
        raise BadModel("more edges than input descriptors", where=where, found=str(len(edges)),
                       wanted=str(len(op.input_desc)))  # fmt: skip
    edges += [None] * (len(op.input_desc) - len(edges))
    names = names_of(op, "_input_name", len(op.input_desc))
    for i, desc in enumerate(op.input_desc):
        node.inputs.append(Slot(names[i] or desc.name, decode_desc(desc, f"{where} input {i}"), edges[i]))
    names = names_of(op, "_output_name", len(op.output_desc))
    for i, desc in enumerate(op.output_desc):
        node.outputs.append(Port(names[i] or desc.name, decode_desc(desc, f"{where} output {i}")))
    for key in sorted(op.attr):
        attr = None if is_reserved_attr(key) else attr_codec.decode_attr(op.attr[key], _decode_tensor)
        if attr is not None:
            node.attrs[key] = attr
    if op.type == "NetOutput":
        _decode_output_names(op, node)
    return node


def _decode_output_names(op: Message, node: Node) -> None:
    texts = [
        desc.attr[OUTPUT_NAME_ATTR].s.decode(errors="replace") if OUTPUT_NAME_ATTR in desc.attr else ""
        for desc in op.input_desc
    ]
    if texts and all(texts):
        node.attrs[OUTPUT_NAME_ATTR] = Attr(AttrKind.LIST_STRING, tuple(texts))


def _decode_graph(message: Message) -> Graph:
    graph = Graph(message.name, [_decode_node(op, f"{message.name}/{op.name}") for op in message.op])
    outputs = {node.name: len(node.outputs) for node in graph.nodes}
    for node in graph.nodes:
        for edge in (slot.source for slot in node.inputs if slot.source is not None):
            if edge.index >= outputs.get(edge.node, 0):
                raise BadModel("an input comes from nowhere", where=f"{graph.name}/{node.name}", found=str(edge),
                               wanted="an output of a node of the same graph")  # fmt: skip
    return graph


def decode(message: Message) -> Model:
    """The model of a ``ModelDef``.

    Takes everything that GE's loader takes; use the validator to learn whether it means what it should.

    Raises:
        BadModel: what GE's loader refuses too (dangling edges), unknown element types, no graph at all.
    """
    if not message.graph:
        raise BadModel("the model has no graph", where=message.name or "ModelDef")
    return Model(message.name, [_decode_graph(graph) for graph in message.graph], message.version)

"""The protobuf messages of an ``.air`` file, defined here and built at import.

An ``.air`` file is one serialised ``ModelDef`` without header or checksum. Only the fields that a model needs before
compilation are defined; what GE adds when it compiles (memory offsets, streams, workspaces) stays unknown to the
definition, so that a reader sees it as an unknown field and :data:`COMPILED_FIELDS` can put a name to it.

The definition lives in a descriptor pool of its own under its own file and package name: another package in the same
process may register GE's original definition without a clash. The wire format does not carry package names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""A protobuf message of this definition (made at run time, so static types stop here)."""

_PACKAGE = "kvfuse.ge_ir"

_DATA_TYPES = {
    "DT_UNDEFINED": 0, "DT_FLOAT": 1, "DT_FLOAT16": 2, "DT_INT8": 3, "DT_UINT8": 4, "DT_INT16": 5, "DT_UINT16": 6,
    "DT_INT32": 7, "DT_INT64": 8, "DT_UINT32": 9, "DT_UINT64": 10, "DT_BOOL": 11, "DT_DOUBLE": 12, "DT_STRING": 13,
    "DT_COMPLEX64": 16, "DT_BF16": 27, "DT_INT4": 28, "DT_UINT1": 29, "DT_INT2": 30, "DT_UINT2": 31,
    "DT_HIFLOAT8": 33, "DT_FLOAT8_E5M2": 34, "DT_FLOAT8_E4M3FN": 35, "DT_FLOAT8_E8M0": 36, "DT_FLOAT4_E2M1": 39,
    "DT_FLOAT4_E1M2": 40, "DT_HIFLOAT4": 41,
}  # fmt: skip

LIST_TYPES = {
    "NONE": 0, "STRING": 1, "INT": 2, "FLOAT": 3, "BOOL": 4, "BYTES": 5, "TENSOR_DESC": 6, "TENSOR": 7, "GRAPH": 8,
    "NAMED_ATTRS": 9, "DATA_TYPE": 10,
}  # fmt: skip
"""``val_type`` of a list attribute. GE drops a list whose val_type is 0, the empty list included."""

# message: field = number, type. "*" repeats, "{}" is a map from string, "?" is a member of the oneof "value".
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ModelDef": {
        "name": (1, "string"), "version": (2, "uint32"), "custom_version": (3, "string"), "graph": (7, "*GraphDef"),
        "attr": (11, "{}AttrDef"),
    },
    "GraphDef": {
        "name": (1, "string"), "input": (4, "*string"), "output": (5, "*string"), "op": (6, "*OpDef"),
        "attr": (11, "{}AttrDef"),
    },
    "OpDef": {
        "name": (1, "string"), "type": (2, "string"), "input": (5, "*string"), "attr": (10, "{}AttrDef"),
        "id": (21, "int64"), "input_desc": (33, "*TensorDescriptor"), "output_desc": (34, "*TensorDescriptor"),
        "subgraph_name": (35, "*string"),
    },
    "TensorDescriptor": {
        "name": (1, "string"), "dtype": (2, "DataType"), "shape": (3, "ShapeDef"), "layout": (4, "string"),
        "attr": (5, "{}AttrDef"), "device_type": (14, "string"),
    },
    "ShapeDef": {"dim": (1, "*int64")},
    "TensorDef": {"desc": (1, "TensorDescriptor"), "data": (2, "bytes")},
    "NamedAttrs": {"name": (1, "string"), "attr": (2, "{}AttrDef")},
    "AttrDef": {
        "list": (1, "?AttrDef.ListValue"), "s": (2, "?bytes"), "i": (3, "?int64"), "f": (4, "?float"),
        "b": (5, "?bool"), "bt": (7, "?bytes"), "func": (10, "?NamedAttrs"), "td": (11, "?TensorDescriptor"),
        "t": (12, "?TensorDef"), "g": (13, "?GraphDef"), "list_list_int": (14, "?AttrDef.ListListInt"),
        "dt": (15, "?int64"), "list_list_float": (16, "?AttrDef.ListListFloat"), "expression": (17, "?bytes"),
    },
    "AttrDef.ListValue": {
        "s": (2, "*bytes"), "i": (3, "*int64"), "f": (4, "*float"), "b": (5, "*bool"), "bt": (7, "*bytes"),
        "td": (8, "*TensorDescriptor"), "t": (9, "*TensorDef"), "g": (10, "*GraphDef"), "na": (11, "*NamedAttrs"),
        "dt": (12, "*int64"), "val_type": (20, "AttrDef.ListValueType"),
    },
    "AttrDef.ListListInt": {"list_list_i": (1, "*AttrDef.ListListInt.ListInt")},
    "AttrDef.ListListInt.ListInt": {"list_i": (1, "*int64")},
    "AttrDef.ListListFloat": {"list_list_f": (1, "*AttrDef.ListListFloat.ListFloat")},
    "AttrDef.ListListFloat.ListFloat": {"list_f": (1, "*float")},
}  # fmt: skip

COMPILED_FIELDS: dict[str, dict[int, str]] = {
    "ModelDef": {12: "attr_groups"},
    "GraphDef": {12: "attr_groups"},
    "OpDef": {
        11: "attr_groups", 20: "has_out_attr", 22: "stream_id", 23: "input_name", 24: "src_name", 25: "src_index",
        26: "dst_name", 27: "dst_index", 28: "input_i", 29: "output_i", 30: "workspace", 31: "workspace_bytes",
        32: "is_input_const",
    },
    "TensorDescriptor": {
        6: "attr_groups", 9: "has_out_attr", 10: "size", 11: "weight_size", 12: "reuse_input", 13: "output_tensor",
        15: "input_tensor", 16: "real_dim_cnt", 17: "reuse_input_index", 18: "data_offset", 19: "cmps_size",
        20: "cmps_tab", 21: "cmps_tab_offset",
    },
}  # fmt: skip
"""Fields that only a compiled model carries, by message and number. The loader copies them blindly."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "int64": _Field.TYPE_INT64, "uint32": _Field.TYPE_UINT32,
    "float": _Field.TYPE_FLOAT, "bool": _Field.TYPE_BOOL,
}  # fmt: skip
_ENUMS = {"DataType", "AttrDef.ListValueType"}


def _set_type(field: Any, type_name: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
        return
    field.type = _Field.TYPE_ENUM if type_name in _ENUMS else _Field.TYPE_MESSAGE
    field.type_name = f".{_PACKAGE}.{type_name}"


def _add_field(message: Any, full_name: str, name: str, number: int, spelled: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if spelled.startswith("{}"):
        entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL), "string")
        _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), spelled[2:])
        field.label = _Field.LABEL_REPEATED
        _set_type(field, f"{full_name}.{entry_name}")
        return
    if spelled.startswith("*"):
        field.label = _Field.LABEL_REPEATED
    elif spelled.startswith("?"):
        field.oneof_index = 0
    _set_type(field, spelled.lstrip("*?"))


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="kvfuse/ge_ir.proto", package=_PACKAGE, syntax="proto3")
    data_type = file.enum_type.add(name="DataType")
    for name, number in _DATA_TYPES.items():
        data_type.value.add(name=name, number=number)
    made: dict[str, Any] = {}
    for full_name, fields in _MESSAGES.items():
        owner, _, short = full_name.rpartition(".")
        message = made[owner].nested_type.add(name=short) if owner else file.message_type.add(name=short)
        made[full_name] = message
        if any(spelled.startswith("?") for _, spelled in fields.values()):
            message.oneof_decl.add(name="value")
        for name, (number, spelled) in fields.items():
            _add_field(message, full_name, name, number, spelled)
    list_type = made["AttrDef"].enum_type.add(name="ListValueType")
    for name, number in LIST_TYPES.items():
        list_type.value.add(name=f"VT_LIST_{name}", number=number)
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


ModelDef = _message_class("ModelDef")
GraphDef = _message_class("GraphDef")
OpDef = _message_class("OpDef")
TensorDescriptor = _message_class("TensorDescriptor")
TensorDef = _message_class("TensorDef")
AttrDef = _message_class("AttrDef")


def message_name(message: Message) -> str:
    """The name of a message's type inside the package, ``AttrDef.ListValue``."""
    return str(message.DESCRIPTOR.full_name)[len(_PACKAGE) + 1 :]

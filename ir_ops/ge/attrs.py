"""Attribute values: checking Python values against GE's types, and their wire form.

Element types inside attributes are numbers of GE's C++ enum (``DType.ge_attr``), in tensor descriptors those of the
protobuf enum (``DType.ge_proto``). Lists carry their ``val_type`` always, the empty list included, because GE drops a
list without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ir_ops.dtypes import DType, by_ge_attr, by_name
from ir_ops.errors import BadInput
from ir_ops.ge.messages import LIST_TYPES, AttrDef, Message
from ir_ops.ge.model import Attr, AttrKind, ConstTensor

RawDef = Callable[[Message], ConstTensor]


def as_float32(value: float) -> float:
    """The value that a 32-bit float field holds."""
    return float(np.float32(value))


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, (float, np.floating))


def _is_bool(value: object) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_str(value: object) -> bool:
    return isinstance(value, str)


# kind -> (accepts one value, normal form of one value)
_SCALARS: dict[AttrKind, tuple[Callable[[object], bool], Callable[[Any], Any]]] = {
    AttrKind.INT: (_is_int, int),
    AttrKind.FLOAT: (_is_number, as_float32),
    AttrKind.BOOL: (_is_bool, bool),
    AttrKind.STRING: (_is_str, str),
}
_LISTS = {
    AttrKind.LIST_INT: AttrKind.INT,
    AttrKind.LIST_FLOAT: AttrKind.FLOAT,
    AttrKind.LIST_BOOL: AttrKind.BOOL,
    AttrKind.LIST_STRING: AttrKind.STRING,
}


def make_attr(ge_type: str, value: Any, *, where: str = "") -> Attr:
    """``value`` as an attribute of the prototype's type ``ge_type``.

    ``Int`` attributes also take a :class:`DType`, which becomes its GE C++ enum number; ``Type`` ones a DType or name.

    Raises:
        BadInput: the value has another type.
    """
    kind = AttrKind(ge_type)
    if kind is AttrKind.INT and isinstance(value, DType):
        return Attr(kind, value.ge_attr)
    if kind in _SCALARS:
        accepts, normal = _SCALARS[kind]
        if accepts(value):
            return Attr(kind, normal(value))
    elif kind in _LISTS and isinstance(value, (list, tuple, np.ndarray)):
        accepts, normal = _SCALARS[_LISTS[kind]]
        if all(accepts(item) for item in value):
            return Attr(kind, tuple(normal(item) for item in value))
    elif kind is AttrKind.TYPE and isinstance(value, (DType, str)):
        return Attr(kind, value if isinstance(value, DType) else by_name(value))
    elif kind is AttrKind.TENSOR and isinstance(value, ConstTensor):
        return Attr(kind, value)
    raise BadInput("an attribute has another type", where=where, found=repr(value)[:60], wanted=ge_type)


_LIST_FIELDS = {
    AttrKind.LIST_INT: ("i", "INT"),
    AttrKind.LIST_FLOAT: ("f", "FLOAT"),
    AttrKind.LIST_BOOL: ("b", "BOOL"),
    AttrKind.LIST_STRING: ("s", "STRING"),
    AttrKind.LIST_TYPE: ("dt", "DATA_TYPE"),
}
_LIST_KINDS = {LIST_TYPES[val_type]: (kind, name) for kind, (name, val_type) in _LIST_FIELDS.items()}
_SCALAR_FIELDS = {AttrKind.INT: "i", AttrKind.FLOAT: "f", AttrKind.BOOL: "b", AttrKind.BYTES: "bt"}
_SCALAR_KINDS = {name: kind for kind, name in _SCALAR_FIELDS.items()}

KIND_FIELDS: dict[str, tuple[str, int]] = {
    **{kind.value: (name, 0) for kind, name in _SCALAR_FIELDS.items()},
    **{kind.value: ("list", LIST_TYPES[val_type]) for kind, (_, val_type) in _LIST_FIELDS.items()},
    "String": ("s", 0),
    "Type": ("dt", 0),
    "Tensor": ("t", 0),
    "ListListInt": ("list_list_int", 0),
    "ListListFloat": ("list_list_float", 0),
}
"""GE type word -> (member of the oneof, ``val_type`` for lists): what the loader wants to see."""


def set_list(message: Message, kind: AttrKind, values: Any) -> None:
    """Fills ``AttrDef.list`` with its val_type."""
    name, val_type = _LIST_FIELDS[kind]
    if kind is AttrKind.LIST_STRING:
        values = [value.encode() for value in values]
    elif kind is AttrKind.LIST_TYPE:
        values = [value.ge_attr for value in values]
    message.list.val_type = LIST_TYPES[val_type]
    getattr(message.list, name).extend(values)


def encode_attr(message: Message, attr: Attr, encode_tensor: Callable[[Message, ConstTensor], None]) -> None:
    """Writes ``attr`` into an empty ``AttrDef``."""
    kind, value = attr.kind, attr.value
    if kind in _SCALAR_FIELDS:
        setattr(message, _SCALAR_FIELDS[kind], value)
    elif kind is AttrKind.STRING:
        message.s = value.encode()
    elif kind is AttrKind.TYPE:
        message.dt = value.ge_attr
    elif kind is AttrKind.TENSOR:
        encode_tensor(message.t, value)
    elif kind in _LIST_FIELDS:
        set_list(message, kind, value)
    elif kind is AttrKind.LIST_LIST_INT:
        message.list_list_int.SetInParent()
        for row in value:
            message.list_list_int.list_list_i.add().list_i.extend(row)
    elif kind is AttrKind.LIST_LIST_FLOAT:
        message.list_list_float.SetInParent()
        for row in value:
            message.list_list_float.list_list_f.add().list_f.extend(row)
    else:
        message.ParseFromString(value)


def decode_attr(message: Message, decode_tensor: RawDef) -> Attr | None:
    """Reads an ``AttrDef``; None for what GE itself drops (no value, a list without val_type)."""
    field = message.WhichOneof("value")
    if field is None:
        return None
    if field in _SCALAR_KINDS:
        return Attr(_SCALAR_KINDS[field], getattr(message, field))
    if field == "s":
        return _text(message)
    if field == "dt":
        return _one_type(message)
    if field == "t":
        return Attr(AttrKind.TENSOR, decode_tensor(message.t))
    if field == "list_list_int":
        return Attr(AttrKind.LIST_LIST_INT, tuple(tuple(row.list_i) for row in message.list_list_int.list_list_i))
    if field == "list_list_float":
        return Attr(AttrKind.LIST_LIST_FLOAT, tuple(tuple(row.list_f) for row in message.list_list_float.list_list_f))
    if field == "list":
        return _list(message)
    return _raw(message)


def _raw(message: Message) -> Attr:
    return Attr(AttrKind.RAW, message.SerializeToString(deterministic=True))


def _text(message: Message) -> Attr:
    try:
        return Attr(AttrKind.STRING, message.s.decode())
    except UnicodeDecodeError:
        return _raw(message)


def _one_type(message: Message) -> Attr:
    try:
        return Attr(AttrKind.TYPE, by_ge_attr(message.dt))
    except KeyError:
        return _raw(message)


def _list(message: Message) -> Attr | None:
    values = message.list
    if values.val_type == LIST_TYPES["NONE"]:
        return None
    if values.val_type not in _LIST_KINDS:
        return _raw(message)
    kind, name = _LIST_KINDS[values.val_type]
    items = getattr(values, name)
    try:
        if kind is AttrKind.LIST_STRING:
            return Attr(kind, tuple(item.decode() for item in items))
        if kind is AttrKind.LIST_TYPE:
            return Attr(kind, tuple(by_ge_attr(item) for item in items))
    except (UnicodeDecodeError, KeyError):
        return _raw(message)
    return Attr(kind, tuple(items))


def new_attr() -> Message:
    """An empty ``AttrDef``."""
    return AttrDef()

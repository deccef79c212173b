"""GE's operator prototypes, typed: input and output kinds, attributes, in-place pairs.

``prototypes.json`` holds the data as collected from GE's public prototype headers; nothing else in kvfuse repeats it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ir_ops.dtypes import DType, by_name

REQUIRED, OPTIONAL, DYNAMIC = "required", "optional", "dynamic"

_GE_TYPE_NAMES = {"DT_INT64": "int64", "DT_INT32": "int32", "DT_FLOAT": "float32", "DT_FLOAT16": "float16"}
"""The spellings in which ``Type`` attributes give their default."""


@dataclass(frozen=True)
class ProtoPort:
    """An input or output of a prototype. A dynamic one named ``x`` takes the slots ``x0``, ``x1``, ..."""

    name: str
    kind: str

    @property
    def is_dynamic(self) -> bool:
        return self.kind == DYNAMIC

    @property
    def is_optional(self) -> bool:
        return self.kind == OPTIONAL


@dataclass(frozen=True)
class ProtoAttr:
    """An attribute of a prototype. ``type`` is GE's word: Int, Float, Bool, String, Type, Tensor, ListInt, ...

    ``default`` is a :class:`DType` for ``Type`` attributes, None where the source does not state one.
    """

    name: str
    type: str
    required: bool
    default: Any

    @property
    def is_graph(self) -> bool:
        """Subgraphs are named by ``subgraph_name``, not stored as attributes."""
        return self.type in ("GRAPH", "DYNAMIC_GRAPH")


@dataclass(frozen=True)
class Prototype:
    """One GE operator.

    Attributes:
        refs: output index -> index of the input it is written into (same name, same buffer).
    """

    name: str
    inputs: tuple[ProtoPort, ...]
    outputs: tuple[ProtoPort, ...]
    attrs: tuple[ProtoAttr, ...]
    refs: dict[int, int] = field(default_factory=dict)

    def attr(self, name: str) -> ProtoAttr | None:
        """The attribute of that name, None when the prototype has none."""
        return next((attr for attr in self.attrs if attr.name == name), None)

    def input(self, name: str) -> ProtoPort | None:
        """The input of that name, None when the prototype has none."""
        return next((port for port in self.inputs if port.name == name), None)

    @property
    def ref_names(self) -> dict[str, str]:
        """Name of a ref input -> name of the output that shares its buffer."""
        return {self.inputs[i].name: self.outputs[o].name for o, i in self.refs.items()}

    @property
    def dynamic_inputs(self) -> tuple[str, ...]:
        return tuple(port.name for port in self.inputs if port.is_dynamic)


COUNT_ATTRS = {"SplitV": "num_split", "Split": "num_split", "Unpack": "num", "ConcatOffset": "N"}
"""Operators whose number of dynamic outputs an attribute states."""


def _default(kind: str, value: Any) -> Any:
    if kind == "Type" and isinstance(value, str):
        return by_name(_GE_TYPE_NAMES[value])
    if kind == "ListInt" and isinstance(value, list):
        return tuple(value)
    return value


def _prototype(name: str, row: dict[str, Any]) -> Prototype:
    return Prototype(
        name=name,
        inputs=tuple(ProtoPort(port["name"], port["kind"]) for port in row["inputs"]),
        outputs=tuple(ProtoPort(port["name"], port["kind"]) for port in row["outputs"]),
        attrs=tuple(
            ProtoAttr(attr["name"], attr["type"], attr["required"], _default(attr["type"], attr["default"]))
            for attr in row["attrs"]
        ),
        refs={pair["output"]: pair["input"] for pair in row.get("ref", ())},
    )


@cache
def prototypes() -> dict[str, Prototype]:
    """All known prototypes by operator type."""
    text = resources.files(__package__).joinpath("prototypes.json").read_text(encoding="utf-8")
    return {name: _prototype(name, row) for name, row in json.loads(text).items()}


def find(op_type: str) -> Prototype | None:
    """The prototype of an operator type, None when GE's headers do not have it."""
    return prototypes().get(op_type)


# Attributes whose loss would change the meaning with another GE version's default, so they are always written.
_ALWAYS: dict[str, frozenset[str]] = {
    "Trilu": frozenset({"upper"}),
    "Shape": frozenset({"dtype"}),
    "Size": frozenset({"dtype"}),
    "Scatter": frozenset({"axis"}),
    "AscendDequant": frozenset({"dtype"}),
    "AscendQuantV2": frozenset({"dst_type"}),
    "DynamicQuant": frozenset({"dst_type"}),
    "FusedInferAttentionScore": frozenset({"inner_precise"}),
}
_ALWAYS_BY_NAME = frozenset({"keep_dims", "epsilon", "N"})


def always_written(op_type: str, attr: str) -> bool:
    """Whether an attribute is written even when it has its default.

    The others are left out then: GE fills in defaults, and an older GE does not meet attributes it does not know.
    """
    return attr in _ALWAYS_BY_NAME or attr in _ALWAYS.get(op_type, ())


# Extra attributes that the loader reads although no prototype lists them.
LOADER_ATTRS: dict[str, dict[str, str]] = {
    "Const": {"location": "String", "length": "Int"},
    "Constant": {"location": "String", "length": "Int"},
    "FileConstant": {"location": "String", "offset": "Int", "length": "Int"},
}


def attr_type(op_type: str, name: str) -> str | None:
    """GE's type word of an attribute, None when the operator has no such attribute."""
    extra = LOADER_ATTRS.get(op_type, {}).get(name)
    if extra is not None:
        return extra
    prototype = find(op_type)
    found = prototype.attr(name) if prototype is not None else None
    return found.type if found is not None else None


# Int attributes that hold an element type as GE's C++ enum number, and the output that must have this type.
DTYPE_ATTRS: dict[str, dict[str, str]] = {
    "Cast": {"dst_type": "y"},
    "Shape": {"dtype": "y"},
    "ShapeN": {"dtype": "y"},
    "Size": {"dtype": "y"},
    "AscendQuantV2": {"dst_type": "y"},
    "AscendAntiQuantV2": {"dst_type": "y"},
    "AscendDequant": {"dtype": "y"},
    "DynamicQuant": {"dst_type": "y"},
    "DequantSwigluQuant": {"dst_type": "y"},
    "QuantBatchMatmulV3": {"dtype": "y"},
    "ArgMaxV2": {"dtype": "y"},
    "NonZero": {"dtype": "y"},
    "Bitcast": {"type": "y"},
    "FileConstant": {"dtype": "y"},
}


def default_of(op_type: str, name: str) -> Any:
    """An attribute's default as a Python value, None where there is none."""
    prototype = find(op_type)
    found = prototype.attr(name) if prototype is not None else None
    return found.default if found is not None else None


def dtype_names(names: str) -> tuple[DType, ...]:
    """``"float16 bfloat16"`` -> rows of the type table."""
    return tuple(by_name(name) for name in names.split())

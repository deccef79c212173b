"""Fitting given inputs and attributes to a prototype: what is missing, unknown or of another type is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir_ops.errors import BadUsage
from ir_ops.ge.attrs import make_attr
from ir_ops.ge.model import PLACEHOLDER, Attr, AttrKind, Port, Slot, TensorType
from ir_ops.ge.prototypes import ProtoAttr, Prototype, always_written
from ir_ops.ge.tensor import Tensor

AsTensor = Callable[[object, str], Tensor]


@dataclass
class PlacedInputs:
    """Inputs by GE name: single ones that are present, and dynamic ones (possibly empty)."""

    single: dict[str, Tensor] = field(default_factory=dict)
    dynamic: dict[str, list[Tensor]] = field(default_factory=dict)


def place_inputs(prototype: Prototype, inputs: Mapping[str, Any], where: str, as_tensor: AsTensor) -> PlacedInputs:
    """Sorts ``inputs`` by the prototype. Raises BadUsage for unknown and for missing ones."""
    known = [port.name for port in prototype.inputs]
    for name in inputs:
        if name not in known:
            raise BadUsage("the operator has no such input", where=where, found=name, wanted=", ".join(known))
    placed = PlacedInputs()
    for port in prototype.inputs:
        value = inputs.get(port.name)
        if port.is_dynamic:
            group = [] if value is None else value
            if isinstance(group, Tensor) or not isinstance(group, Sequence):
                raise BadUsage(
                    "a dynamic input takes a list", where=where, found=type(group).__name__, wanted=f"{port.name}=[...]"
                )
            placed.dynamic[port.name] = [as_tensor(item, f"{where}_{port.name}{i}") for i, item in enumerate(group)]
        elif value is not None:
            placed.single[port.name] = as_tensor(value, f"{where}_{port.name}")
        elif not port.is_optional:
            raise BadUsage("a required input is missing", where=where, found=f"no {port.name}", wanted=", ".join(known))
    return placed


def flatten_inputs(prototype: Prototype, placed: PlacedInputs) -> list[Slot]:
    """The input slots in GE's order: placeholders for absent optionals up to the last present one, the rest cut."""
    slots: list[Slot] = []
    for port in prototype.inputs:
        if port.is_dynamic:
            group = placed.dynamic[port.name]
            slots += [Slot(f"{port.name}{i}", tensor.type, tensor.edge) for i, tensor in enumerate(group)]
        elif port.name in placed.single:
            tensor = placed.single[port.name]
            slots.append(Slot(port.name, tensor.type, tensor.edge))
        else:
            slots.append(Slot(port.name, PLACEHOLDER, None))
    while slots and slots[-1].source is None:
        slots.pop()
    return slots


def output_slots(prototype: Prototype, types: Mapping[str, Sequence[TensorType]]) -> list[Port]:
    """All outputs of the prototype in order, dynamic ones numbered."""
    ports: list[Port] = []
    for port in prototype.outputs:
        group = types[port.name]
        names = [f"{port.name}{i}" for i in range(len(group))] if port.is_dynamic else [port.name]
        ports += [Port(name, tensor) for name, tensor in zip(names, group, strict=True)]
    return ports


def _counted(prototype: Prototype, placed: PlacedInputs, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """``attrs`` with the ``N`` that counts the one dynamic input."""
    if "N" in attrs or prototype.attr("N") is None or len(prototype.dynamic_inputs) != 1:
        return dict(attrs)
    return {**attrs, "N": len(placed.dynamic[prototype.dynamic_inputs[0]])}


def check_attrs(prototype: Prototype, placed: PlacedInputs, attrs: Mapping[str, Any], where: str) -> dict[str, Attr]:
    """The attributes to write. Raises BadUsage for unknown and missing ones, BadInput for another type."""
    known = {attr.name: attr for attr in prototype.attrs}
    for name in attrs:
        if name not in known and not name.startswith("_"):
            raise BadUsage(
                "the operator has no such attribute", where=where, found=name, wanted=", ".join(known) or "none"
            )
    given = _counted(prototype, placed, attrs)
    written: dict[str, Attr] = {}
    for attr in prototype.attrs:
        if attr.name in given and given[attr.name] is not None:
            made = make_attr(attr.type, given[attr.name], where=f"{where} attribute {attr.name}")
        elif attr.required and not attr.is_graph:
            raise BadUsage("a required attribute is missing", where=where, found=f"no {attr.name}", wanted=attr.type)
        elif attr.default is None:
            continue
        else:
            made = default_attr(attr)
        if attr.required or always_written(prototype.name, attr.name) or not _is_default(attr, made):
            written[attr.name] = made
    written.update({name: value for name, value in given.items() if name.startswith("_") and isinstance(value, Attr)})
    return written


def default_attr(attr: ProtoAttr) -> Attr:
    """A prototype's default as an attribute."""
    return make_attr(attr.type, attr.default, where=attr.name)


def _is_default(attr: ProtoAttr, made: Attr) -> bool:
    return attr.default is not None and made == default_attr(attr)


def with_defaults(prototype: Prototype, attrs: Mapping[str, Attr]) -> dict[str, Any]:
    """Plain attribute values, missing ones at their default."""
    values: dict[str, Any] = {attr.name: attr.default for attr in prototype.attrs}
    values.update({name: attr.value for name, attr in attrs.items() if attr.kind is not AttrKind.RAW})
    return values

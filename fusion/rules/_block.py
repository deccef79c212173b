"""What building blocks have in common: small regions around a node that they make superfluous."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from fusion.candidate import Candidate, Refused
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.graph import dtype_name
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.standing import Standing
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import FRESH_SEED, SEEDS, LocalProbe
from fusion.region import closure
from fusion.rules import _cache_op as common
from ir_ops.dtypes import by_name
from ir_ops.ops import DOMAIN, OPS

LEADS = {0: (3, 5, 7, 2, 4, 6), 1: (4, 3, 2, 7, 5, 3), FRESH_SEED: (2, 7, 5, 3, 3, 2)}
"""Sizes of the dims in front of the last, by seed."""


@dataclass
class Block:
    """A building block to be.

    Attributes:
        op: the operator.
        where: the value that stands for the site in messages.
        emit: the new nodes and constants.
        node: the fused node.
        outputs: its outputs by name.
    """

    op: str
    where: ir.Value
    layer: int | None
    emit: Emitter
    node: ir.Node
    outputs: dict[str, ir.Value]
    attrs: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)


def fused_node(
    op: str, emit: Emitter, operands: Sequence[ir.Value | None], attrs: Mapping[str, Any], **kinds: str
) -> tuple[ir.Node, dict[str, ir.Value]]:
    """The node, and its outputs by name; ``kinds`` are element types that no input tells."""
    operator = OPS[op]
    given = list(operands)
    while given and given[-1] is None:
        given.pop()
    known = {
        entry.type: dtype_name(item) for entry, item in zip(operator.inputs, given, strict=False) if item is not None
    }
    outputs = {}
    for output in operator.outputs:
        own = operator.types[output.type]
        kind = kinds.get(output.name) or known.get(output.type) or own[0]
        number = by_name(kind).onnx
        assert number is not None
        outputs[output.name] = ir.Value(name=emit.name(output.onnx_name), type=ir.TensorType(ir.DataType(number)))
    node = ir.node(op, given, dict(attrs), domain=DOMAIN, outputs=list(outputs.values()), name=emit.name("node"))
    emit.nodes.append(node)
    return node, outputs


def results_of(facts: Facts, value: ir.Value, own: str) -> tuple[str, list[ir.Value]]:
    """The type of a result, and the values it is delivered as, for operands of type ``own``.

    Where the value is wider and only cast back, the casts are the result: one rounding, as the operators round.
    """
    made = dtype_name(value)
    if own == made or not common.widens(own, made) or value.is_graph_output():
        return made, [value]
    readers = facts.standing.readers(value)
    casts = [node.outputs[0] for node in readers if node.op_type == "Cast" and dtype_name(node.outputs[0]) == own]
    return (own, casts) if readers and len(casts) == len(readers) else (made, [value])


def narrow(value: ir.Value) -> ir.Value:
    """The value in front of casts that lose nothing."""
    node = value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        if not common.widens(dtype_name(node.inputs[0]), dtype_name(value)):
            break
        value = node.inputs[0]
        node = value.producer()
    return value


def region_of(outputs: Iterable[ir.Value], feeds: Iterable[ir.Value]) -> list[ir.Node]:
    return closure(outputs, {id(value) for value in feeds})


def is_closed(facts: Facts, region: Sequence[ir.Node], feeds: Iterable[ir.Value]) -> bool:
    """Whether a region depends on nothing but its feeds and constants, not even through a shape."""
    inside = {id(item) for node in region for item in node.outputs} | {id(value) for value in feeds}
    return all(
        item is None or id(item) in inside or facts.view.is_constant(item) for node in region for item in node.inputs
    )


def local_probes(
    facts: Facts, given: Mapping[int, Sequence[int | None]], targets: Sequence[ir.Value]
) -> tuple[list[Probe], Probe] | None:
    """Probes with chosen sizes for the dims that are None; None where the targets do not evaluate under them.

    Args:
        given: id of a feed -> its dims.
    """
    probes: list[Probe] = []
    for seed in (*SEEDS, FRESH_SEED):
        lead = LEADS[seed]
        shapes = {
            key: tuple(lead[place % len(lead)] if dim is None else dim for place, dim in enumerate(dims))
            for key, dims in given.items()
        }
        probe = LocalProbe(facts.view, seed, shapes)
        try:
            if any(probe.shape(target) is None for target in targets):
                return None
        except (Conflict, OutOfRange, Unsupported):
            return None
        probes.append(probe)
    return probes[:-1], probes[-1]


def going(standing: Standing, region: Sequence[ir.Node], order: Any, replaced: set[int], asked: set[int]) -> set[int]:
    """Ids of the region's nodes that nobody needs once the values ``replaced`` are delivered by another node.

    Args:
        order: position of a node in the graph.
        asked: values whose shape is asked of another value.
    """
    gone: set[int] = set()
    for node in sorted(region, key=order, reverse=True):
        if all(id(item) in replaced or _unread(standing, item, gone, asked) for item in node.outputs):
            gone.add(id(node))
    return gone


def _unread(standing: Standing, value: ir.Value, gone: set[int], asked: set[int]) -> bool:
    if value.is_graph_output() and not standing.is_replaced(value):
        return False
    return all(
        id(node) in gone or (id(value) in asked and node.op_type in ("Shape", "Size"))
        for node in standing.readers(value)
    )


def refuse_kept(
    facts: Facts,
    region: Sequence[ir.Node],
    heart: Iterable[ir.Node],
    replaced: Iterable[ir.Value],
    asked: Iterable[ir.Value],
) -> None:
    """Raises Refused where others keep the graph's own computation alive: fusing would only add to it."""
    gone = going(
        facts.standing, region, facts.view.order, {id(item) for item in replaced}, {id(item) for item in asked}
    )
    for node in heart:
        if id(node) in gone:
            continue
        kept = [item for entry in region for item in entry.outputs if id(entry) not in gone]
        inside = {id(entry) for entry in region}
        for value in sorted(kept, key=lambda item: facts.view.order(item.producer()), reverse=True):  # type: ignore[arg-type]
            readers = [reader for reader in facts.standing.readers(value) if id(reader) not in inside]
            if value.is_graph_output() or readers:
                reader = readers[0] if readers else None
                raise Refused(
                    "inner-value-read",
                    "values inside the match are not read outside it",
                    f"{value.name} is " + (
                        "a graph output" if reader is None
                        else f"read by {reader.op_type} {reader.name or reader.outputs[0].name}"
                    ),
                    "only the result is read",
                    "compute the value a second time for that reader",
                    value,
                )  # fmt: skip
        return


def candidate(
    facts: Facts,
    block: Block,
    replaced: list[tuple[ir.Value, ir.Value]],
    feeds: Sequence[ir.Value],
    region: list[ir.Node],
    probes: tuple[list[Probe], Probe | None],
    size: int,
    stand_ins: Sequence[tuple[ir.Value, ir.Value]] = (),
) -> Candidate:
    """The candidate for the engine."""
    return Candidate(
        op=block.op,
        node=block.node,
        emitter=block.emit,
        replaced=replaced,
        region=region,
        feeds=[item for item in dict.fromkeys(feeds) if id(item) not in block.emit.copied],
        probes=probes[0],
        fresh=probes[1],
        place=facts.view.place(block.where, block.layer),
        layer=block.layer,
        stand_ins=list(stand_ins),
        notes=block.notes,
        attrs=block.attrs,
        size=size,
    )

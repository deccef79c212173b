"""Which input of an exported decoder is what: told by what the graph does with it.

Ids pick rows of the table of the vocabulary. So do positions of learned or tabulated embeddings, of their own table:
the vocabulary's has as many rows as there are logits. Other positions become angles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.growth import Growth
from fusion.facts.graph import GraphView, dims_of, dtype_name, uses
from fusion.facts.integers import SIZES, readers_of_integers
from fusion.facts.semantics import lookup
from fusion.surgery.decoder.roles import Roles, Trial

FAR = 16
"""Nodes between positions and their angles."""


def find_roles(view: GraphView, growths: Sequence[Growth], trial: Trial) -> Roles:
    """Roles by shape and use.

    Raises:
        Refused: there are no token ids, two inputs fit one role, or one fits none.
    """
    caches = {id(growth.past) for growth in growths}
    of_tokens: list[ir.Value] = []
    padding: list[ir.Value] = []
    for value in view.graph.inputs:
        shape = trial.probe.shape(value)
        if id(value) in caches or view.is_constant(value) or shape is None:
            continue
        if shape == (trial.batch, trial.tokens) and dtype_name(value) in ("int64", "int32"):
            of_tokens.append(value)
        elif len(shape) == 2 and uses(value):  # its length is not tied to the cache's in all graphs
            padding.append(value)
    ids = _ids(view, growths, of_tokens, trial)
    positions = [value for value in of_tokens if value is not ids]
    for role, values in (("positions", positions), ("padding", padding)):
        if len(values) > 1:
            raise _several(role, values)
    for value in positions:
        _check_positions(value)
    return Roles(ids, positions[0] if positions else None, padding[0] if padding else None)


def _several(role: str, values: Sequence[ir.Value]) -> Refused:
    return Refused("decode-inputs", f"one input for {role}", " and ".join(str(value.name) for value in values), "one")


def _ids(view: GraphView, growths: Sequence[Growth], values: Sequence[ir.Value], trial: Trial) -> ir.Value:
    """The input that picks rows of the vocabulary's table: of several tables that with a row for each logit."""
    rows = {id(value): set(_tables(view, value)) for value in values}
    found = [value for value in values if rows[id(value)]]
    if not found:
        raise Refused("decode-inputs", "token ids [B, S] that pick rows of an embedding", "none", "an input for ids")
    if len(found) > 1:
        found = [value for value in found if not _rotates(view, value)]
    if len(found) > 1:
        presents = {id(growth.present) for growth in growths}
        shapes = [trial.probe.shape(value) for value in view.graph.outputs if id(value) not in presents]
        columns = {shape[-1] for shape in shapes if shape}
        found = [value for value in found if rows[id(value)] & columns] or found
    if len(found) != 1:
        raise _several("ids", found or values)
    return found[0]


def _rotates(view: GraphView, value: ir.Value) -> bool:
    """Whether the rows that numbers pick only ever multiply something: cosines and sines, never a sum of embeddings."""
    pending, seen = [value], {id(value)}
    while pending:
        item = pending.pop()
        for node, place in uses(item):
            others = [other for other in node.inputs if other is not None and not view.is_constant(other)]
            definition = lookup(node.domain, node.op_type)
            moves = definition is not None and definition.kind == "move"
            scales = node.op_type in ("Mul", "Div") and len(others) == 1
            if moves or scales or node.op_type == "Cast" or (node.op_type == "Gather" and place == 1):
                fresh = [output for output in node.outputs if id(output) not in seen]
                seen |= {id(output) for output in fresh}
                pending += fresh
            elif node.op_type == "Mul":
                if others[0] is others[1]:
                    return False
            elif node.op_type not in ("RotaryEmbedding", "Shape", "Size"):
                return False
    return True


def vocabulary(view: GraphView, ids: ir.Value) -> int | None:
    """Rows of the table of floats that ids pick from; None where they pick from none."""
    return next(_tables(view, ids), None)


def _tables(view: GraphView, value: ir.Value) -> Iterator[int]:
    """How many rows the constant tables have that these integers pick from, or others that are computed from them."""
    for node, place in readers_of_integers([value]):
        if place != 1 or int(view.attrs(node).get("axis", 0)):
            continue
        packed = node.op_type == "GatherBlockQuantized"  # several numbers of a row in one: its scales tell
        table = node.inputs[2 if packed else 0] if packed or node.op_type == "Gather" else None
        dims = None if table is None or not view.is_constant(table) else dims_of(table)
        if dims is not None and len(dims) > 1 and isinstance(dims[0], int):
            yield dims[0]


def _check_positions(value: ir.Value) -> None:
    """Raises Refused for an input that nothing tells to hold positions: a call would fill it with them."""
    if uses(value) and "pos" not in str(value.name).lower() and not _become_angles(value):
        raise Refused("decode-inputs", "an input [B, S] beside the ids holds positions",
                      f"{value.name}, of which no angles are computed", "positions, or an input named after them",
                      "export without it", value)  # fmt: skip


def _become_angles(value: ir.Value) -> bool:
    pending, seen = [(value, 0)], {id(value)}
    while pending:
        item, steps = pending.pop()
        for node, _ in uses(item):
            if node.op_type in ("Cos", "Sin"):
                return True
            for out in node.outputs:
                if steps < FAR and node.op_type not in SIZES and id(out) not in seen:
                    seen.add(id(out))
                    pending.append((out, steps + 1))
    return False

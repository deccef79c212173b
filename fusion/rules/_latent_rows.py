"""Rows of two latent caches that belong together."""

from __future__ import annotations

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.analysis import Facts
from fusion.facts.caches.rows import Row
from fusion.facts.caches.same_slots import same_slots
from fusion.rules import _cache_op as common


def partner_of(facts: Facts, key: Row, values: list[Row]) -> Row:
    """The write that goes with a rotated one: same slots and layout, the nearest relation first.

    Any pairing at equal slots computes the right thing; the order only keeps a layer together.
    """
    view, write = facts.view, key.write
    kind = "plain" if key.norm is not None else "normalised"
    fitting = [row for row in values if (row.norm is None) == (key.norm is not None)]
    if not fitting:
        raise Refused(
            "kv-no-partner", f"rotated rows in {write.cache.name} have a partner cache",
            f"no cache with {kind} rows", f"a cache with {kind} rows at the same slots", "", write.out,
        )  # fmt: skip
    same = [row for row in fitting if same_slots(view, write, row.write)]
    if not same:
        other = min(fitting, key=lambda row: _distance(facts, key, row)).write
        raise Refused(
            "kv-slots-differ",
            "both caches are written at the same slots in the same layout",
            f"{write.cache.name} at {common.slots_text(write)}, {other.cache.name} at {common.slots_text(other)}",
            "one slot value and one layout",
            "write both caches with one slot mapping",
            other.out,
        )
    return min(same, key=lambda row: _distance(facts, key, row))


def _distance(facts: Facts, key: Row, row: Row) -> tuple[bool, bool, bool, int]:
    """Nearer relations first: same source, sibling projections, same layer, neighbouring outputs."""
    view = facts.view
    mine, its = _origin(key), _origin(row)
    apart = abs(view.output_place(key.write.out) - view.output_place(row.write.out))
    siblings = _projection_input(mine) is not None and _projection_input(mine) is _projection_input(its)
    return mine is not its, not siblings, facts.layer(key.write) != facts.layer(row.write), apart


def _origin(row: Row) -> ir.Value:
    return row.norm.x if row.norm is not None else row.x


def _projection_input(value: ir.Value) -> ir.Value | None:
    """What a value was projected from, looked up through movement and bias."""
    for _ in range(12):
        node = value.producer()
        if node is None:
            return None
        if node.op_type in ("MatMul", "Gemm"):
            return node.inputs[0]
        first = node.inputs[0] if node.inputs else None
        if first is None or node.op_type not in (
            "Reshape",
            "Transpose",
            "Split",
            "Slice",
            "Add",
            "Cast",
            "Unsqueeze",
            "Squeeze",
        ):
            return None
        value = first
    return None

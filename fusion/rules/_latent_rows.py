"""Rows of a latent cache: which two writes belong together, what a norm was taken of, who else reads the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.analysis import Facts
from fusion.facts.cache_write import CacheWrite
from fusion.facts.graph import GraphView
from fusion.facts.norm import NormFact
from fusion.facts.parameters import Part
from fusion.facts.probe import Probe
from fusion.facts.rows import Row
from fusion.facts.same_slots import same_slots
from fusion.facts.symbolic import Symbolic


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
            f"{write.cache.name} at {slots_text(write)}, {other.cache.name} at {slots_text(other)}",
            "one slot value and one layout",
            "write both caches with one slot mapping",
            other.out,
        )
    return min(same, key=lambda row: _distance(facts, key, row))


def slots_text(write: CacheWrite) -> str:
    return f"{write.slots.value.name} ({write.slots.form}, {write.order})"


def _distance(facts: Facts, key: Row, row: Row) -> tuple[bool, bool, bool, int]:
    """Nearer relations first: same source, sibling projections, same layer, neighbouring outputs."""
    view = facts.view
    mine, its = _origin(key), _origin(row)
    outputs = [id(value) for value in view.graph.outputs]
    apart = abs(outputs.index(id(key.write.out)) - outputs.index(id(row.write.out)))
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


def through_norm(view: GraphView, row: Row, norm: NormFact) -> list[Part]:
    """The elements of the norm's input that the rows come from, per probe."""
    parts: list[Part] = []
    for entry in row.views:
        shape = entry.view.probe.shape(norm.x)
        if shape != entry.x.source.shape:
            raise Refused(
                "norm-shape", "a norm keeps the shape of its input", f"{entry.x.source.shape} from {shape}",
                "equal shapes", "", norm.y,
            )  # fmt: skip
        symbolic = Symbolic(view, entry.view.probe, set())
        sym = symbolic.read(norm.x, 0).take(entry.x.position)
        source = symbolic.source_of(int(sym.atom.reshape(-1)[0])) if sym.atom.size else None
        if source is None or sym.atom.shape[:2] != (1, 1) or (sym.coef != 1).any():
            raise Refused("norm-input", "the norm's input is rows of one value", "a mixture", "one value", "", norm.x)
        position = sym.atom[0, 0] - source.base
        if position.min() < 0 or position.max() >= np.prod(source.shape):
            raise Refused("norm-input", "the norm's input is rows of one value", "several", "one value", "", norm.x)
        parts.append(Part(source, position))
        count = _norm_count(entry.view.probe, norm)
        if count is not None and abs(count - shape[-1]) > 1e-3:
            raise Refused("norm-count", "the mean divides by the width", f"{count:g}", str(shape[-1]), "", norm.y)
    return parts


def _norm_count(probe: Probe, norm: NormFact) -> float | None:
    """What the mean divides by, None for a mean over the axis; infinite when it cannot be told."""
    if norm.count is None or isinstance(norm.count, float):
        return norm.count
    known = probe.known(norm.count)
    if known.array is None or known.taint or known.array.size != 1:
        return float("inf")
    return float(known.array.reshape(-1)[0])


def gamma_columns(row: Row, norm: NormFact) -> Any:
    """``[D]``: which gamma element belongs to each column of the operator's row; the norm must span the row."""
    found = []
    for entry in row.views:
        width = entry.x.source.shape[-1]
        columns = entry.x.position % width
        if (columns != columns[:1, :1]).any() or sorted(columns[0, 0].tolist()) != list(range(width)):
            raise Refused(
                "norm-width", "the norm spans exactly the written row", f"a norm over {width} columns, rows of "
                f"{columns.shape[2]}", "all columns of the norm in one row", "", norm.y,
            )  # fmt: skip
        line = entry.x.position // width
        if (line != line[:, :, :1]).any():
            raise Refused("norm-width", "the norm spans exactly the written row", "columns of several rows",
                          "one row of the norm", "", norm.y)  # fmt: skip
        found.append(columns[0, 0])
    if any(not np.array_equal(found[0], other) for other in found[1:]):
        raise Refused(
            "norm-width", "the norm spans the written row", "other columns by size", "fixed columns", "", norm.y
        )
    return found[0]

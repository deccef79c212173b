"""A rotation by rows of tables, spelled out."""

from __future__ import annotations

import onnx_ir as ir

from fusion.emit import Emitter
from fusion.surgery.opening.tokens import SharedTokens


def rotated(
    emit: Emitter, shared: SharedTokens, x: ir.Value, cos: ir.Value, sin: ir.Value, positions: ir.Value, turned: int,
    width: int, *, interleaved: bool,
) -> ir.Value:  # fmt: skip
    """``x * cos + partner(x) * sin`` of the first ``turned`` columns of x; the others pass.

    Args:
        x: ``[B, N, S, width]``.
        cos, sin: tables ``[M, turned / 2]``.
        positions: ``[B, S]``: rows of the tables.
        interleaved: neighbours are partners, else columns half of ``turned`` apart.
    """
    rows = []
    for table, part in ((cos, "cos"), (sin, "sin")):
        key = ("rows", id(table), id(positions), interleaved)
        rows.append(shared.once(key, lambda t=table, p=part: _rows(emit, t, positions, turned, interleaved, p)))  # type: ignore[misc]
    first = x if turned == width else columns(emit, x, 0, turned, "turned")
    partner = _neighbours(emit, first, turned) if interleaved else _halves(emit, first, turned)
    result = emit.node(
        "Add",
        [emit.node("Mul", [first, rows[0]], "x_cos"), emit.node("Mul", [partner, rows[1]], "x_sin")],
        "rotated",
    )
    return result if turned == width else emit.concat([result, columns(emit, x, turned, width, "passed")], "rope")


def columns(emit: Emitter, x: ir.Value, start: int, stop: int, part: str, step: int = 1) -> ir.Value:
    """Columns ``start .. stop - 1`` of the last axis, every ``step``-th."""
    bounds = [emit.ints([number], f"{part}_{name}")
              for number, name in ((start, "from"), (stop, "to"), (-1, "axis"), (step, "step"))]  # fmt: skip
    return emit.node("Slice", [x, *bounds], part)


def _rows(emit: Emitter, table: ir.Value, positions: ir.Value, turned: int, interleaved: bool, part: str) -> ir.Value:
    """``[B, 1, S, turned]``: the table's rows, each number for both partners."""
    found = emit.node("Gather", [table, positions], part + "_rows", {"axis": 0})
    if not interleaved:
        return emit.reshape(emit.concat([found, found], part + "_twice"), [0, 1, -1, turned], part)
    pairs = emit.reshape(found, [0, 1, -1, turned // 2, 1], part + "_columns")
    return emit.reshape(emit.concat([pairs, pairs], part + "_pairs"), [0, 1, -1, turned], part)


def _halves(emit: Emitter, x: ir.Value, turned: int) -> ir.Value:
    """``[-second half, first half]``."""
    first = columns(emit, x, 0, turned // 2, "first_half")
    second = columns(emit, x, turned // 2, turned, "second_half")
    return emit.concat([emit.node("Neg", [second], "second_negative"), first], "partner")


def _neighbours(emit: Emitter, x: ir.Value, turned: int) -> ir.Value:
    """``[-x1, x0, -x3, x2, ..]``."""
    even = emit.reshape(columns(emit, x, 0, turned, "even", 2), [0, 0, 0, turned // 2, 1], "even_apart")
    odd = emit.reshape(columns(emit, x, 1, turned, "odd", 2), [0, 0, 0, turned // 2, 1], "odd_apart")
    pairs = emit.concat([emit.node("Neg", [odd], "odd_negative"), even], "pairs")
    return emit.reshape(pairs, [0, 0, 0, turned], "partner")

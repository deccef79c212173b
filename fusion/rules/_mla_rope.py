"""The rotated part of the query: which values hold it, and from which columns of the up-projection it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.rotary.rotation import NotARotation, Rotation, read_rotation
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported, lookup
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Sym, Unreadable, joined
from fusion.facts.trial.probe import Probe
from fusion.rules._mla_memo import Structure, shared
from fusion.rules._mla_product import MOST, Moved
from ir_ops.dtypes import Array

BUDGETS = (2, 3, 4)
"""Nested operations that a rotation may have: a sum of products, and scaling on the way."""
_ARITHMETIC = ("Add", "Sub", "Sum", "RotaryEmbedding")
_STEPS = (*_ARITHMETIC, "Mul", "Div", "Neg", "Cast")


@dataclass
class Piece:
    """A value that holds rotated columns: the low half, the high half, or (``width`` = all) both.

    Attributes:
        start: the first column of the rotated row in it.
        position: where each element lies in ``[T, N, Dr]``.
    """

    value: ir.Value
    start: int
    width: int
    position: Array


@dataclass
class Rope:
    """The rotated query under one probe.

    Attributes:
        pieces: the values that hold it together.
        columns: ``[Dr]`` columns of a head in the up-projection, pairs adjacent.
        rotation: the rotation of rows ``[T, N, Dr]``.
        factor: what the rotated columns were multiplied by.
    """

    pieces: list[Piece]
    columns: Array
    rotation: Rotation
    factor: float


@dataclass
class _Rows:
    """A value's terms by token and head: rows of ``width`` columns."""

    value: ir.Value
    sym: Sym
    row_of: Array
    kind: str
    budget: int


def rotated_values(view: GraphView, moved: list[Moved]) -> list[ir.Value]:
    """Values behind arithmetic on what was moved from the up-projection, in graph order."""
    behind: dict[int, ir.Value] = {}
    seen = {id(item.value) for item in moved}
    pending = [item.value for item in moved]
    while pending and len(seen) < 3 * MOST:
        value = pending.pop(0)
        for node, _ in view.following(value):
            if not _is_step(node):
                continue
            for out in node.outputs:
                if id(value) in behind or node.op_type in _ARITHMETIC:
                    behind[id(out)] = out
                if id(out) not in seen:
                    seen.add(id(out))
                    pending.append(out)
    return sorted(behind.values(), key=lambda value: view.order(value.producer()))  # type: ignore[arg-type]


def _is_step(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type in ("Shape", "Size"):
        return False
    definition = lookup(node.domain, node.op_type)
    return node.op_type in _STEPS or (definition is not None and definition.moves is not None)


def find_rope(
    view: GraphView, probe: Probe, up: ir.Value, heads: int, width: int, moved: list[Moved], kind: str
) -> list[tuple[ir.Value, ...]]:
    """Candidates for the values that hold the rotated query: one whole value, or the two halves.

    Args:
        width: Dr, as the key has it.
        kind: the element type wanted; a rotation in a wider type counts where it has been rounded to that.
    """
    values = rotated_values(view, moved)
    found = shared(
        view,
        ("find rope", heads, width, kind),
        Structure(view, probe, values, up),
        lambda: _candidates(view, probe, up, heads, width, values, kind),
        lambda places, *_: places,
    )
    return [tuple(values[place] for place in places) for places in found]


def _candidates(
    view: GraphView, probe: Probe, up: ir.Value, heads: int, width: int, values: list[ir.Value], kind: str
) -> list[tuple[int, ...]]:
    """Numbers of values that hold the rotated query."""
    halves: dict[str, int] = {}
    found: list[tuple[int, ...]] = []
    for place, value in enumerate(values):
        rows = _rows(view, probe, up, value, heads, width) if dtype_name(value) == kind else None
        if rows is None:
            continue
        if rows.kind == "whole":
            found.append((place,))
            break
        halves.setdefault(rows.kind, place)
    if len(halves) == 2:
        found.append((halves["low"], halves["high"]))
    return found


def _rows(view: GraphView, probe: Probe, up: ir.Value, value: ir.Value, heads: int, width: int) -> _Rows | None:
    for budget in BUDGETS:
        symbolic = Symbolic(view, probe, {id(up)})
        symbolic.read(up, 0)
        try:
            sym = symbolic.read(value, budget)
        except (Unreadable, Conflict, OutOfRange, Unsupported):
            return None
        rows = _arranged(probe, up, value, sym, heads, width, budget)
        if rows is not None:
            return rows
    return None


def _arranged(
    probe: Probe, up: ir.Value, value: ir.Value, sym: Sym, heads: int, width: int, budget: int
) -> _Rows | None:
    """Groups the elements of a value by token and head; None where they are not sums of two products."""
    terms = (sym.coef != 0).sum(axis=0)
    shape, size = probe.shape(up) or (), int(np.prod(probe.shape(up) or (0,)))
    if not sym.shape or terms.min(initial=2) != 2 or terms.max(initial=0) != 2 or not size or shape[-1] % heads:
        return None
    atom, coef = sym.atom[:2].reshape(2, sym.atom.shape[1], -1), sym.coef[:2].reshape(2, -1)
    place = _places(atom, size)
    if place is None:
        return None
    minus = (coef < 0).sum(axis=0)
    own = shape[-1] // heads
    for kind, columns in (("whole", width), ("low", width // 2), ("high", width // 2)):
        if place.shape[1] % columns or place.shape[1] // columns * columns != place.shape[1]:
            continue
        signs = minus.reshape(-1, columns)
        wanted = np.repeat([1, 0], width // 2)[None] if kind == "whole" else np.array([[1 if kind == "low" else 0]])
        if (signs != wanted).any():
            continue
        head = place.reshape(2, -1, columns) // own
        if (head != head[:1, :, :1]).any():
            continue
        row = head[0, :, 0]
        count = size // shape[-1] * heads
        if len(row) == count and len(np.unique(row)) == count:
            return _Rows(value, sym, np.argsort(row).reshape(-1, heads), kind, budget)
    return None


def _places(atom: Array, size: int) -> Array | None:
    """``[2, elements]``: the element of the up-projection in each term, where it is one factor; it is source 1."""
    inside = (atom >= 1) & (atom < 1 + size)
    if not (inside.sum(axis=1) == 1).all():
        return None
    found: Array = np.where(inside, atom, 0).sum(axis=1) - 1
    return found


def read_rope(
    view: GraphView,
    probe: Probe,
    up: ir.Value,
    values: tuple[ir.Value, ...],
    heads: int,
    width: int,
    tables: Sequence[ir.Value],
) -> Rope | NotARotation:
    """Reads the values as one rotation of ``[T, N, Dr]`` columns of the up-projection; ``tables`` are the key's."""
    return shared(
        view,
        ("rope", heads, width),
        Structure(view, probe, values, up, *tables),
        lambda: _read_rope(view, probe, up, values, heads, width),
        lambda found, old, new: _rebound(found, values, old, new),
    )


def _rebound(
    found: Rope | NotARotation, values: tuple[ir.Value, ...], old: Sequence[ir.Value], new: Sequence[ir.Value]
) -> Rope | NotARotation | None:
    """A reading of other values with equal structure, told of these."""
    if isinstance(found, NotARotation):
        return found
    place = {id(value): number for number, value in enumerate(old)}
    rotation, sources = found.rotation, []
    for source in (rotation.source, rotation.cos_source, rotation.sin_source):
        if id(source.value) not in place:
            return None
        sources.append(replace(source, value=new[place[id(source.value)]]))
    pieces = [replace(piece, value=value) for piece, value in zip(found.pieces, values, strict=True)]
    turned = replace(rotation, source=sources[0], cos_source=sources[1], sin_source=sources[2])
    return replace(found, pieces=pieces, rotation=turned)


def _read_rope(
    view: GraphView, probe: Probe, up: ir.Value, values: tuple[ir.Value, ...], heads: int, width: int
) -> Rope | NotARotation:
    rows = [_rows(view, probe, up, value, heads, width) for value in values]
    if any(item is None for item in rows):
        return NotARotation("rope-columns", "the rotated query", "no rotation of the up-projection", "one")
    found = [item for item in rows if item is not None]
    return _rotation(view, probe, up, found, width)


def _rotation(view: GraphView, probe: Probe, up: ir.Value, rows: list[_Rows], width: int) -> Rope | NotARotation:
    symbolic = Symbolic(view, probe, {id(up)})
    symbolic.read(up, 0)
    parts = [symbolic.read(item.value, item.budget) for item in rows]
    each = width // len(rows)
    index = [item.row_of[:, :, None] * each + np.arange(each) for item in rows]
    whole = joined(parts).take(
        np.concatenate([part + number * rows[0].sym.coef[0].size for number, part in enumerate(index)], axis=-1)
    )
    sizes = np.unique(np.abs(whole.coef[whole.coef != 0]))
    if len(sizes) != 1 and not np.allclose(sizes, sizes[0], rtol=1e-12):
        return NotARotation("rope-scaled", "the rotated query", "different factors by column", "one factor")
    factor = float(sizes[0])
    rotation = read_rotation(symbolic, Sym(np.sign(whole.coef), whole.atom))
    if isinstance(rotation, NotARotation):
        return rotation
    if rotation.source.value is not up or rotation.width != width:
        return NotARotation("rope-columns", "the rotated query", "another value", "the up-projection's columns")
    shape = probe.shape(up) or ()
    own = shape[-1] // rows[0].row_of.shape[1]
    columns = rotation.position % own
    head = rotation.position % shape[-1] // own
    if (columns != columns[:1, :1]).any() or (head != np.arange(head.shape[1])[:, None]).any():
        return NotARotation("rope-columns", "the rotated query", "other columns by head", "the same for all heads")
    pieces = [
        Piece(item.value, number * each, each, _position(item, number * each, each, width))
        for number, item in enumerate(rows)
    ]
    return Rope(pieces, columns[0, 0], rotation, factor)


def _position(rows: _Rows, start: int, each: int, width: int) -> Array:
    """Where each element of a piece lies in ``[T, N, Dr]``."""
    count = rows.row_of.size
    row_at = np.empty(count, np.int64)
    row_at[rows.row_of.reshape(-1)] = np.arange(count)
    flat = row_at[:, None] * width + start + np.arange(each)
    return flat.reshape(rows.sym.shape)


def reaches_table(view: GraphView, moved: list[Moved], tables: set[int]) -> bool:
    """Whether what was moved meets cos or sin in a product: it looks like a rotated query."""
    for value in (item.value for item in moved):
        for node, _ in view.following(value):
            if node.op_type == "RotaryEmbedding":
                return True
            if node.op_type == "Mul" and any(id(_behind(view, item)) in tables for item in node.inputs):
                return True
    return False


def _behind(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """What a table was moved from."""
    for _ in range(MOST):
        node = None if value is None else value.producer()
        if value is None or node is None or not node.inputs:
            return value
        definition = lookup(node.domain, node.op_type)
        moves = definition is not None and definition.moves is not None and len(definition.moves) == 1
        if not (moves or node.op_type == "Cast") or "float" not in dtype_name(node.outputs[0]):
            return value
        value = node.inputs[0]
    return value


def table_sources(view: GraphView, values: list[ir.Value]) -> set[int]:
    """Ids of cos and sin as :func:`reaches_table` sees them."""
    return {id(item) for value in values if (item := _behind(view, value)) is not None}

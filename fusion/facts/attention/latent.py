"""Keys and values that are projected from latents: which column of the projection is which column of which head.

``key[b, n, t] = [up[b, t, key_columns[n]], rope[b, t, rope_columns]]`` and
``value[b, n, t] = up[b, t, value_columns[n]]`` with ``up = latent @ weight``: then scores and results can be had from
the latents, with the weight folded into the queries and the results (docs/mla.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.attention.projection import Projection, projection_of
from fusion.facts.graph import GraphView
from fusion.facts.symbols.symbolic import Source, Symbolic
from fusion.facts.symbols.terms import Sym
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array


@dataclass(frozen=True)
class Latent:
    """See the module's text.

    Attributes:
        up: what the projection gives, ``[.., columns]``, a row for each token of the batch.
        projection: of the latents.
        rope: rows of the rotated part, the same for all heads.
        nope_first: whether a key's projected columns come before its rotated ones.
        key_columns, rope_columns, value_columns: ``[N, Dn]``, ``[Dr]``, ``[N, Dv]``.
        factor: of the keys.
    """

    up: ir.Value
    projection: Projection
    rope: ir.Value
    nope_first: bool
    key_columns: Array
    rope_columns: Array
    value_columns: Array
    factor: float

    @property
    def heads(self) -> int:
        return int(self.key_columns.shape[0])

    @property
    def width(self) -> int:
        """Columns of a key."""
        return int(self.key_columns.shape[1] + self.rope_columns.size)


def read_latent(
    view: GraphView, probe: Probe, key: ir.Value, value: ir.Value, stops: set[int], *, turned: bool
) -> Latent | str:
    """Reads keys ``[.., T, D]`` (``turned``: ``[.., D, T]``) and values ``[.., T, Dv]``; else what is in the way.

    Raises:
        Unreadable, Conflict: a value cannot be followed.
    """
    found = _sources(view, probe, key, stops)
    if isinstance(found, str):
        return found
    up, rope, symbolic, sym = found
    projection = projection_of(view, up, [probe])
    if projection is None or projection.bias is not None or projection.product.op_type == "MatMulInteger":
        return f"{up.name} is no projection by a constant weight without bias"
    tokens = math.prod(probe.shape(up) or ()) // projection.columns
    factor = float(sym.coef.reshape(-1)[0])
    if (sym.coef != factor).any():
        return "keys with different factors"
    parts = _columns(symbolic, sym.atom[0, 0], turned, [up, rope], tokens)
    if isinstance(parts, str):
        return parts
    (nope, first), (turned_columns, _) = parts
    values = Symbolic(view, probe, stops | {id(up)})
    read = values.read(value, 1)
    if len(read.coef) != 1 or read.atom.shape[1] != 1 or (read.coef != 1).any():
        return "values that are more than columns of the projection"
    held = _columns(values, read.atom[0, 0], False, [up], tokens)
    if isinstance(held, str):
        return held
    if (turned_columns != turned_columns[:1]).any() or nope.shape[0] != held[0][0].shape[0]:
        return "rotated columns that differ by head"
    return Latent(up, projection, rope, first == 0, nope, turned_columns[0], held[0][0], factor)


def _sources(
    view: GraphView, probe: Probe, key: ir.Value, stops: set[int]
) -> tuple[ir.Value, ir.Value, Symbolic, Sym] | str:
    """The projection and the rotated rows that keys consist of."""
    for _ in range(2):
        symbolic = Symbolic(view, probe, stops)
        sym = symbolic.read(key, 1 if stops else 0)
        if len(sym.coef) != 1 or sym.atom.shape[1] != 1 or not sym.coef.size or (sym.atom <= 0).any():
            return "keys that are more than columns of two values"
        owners = [source for source in symbolic.sources if _is_used(source, sym.atom)]
        ups = [source for source in owners if _is_product(source.value)]
        ropes = [source.value for source in owners if not _is_product(source.value)]
        if len(ups) == 1 and len(ropes) == 1:
            return ups[0].value, ropes[0], symbolic, sym
        joined = _joined(view, ropes)
        if len(ups) != 1 or joined is None:
            break
        stops = stops | {id(joined)}
    names = ", ".join(str(source.value.name) for source in owners)
    return f"keys made of {names}"


def _is_used(source: Source, atoms: Array) -> bool:
    return bool(((atoms >= source.base) & (atoms < source.base + math.prod(source.shape))).any())


def _is_product(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in ("MatMul", "Gemm")


def _joined(view: GraphView, parts: Sequence[ir.Value]) -> ir.Value | None:
    """The Concat of exactly these values: halves of a rotation."""
    for node, _ in view.following(parts[0]) if parts else ():
        if node.op_type == "Concat":
            inputs = {id(view.root(item)) for item in node.inputs if item is not None}
            if inputs == {id(view.root(part)) for part in parts}:
                return node.outputs[0]
    return None


def _columns(
    symbolic: Symbolic, atom: Array, turned: bool, wanted: Sequence[ir.Value], tokens: int
) -> list[tuple[Array, int]] | str:
    """Per source: ``[N, columns]`` of it, and where they begin in a row. Rows are those of the tokens, in order."""
    atom = atom.swapaxes(-1, -2) if turned else atom
    length, width = atom.shape[-2:]
    if tokens % length or atom.size % (tokens * width):
        return "rows that are not the tokens"
    batch, heads = tokens // length, atom.size // (tokens * width)
    atom = atom.reshape(batch, heads, length, width)
    row = (np.arange(batch)[:, None] * length + np.arange(length))[:, None, :, None]
    found: list[tuple[Array, int]] = []
    for value in wanted:
        source = next((item for item in symbolic.sources if item.value is value), None)
        if source is None:
            return f"columns of other values than {value.name}"
        columns = math.prod(source.shape) // tokens
        position = atom - source.base
        inside = (position >= 0) & (position < tokens * columns)
        places = np.flatnonzero(inside.all(axis=(0, 1, 2)))
        whole = inside.any(axis=(0, 1, 2)).sum() == len(places) and columns * tokens == math.prod(source.shape)
        if not len(places) or not whole:
            return f"columns of {value.name} that differ by token or head"
        if places[-1] - places[0] + 1 != len(places):
            return f"columns of {value.name} with gaps"
        mine = position[..., places[0] : places[-1] + 1]
        if (mine // columns != row).any():
            return f"rows of {value.name} in another order"
        column = mine % columns
        if (column != column[:1, :, :1]).any():
            return f"columns of {value.name} that differ by token"
        found.append((column[0, :, 0], int(places[0])))
    if sum(item.shape[1] for item, _ in found) != width:
        return "columns of other values"
    return found

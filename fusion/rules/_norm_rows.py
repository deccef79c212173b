"""Rows of a norm's result: which elements of the norm's input they come from, and which gamma each column has."""

from __future__ import annotations

import math

import numpy as np

from fusion.candidate import Refused
from fusion.facts.graph import GraphView
from fusion.facts.norms.norm import NormFact
from fusion.facts.symbols.parameters import Part
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array


def through_norm(view: GraphView, probe: Probe, norm: NormFact, rows: Part) -> Part:
    """The elements of the norm's input that ``rows`` of its result come from.

    Raises:
        Refused: the input is a mixture of values, or the mean divides by another number.
    """
    shape = probe.shape(norm.x)
    if shape is None or shape != rows.source.shape:
        raise Refused(
            "norm-shape", "a norm keeps the shape of its input", f"{rows.source.shape} from {shape}",
            "equal shapes", "", norm.y,
        )  # fmt: skip
    symbolic = Symbolic(view, probe, set())
    sym = symbolic.read(norm.x, 0).take(rows.position)
    source = symbolic.source_of(int(sym.atom.reshape(-1)[0])) if sym.atom.size else None
    if source is None or sym.atom.shape[:2] != (1, 1) or (sym.coef != 1).any():
        raise Refused("norm-input", "the norm's input is rows of one value", "a mixture", "one value", "", norm.x)
    position = sym.atom[0, 0] - source.base
    if position.min() < 0 or position.max() >= math.prod(source.shape):
        raise Refused("norm-input", "the norm's input is rows of one value", "several", "one value", "", norm.x)
    count = _count(probe, norm)
    if count is not None and abs(count - shape[-1]) > 1e-3:
        raise Refused("norm-count", "the mean divides by the width", f"{count:g}", str(shape[-1]), "", norm.y)
    return Part(source, position)


def _count(probe: Probe, norm: NormFact) -> float | None:
    """What the mean divides by, None for a mean over the axis; infinite when it cannot be told."""
    if norm.count is None or isinstance(norm.count, float):
        return norm.count
    known = probe.known(norm.count)
    if known.array is None or known.taint or known.array.size != 1:
        return float("inf")
    return float(known.array.reshape(-1)[0])


def gamma_columns(rows: list[Part], norm: NormFact) -> Array:
    """``[D]``: which gamma element belongs to each column of the rows, which are given per trial size.

    Raises:
        Refused: the norm does not span exactly a row.
    """
    found = []
    for part in rows:
        width = part.source.shape[-1]
        columns = part.position % width
        if (columns != columns[:1, :1]).any() or sorted(columns[0, 0].tolist()) != list(range(width)):
            raise Refused(
                "norm-width", "the norm spans exactly the written row", f"a norm over {width} columns, rows of "
                f"{columns.shape[2]}", "all columns of the norm in one row", "", norm.y,
            )  # fmt: skip
        line = part.position // width
        if (line != line[:, :, :1]).any():
            raise Refused(
                "norm-width", "the norm spans exactly the written row", "columns of several rows",
                "one row of the norm", "", norm.y,
            )  # fmt: skip
        found.append(columns[0, 0])
    first: Array = found[0]
    if any(not np.array_equal(first, other) for other in found[1:]):
        raise Refused(
            "norm-width", "the norm spans the written row", "other columns by size", "fixed columns", "", norm.y
        )
    return first

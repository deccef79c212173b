"""Rows that are rounded to int8 by a scale, and an offset, of their own: ``clip(round(x * scale + offset))``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fusion.facts.closure import closure
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.quant import NotQuantised, Peeled, peel
from fusion.facts.semantics import Conflict
from fusion.facts.symbols.parameters import Part, Reason, Scale, read_parameters, single
from fusion.facts.symbols.symbolic import Source, Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import Trials
from ir_ops.dtypes import Array

BUDGET = 3


@dataclass(frozen=True)
class StaticQuant:
    """``y`` is ``x`` quantised.

    Attributes:
        scale, offset: parameters, of one element or of the columns; None where there is none.
        peeled: the rounding chain.
    """

    y: ir.Value
    x: ir.Value
    scale: Scale | None
    offset: Scale | None
    peeled: Peeled
    probes: list[Probe]


def is_quantising(view: GraphView, node: ir.Node) -> bool:
    """Whether a node turns floats into 8-bit integers."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Cast", "QuantizeLinear"):
        return False
    source = node.inputs[0]
    if source is None or view.is_constant(source) or dtype_name(node.outputs[0]) not in ("int8", "uint8"):
        return False
    return node.op_type == "QuantizeLinear" or "float" in dtype_name(source) or dtype_name(source) in ("int32", "int64")


def read_static(view: GraphView, trials: Trials, node: ir.Node) -> StaticQuant | Reason:
    """What an 8-bit value was rounded from, and by which parameters."""
    y = node.outputs[0]
    peeled = peel(view, y)
    if isinstance(peeled, NotQuantised):
        return Reason("quant-form", peeled.fact, peeled.found, peeled.wanted, y)
    probes = trials.probes([y, peeled.value])
    if not probes:
        return Reason("quant-form", "quantised rows", "an unknown shape", "a shape", y)
    if peeled.linear is not None:
        return _linear(view, peeled, y, probes)
    views = [_read(view, probe, peeled.value) for probe in probes]
    first = views[0]
    for found in views:
        if isinstance(found, Reason):
            return found
    assert not isinstance(first, Reason)
    if any(isinstance(other, Reason) or other[0] is not first[0] for other in views[1:]):
        return Reason("quant-form", "quantised rows", "other sources at another size", "one source", y)
    return StaticQuant(y, *first, peeled, probes)


def _linear(view: GraphView, peeled: Peeled, y: ir.Value, probes: list[Probe]) -> StaticQuant | Reason:
    """QuantizeLinear, whose scale divides and whose zero point is added."""
    assert peeled.linear is not None
    shape = probes[0].shape(peeled.value) or ()
    axis = int(view.attrs(peeled.nodes[0]).get("axis", 1))
    found: list[Scale | None] = []
    for value, divides in zip(peeled.linear, (True, False), strict=True):
        number = None if value is None else view.scalar(value)
        if divides and number == 0:
            return Reason("quant-scale", "QuantizeLinear divides by its scale", "a scale of 0", "another number", y)
        if value is None or number is not None:
            factor = None if number is None else 1.0 / number if divides else number
            found.append(None if factor is None or (factor == 0 and not divides) else Scale(factor))
            continue
        own = probes[0].shape(value) or ()
        if own not in ((1,), ()) and (len(own) != 1 or axis % len(shape) != len(shape) - 1 or own[0] != shape[-1]):
            return Reason("quant-axis", "QuantizeLinear goes along the last axis", f"axis {axis}, scale {list(own)}",
                          "the last axis, one scale for each column", y)  # fmt: skip
        part = Part(Source(value, 0, own), np.arange(math.prod(own)).reshape(1, -1))
        found.append(Scale(1.0, [(part, divides)]))
    return StaticQuant(y, peeled.value, found[0], found[1], peeled, probes)


def _read(view: GraphView, probe: Probe, start: ir.Value) -> tuple[ir.Value, Scale | None, Scale | None] | Reason:
    """x, scale and offset of what is rounded, opened level by level."""
    symbolic = Symbolic(view, probe, set())
    reason = Reason("quant-form", "quantised rows", "no known form", "x * scale + offset", start)
    best: tuple[Part, Scale | None, Scale | None] | None = None
    for budget in range(BUDGET + 1):
        try:
            whole = symbolic.read(start, budget)
        except (Unreadable, Conflict):
            break
        if len(whole.shape) < 2 or not math.prod(whole.shape):
            return Reason("quant-form", "quantised rows", f"shape {list(whole.shape)}", "rows", start)
        rows = np.arange(math.prod(whole.shape)).reshape(-1, 1, whole.shape[-1])
        read = read_parameters(symbolic, whole.take(rows))
        if isinstance(read, Reason):
            reason = Reason(read.code, read.fact, read.found, read.wanted, start)
            continue
        part = single(symbolic, read.main)
        if part is None:
            continue
        count = (read.scale is not None) + (read.offset is not None)
        if best is None or (best[1] is None and count > (best[2] is not None)):
            best = part, read.scale, read.offset
    if best is None:
        return reason
    x = _nearest(view, probe, symbolic, start, best[0])
    if x is None:
        return Reason("quant-form", "quantised rows", "rows of another order", "rows as they lie", start)
    return x, best[1], best[2]


def _nearest(view: GraphView, probe: Probe, symbolic: Symbolic, start: ir.Value, part: Part) -> ir.Value | None:
    """The nearest value of the rows' shape that holds them in place."""
    shape, position = probe.shape(start), part.position.reshape(-1)
    region = closure([start], {id(part.value)})
    values = [part.value, *(item for node in sorted(region, key=view.order) for item in node.outputs)]
    for value in reversed(values):
        if (value is start and value is not part.value) or probe.shape(value) != shape:
            continue
        try:
            sym = symbolic.read(value, 0)
        except (Unreadable, Conflict):
            continue
        if sym.atom.shape[:2] == (1, 1) and (sym.coef == 1).all() and _same(sym.atom[0, 0], part, position):
            return value
    return None


def _same(atom: Array, part: Part, position: Array) -> bool:
    return bool(np.array_equal(atom.reshape(-1) - part.source.base, position))

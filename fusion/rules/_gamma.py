"""The weight of a norm as operators take it: one number for each column, with a factor that stands beside it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.rules import _cache_op as common
from ir_ops.dtypes import Array, by_name


def weight(
    emit: Emitter, view: GraphView, norm: NormFact, shape: tuple[int, ...], columns: Array, kind: str, what: str
) -> ir.Value:
    """gamma in column order; the factor alone, which is 1 as a rule, for a norm without one.

    Args:
        shape: of gamma at trial sizes.
        columns: which of its numbers belongs to each column.
        kind: the operator's element type.

    Raises:
        Refused: gamma has another size, or does not fit the type without loss.
    """
    gamma = norm.gamma
    if gamma is None:
        return emit.constant(np.full(len(columns), norm.factor, by_name(kind).np), what)
    if not shape or int(np.prod(shape)) != len(columns):
        found, wanted = str(list(shape)), f"[{len(columns)}]"
        raise Refused("norm-gamma", f"{what} has one number for each column", found, wanted, "", gamma)
    value = scaled(emit, view, norm, common.constant_in_type(emit, view, gamma, kind, what), what)
    if len(shape) > 1:
        value = emit.reshape(value, [-1], what + "_vector")
    return emit.pick_columns(value, columns, len(columns), what + "_columns")


def scaled(emit: Emitter, view: GraphView, norm: NormFact, gamma: ir.Value, what: str) -> ir.Value:
    """gamma times the norm's factor."""
    if norm.factor == 1:
        return gamma
    content = view.folded(gamma, 1 << 16)
    if content is not None:
        emit.copied.add(id(gamma))
        return emit.constant((content.astype(np.float64) * norm.factor).astype(content.dtype), what)
    kind = by_name(dtype_name(gamma)).np
    return emit.node("Mul", [gamma, emit.constant(np.array(norm.factor, kind), what + "_factor")], what)

"""That tokens meet in attention only: padding beside them, and other sequences, must not be felt elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.surgery.decoder.roles import Trial
from ir_ops.dtypes import by_onnx

_ALONG = ("CumSum", "Softmax", "LogSoftmax")
"""Operators along one axis."""


def check_mixing(view: GraphView, nodes: Sequence[ir.Node], trials: Sequence[Trial]) -> None:
    """Refuses sums and the like of floats over the tokens of a call or over its sequences.

    Raises:
        Refused: a node has such an axis.
    """
    for node in nodes:
        value = node.inputs[0] if node.inputs else None
        if node.domain not in ("", "ai.onnx") or value is None or not by_onnx(int(value.dtype or 0)).is_float:
            continue
        if not (node.op_type.startswith("Reduce") or node.op_type in _ALONG):
            continue
        try:
            shapes = [trial.probe.shape(value) for trial in trials]
            axes = _axes(view, node, trials[0])
        except (Conflict, OutOfRange, Unsupported):
            continue
        known = [shape for shape in shapes if shape is not None]
        if axes is None or len(known) < len(trials):
            continue
        for axis in axes or range(len(known[0])):
            sizes = [shape[axis] for shape in known]
            for what in ([trial.tokens for trial in trials], [trial.batch for trial in trials],
                         [math.prod((trial.batch, trial.tokens)) for trial in trials]):  # fmt: skip
                if sizes == what and len(set(what)) > 1:
                    raise Refused(
                        "decode-mixing", "tokens and sequences meet in attention only",
                        f"{node.op_type} over axis {axis} of {value.name}, which has the tokens or sequences of a call",
                        "rows that are computed one by one", "", node.outputs[0],
                    )  # fmt: skip


def _axes(view: GraphView, node: ir.Node, trial: Trial) -> list[int] | None:
    """Axes that a node works along; empty for all, None where they are not known."""
    attrs = view.attrs(node)
    if node.op_type in ("Softmax", "LogSoftmax"):
        return [int(attrs.get("axis", -1))]
    if "axes" in attrs:
        return [int(axis) for axis in attrs["axes"]]
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return []
    known = trial.probe.known(node.inputs[1])
    return None if known.array is None else [int(axis) for axis in known.array.reshape(-1)]

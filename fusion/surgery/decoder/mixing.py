"""That tokens meet in attention only: padding beside them, and other sequences, must not be felt elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.integers import readers_of_integers
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.semantics.table import MICROSOFT
from fusion.surgery.decoder.roles import Trial
from ir_ops.dtypes import by_name
from ir_ops.ops import DOMAIN

_COERCING = ("Softmax", "LogSoftmax", "Hardmax")
"""Over one axis; before opset 13 over all from one on."""
_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
"""Over all axes from one on."""
_ONE_AXIS = {"ArgMax": 0, "ArgMin": 0, "TopK": -1, "LpNormalization": -1, "Split": 0}
"""Over the axis of an attribute, with its default."""
_WINDOWS = (
    "Conv", "ConvTranspose", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "MaxPool",
    "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "GRU", "LSTM", "RNN", "Scan", "Loop",
    "ReverseSequence", "MeanVarianceNormalization", "LRN",
)  # fmt: skip
"""Operators whose axes are not looked at: decoders have none of them but for their tokens."""
_BY_ROW = (
    "MatMulNBits", "GatherBlockQuantized", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "RotaryEmbedding", "QuickGelu", "FastGelu", "BiasGelu", "Gelu", "BiasSplitGelu", "MoE",
    "QMoE", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QuantizeLinear", "DequantizeLinear", "QLinearAdd",
    "QLinearMul", "QLinearSigmoid",
)  # fmt: skip
"""onnxruntime's own operators that compute row by row; of others nothing is known."""
_FACT = "tokens and sequences meet in attention only"
Use = tuple[ir.Value, Sequence[int]]
"""A value, and axes of it along which an operator brings elements together; none: all axes."""


def find_mixing(
    view: GraphView, nodes: Iterable[ir.Node], trials: Sequence[Trial], given: Iterable[ir.Value]
) -> dict[int, Refused]:
    """What brings tokens of a call or its sequences together: why not, by node.

    Floats along these axes are summed, compared or moved; or integers that follow from those ``given``, the ids and
    positions. Other integers may be: they are places and counts, of experts and the like.
    """
    found = {}
    told = {id(node) for node, place in readers_of_integers(given) if place == 0}
    for node in nodes:
        try:
            _check_node(view, node, trials, id(node) in told)
        except Refused as refused:
            found[id(node)] = refused
    return found


def _check_node(view: GraphView, node: ir.Node, trials: Sequence[Trial], told: bool) -> None:
    """Raises Refused for a node with such an axis; ``told``: its first operand follows from ids or positions."""
    value = node.inputs[0] if node.inputs else None
    if value is None or node.domain == DOMAIN or (node.domain == MICROSOFT and node.op_type in _BY_ROW):
        return
    if node.domain not in ("", "ai.onnx"):
        raise Refused("decode-mixing", _FACT, f"{node.domain}.{node.op_type}, which may bring them together",
                      "operators that are known", "", node.outputs[0])  # fmt: skip
    if not _is_float(value):
        if node.op_type == "Cast" and _is_float(node.outputs[0]):
            _check_count(node, value, trials)
        if not told:
            return
    if node.op_type in _WINDOWS:
        raise Refused("decode-mixing", _FACT, node.op_type, "rows that are computed one by one", "", node.outputs[0])
    try:
        for operand, axes in _uses(view, node, value, trials):
            _check(node, operand, axes, trials)
    except (Conflict, OutOfRange, Unsupported):
        return


def _check(node: ir.Node, value: ir.Value, axes: Sequence[int], trials: Sequence[Trial]) -> None:
    """Raises Refused where one of the axes has the size of the tokens or sequences of a call."""
    known = [shape for trial in trials if (shape := trial.probe.shape(value)) is not None]
    if len(known) < len(trials):
        return
    for axis in axes or range(len(known[0])):
        if not all(-len(shape) <= axis < len(shape) for shape in known):
            raise Refused("decode-mixing", _FACT, f"{node.op_type} over axis {axis} of {value.name}, which has none",
                          "an axis that is there", "", node.outputs[0])  # fmt: skip
        sizes = [shape[axis] for shape in known]
        for what in _counts(trials):
            if sizes == what and len(set(what)) > 1:
                raise Refused(
                    "decode-mixing", _FACT,
                    f"{node.op_type} over axis {axis} of {value.name}, which has the tokens or sequences of a call",
                    "rows that are computed one by one", "", node.outputs[0],
                )  # fmt: skip


def _check_count(node: ir.Node, value: ir.Value, trials: Sequence[Trial]) -> None:
    """Raises Refused where the number of tokens or sequences of a call becomes a number to compute with."""
    try:
        known = [trial.probe.array(value) for trial in trials]
    except (Conflict, OutOfRange, Unsupported):
        return
    counts = [int(array.reshape(-1)[0]) for array in known if array is not None and array.size == 1]
    for what in _counts(trials):
        if counts == what and len(set(what)) > 1:
            found = f"{value.name}, which is how many tokens or sequences a call has, as a float"
            raise Refused("decode-mixing", _FACT, found, "rows that are computed one by one", "", node.outputs[0])


def _counts(trials: Sequence[Trial]) -> list[list[int]]:
    """Tokens of a call, its sequences, and both together."""
    pairs = [(trial.tokens, trial.batch) for trial in trials]
    return [[tokens for tokens, _ in pairs], [batch for _, batch in pairs], [math.prod(pair) for pair in pairs]]


def _is_float(value: ir.Value) -> bool:
    kind = dtype_name(value)
    return not kind or by_name(kind).is_float


def _uses(view: GraphView, node: ir.Node, value: ir.Value, trials: Sequence[Trial]) -> Iterator[Use]:
    """What a node brings together; nothing for operators that work element by element, or move whole axes."""
    attrs, op_type = view.attrs(node), node.op_type
    rank = len(trials[0].probe.shape(value) or ())
    if op_type in _COERCING or op_type in _NORMS:
        every = op_type in _NORMS or view.opset < 13
        axis = int(attrs.get("axis", 1 if every and op_type in _COERCING else -1))
        yield value, [item - rank for item in range(axis % rank, rank)] if every and rank else [axis]
    elif op_type in _ONE_AXIS:
        yield value, [int(attrs.get("axis", _ONE_AXIS[op_type]))]
    elif op_type.startswith("Reduce") or op_type == "CumSum":
        axes = _reduced(node, attrs, trials[0])
        if axes is not None:
            yield value, axes
    elif op_type == "MatMul" and rank:
        yield value, [-1]
    elif op_type == "Gemm":
        yield value, [0 if attrs.get("transA", 0) else 1]
    elif op_type == "Einsum":
        yield from _contracted(node, str(attrs["equation"]))
    elif op_type in ("Slice", "Gather"):
        axes = _picked(node, attrs, trials)
        if axes:
            yield value, axes


def _reduced(node: ir.Node, attrs: dict[str, object], trial: Trial) -> list[int] | None:
    """Axes of a reduction; empty for all, None where they are not known."""
    if "axes" in attrs:
        return [int(axis) for axis in attrs["axes"]]  # type: ignore[attr-defined]
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return []
    known = trial.probe.known(node.inputs[1])
    return None if known.array is None else [int(axis) for axis in known.array.reshape(-1)]


def _contracted(node: ir.Node, equation: str) -> Iterator[Use]:
    """Axes of each operand that the result of an Einsum has not."""
    terms, _, result = equation.replace(" ", "").partition("->")
    for value, term in zip(node.inputs, terms.split(","), strict=False):
        left, _, right = term.partition("...")
        axes = [place for place, letter in enumerate(left) if letter not in result]
        axes += [place - len(right) for place, letter in enumerate(right) if letter not in result]
        if value is not None and axes:
            yield value, axes


def _picked(node: ir.Node, attrs: dict[str, object], trials: Sequence[Trial]) -> list[int]:
    """Axes of which a Slice or a Gather takes known places in any but the full order."""
    found: set[int] = set()
    for trial in trials:
        shape = None if node.inputs[0] is None else trial.probe.shape(node.inputs[0])
        if shape is None:  # rows that the data choose: no axis of the tokens
            return []
        told = [None if item is None else trial.probe.array(item) for item in node.inputs[1:]]
        if node.op_type == "Gather":
            axis = int(attrs.get("axis", 0))  # type: ignore[call-overload]
            whole = told[0] is None or np.array_equal(told[0].reshape(-1) % shape[axis], np.arange(shape[axis]))
            found |= set() if whole else {axis}
        elif len(told) > 1 and told[0] is not None:
            axes = told[2].reshape(-1) if len(told) > 2 and told[2] is not None else np.arange(told[0].size)
            ends = told[1].reshape(-1) if told[1] is not None else np.full(axes.size, -1)
            steps = told[3].reshape(-1) if len(told) > 3 and told[3] is not None else np.ones(axes.size)
            for axis, start, end, step in zip(axes.tolist(), told[0].reshape(-1), ends, steps, strict=True):
                if (start, step) != (0, 1) or end < shape[axis]:
                    found.add(int(axis))
    return sorted(found)

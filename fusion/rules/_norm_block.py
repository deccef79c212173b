"""What RmsNorm and AddRmsNorm need from a norm: its width, types, gamma and the values it delivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.graph import dims_of, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.trial.probe import Probe
from fusion.region import is_data
from fusion.rules import _block as block
from fusion.rules import _cache_op as common
from fusion.rules._gamma import scaled
from ir_ops.dtypes import by_name


@dataclass
class NormSite:
    """A norm in one element type.

    Attributes:
        kind: the type that the operator computes and delivers in.
        results: the values that its result takes the place of; their type may be narrower than ``kind``.
        dims: of x: None where any size will do.
    """

    norm: NormFact
    kind: str
    results: list[ir.Value]
    dims: tuple[int | None, ...]

    @property
    def width(self) -> int:
        return self.dims[-1] or 0


def read_site(facts: Facts, norm: NormFact) -> NormSite:
    """Width and types of a norm; raises Refused where an operator cannot express it."""
    width = _gamma_width(facts, norm)
    dims = _dims(facts, norm, width)
    # a width that is taken from a shape is for the proof to evaluate
    if isinstance(norm.count, float) and abs(norm.count - (dims[-1] or 0)) > 1e-3:
        raise Refused("norm-count", "the mean divides by the width", f"{norm.count:g}", str(dims[-1]), "", norm.y)
    kind, results = _results(facts, norm)
    return NormSite(norm, kind, results, dims)


def _gamma_width(facts: Facts, norm: NormFact) -> int | None:
    """The number of elements of gamma; None without gamma, or where it is not told."""
    gamma = norm.gamma
    if gamma is None:
        return None
    _refuse_moving_gamma(facts, norm, gamma)
    tensor = facts.view.tensor(gamma)
    dims = tuple(tensor.shape.numpy()) if tensor is not None else dims_of(gamma)
    if dims is None:
        shapes = facts.trials.shapes(gamma)
        dims = shapes[0] if shapes and shapes[0] == shapes[1] else None
    if dims is None or any(not isinstance(dim, int) for dim in dims):
        return None
    return int(np.prod([dim for dim in dims if isinstance(dim, int)]))


def _refuse_moving_gamma(facts: Facts, norm: NormFact, gamma: ir.Value) -> None:
    """gamma is a parameter: constant, given, or computed from constants alone (``1 + w``)."""
    pending, seen = [gamma], {id(gamma)}
    while pending:
        value = pending.pop()
        node = value.producer()
        moves = node is not None and node.op_type in (*common.VIEWS, "Cast")
        if node is None and value.is_graph_input() and value is not gamma and not _only_moved(gamma, value):
            raise Refused(
                "norm-gamma", "gamma is a parameter, or computed from constants",
                f"{gamma.name} computed from the input {value.name}", "a constant gamma",
                "fold the computation into the weight", gamma,
            )  # fmt: skip
        if node is None or facts.view.is_constant(value):
            continue
        if not moves and len(seen) > 16:
            raise Refused(
                "norm-gamma", "gamma is a parameter, or computed from constants", f"{gamma.name} computed in the graph",
                "a constant gamma", "", gamma,
            )  # fmt: skip
        for item in node.inputs:
            if item is not None and id(item) not in seen:
                seen.add(id(item))
                pending.append(item)


def _only_moved(gamma: ir.Value, source: ir.Value) -> bool:
    """Whether gamma is a view of a value."""
    value = gamma
    while value is not source:
        node = value.producer()
        if node is None or node.op_type not in (*common.VIEWS, "Cast") or node.inputs[0] is None:
            return False
        value = node.inputs[0]
    return True


def _dims(facts: Facts, norm: NormFact, width: int | None) -> tuple[int | None, ...]:
    """The dims of x with only the last one fixed."""
    declared = dims_of(norm.x)
    if declared and declared[-1] == 0:
        declared = None
    last = declared[-1] if declared else None
    if declared is None or not isinstance(last, int) or not last:
        shapes = facts.trials.shapes(norm.x)
        if not shapes or not shapes[0] or shapes[0][-1] != shapes[1][-1]:
            raise Refused(
                "norm-shape", "the width of the norm is known", "an unknown shape", "a static last dim",
                "run shape inference on the model", norm.x,
            )  # fmt: skip
        declared, last = tuple(shapes[0]), shapes[0][-1]
    if width is not None and width != last:
        raise Refused("norm-gamma", "gamma has one number for each column", str(width), str(last), "", norm.gamma)
    return (*(None for _ in declared[:-1]), last)


def _results(facts: Facts, norm: NormFact) -> tuple[str, list[ir.Value]]:
    """The operator's type, and the values that it delivers.

    The norm is read at its earliest value. Where that is wider than x and only cast back, the casts are its result:
    one rounding, as the operator rounds.
    """
    own, made = dtype_name(norm.x), dtype_name(norm.y)
    if not own or not made:
        raise Refused("type-unknown", "the element type is known", "none", "float16, bfloat16 or float32", "", norm.y)
    made, results = block.results_of(facts, norm.y, own)
    return (made if common.widens(own, made) else own), results


def gamma_operand(emit: Emitter, facts: Facts, site: NormSite, *, exact: bool) -> ir.Value:
    """gamma as ``[D]``; in the operator's type, or (not ``exact``) in float32."""
    gamma = site.norm.gamma
    if gamma is None:
        return emit.constant(np.full(site.width, site.norm.factor, by_name(site.kind).np), "gamma")
    if exact or dtype_name(gamma) != "float32":
        gamma = common.constant_in_type(emit, facts.view, gamma, site.kind, "gamma")
    tensor = facts.view.tensor(gamma) if gamma.const_value is None else gamma.const_value
    rank = len(tensor.shape) if tensor is not None else len(dims_of(gamma) or facts.trials.shapes(gamma)[0])
    gamma = scaled(emit, facts.view, site.norm, gamma, "gamma")
    return gamma if rank == 1 else emit.reshape(gamma, [-1], "gamma_vector")


def trials(
    facts: Facts, site: NormSite, sources: list[ir.Value], region: list[ir.Node], feeds: list[ir.Value]
) -> tuple[list[Probe], Probe | None]:
    """Trial sizes: of the rows by themselves where the region allows it, else of the whole graph."""
    targets = [*site.results, *sources]
    if block.is_closed(facts, region, feeds):
        local = block.local_probes(facts, {id(source): site.dims for source in sources}, targets)
        if local is not None:
            return local
    probes = facts.trials.probes(targets)
    if not probes:
        raise Refused("norm-shape", "the norm can be evaluated", "an unknown shape", "shapes", "", site.norm.y)
    return probes, facts.trials.fresh(targets)


def delivered(emit: Emitter, site: NormSite, y: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
    """Old result -> new result, in the old one's type."""
    return [(old, emit.cast(y, dtype_name(old), "y_cast")) for old in site.results]


def same_shaped(region: list[ir.Node], probes: list[Probe], x: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
    """Values of the region whose shape is asked for, and x, which has that shape too."""
    found = []
    for node in region:
        for value in node.outputs:
            asked = any(use.node.op_type in ("Shape", "Size") for use in value.uses())
            if asked and is_data(value) and all(probe.shape(value) == probe.shape(x) for probe in probes):
                found.append((value, x))
    return found


def heart(region: list[ir.Node]) -> list[ir.Node]:
    """The nodes that a norm spends its time in."""
    return [node for node in region if node.op_type.startswith("Reduce") or node.op_type.endswith("Normalization")]


def attributes(site: NormSite) -> dict[str, Any]:
    return {"epsilon": float(np.float32(site.norm.epsilon))}

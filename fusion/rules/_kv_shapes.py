"""Shapes of inner values: others may ask for them, and must not keep what is fused alive for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from fusion.emit import Emitter
from fusion.facts.graph import GraphView
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import shape_under
from fusion.rules._dims import dim_like


class Frame(Protocol):
    """What a site tells of itself: its graph and emitter, its nodes, its trial sizes."""

    view: GraphView
    emit: Emitter
    region: list[ir.Node]

    def own_probes(self) -> Sequence[Probe]: ...
    def ones(self) -> Sequence[Probe]: ...


Pairs = list[tuple[ir.Value, ir.Value]]


def stand_ins(frame: Frame, sources: Sequence[ir.Value]) -> Pairs:
    """Values of the region whose shape is asked for, and a source of the same shape to ask instead."""
    found = []
    for value in _measured(frame):
        for source in sources:
            tried = (*frame.own_probes(), *frame.ones())
            pairs = [(shape_under(probe, value), shape_under(probe, source)) for probe in tried]
            if all(own is not None and own == other for own, other in pairs):
                found.append((value, source))
                break
    return found


def told_shapes(frame: Frame, known: Pairs) -> Pairs:
    """Results of Shape on the other such values, and the same vectors put together from dims of graph inputs."""
    covered = {id(value) for value, _ in known}
    told = []
    for value in _measured(frame):
        shapes = [probe.shape(value) for probe in frame.own_probes()]
        if id(value) in covered or any(shape is None for shape in shapes):
            continue
        sizes = [list(axis) for axis in zip(*(shape for shape in shapes if shape is not None), strict=True)]
        inputs = list(frame.view.graph.inputs)
        for use in value.uses():
            attrs = frame.view.attrs(use.node)
            part = sizes[attrs.get("start", 0) : attrs.get("end")]
            dims = [dim_like(frame.emit, frame.own_probes(), axis, inputs, "shape", frame.ones()) for axis in part]
            if use.node.op_type == "Shape" and dims and all(dim is not None for dim in dims):
                told.append((use.node.outputs[0], frame.emit.shape_vector([d for d in dims if d is not None], "shape")))
    return told


def _measured(frame: Frame) -> list[ir.Value]:
    """Values of the region that some Shape reads."""
    values = [value for node in frame.region for value in node.outputs]
    return [value for value in values if any(use.node.op_type == "Shape" for use in value.uses())]

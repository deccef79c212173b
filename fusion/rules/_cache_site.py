"""What sites of the operators that write caches have in common: the candidate, and what others ask of inner values.

Who asks for the shape of a value inside must not keep what is fused alive for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from fusion.candidate import Candidate
from fusion.facts.caches.rows import Row
from fusion.facts.trial.trials import shape_under
from fusion.rules._cache_frame import CacheFrame
from fusion.rules._cache_op import original_dims
from fusion.rules._dims import dim_like

Pairs = list[tuple[ir.Value, ir.Value]]


def candidate(
    frame: CacheFrame, node: ir.Node, at: ir.Value, layer: int | None, sources: Sequence[ir.Value], **own: Any
) -> Candidate:
    """The candidate of a site.

    Args:
        at: the value that names the place.
        sources: values whose shape may be asked for instead of that of a value inside.
        own: what else the operator's site tells of :class:`fusion.candidate.Candidate`.
    """
    asked = _stand_ins(frame, sources)
    return Candidate(
        op=node.op_type,
        node=node,
        emitter=frame.emit,
        region=frame.region,
        feeds=[item for item in frame.feeds() if id(item) not in frame.emit.copied],
        fresh=frame.fresh_probe,
        place=frame.view.place(at, layer),
        layer=layer,
        stand_ins=asked,
        shapes=_told_shapes(frame, asked),
        **own,
    )


def _own_dims(row: Row) -> list[int]:
    return original_dims(row.write.cache)


def written_caches(
    frame: CacheFrame, rows: Sequence[Row], caches: Sequence[tuple[ir.Value, bool]], outputs: Sequence[ir.Value],
    dims: Callable[[Row], list[int]] = _own_dims,
) -> Pairs:  # fmt: skip
    """What the graph has for each written cache, and the output that takes its place.

    Args:
        caches: operands, and whether they were reshaped; outputs then get the cache's own shape back.
        dims: that shape, as a Reshape's target.
    """
    return [
        (row.write.out, frame.emit.reshape(output, dims(row), "cache_out") if reshaped else output)
        for (_, reshaped), row, output in zip(caches, rows, outputs, strict=True)
    ]


def _stand_ins(frame: CacheFrame, sources: Sequence[ir.Value]) -> Pairs:
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


def _told_shapes(frame: CacheFrame, known: Pairs) -> Pairs:
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


def _measured(frame: CacheFrame) -> list[ir.Value]:
    """Values of the region that some Shape reads."""
    values = [value for node in frame.region for value in node.outputs]
    return [value for value in values if any(use.node.op_type == "Shape" for use in value.uses())]

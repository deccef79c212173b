"""MLA on cached latents: the projection of keys and values folded into queries and results.

``q . (W_k l) = (q W_k) . l`` and ``sum p (W_v l) = W_v (sum p l)``: attention runs on the latents. The folded
weights are columns of the stored one in another order, put together when the model is written.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.attention.latent import Latent
from fusion.facts.graph import GraphView
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import Array


def folded(
    emit: Emitter, latent: Latent, columns: Array, order: tuple[int, int, int], dtype: str, part: str
) -> ir.Value:
    """Columns ``[N, D]`` of the weight ``[L, ..]`` as a constant of the dims ``(L, N, D)`` in another order.

    Nothing is read before the model is written or run.
    """
    weight = latent.projection.weight

    def content() -> ir.TensorProtocol:
        stored = np.asarray(weight.tensor.numpy())
        matrix = stored.T if weight.transposed else stored
        picked = matrix[:, columns.reshape(-1)].reshape(len(matrix), *columns.shape)
        return ir.Tensor(np.ascontiguousarray(picked.transpose(order)), dtype=weight.tensor.dtype)

    dims = (weight.hidden, *columns.shape)
    shape = ir.Shape([int(dims[axis]) for axis in order])
    tensor = ir.LazyTensor(content, weight.tensor.dtype, shape, name=emit.name(part))
    value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    emit.constants.append(value)
    return emit.cast(value, dtype, f"{part}_typed")


def query_parts(
    emit: Emitter, view: GraphView, probe: Probe, query: ir.Value, latent: Latent, dtype: str
) -> tuple[ir.Value, ir.Value]:
    """The query ``[B, N, S, D]`` as its absorbed part ``[B, N, S, L]`` and its rotated part ``[B, N, S, Dr]``.

    Raises:
        Refused: the rotated columns of keys are not all of the cached ones in order.
    """
    width, turned = latent.width, int(latent.rope_columns.size)
    if not np.array_equal(latent.rope_columns, np.arange(turned)):
        raise Refused(
            "attention-form", "rotated key columns as they are cached", "others", "all in order", "", latent.rope
        )
    split = width - turned if latent.nope_first else turned
    first, second = _apart(emit, view, probe, query, split) or (
        _columns(emit, query, 0, split),
        _columns(emit, query, split, width),
    )
    nope, rope = (first, second) if latent.nope_first else (second, first)
    absorbed = emit.node(
        "MatMul", [nope, folded(emit, latent, latent.key_columns, (1, 2, 0), dtype, "w_uk")], "absorbed"
    )
    return absorbed, rope


def result(emit: Emitter, attended: ir.Value, latent: Latent, dtype: str) -> ir.Value:
    """Results on latents ``[B, N, S, L]`` as those on values, ``[B, N, S, Dv]``."""
    return emit.node(
        "MatMul", [attended, folded(emit, latent, latent.value_columns, (1, 0, 2), dtype, "w_uv")], "results"
    )


def _apart(
    emit: Emitter, view: GraphView, probe: Probe, query: ir.Value, split: int
) -> tuple[ir.Value, ir.Value] | None:
    """The parts of a query that is a Concat of them: what computes them stays in sight."""
    node = view.root(query).producer() if query.producer() not in emit.nodes else None
    if node is None or node.op_type != "Concat" or int(view.attrs(node).get("axis", 0)) not in (-1, 3):
        return None
    inputs = [item for item in node.inputs if item is not None]
    shapes = [probe.shape(item) for item in inputs]
    ends = np.cumsum([0 if shape is None else shape[-1] for shape in shapes]).tolist()
    if split not in ends[:-1]:
        return None
    place = ends.index(split) + 1
    return emit.concat(inputs[:place], "query_first"), emit.concat(inputs[place:], "query_second")


def _columns(emit: Emitter, value: ir.Value, start: int, stop: int) -> ir.Value:
    bounds = [emit.ints([number], "bound") for number in (start, stop, 3)]
    return emit.node("Slice", [value, *bounds], "query_part")

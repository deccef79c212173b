"""Caches declared as the operator that writes them declares them.

A Reshape between a cache input and its operator costs nothing, but one behind it does: the operator's output is no
longer the model's, so that it cannot be bound in place and a step copies the whole cache, twice. Memory is the same in
both shapes: the declared dims are exchanged instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from fusion.result import Site
from ir_ops.decode_plan import KEY, CachePort, DecodePlan
from ir_ops.ops import DOMAIN, OPS


def declare_as_written(model: ir.Model, plan: DecodePlan, sites: Sequence[Site]) -> tuple[DecodePlan, list[Site]]:
    """Takes the Reshapes around operators that write caches away where they can go.

    Returns:
        The plan with the new shapes, which the model carries too, and the sites with the names that values have now.
    """
    graph = model.graph
    ins = {value.name: value for value in graph.inputs}
    outs = {value.name: value for value in graph.outputs}
    names: dict[str, str] = {}
    ports: list[CachePort] = []
    for port in plan.caches:
        shape = _redeclared(graph, port, ins[port.input], outs[port.output], names)
        ports.append(port if shape is None else replace(port, shape=shape))
    plan = replace(plan, caches=tuple(ports))
    model.metadata_props[KEY] = plan.to_json()
    return plan, [_renamed(site, names) for site in sites]


def _redeclared(
    graph: ir.Graph, port: CachePort, cache: ir.Value, out: ir.Value, names: dict[str, str]
) -> tuple[int, ...] | None:
    """The new dims of a cache, None where it stays as it is. ``names`` gets the values that are gone."""
    reshape = next((use.node for use in cache.uses()), None)
    back = out.producer()
    if len(cache.uses()) != 1 or reshape is None or back is None or cache.is_graph_output():
        return None
    seen, written = reshape.outputs[0], back.inputs[0]
    wanted, given = _target(reshape), _target(back)
    if wanted is None or given is None or written is None or len(seen.uses()) != 1 or len(written.uses()) != 1:
        return None
    shape = _settled(wanted, port.shape)
    if shape is None or not _in_place(seen, written) or not all(_may_read(use.node, use.idx) for use in out.uses()):
        return None
    names |= {str(seen.name): str(cache.name), str(written.name): str(out.name)}
    dims = ir.Shape([cache.shape[0] if cache.shape else None, *shape[1:]])
    cache.shape, written.type, written.shape = dims, out.type, dims
    seen.replace_all_uses_with(cache)
    name, place = out.name, next(number for number, value in enumerate(graph.outputs) if value is out)
    graph.outputs[place] = written
    out.replace_all_uses_with(written)
    out.name = f"{name}/reshaped"
    written.name = name
    told = [node.inputs[1] for node in (reshape, back)]
    graph.remove([reshape, back], safe=True)
    for operand in told:
        if operand is not None and not operand.uses() and operand.is_initializer():
            graph.initializers.pop(str(operand.name), None)
    return shape


def _target(node: ir.Node) -> list[int] | None:
    """The constant shape of a Reshape; None for anything else."""
    operand = node.inputs[1] if node.op_type == "Reshape" and node.domain in ("", "ai.onnx") else None
    constant = None if operand is None else ir.convenience.get_const_tensor(operand)
    return None if constant is None else [int(number) for number in np.asarray(constant.numpy()).reshape(-1)]


def _settled(wanted: Sequence[int], dims: Sequence[int]) -> tuple[int, ...] | None:
    """What a Reshape makes of a cache whose first dim, the pages, is free and stays so."""
    if dims[0] != -1 or any(dim < 1 for dim in dims[1:]) or wanted[0] not in (0, -1) or 0 in wanted[1:]:
        return None
    row, known = math.prod(dims[1:]), math.prod(dim for dim in wanted[1:] if dim > 0)
    free = wanted[1:].count(-1)
    if free > (1 if wanted[0] == 0 else 0) or row % known or (not free and row != known):
        return None
    return (-1, *(row // known if dim < 0 else dim for dim in wanted[1:]))


def _in_place(cache: ir.Value, written: ir.Value) -> bool:
    """Whether these are the two sides of one cache of an operator of ours."""
    node = written.producer()
    if node is None or node.domain != DOMAIN or node.op_type not in OPS:
        return False
    op = OPS[node.op_type]
    place = written.index()
    if place is None or place >= len(op.outputs) or not op.outputs[place].ref:
        return False
    name = op.outputs[place].name
    return any(entry.ref == name and number < len(node.inputs) and node.inputs[number] is cache
               for number, entry in enumerate(op.inputs))  # fmt: skip


def _may_read(node: ir.Node, place: int) -> bool:
    """A reader that sees elements only, not dims: a Reshape whose shape copies none."""
    target = _target(node)
    return place == 0 and target is not None and 0 not in target


def _renamed(site: Site, names: dict[str, str]) -> Site:
    if not set(names) & {*site.inputs, *site.outputs}:
        return site
    return replace(
        site,
        inputs=tuple(names.get(name, name) for name in site.inputs),
        outputs=tuple(names.get(name, name) for name in site.outputs),
        notes=tuple(note for note in site.notes if "is reshaped to [block_num" not in note),
    )

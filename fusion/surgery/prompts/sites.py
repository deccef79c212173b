"""Attention on cached latents, as conversion and fusion leave it, with the query in front of its absorption."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.graph import dtype_name
from ir_ops.decode_plan import CachePort, DecodePlan
from ir_ops.ops import DOMAIN, OPS

_PLACES = {entry.name: place for place, entry in enumerate(OPS["FusedInferAttentionScore"].inputs)}
_FACT = "queries in front of their absorption are at hand"


@dataclass(frozen=True)
class LatentCache:
    """A cache after the call's write.

    Attributes:
        value: the graph's output.
        shape: the operand that says with which dims attention reads it.
    """

    port: CachePort
    value: ir.Value
    shape: ir.Value


@dataclass(frozen=True)
class Query:
    """The query ``[B, N, S, D]``, as a value of the graph or as MlaPrologV3 has it inside.

    Attributes:
        w_uk: ``[N, D, L]``, what absorbs it.
        nope: the query; None where it is the prolog's ``query_norm`` times the first columns of each head's W_uq.
        prolog: the MlaPrologV3.
    """

    w_uk: ir.Value
    nope: ir.Value | None = None
    prolog: ir.Node | None = None


@dataclass(frozen=True)
class LatentAttention:
    """Attention of one layer on latents.

    Attributes:
        node: FusedInferAttentionScore over one key head of latents.
        result: the product that makes rows of values of its rows of latents.
        rope: the rotated part of the query, ``[B, N, S, R]``.
        w_uv: ``[N, L, Dv]``.
    """

    node: ir.Node
    result: ir.Node
    query: Query
    rope: ir.Value
    w_uv: ir.Value
    latents: LatentCache
    ropes: LatentCache

    @property
    def heads(self) -> int:
        return int(self.node.attributes["num_heads"].as_int())

    @property
    def dtype(self) -> str:
        """The float type that it computes in."""
        return dtype_name(self.rope) or dtype_name(self.query.w_uk)

    @property
    def out(self) -> ir.Value:
        """The result, ``[B, N, S, Dv]``."""
        return self.result.outputs[0]


def find_attentions(graph: ir.Graph, plan: DecodePlan) -> list[LatentAttention]:
    """The attentions of all layers that cache latents, in the order of the graph.

    Raises:
        Refused: one of them has a form that is not understood.
    """
    caches = {value.name: value for value in graph.outputs}
    ports = {id(caches[port.output]): port for port in plan.caches}
    found = []
    for node in graph:
        if node.op_type == "FusedInferAttentionScore" and node.domain == DOMAIN:
            key = _cache(_input(node, "key"), ports)
            if key is not None and key.port.part == "latent":
                found.append(_read(node, key, ports))
    wanted = sum(port.part == "latent" for port in plan.caches)
    if len(found) != wanted:
        raise Refused("expand-form", "attention over each cache of latents", str(len(found)), str(wanted))
    return found


def _read(node: ir.Node, key: LatentCache, ports: dict[int, CachePort]) -> LatentAttention:
    rope, query = _input(node, "query_rope"), _input(node, "query")
    ropes = _cache(_input(node, "key_rope"), ports)
    readers = [use.node for use in node.outputs[0].uses()]
    by_head = node.attributes["input_layout"].as_string() == "BNSD"
    latent = _input(node, "key") is _input(node, "value") and by_head
    if query is None or rope is None or ropes is None or not latent:
        raise _refused("attention over one cache of latents and one of rotated rows", node)
    if len(readers) != 1 or readers[0].op_type != "MatMul" or readers[0].inputs[0] is not node.outputs[0]:
        raise _refused("one product with W_uv behind attention", node)
    w_uv, out = readers[0].inputs[1], readers[0].outputs[0]
    if w_uv is None or out.is_graph_output():
        raise _refused("one product with W_uv behind attention", node)
    return LatentAttention(node, readers[0], _query(query), rope, w_uv, key, ropes)


def _query(absorbed: ir.Value) -> Query:
    """What an absorbed query ``[B, N, S, L]`` is made of.

    Raises:
        Refused: something else than a product with W_uk, inside MlaPrologV3 or in the graph.
    """
    node = absorbed.producer()
    if node is not None and node.op_type == "MatMul" and not node.domain:
        nope, w_uk = node.inputs
        assert nope is not None and w_uk is not None
        return Query(w_uk, nope)
    turned = node is not None and node.op_type == "Transpose" and node.attributes.get_ints("perm", ()) == (0, 2, 1, 3)
    source = node.inputs[0] if node is not None and turned else None
    prolog = None if source is None else source.producer()
    if prolog is None or prolog.op_type != "MlaPrologV3" or source is not prolog.outputs[0]:
        raise Refused("expand-query", _FACT, "another way to the query", "MlaPrologV3, or a product with W_uk", "",
                      absorbed)  # fmt: skip
    modes = [prolog.attributes.get_int(name, 0) for name in ("weight_quant_mode", "query_quant_mode")]
    if any(modes):
        raise Refused("expand-query", _FACT, "quantised queries", "weight_quant_mode 0", "", absorbed)
    w_uk = prolog.inputs[3]
    assert w_uk is not None
    return Query(w_uk, None, prolog)


def _input(node: ir.Node, name: str) -> ir.Value | None:
    place = _PLACES[name]
    return node.inputs[place] if place < len(node.inputs) else None


def _cache(view: ir.Value | None, ports: dict[int, CachePort]) -> LatentCache | None:
    """The written cache that attention reads through a Reshape."""
    node = None if view is None else view.producer()
    if node is None or node.op_type != "Reshape" or node.inputs[0] is None or node.inputs[1] is None:
        return None
    port = ports.get(id(node.inputs[0]))
    return None if port is None else LatentCache(port, node.inputs[0], node.inputs[1])


def dims_of_weight(value: ir.Value) -> tuple[int, ...]:
    """The dims of a weight, seen through Casts.

    Raises:
        Refused: they are not known.
    """
    node = value.producer()
    if node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        return dims_of_weight(node.inputs[0])
    if value.shape is None or not value.shape.is_static():
        raise Refused("expand-form", f"the dims of {value.name}", str(value.shape), "numbers", "", value)
    return tuple(int(dim) for dim in value.shape.numpy())


def _refused(fact: str, node: ir.Node) -> Refused:
    return Refused("expand-form", fact, "another form", "what the conversion writes", "", node.outputs[0])

"""Two ways for the attention of each layer on latents, and the condition that chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.graph import all_values
from fusion.result import Proof, Site
from fusion.surgery.prompts.branches import expanded, is_first_prompt
from fusion.surgery.prompts.proof import Prover
from fusion.surgery.prompts.sites import LatentAttention, find_attentions
from ir_ops.alternatives import mark
from ir_ops.decode_plan import DecodePlan
from ir_ops.errors import BadUsage

KEY = "kvfuse.expand_prompts"
"""The metadata property of a model that says from how many tokens on first prompts are expanded."""
_DIGITS = 10
"""A number of so many digits is none that the conversion writes."""


def check_least(least: int, plan: DecodePlan) -> None:
    """Whether first prompts can be expanded.

    Raises:
        BadUsage: no number of tokens, or no layer caches latents.
    """
    if isinstance(least, bool) or not isinstance(least, int) or least < 1:
        raise BadUsage("prompts are expanded from a number of tokens on", found=repr(least), wanted="1 or more")
    if not any(port.part == "latent" for port in plan.caches):
        raise BadUsage(
            "prompts are expanded where latents are cached",
            found="caches of keys and values",
            wanted="a decoder with multi-head latent attention",
            hint="convert without expand_prompts",
        )


def expand(model: ir.Model, plan: DecodePlan, least: int, sites: Sequence[Site]) -> list[Site]:
    """Lets first prompts of ``least`` tokens or more attend over keys and values that are projected once.

    Args:
        model: a converted decoder, fused; it is changed, and may be half changed where it is refused.
        plan: its decode plan.
        sites: the report's records.

    Returns:
        The records, those of the attentions with a note of the proof.

    Raises:
        Refused: a layer's attention has a form that is not understood, or the two ways differ.
    """
    graph = model.graph
    inputs = {role: value for role, name in plan.inputs.items() for value in graph.inputs if value.name == name}
    if inputs["ids"].shape is not None and inputs["ids"].shape[1] == 1:
        raise Refused("expand-form", "prompts of several tokens in a call", "one token of each sequence", "free tokens",
                      "convert without expand_prompts")  # fmt: skip
    found = find_attentions(graph, plan)
    taken = {value.name for value in all_values(graph) if value.name}
    emit = Emitter("prompts", taken)
    condition = is_first_prompt(emit, inputs, least)
    graph.insert_before(graph[0], emit.nodes)
    _register(graph, emit)
    prover = Prover(graph, model.opset_imports.get("", 0), inputs)
    prover.prove_condition(condition)
    proofs: dict[str, Proof] = {}
    for site in found:
        proofs[site.node.name or ""] = _branch(graph, site, plan, inputs, condition.value, prover, emit, least)
    model.metadata_props[KEY] = str(least)
    prologs = {site.query.prolog.name for site in found if site.query.prolog is not None}
    return [_noted(site, proofs, prologs, least) for site in sites]


def least_tokens(metadata: Mapping[str, str]) -> int:
    """From how many tokens on a model expands first prompts; 0: never."""
    text = metadata.get(KEY, "")
    return int(text) if text.isdecimal() and len(text) < _DIGITS else 0


def _branch(
    graph: ir.Graph, site: LatentAttention, plan: DecodePlan, inputs: Mapping[str, ir.Value], condition: ir.Value,
    prover: Prover, names: Emitter, least: int,
) -> Proof:  # fmt: skip
    """One layer."""
    if site.query.prolog is not None:
        _deliver_query_norm(site.query.prolog)
    new = expanded(names.beside(), site, plan, inputs)
    rest = _only_for([site.node, site.result], {id(item) for node in new.emit.nodes for item in node.inputs})
    proof = prover.prove(site, new, rest)
    _register(graph, new.emit)
    name = names.name("attention")
    out = ir.Value(name=name, type=site.out.type, shape=site.out.shape)
    site.out.replace_all_uses_with(out)
    first = ir.Graph([], [new.out], nodes=new.emit.nodes, name=f"{name}/expanded")
    node = ir.node("If", [condition], {"then_branch": first}, outputs=[out], name=names.name("choice"))
    mark(node, f"first prompts of {least} tokens or more are expanded")
    graph.insert_after(site.result, node)
    graph.remove(rest)
    other = ir.Graph([], [site.out], nodes=rest, name=f"{name}/absorbed")
    node.attributes["else_branch"] = ir.AttrGraph("else_branch", other)
    return proof


def _deliver_query_norm(prolog: ir.Node) -> None:
    prolog.attributes["query_norm_flag"] = ir.AttrInt64("query_norm_flag", 1)
    normed, weight = prolog.outputs[5], prolog.inputs[2]
    assert weight is not None
    normed.type = weight.type


def _only_for(last: Sequence[ir.Node], read: set[int]) -> list[ir.Node]:
    """These nodes, behind those in front of them that nobody else needs: of standard operators, in order.

    Args:
        read: ids of the values that somebody else is going to read.
    """
    found = {id(node): node for node in reversed(last)}
    pending = list(found.values())
    while pending:
        node = pending.pop()
        for item in node.inputs:
            made = None if item is None else item.producer()
            if made is None or id(made) in found or made.domain not in ("", "ai.onnx"):
                continue
            if not any(value.is_graph_output() or id(value) in read for value in made.outputs) and all(
                id(use.node) in found for value in made.outputs for use in value.uses()
            ):
                found[id(made)] = made
                pending.append(made)
    return list(reversed(found.values()))


def _register(graph: ir.Graph, emit: Emitter) -> None:
    for constant in emit.constants:
        if constant.uses():
            graph.register_initializer(constant)


def _noted(site: Site, proofs: Mapping[str, Proof], prologs: set[str | None], least: int) -> Site:
    if site.name in prologs and site.op == "MlaPrologV3":
        return replace(site, attrs={**site.attrs, "query_norm_flag": 1})
    proof = proofs.get(site.name) if site.op == "FusedInferAttentionScore" else None
    if proof is None:
        return site
    note = (f"first prompts of {least} tokens or more are projected to keys and values once: {proof.cases} cases in "
            f"{proof.dtype}, at most {proof.max_error:.3g} apart, accepted {proof.bound:g}")  # fmt: skip
    return replace(site, notes=(*site.notes, note))

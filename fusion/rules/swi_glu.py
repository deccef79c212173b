"""SwiGlu: the gated activation of a feed-forward part, on gate and up side by side."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.graph import dims_of, dtype_name
from fusion.facts.swiglu import GatedFact, activations, read_gated
from fusion.facts.symbols.parameters import Reason
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from fusion.folding import EXPERTS, FEWEST
from fusion.result import Refusal
from fusion.rules import _block as block
from fusion.rules import _cache_op as common

OP = "SwiGlu"
_MOVES = ("Gather", "GatherND", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Cast", "Identity", "Transpose")


class SwiGluRule:
    """See the module's text."""

    op = OP
    size = 5

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = [], []
        found = [(node, _source(gate)) for node, gate in activations(facts.view)]
        members: Counter[int] = Counter()
        for node, source in found:
            members[id(source)] += facts.view.stands_for.get(node.outputs[0].name or "", 1)
        told: set[int] = set()
        for node, source in found:
            count = 0 if source is None else members[id(source)]
            if id(source) in told or not facts.standing.stands(node.outputs[0]):
                continue
            read = read_gated(facts.view, node)
            if read is None:
                continue
            where = read.y if isinstance(read, GatedFact) else read.value or node.outputs[0]
            layer = facts.view.layer_of(where)
            try:
                if isinstance(read, Reason):
                    raise Refused(read.code, read.fact, read.found, read.wanted, "", where)
                if count >= FEWEST:
                    told.add(id(source))
                    raise Refused(
                        EXPERTS, "one feed-forward part reads a value", f"{count} do", f"fewer than {FEWEST}",
                        "leave experts to an operator for all of them", where,
                    )  # fmt: skip
                candidates.append(_build(facts, new_emitter, read, layer))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, where, layer))
        return candidates, refusals


RULE = SwiGluRule()


def _source(gate: ir.Value) -> ir.Value | None:
    """What gate was projected from; None where it is no projection."""
    node = gate.producer()
    if node is not None and node.op_type == "Add":
        node = next((own for item in node.inputs if item is not None and (own := item.producer()) is not None), None)
    if node is None or node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is None:
        return None
    value = node.inputs[0]
    while (inner := value.producer()) is not None and inner.op_type in _MOVES and inner.inputs[0] is not None:
        value = inner.inputs[0]
    return value


@evaluated
def _build(facts: Facts, new_emitter: EmitterFactory, fact: GatedFact, layer: int | None) -> Candidate:
    gate, up = block.narrow(fact.gate), block.narrow(fact.up)
    kind = dtype_name(gate)
    made, results = block.results_of(facts, fact.y, kind)
    if not kind or dtype_name(up) != kind:
        raise Refused(
            "mixed-types", "gate and up have one type", f"{kind} and {dtype_name(up)}", "one type", "", fact.y
        )
    kind = made if common.widens(kind, made) else kind
    feeds, packed = [gate, up], _halves(facts, gate, up)
    if packed is None and not _same_shape(facts, gate, up):
        known = all(facts.trials.shapes(item) for item in (gate, up))
        raise Refused("swiglu-shape", "gate and up have one shape", "other shapes" if known else "an unknown shape",
                      "one shape", "", fact.y)  # fmt: skip
    if packed is not None:
        feeds = [packed[0]]
        if not packed[2]:
            raise Refused(
                "swiglu-order", "gate is the first half of the joined value", "gate is the second half", "[gate, up]",
                "pack the projections as [gate, up]", packed[0],
            )  # fmt: skip
    region = block.region_of(results, feeds)
    block.refuse_kept(facts, region, fact.heart, results, [])
    probes = _trials(facts, results, feeds, region)
    emit = new_emitter(f"{OP}_{'x' if layer is None else layer}")
    parts = [emit.cast(value, kind, "x") for value in feeds]
    attrs = {"dim": -1 if packed is None else packed[1]}
    node, outputs = block.fused_node(OP, emit, [emit.concat(parts, "gate_up")], attrs)
    made_block = block.Block(OP, results[0], layer, emit, node, outputs, attrs)
    if packed is None:
        made_block.notes.append("gate and up are joined by a Concat; projections packed as [gate, up] would save it")
    replaced = [(old, emit.cast(outputs["y"], dtype_name(old), "y_cast")) for old in results]
    return block.candidate(facts, made_block, replaced, feeds, region, probes, RULE.size)


def _trials(
    facts: Facts, results: list[ir.Value], feeds: list[ir.Value], region: list[ir.Node]
) -> tuple[list[Probe], Probe | None]:
    """Trial sizes: of gate and up by themselves where their rank is known, else of the whole graph."""
    dims = [dims_of(value) for value in feeds]
    if len(feeds) == 2 and dims[0] and block.is_closed(facts, region, feeds):
        local = block.local_probes(facts, {id(value): [None] * len(dims[0]) for value in feeds}, results)
        if local is not None:
            return local
    targets = [*results, *feeds]
    probes = facts.trials.probes(targets)
    if not probes:
        raise Refused("swiglu-shape", "the activation can be evaluated", "an unknown shape", "shapes", "", results[0])
    return probes, facts.trials.fresh(targets)


def _same_shape(facts: Facts, left: ir.Value, right: ir.Value) -> bool:
    one, other = dims_of(left), dims_of(right)
    if one and one == other and all(one):
        return True
    if one is not None and other is not None and len(one) != len(other):
        return False
    return facts.trials.same_shape(left, right)


def _halves(facts: Facts, gate: ir.Value, up: ir.Value) -> tuple[ir.Value, int, bool] | None:
    """The value whose halves gate and up are, the axis, and whether gate is the first; None where they are not."""
    one, other = gate.producer(), up.producer()
    if one is None or other is None or not one.inputs or not other.inputs:
        return None
    whole = one.inputs[0]
    if whole is None or whole is not other.inputs[0] or one.op_type not in ("Split", "Slice", "Gather"):
        return None
    found: list[tuple[int, bool]] = []
    for probe in facts.trials.probes([gate, up, whole]):
        shape = probe.shape(whole) or ()
        try:
            symbolic = Symbolic(facts.view, probe, {id(whole)})
            parts = [symbolic.read(value, 0) for value in (gate, up)]
        except Unreadable:
            return None
        if any(part.atom.shape[:2] != (1, 1) or part.shape != parts[0].shape for part in parts):
            return None
        place = np.arange(int(np.prod(shape))).reshape(shape)
        base = symbolic.sources[0].base
        halves = [part.atom[0, 0] - base for part in parts]
        for axis, size in enumerate(shape):
            if size % 2 == 0:
                first, second = np.split(place, 2, axis)
                for order in (True, False):
                    low, high = (first, second) if order else (second, first)
                    if np.array_equal(halves[0], low) and np.array_equal(halves[1], high):
                        found.append((axis, order))
    return (whole, *found[0]) if len(found) == 2 and found[0] == found[1] else None

"""Finding, proving and putting in place the fusions of one graph."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from fusion.candidate import BLOCK, Candidate, Refused, Rule
from fusion.detours import Detours, Shortcut
from fusion.emit import Emitter
from fusion.facts.analysis import Facts, analyse
from fusion.facts.graph import GraphView
from fusion.facts.types import clear_types, fill_types
from fusion.once import compute_once
from fusion.proof import Disproved, Prover
from fusion.result import ASSUMPTIONS_KEY, Proof, Refusal, Site
from fusion.rules import all_rules
from fusion.surgery import packing
from fusion.surgery.packing import Pack
from ir_ops.declaration import TensorSpec
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS


@dataclass
class Options:
    """How to fuse.

    Attributes:
        product: whose limits count.
        only: operator names to consider; empty for all.
        strict_slots: refuse sites that rely on slots not being negative.
        pack: whether projections that an operator wants side by side become one.
    """

    product: str = "generic"
    only: tuple[str, ...] = ()
    strict_slots: bool = False
    pack: Pack = "auto"


@dataclass
class Found:
    """What was found in a graph: proven candidates with their proofs, and refusals.

    ``typed`` are values that were given a type for the time of recognition, ``shortcuts`` are operands that were
    read in front of nodes that change nothing, ``order`` is the position of each node.
    """

    proven: list[tuple[Candidate, Proof]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    typed: list[ir.Value] = field(default_factory=list)
    shortcuts: list[Shortcut] = field(default_factory=list)
    order: dict[int, int] = field(default_factory=dict)


def all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs, initializers and results of a graph and of its subgraphs."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def find(model: ir.Model, options: Options, stands_for: Mapping[str, int] | None = None) -> Found:
    """Matches and proves all rules, those of larger operators first; the model is not changed.

    A rule sees what the fusions accepted before it leave. A candidate that is refused leaves its place to smaller ones.

    Args:
        stands_for: result of a node -> for how many nodes it stands in a folded model (:mod:`fusion.folding`).
    """
    found = Found()
    started = time.perf_counter()
    found.typed = fill_types(model.graph)
    found.order = {id(node): place for place, node in enumerate(model.graph)}
    taken = {value.name for value in all_values(model.graph) if value.name}
    view = GraphView(model.graph, model.opset_imports.get("", 0))
    view.stands_for = stands_for or {}
    detours = Detours(view)
    facts = analyse(view)
    found.timings = {"facts": time.perf_counter() - started, "match": 0.0, "prove": 0.0}
    search = _Search(facts, options, found, taken)
    for rule in all_rules():
        if not options.only or rule.op in options.only:
            search.run(rule)
    found.refusals += search.refusals()
    found.shortcuts = detours.end()
    facts.view.forget()
    return found


class _Search:
    """One search: what is accepted so far, and which refused places still wait for a smaller operator."""

    def __init__(self, facts: Facts, options: Options, found: Found, taken: set[str]) -> None:
        self.facts, self.options, self.found, self.taken = facts, options, found, taken
        self._prover = Prover(facts.view)
        self._written: dict[int, Candidate] = {}
        self._refused: list[tuple[Refusal, Candidate | None]] = []

    def run(self, rule: Rule) -> None:
        """Matches, proves and accepts the candidates of one rule."""
        emitters: list[Emitter] = []

        def new_emitter(prefix: str) -> Emitter:
            emitters.append(Emitter(prefix, self.taken))
            return emitters[-1]

        started = time.perf_counter()
        candidates, refusals = rule.match(self.facts.left(), new_emitter)
        matched = time.perf_counter()
        self._refused += [(refusal, None) for refusal in refusals]
        accepted = {id(candidate.emitter) for candidate in candidates if self._accept(candidate)}
        for emitter in emitters:
            if id(emitter) not in accepted:
                emitter.discard()
        self.found.timings["match"] += matched - started
        self.found.timings["prove"] += time.perf_counter() - matched

    def refusals(self) -> list[Refusal]:
        """All refusals but those of places where a smaller operator of the same kind stands now."""
        standing = self.facts.standing
        return [
            refusal
            for refusal, candidate in self._refused
            if candidate is None
            or candidate.size >= BLOCK
            or not all(standing.is_replaced(old) for old, _ in candidate.replaced)
        ]

    def _accept(self, candidate: Candidate) -> bool:
        proof = self._proof(candidate)
        if proof is None:
            return False
        self.found.proven.append((candidate, proof))
        delivered = [*candidate.replaced, *candidate.shapes]
        self.facts.standing.accept(delivered, candidate.emitter.nodes, candidate.stand_ins)
        self._written |= {id(buffer): candidate for buffer in _buffers(candidate)}
        return True

    def _proof(self, candidate: Candidate) -> Proof | None:
        try:
            self._refuse_contradictions(candidate)
            _refuse_slots(candidate, self.options)
            proof, specs = self._prover.prove(candidate)
            candidate.specs = specs
            _refuse_violations(candidate, specs, self.options.product)
        except Refused as refused:
            place = candidate.replaced[0][0]
            refusal = refused.refusal(self.facts.view, candidate.op, place, candidate.layer)
        except Disproved as error:
            refusal = Refusal(
                "proof-failed",
                candidate.place,
                candidate.layer,
                candidate.op,
                error.what,
                error.found,
                error.wanted,
                error.hint or "report this graph: facts and numbers disagree",
            )
        else:
            return proof
        self._refused.append((refusal, candidate))
        return None

    def _refuse_contradictions(self, candidate: Candidate) -> None:
        """Two fusions must not deliver one value, nor write one buffer."""
        standing = self.facts.standing
        for old, _ in candidate.replaced:
            if not standing.stands(old):
                raise Refused(
                    "claimed", f"no other fused operator delivers {old.name}", "one that does", "one operator", "", old
                )
        for buffer in _buffers(candidate):
            other = self._written.get(id(buffer))
            if other is not None:
                raise Refused(
                    "alias-two-writers", f"one operator writes {buffer.name} in place", f"{other.op} as well",
                    "one operator", "", buffer,
                )  # fmt: skip


def _buffers(candidate: Candidate) -> list[ir.Value]:
    """Values of the graph that the fused node writes in place, seen through new Reshapes."""
    found = []
    for entry, item in zip(OPS[candidate.op].inputs, candidate.node.inputs, strict=False):
        value = item
        while value is not None and (node := value.producer()) is not None and node.graph is None:
            value = node.inputs[0] if node.op_type == "Reshape" else None
        if entry.ref and value is not None:
            found.append(value)
    return found


def _refuse_slots(candidate: Candidate, options: Options) -> None:
    if options.strict_slots and any(text.startswith("slots >= 0") for text in candidate.assumptions):
        raise Refused(
            "slots-negative", "the graph skips a slot of -1 as the operator does", "no guard for negative slots",
            "a guard, or fusing without --strict-slots", "guard the write with Where, or promise slots >= 0",
        )  # fmt: skip


def _refuse_violations(candidate: Candidate, specs: Mapping[str, TensorSpec], product: str) -> None:
    """The operator's contract, and the limits of the product."""
    for violation in OPS[candidate.op].check(specs, candidate.attrs, product):
        if violation.severity == "error" or violation.changes_result:
            limit = f"a limit of product {product}" if product != "generic" else "the operator contract"
            raise Refused(violation.id, violation.text, violation.found, violation.wanted, limit)


def site_of(candidate: Candidate, proof: Proof, removed: int) -> Site:
    """The record of a fusion for the report."""
    return Site(
        op=candidate.op,
        name=candidate.node.name or "",
        place=candidate.place,
        layer=candidate.layer,
        inputs=tuple("" if item is None else item.name or "" for item in candidate.node.inputs),
        outputs=tuple(item.name or "" for item in candidate.node.outputs),
        attrs=dict(candidate.attrs),
        assumptions=tuple(candidate.assumptions),
        proof=proof,
        removed=removed,
        notes=tuple(candidate.notes),
    )


def apply(model: ir.Model, found: Found, pack: Pack = "auto") -> list[Site]:
    """Puts all proven candidates into the graph, in place, and removes what nobody reads any more.

    Args:
        pack: whether projections that fused operators want side by side are packed into one.
    """
    graph = model.graph
    _keep_shortcuts(found)
    # what fused nodes read and deliver keeps its type: their bodies are made for it
    needed = {id(item) for candidate, _ in found.proven for node in candidate.emitter.nodes for item in node.inputs}
    clear_types([value for value in found.typed if id(value) not in needed])
    starts = _starts((candidate for candidate, _ in found.proven), found.order)
    for candidate, _ in found.proven:
        _insert(graph, candidate, found.order, starts)
        _tell_ranks(candidate)
    removed = {id(candidate): len(candidate.region) for candidate, _ in found.proven}
    if found.proven:
        model.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
        compute_once(candidate for candidate, _ in found.proven)
        _tidy(model)
        if _pack(graph, [candidate for candidate, _ in found.proven], pack):
            _tidy(model)
        alive = {id(node) for node in graph.all_nodes()}
        for candidate, _ in found.proven:
            removed[id(candidate)] = sum(id(node) not in alive for node in candidate.region)
    return [site_of(candidate, proof, removed[id(candidate)]) for candidate, proof in found.proven]


def _keep_shortcuts(found: Found) -> None:
    """Readers of what fusions deliver, or whose shape is asked of another value, read it where it was found."""
    left = {
        id(old)
        for candidate, _ in found.proven
        for old, _ in (*candidate.replaced, *candidate.shapes, *candidate.stand_ins)
    }
    for node, place, source in found.shortcuts:
        if id(source) in left:
            node.replace_input_with(place, source)


def _tell_ranks(candidate: Candidate) -> None:
    """Gives operands without a shape the rank that the proof has seen: function bodies depend on it."""
    for entry, value in zip(OPS[candidate.op].inputs, candidate.node.inputs, strict=False):
        spec = candidate.specs.get(entry.name)
        if value is not None and value.shape is None and spec is not None and spec.shape is not None:
            value.shape = ir.Shape([None] * len(spec.shape))


def _tidy(model: ir.Model) -> None:
    """Sorts the main graph and removes what nobody reads, which goes from the last node to the first."""
    model.graph.sort()
    RemoveUnusedNodesPass()(model)


def _pack(graph: ir.Graph, candidates: list[Candidate], how: Pack) -> bool:
    """Packs projections and notes it with the sites; whether there was anything to decide."""
    joins = [(candidate, join) for candidate in candidates for join in candidate.joins]
    for (candidate, _), note in zip(joins, packing.pack(graph, [join for _, join in joins], how), strict=True):
        candidate.notes.append(note)
    return bool(joins)


def _insert(graph: ir.Graph, candidate: Candidate, order: dict[int, int], starts: list[int]) -> None:
    used = {id(item) for node in candidate.emitter.nodes for item in node.inputs if item is not None}
    used |= {id(new) for _, new in candidate.shapes}
    for constant in candidate.emitter.constants:
        if id(constant) in used:
            graph.register_initializer(constant)
    if candidate.assumptions:
        candidate.node.metadata_props[ASSUMPTIONS_KEY] = "; ".join(candidate.assumptions)
    graph.extend(candidate.emitter.nodes)
    for old, source in candidate.stand_ins:
        node = source.producer()
        for use in tuple(old.uses()):
            # a reader in front of the source may be what computes it
            behind = node is None or order.get(id(use.node), 0) > order.get(id(node), 0)
            if use.node.op_type in ("Shape", "Size") and behind:
                use.node.replace_input_with(use.idx, source)
    for old, new in candidate.shapes:
        _replace(graph, old, new, set())
    before = _computing(candidate, order, starts)
    for old, new in candidate.replaced:
        _replace(graph, old, new, before)


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Value, before: set[int]) -> None:
    """Readers of ``old`` read ``new``, but those that ``new`` is computed from; a graph output keeps its name."""
    if new.shape is None:
        new.shape = old.shape
    if new.type is None or old.is_graph_output():
        new.type = old.type or new.type
    for use in tuple(old.uses()):
        if id(use.node) not in before:
            use.node.replace_input_with(use.idx, new)
    places = [place for place, output in enumerate(graph.outputs) if output is old]
    if places:
        name, old.name = old.name, f"{old.name}/unfused"
        new.name = name
        for place in places:
            graph.outputs[place] = new


def _computing(candidate: Candidate, order: dict[int, int], starts: list[int]) -> set[int]:
    """Ids of the new nodes and of the nodes they are computed from, back to where the replaced values come from."""
    first, _ = _span(candidate, order)
    first = starts[bisect_right(starts, first) - 1] if starts else first
    pending = list(candidate.emitter.nodes)
    found = {id(node) for node in pending}
    while pending:
        for item in pending.pop().inputs:
            node = item.producer() if item is not None else None
            if node is not None and id(node) not in found and order.get(id(node), first) >= first:
                found.add(id(node))
                pending.append(node)
    return found


def _span(candidate: Candidate, order: dict[int, int]) -> tuple[int, int]:
    """From the first of the nodes whose results are replaced to the last of the nodes that the new ones read."""
    replaced = [order.get(id(old.producer()), 0) for old, _ in candidate.replaced]
    read = [order.get(id(item.producer()), 0) for node in candidate.emitter.nodes for item in node.inputs
            if item is not None]  # fmt: skip
    return min(replaced, default=0), max((*replaced, *read), default=0)


def _starts(candidates: Iterable[Candidate], order: dict[int, int]) -> list[int]:
    """Where the spans begin, overlapping ones taken together.

    A node in front of all spans that overlap reads nothing that a fused node behind it computes.
    """
    starts: list[int] = []
    end = -1
    for first, last in sorted(_span(candidate, order) for candidate in candidates):
        if first > end:
            starts.append(first)
        end = max(end, last)
    return starts


def count_ops(model: ir.Model) -> Counter[str]:
    """Operator -> number of nodes, subgraphs included; operators of other domains with their domain."""
    counted: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        counted[node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"] += 1
    return counted

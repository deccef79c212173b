"""Finding and proving the fusions of one graph."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from fusion.candidate import BLOCK, Candidate, Refused, Rule
from fusion.detours import Detours, Shortcut
from fusion.emit import Emitter
from fusion.facts.analysis import Facts, analyse
from fusion.facts.graph import GraphView, all_values
from fusion.facts.types import fill_types
from fusion.proof import Disproved, Prover
from fusion.result import Proof, Refusal
from fusion.rules import all_rules
from fusion.surgery.packing import Pack
from ir_ops.declaration import TensorSpec
from ir_ops.ops import OPS


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
    read in front of nodes that change nothing, ``order`` is the position of each node. ``has_copies``: the graph
    computes data twice.
    """

    proven: list[tuple[Candidate, Proof]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    typed: list[ir.Value] = field(default_factory=list)
    shortcuts: list[Shortcut] = field(default_factory=list)
    order: dict[int, int] = field(default_factory=dict)
    has_copies: bool = False

    def size(self) -> tuple[list[int], int]:
        """How much is fused: operators larger than building blocks, the largest first, then how many nodes less."""
        sizes = sorted((candidate.size for candidate, _ in self.proven), reverse=True)
        fused = {id(node) for candidate, _ in self.proven for node in candidate.region}
        return [size for size in sizes if size >= BLOCK], len(fused) - len(sizes)

    def take_off(self) -> list[tuple[ir.Node, tuple[ir.Value | None, ...]]]:
        """Takes the new nodes out of the use lists of what they read; gives their operands."""
        taken = [(node, tuple(node.inputs)) for candidate, _ in self.proven for node in candidate.emitter.nodes]
        for node, operands in taken:
            for place in range(len(operands)):
                node.replace_input_with(place, None)
        return taken


def put_back(taken: list[tuple[ir.Node, tuple[ir.Value | None, ...]]]) -> None:
    """Undoes :meth:`Found.take_off`."""
    for node, operands in taken:
        for place, operand in enumerate(operands):
            node.replace_input_with(place, operand)


def find(model: ir.Model, options: Options, stands_for: Mapping[str, int] | None = None) -> Found:
    """Matches and proves all rules, those of larger operators first; the model is not changed.

    A rule sees what the fusions accepted before it leave. A candidate that is refused leaves its place to smaller ones.
    Where the graph computes data twice it is also searched with that read as one; what fuses more counts.

    Args:
        stands_for: result of a node -> for how many nodes it stands in a folded model (:mod:`fusion.folding`).
    """
    started = time.perf_counter()
    typed = fill_types(model.graph)
    typing = time.perf_counter() - started
    found = _look(model, options, stands_for or {})
    if found.has_copies:
        first, operands = found, found.take_off()
        found = _look(model, options, stands_for or {}, joined=True)
        found.timings = {step: seconds + first.timings[step] for step, seconds in found.timings.items()}
        if found.size() <= first.size():
            found.take_off()
            put_back(operands)
            first.timings, found = found.timings, first
    found.typed = typed
    found.timings["facts"] += typing
    return found


def _look(model: ir.Model, options: Options, stands_for: Mapping[str, int], *, joined: bool = False) -> Found:
    """One search, with data that is computed twice read as it is, or as one."""
    found = Found()
    started = time.perf_counter()
    found.order = {id(node): place for place, node in enumerate(model.graph)}
    taken = {value.name for value in all_values(model.graph) if value.name}
    view = GraphView(model.graph, model.opset_imports.get("", 0))
    view.stands_for = stands_for
    detours = Detours(view, joined)
    facts = analyse(view)
    found.timings = {"facts": time.perf_counter() - started, "match": 0.0, "prove": 0.0}
    search = _Search(facts, options, found, taken)
    for rule in all_rules():
        if not options.only or rule.op in options.only:
            search.run(rule)
    found.refusals += search.refusals()
    found.has_copies = detours.has_copies_of_data()
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

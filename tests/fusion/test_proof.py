"""The proof: a right replacement passes, any change of what it computes is caught, alike sites share it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from fusion.candidate import Candidate
from fusion.emit import Emitter
from fusion.facts.analysis import Facts, analyse
from fusion.facts.graph import GraphView
from fusion.facts.types import fill_types
from fusion.proof import Disproved, Prover
from fusion.rules.kv_rms_norm_rope_cache import RULE
from tests.fusion.zoo.spec import Spec
from tests.fusion.zoo.spellings import Preamble


def candidates(spec: Spec) -> tuple[Facts, list[Candidate]]:
    model = ir.from_proto(Preamble(spec).model())
    fill_types(model.graph)
    facts = analyse(GraphView(model.graph, spec.opset))
    taken: set[str] = set()
    found, refusals = RULE.match(facts, lambda prefix: Emitter(prefix, taken))
    assert not refusals
    return facts, found


def test_a_right_replacement_passes_with_room() -> None:
    facts, (candidate,) = candidates(Spec())
    proof, specs = Prover(facts.view).prove(candidate)
    assert proof.max_error < 1e-12 < proof.bound
    assert proof.cases >= 3 and proof.shared_with is None
    kv = specs["kv"]
    assert kv.dtype == "float32" and kv.shape[0] is None and kv.shape[3] == 96


def change_epsilon(candidate: Candidate) -> None:
    candidate.node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 2e-5)


def swap_tables(candidate: Candidate) -> None:
    cos, sin = candidate.node.inputs[2], candidate.node.inputs[3]
    candidate.node.replace_input_with(2, sin)
    candidate.node.replace_input_with(3, cos)


def swap_caches(candidate: Candidate) -> None:
    (first, a), (second, b) = candidate.replaced
    candidate.replaced[:] = [(first, b), (second, a)]


def scale_gamma(candidate: Candidate) -> None:
    gamma = candidate.node.inputs[1]
    assert gamma is not None
    doubled = candidate.emitter.node("Add", [gamma, gamma], "doubled")
    candidate.node.replace_input_with(1, doubled)


@pytest.mark.parametrize("change", [change_epsilon, swap_tables, swap_caches, scale_gamma])
def test_a_wrong_replacement_is_caught(change: Callable[[Candidate], None]) -> None:
    facts, (candidate,) = candidates(Spec())
    change(candidate)
    with pytest.raises(Disproved) as caught:
        Prover(facts.view).prove(candidate)
    assert caught.value.found and caught.value.wanted


def test_what_a_narrow_type_hides_float64_shows() -> None:
    """A change of epsilon far below half a step of float16."""
    facts, (candidate,) = candidates(Spec(dtype="float16", eps=1e-6))
    candidate.node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1.1e-6)
    with pytest.raises(Disproved, match="float64"):
        Prover(facts.view).prove(candidate)


def test_int8_may_differ_by_a_step_at_ties_only() -> None:
    facts, (candidate,) = candidates(Spec(quant="divide", opset=20))
    proof, _ = Prover(facts.view).prove(candidate)
    assert proof.cases >= 3
    scale = candidate.node.inputs[7]
    assert scale is not None and scale.const_value is not None
    numbers = scale.const_value.numpy() * np.float32(1.02)
    scale.const_value = ir.tensor(numbers)
    with pytest.raises(Disproved, match="integers"):
        Prover(facts.view).prove(candidate)


def test_layers_that_are_alike_share_a_proof() -> None:
    facts, found = candidates(Spec(layers=3, kv="matmul"))
    prover = Prover(facts.view)
    proofs = [prover.prove(candidate)[0] for candidate in found]
    assert proofs[0].shared_with is None
    assert [proof.shared_with for proof in proofs[1:]] == [found[0].node.name] * 2


def test_what_cannot_be_evaluated_is_not_proven() -> None:
    facts, (candidate,) = candidates(Spec())
    kv = candidate.node.inputs[0]
    assert kv is not None
    candidate.node.replace_input_with(0, candidate.emitter.node("Unknown", [kv], "strange", domain="custom"))
    with pytest.raises(Disproved, match="cannot be evaluated"):
        Prover(facts.view).prove(candidate)

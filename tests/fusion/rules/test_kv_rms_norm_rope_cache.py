"""KvRmsNormRopeCache as a rule: what it joins, which operands it builds, and how it refuses."""

from __future__ import annotations

import pytest

import fusion
from fusion import Refusal, Site
from fusion.rules import all_rules
from ir_ops.ops import OPS
from tests.fusion.zoo.spec import Spec
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"


def site(**choices: object) -> Site:
    result = fusion.fuse(Preamble(Spec(**choices)).model())  # type: ignore[arg-type]
    (found,) = result.sites
    return found


def refusals(**choices: object) -> list[Refusal]:
    return fusion.fuse(Preamble(Spec(**choices)).model()).refusals  # type: ignore[arg-type]


def test_rules_are_found_by_their_files_the_largest_first() -> None:
    rules = all_rules()
    assert OP in [rule.op for rule in rules]
    assert [rule.size for rule in rules] == sorted((rule.size for rule in rules), reverse=True)
    assert all(rule.op in OPS for rule in rules)


def test_version_1_has_five_inputs_and_two_caches() -> None:
    found = site()
    names = [entry.name for entry in OPS[OP].inputs]
    assert dict(zip(names, found.inputs, strict=False)) == {
        "kv": "kv", "gamma": found.inputs[1], "cos": found.inputs[2], "sin": found.inputs[3],
        "index": "slots", "k_cache": "k_cache_0", "ckv_cache": "ckv_cache_0",
    }  # fmt: skip
    assert found.attrs["cache_mode"] == "PA" and "is_output_kv" not in found.attrs


def test_rows_that_are_graph_outputs_are_delivered() -> None:
    found = site(outs=True)
    assert found.attrs["is_output_kv"] == 1
    assert found.outputs[2:] == ("k_rope_0", "c_kv_0")


@pytest.mark.parametrize(
    ("choices", "present"),
    [
        ({"quantised": "both"}, (True, True)),
        ({"quantised": "k"}, (True, False)),
        ({"quantised": "v"}, (False, True)),
    ],
)
def test_scales_stand_where_caches_are_quantised(choices: dict[str, object], present: tuple[bool, bool]) -> None:
    found = site(quant="multiply", opset=20, **choices)
    scales = [*found.inputs[7:9], "", ""][:2]
    assert tuple(bool(name) for name in scales) == present


def test_a_divisor_becomes_a_multiplier_and_the_report_says_so() -> None:
    assert any("reciprocal" in note for note in site(quant="divide", opset=20).notes)
    assert not any("reciprocal" in note for note in site(quant="multiply", opset=20).notes)


def test_slots_shared_by_the_batch_are_spread() -> None:
    found = site(write="static_cache", form="v2")
    assert found.attrs["cache_mode"] == "Norm"
    assert found.inputs[4] != "slots"
    assert "slots are distinct in a batch entry" in found.assumptions


def test_a_cache_of_three_dims_is_declared_in_four() -> None:
    found = site(write="pageless")
    assert found.inputs[5] != "k_cache_0"
    assert any("reshaped" in note for note in found.notes)


def test_sites_of_one_graph_keep_their_layers_together() -> None:
    result = fusion.fuse(Preamble(Spec(layers=3, kv="matmul")).model())
    pairs = [(found.inputs[5][-1], found.inputs[6][-1]) for found in result.sites]
    assert pairs == [("0", "0"), ("1", "1"), ("2", "2")]


def test_a_refusal_is_complete() -> None:
    model = Preamble(Spec()).model()
    model.graph.output.pop(1)  # the partner is not written any more
    (refusal,) = fusion.fuse(model).refusals
    assert (refusal.code, refusal.rule) == ("kv-no-partner", OP)
    assert refusal.place and refusal.fact and refusal.found and refusal.wanted

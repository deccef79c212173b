"""What several operators could take: the largest gets it, another is refused with its reason, a smaller one follows."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

import fusion
from fusion.candidate import Candidate
from fusion.result import Refusal
from fusion.rules import kv_rms_norm_rope_cache as kv
from fusion.search import Options, find
from tests.fusion.mla.preamble import Preamble as MlaPreamble
from tests.fusion.mla.preamble import feeds as mla_feeds
from tests.fusion.mla.spec import Spec as MlaSpec
from tests.fusion.qkv.spec import Parameters, Spec, feeds
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec as KvSpec
from tests.fusion.zoo.spellings import Preamble as KvPreamble

QKV, KV, MLA = "QkvRmsNormRopeCache", "KvRmsNormRopeCache", "MlaPrologV3"


class WrittenTwice(Preamble):
    """The rows of the first pair of caches are written to a second pair, too."""

    def one_layer(self, p: Parameters) -> dict[str, str]:
        if self.layer == 0:
            self.kept: dict[str, str] = {}
            self.made = super().one_layer(p)
            return dict(self.made)
        q = self.g.op("Mul", self.made["q_out"], self.g.scalar(2.0))
        made = {"q_out": q}
        for which in "kv":
            made[f"{which}_cache_out"] = self.write(which, f"{which}_cache_1", self.kept[which])
        return made

    def write(self, which: str, cache: str, rows: str) -> str:
        self.kept[which] = rows
        return super().write(which, cache, rows)


def codes(refusals: list[Refusal]) -> set[tuple[str, str]]:
    return {(refusal.rule, refusal.code) for refusal in refusals}


def test_keys_for_two_pairs_of_caches_are_rotated_by_one_operator_only() -> None:
    """QkvRmsNormRopeCache delivers the keys; KvRmsNormRopeCache would deliver them again, a plain write does not."""
    spec = Spec(layers=2)
    model = WrittenTwice(spec).model()
    result = fusion.fuse(model)
    assert [site.op for site in result.sites] == [QKV, "ScatterPaKvCache"]
    assert {(QKV, "qkv-queries"), (KV, "claimed")} <= codes(result.refusals)
    (claimed,) = [refusal for refusal in result.refusals if refusal.code == "claimed"]
    assert claimed.found == "one that does" and claimed.wanted == "one operator"
    given = feeds(spec, 2, 3, 0)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


@pytest.mark.parametrize(
    ("options", "refused"),
    [({"strict_slots": True}, {MLA, KV, QKV}), ({"product": "A3"}, {MLA})],
    ids=["slots", "product"],
)
def test_what_no_larger_operator_may_take_is_left_to_the_blocks(options: dict[str, Any], refused: set[str]) -> None:
    spec = MlaSpec()
    model = MlaPreamble(spec).model()
    result = fusion.fuse(model, **options)
    assert not result.count(MLA) and MLA in {refusal.rule for refusal in result.refusals}
    taken = {site.op for site in result.sites}
    assert "RmsNorm" in taken and not taken & refused
    given = mla_feeds(spec, 1)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


def test_a_larger_operator_without_its_query_leaves_the_caches_to_the_smaller() -> None:
    spec = MlaSpec(trap="nope_scaled")
    model = MlaPreamble(spec).model()
    result = fusion.fuse(model)
    assert (MLA, "mla-scale") in codes(result.refusals)
    assert next(site.op for site in result.sites) == KV
    given = mla_feeds(spec, 1)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


def test_no_two_operators_write_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph is known whose facts give such candidates; the engine does not rely on that."""
    model = ir.from_proto(KvPreamble(KvSpec(layers=2)).model())
    matched = kv.KvRmsNormRopeCacheRule.match

    def sharing(*arguments: Any) -> tuple[list[Candidate], list[Refusal]]:
        candidates, refusals = matched(*arguments)
        if not candidates:  # both layers read one input: their norms, read as one, belong to neither
            return candidates, refusals
        first, second = candidates
        second.node.replace_input_with(5, first.node.inputs[5])
        return candidates, refusals

    monkeypatch.setattr(kv.KvRmsNormRopeCacheRule, "match", sharing)
    found = find(model, Options(only=(KV,)))
    assert len(found.proven) == 1
    (refusal,) = found.refusals
    assert (refusal.code, refusal.found) == ("alias-two-writers", f"{KV} as well")
    assert "k_cache_0" in refusal.fact


def test_the_models_are_what_they_say() -> None:
    model = WrittenTwice(Spec(layers=2)).model()
    onnx.checker.check_model(model)
    assert {"k_cache_out_1", "v_cache_out_1"} <= {entry.name for entry in model.graph.output}

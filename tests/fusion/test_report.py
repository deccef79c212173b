"""Reports for people: what stands in them, that they fit 100 columns, and that HTML says the same."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from fusion.html import fusion_html
from fusion.report import PLAIN, WIDTH, Style, fusion_text, ranges, refusal_groups, table, verify_text
from fusion.result import Difference, FusionResult, Proof, Refusal, Site, VerifyResult


def site(layer: int, **changes: object) -> Site:
    shared = None if layer == 0 else "kv_0"
    base = Site(
        op="KvRmsNormRopeCache",
        name=f"kv_{layer}",
        place=f"layer {layer}, node /model/layers.{layer}/scatter",
        layer=layer,
        attrs={"epsilon": 1e-6, "cache_mode": "PA_BNSD", "is_output_kv": True},
        assumptions=("slots >= 0",),
        proof=Proof(6, 0.00097, 0.0078, "float16", shared),
        removed=31,
        notes=("columns of the projection permuted",),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


REFUSAL = Refusal(
    "slots-differ",
    "layer 3, node /model/layers.3/scatter",
    3,
    "KvRmsNormRopeCache",
    "both caches are written at the same slots",
    "k_cache at slot_mapping, ckv_cache at slot_mapping + 1 " + "and so on " * 20,
    "one slot input",
    "write both caches at the same slots",
)
RESULT = FusionResult(
    None,
    [site(layer) for layer in (0, 1, 2, 4)] + [site(5, attrs={"epsilon": 1e-5})],
    [REFUSAL, dataclasses.replace(REFUSAL, place="layer 6, node x")],
    {"match": 0.25},
    Counter({"Mul": 40, "Add": 10, "MatMul": 7}),
    Counter({"Mul": 2, "MatMul": 7, "ai.ascend::KvRmsNormRopeCache": 5}),
)


def test_the_whole_report() -> None:
    text = fusion_text(RESULT)
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "\x1b" not in text
    rows = [line.split() for line in lines[:7]]
    assert rows[1:4] == [
        ["Add", "10", "0", "-10"],
        ["Mul", "40", "2", "-38"],
        ["ai.ascend::KvRmsNormRopeCache", "0", "5", "+5"],
    ]
    assert rows[4] == ["1", "more", "operators,", "unchanged"]
    assert rows[5] == ["all", "nodes", "57", "14", "-43"]
    assert "fused: 5 x KvRmsNormRopeCache" in lines
    assert "  KvRmsNormRopeCache  layers 0-2, 4" in lines
    assert "  KvRmsNormRopeCache  layer 5, node /model/layers.5/scatter" in lines
    assert "    with     epsilon=1e-06, cache_mode=PA_BNSD, is_output_kv=True" in lines
    words = " ".join(text.split())
    assert "largest difference 0.00097, accepted 0.0078 (proven once, 3 more of the same structure)" in words
    assert "    assumes  slots >= 0" in lines
    assert "left alone: 2 place(s), 1 reason" in lines
    assert "  slots-differ  KvRmsNormRopeCache: 2 place(s)" in lines
    assert "    needs    both caches are written at the same slots" in lines
    assert "    at       layer 3, node /model/layers.3/scatter; layer 6, node x" in lines


def test_each_proof_that_was_run_is_counted() -> None:
    proofs = [Proof(3, 0.0, 1.0, "float64", shared) for shared in (None, None, "kv_1")]
    sites = [site(layer, proof=proof) for layer, proof in enumerate(proofs)]
    assert "(proven 2 times, 1 more of the same structure)" in " ".join(fusion_text(FusionResult(None, sites)).split())


def test_one_reason_for_all_layers() -> None:
    def grows(layer: int, what: str, axis: int) -> Refusal:
        fact = f"present.{layer}.{what} is past.{layer}.{what} with rows written in place"
        return Refusal(
            "cache-grows", f"layer {layer}, node cat_{layer}", layer, "Kv", fact, f"growth along axis {axis}"
        )

    refusals = [grows(layer, what, 2) for layer in range(61) for what in ("key", "value")] + [grows(61, "key", 1)]
    assert [len(members) for members in refusal_groups(refusals)] == [61, 61, 1]
    lines = fusion_text(FusionResult(None, refusals=refusals)).splitlines()
    assert "left alone: 123 place(s), 3 reasons" in lines
    assert len(lines) < 30
    assert "layer 2, node cat_2; layer 3, node cat_3 and 57 more" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    "texts", [("float16", "float32"), ("epsilon 0.1", "epsilon 0.2"), ("29 against 2", "5 against 2")]
)
def test_values_are_not_names(texts: tuple[str, str]) -> None:
    assert len(refusal_groups([dataclasses.replace(REFUSAL, found=text) for text in texts])) == 2


def test_a_broken_constraint_is_called_a_rule() -> None:
    limit = dataclasses.replace(REFUSAL, code="KV-04", suggestion="a limit of product kirin")
    for text in (
        fusion_text(FusionResult(None, refusals=[limit])),
        fusion_html(FusionResult(None, refusals=[limit]), ""),
    ):
        assert {"rule", "from"} <= set(re.findall(r"\w+", text))
        assert "needs" not in text


def test_reports_fit_a_narrow_terminal() -> None:
    noted = dataclasses.replace(RESULT, notes=("a long note " * 20,))
    assert max(map(len, fusion_text(noted, Style(width=60)).splitlines())) <= 60
    assert max(map(len, fusion_text(noted).splitlines())) > 60


def test_explain_speaks_of_what_would_be() -> None:
    assert "would be fused: 5 x KvRmsNormRopeCache" in fusion_text(RESULT, planned=True)
    assert "would be fused: nothing" in fusion_text(FusionResult(None), planned=True)


def test_nothing_to_say() -> None:
    text = fusion_text(FusionResult(None, ops_before=Counter(Add=1), ops_after=Counter(Add=1)))
    assert text.splitlines() == [
        "1 nodes", "", "fused: nothing", "", "left alone: nothing that looked like a fused operator",
    ]  # fmt: skip


def test_colour_changes_no_letter() -> None:
    coloured = fusion_text(RESULT, Style(colour=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == fusion_text(RESULT, PLAIN)


def test_html_holds_the_same_facts_and_nothing_from_outside() -> None:
    hostile = dataclasses.replace(RESULT, sites=[site(0, place="<script>alert(1)</script>")])
    page = fusion_html(hostile, "a & b.onnx")
    seen: list[str] = []
    opened: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            seen.append(data)

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            opened.append(tag)
            assert not {name for name, _ in attrs} & {"src", "href"}

    Reader().feed(page)
    words = " ".join(seen)
    for fact in (
        "a & b.onnx",
        "1 × KvRmsNormRopeCache",
        "both caches are written at the same slots",
        "slots >= 0",
        "0.250",
    ):
        assert fact in words
    assert "script" not in opened
    assert "<script>alert(1)</script>" in words


def difference(**changes: object) -> Difference:
    base = Difference("case0", "y", "original", "float16", (2,), 0.001, 0.001, 0.01, 0.1, 0.0, None, True)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_verification() -> None:
    bad = difference(output="cache_out", ok=False, note="first at [1]: 2, wanted 3", max_abs=1.0, against="recorded")
    lines = verify_text(VerifyResult([difference(), bad], "both in ONNX Runtime", ("a note",))).splitlines()
    assert lines[0].split() == ["case", "output", "against", "type", "largest", "of", "bound"]
    assert lines[1].split() == ["case0", "y", "original", "float16", "0.001", "10%", "ok"]
    assert lines[2].split() == ["case0", "cache_out", "recorded", "float16", "1", "10%", "DIFFERS"]
    assert lines[3].strip() == "first at [1]: 2, wanted 3"
    assert "NOT equal: 1 of 2 comparisons failed" in lines
    assert lines[-1] == "note: a note"
    good = verify_text(VerifyResult([difference()], "both in ONNX Runtime"))
    assert "equal: 1 comparisons over 1 case(s)" in good


def test_ranges_and_tables() -> None:
    assert ranges([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert table([["a", "1"], ["bbb", "22"]], right=(1,)) == ["a     1", "bbb  22"]
    assert table([]) == []

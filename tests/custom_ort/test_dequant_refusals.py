"""DequantRopeQuantKvcache: calls that have no meaning are refused like check() does, and nothing is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call
from tests.custom_ort.changes import Change, assert_refused, attribute, both, drop, put, resize, retype
from tests.custom_ort.dequant_calls import ALIASES, NAME, prefill


def legal(mode: str = "page", *, quantised: bool = False) -> Call:
    """2 batches of 3 tokens, 4 query and 2 key and value heads of 64 columns, caches [2, 8, 2, 64]."""
    return prefill("float16", mode, quantised=quantised, length=3)


def splits(*sizes: Any) -> Change:
    return attribute("size_splits", list(sizes))


def caches(*shape: int) -> Change:
    return both(resize("k_cache", *shape), resize("v_cache", *shape))


def tables(*shape: int) -> Change:
    return both(resize("cos", *shape), resize("sin", *shape))


def element(name: str, value: float) -> Change:
    """One element of an input becomes ``value``."""

    def change(call: Call) -> None:
        call.inputs[name].reshape(-1)[5] = value

    return change


HUGE = 2**62
ROWS: dict[str, Any] = {"mode": "contiguous"}
INT32: dict[str, Any] = {"quantised": True}
CASES: list[tuple[str, str, dict[str, Any], Change]] = [
    ("DRQ-19", "no tokens", {}, resize("x", 2, 0, 512)),
    ("DRQ-19", "empty caches of huge other dims", {}, caches(2**30, 2**25, 0, 64)),
    ("DRQ-19", "empty bias", INT32, resize("bias", 0)),
    ("DRQ-19", "empty indices", ROWS, resize("indices", 0)),
    ("DRQ-01", "x of rank 1", {}, resize("x", 512)),
    ("DRQ-01", "x of rank 4", {}, resize("x", 2, 3, 8, 64)),
    ("DRQ-03", "two splits", {}, splits(384, 128)),
    ("DRQ-03", "a negative split", {}, splits(768, -128, -128)),
    ("DRQ-03", "a wrong sum", {}, splits(256, 128, 64)),
    ("DRQ-03", "a sum that overflows", {}, splits(HUGE, HUGE, HUGE)),
    ("DRQ-03", "no splits", {}, splits(0)),
    ("DRQ-04", "unequal splits", {}, splits(256, 192, 64)),
    ("DRQ-05", "odd width", {}, both(caches(2, 8, 2, 63), splits(260, 126, 126))),
    ("DRQ-06", "splits for other heads", {}, splits(384, 64, 64)),
    ("DRQ-06", "part of a query head", {}, both(resize("x", 2, 3, 288), splits(32, 128, 128))),
    ("DRQ-07", "caches of rank 3", {}, caches(16, 2, 64)),
    ("DRQ-07", "unequal caches", {}, resize("v_cache", 2, 9, 2, 64)),
    ("DRQ-08", "cos of other tokens", {}, tables(2, 2, 1, 64)),
    ("DRQ-08", "cos without the head axis", {}, tables(2, 3, 64)),
    ("DRQ-08", "cos of half a row", {}, tables(2, 3, 1, 32)),
    ("DRQ-08", "sin unlike cos", {}, resize("sin", 2, 3, 2, 64)),
    ("DRQ-08", "sin of another type", {}, retype("float32", "sin")),
    ("DRQ-09", "x of another type", {}, retype("bfloat16", "x")),
    ("DRQ-10", "no weight scale", INT32, drop("weight_scale")),
    ("DRQ-10", "weight scale of other columns", INT32, resize("weight_scale", 64)),
    ("DRQ-11", "activation scale of other tokens", INT32, resize("activation_scale", 2)),
    ("DRQ-11", "bias of other columns", INT32, resize("bias", 256)),
    ("DRQ-12", "scale for one head", {}, put("scale_k", np.ones((1, 64)))),
    ("DRQ-12", "offset of other columns", {}, put("offset_v", np.ones((2, 32)))),
    ("DRQ-13", "dynamic quantisation", {}, attribute("quant_mode", "dynamic")),
    ("DRQ-14", "another layout", {}, attribute("layout", "BNSD")),
    ("DRQ-16", "unknown mode", {}, attribute("cache_mode", "paged")),
    ("DRQ-17", "fewer cache batches than batches", ROWS, caches(1, 8, 2, 64)),
    ("DRQ-17", "an index for each token", ROWS, put("indices", np.zeros(6))),
    ("DRQ-17", "a start that leaves no room", ROWS, put("indices", [0, 6])),
    ("DRQ-17", "a negative start", ROWS, put("indices", [-1, 0])),
    ("DRQ-17", "a cache shorter than the tokens", ROWS, both(caches(2, 2, 2, 64), put("indices", [0, 0]))),
    ("DRQ-18", "an index for each batch", {}, put("indices", [0, 1])),
    ("DRQ-18", "indices of rank 2", {}, resize("indices", 2, 3)),
    ("DRQ-18", "slot -1", {}, put("indices", [0, 1, 2, 3, 4, -1])),
    ("DRQ-18", "slot past the end", {}, put("indices", [0, 1, 2, 3, 4, 16])),
    ("DRQ-18", "the smallest int32", {}, put("indices", [0, 1, 2, 3, 4, -(2**31)])),
    ("DRQ-18", "slot twice", {}, put("indices", [5, 1, 2, 5, 0, 3])),
    ("DRQ-18", "the largest int64", {},
     both(retype("int64", "indices"), put("indices", [0, 1, 2, 3, 4, 2**63 - 1]))),
    ("DRQ-20", "a zero scale", {}, element("scale_k", 0.0)),
    ("DRQ-20", "a scale of nan", {}, element("scale_v", np.nan)),
    ("DRQ-20", "a scale of inf", {}, element("scale_v", np.inf)),
    ("AT-02", "splits as a number", {}, attribute("size_splits", 512)),
    ("AT-03", "no splits at all", {}, lambda call: call.attrs.pop("size_splits") and None),
    ("IN-03", "a float16 cache", {}, retype("float16", "k_cache", "v_cache")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "what", "options", "change"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_refused(rule: str, what: str, options: dict[str, Any], change: Change) -> None:
    assert_refused(NAME, legal(**options), change, rule, ALIASES)


def test_every_generic_rule_has_a_case() -> None:
    rules = {
        (rule.id, rule.text)
        for rule in OPS[NAME].constraints
        if rule.severity == "error" and "generic" in rule.products
    }
    found = set()
    for _, _, options, change in CASES:
        call = legal(**options)
        change(call)
        found |= {(v.id, v.text) for v in OPS[NAME].check(call.inputs, call.attrs)}
    assert rules <= found


def test_message_names_node_found_and_wanted() -> None:
    call = legal()
    put("indices", [0, 1, 2, 3, 4, 99])(call)
    assert one_node.refusal(NAME, call.inputs, call.attrs) == (
        "onnxruntime refuses the run; found DequantRopeQuantKvcache node 'the node': DRQ-18: an index is out of range "
        "or written twice; found indices[5] = 99, wanted 0 to 15"
    )


def test_dequantisation_inputs_of_a_float_x_are_ignored() -> None:
    """A warning, not an error."""
    call = legal()
    expected = one_node.run(NAME, call.inputs, call.attrs)
    call.inputs["weight_scale"] = np.full(3, np.nan, np.float32)
    assert [v.id for v in OPS[NAME].check(call.inputs, call.attrs)] == ["DRQ-21"]
    found = one_node.run(NAME, call.inputs, call.attrs)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)

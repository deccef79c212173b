"""QkvRmsNormRopeCache: calls that have no meaning are refused like check() does, and nothing is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call, contents, values
from tests.custom_ort.changes import Change, assert_refused, attribute, both, drop, put, resize, retype
from tests.custom_ort.qkv_calls import ALIASES, NAME, cache


def legal(cache_type: str = "float16", *, offset: bool = False) -> Call:
    """2 batches of 3 tokens, 4 query heads, 2 key and value heads of 32 columns, 8 pages of 4."""
    rng = np.random.default_rng(1)
    inputs = {
        "qkv": values(rng, (6, 8 * 32), "float16"),
        "q_gamma": values(rng, (32,), "float16"),
        "k_gamma": values(rng, (32,), "float16"),
        "cos": values(rng, (6, 32), "float16"),
        "sin": values(rng, (6, 32), "float16"),
        "index": np.arange(6),
        "q_out": contents(rng, (6, 4 * 32), "float16"),
        "k_cache": cache(rng, cache_type, 8, 4, 2, 32),
        "v_cache": cache(rng, cache_type, 8, 4, 2, 32),
    }
    if cache_type == "int8":
        inputs["k_scale"], inputs["v_scale"] = np.ones((2, 32), np.float32), np.ones((2, 32), np.float32)
    if offset:
        inputs["k_offset"], inputs["v_offset"] = np.ones((2, 32), np.float32), np.ones((2, 32), np.float32)
    return Call(inputs, {"qkv_size": [2, 3, 8, 32], "head_nums": [4, 2, 2], "is_output_qkv": True})


def sizes(*values: Any) -> Change:
    return attribute("qkv_size", list(values))


def heads(*values: Any) -> Change:
    return attribute("head_nums", list(values))


def element(name: str, value: float) -> Change:
    """One element of an input becomes ``value``."""

    def change(call: Call) -> None:
        call.inputs[name].reshape(-1)[5] = value

    return change


HUGE = 2**62
INT8 = {"cache_type": "int8"}
CASES: list[tuple[str, str, dict[str, Any], Change]] = [
    ("QKV-20", "no tokens", {}, resize("qkv", 0, 256)),
    ("QKV-20", "empty gamma", {}, resize("k_gamma", 0)),
    ("QKV-20", "empty cache of huge other dims", {}, resize("k_cache", 2**30, 2**25, 0, 16)),
    ("QKV-20", "empty scale", INT8, resize("k_scale", 0)),
    ("QKV-20", "empty q_out", {}, resize("q_out", 0, 128)),
    ("QKV-01", "three sizes", {}, sizes(2, 3, 8)),
    ("QKV-01", "no sizes", {}, sizes(-1, -1, -1, -1)),
    ("QKV-01", "a batch of 0", {}, sizes(0, 3, 8, 32)),
    ("QKV-01", "a size of -2", {}, sizes(2, -2, 8, 32)),
    ("QKV-01", "two head numbers", {}, heads(4, 4)),
    ("QKV-01", "no value heads", {}, heads(4, 4, 0)),
    ("QKV-02", "other tokens", {}, sizes(2, 4, 8, 32)),
    ("QKV-02", "tokens that do not divide", {}, sizes(4, -1, 8, 32)),
    ("QKV-02", "another width", {}, sizes(2, 3, 8, 64)),
    ("QKV-02", "qkv of rank 3", {}, resize("qkv", 2, 3, 256)),
    ("QKV-02", "sizes whose product overflows", {}, sizes(HUGE, HUGE, 8, 32)),
    ("QKV-02", "columns whose product overflows", {}, both(sizes(2, 3, 8, HUGE))),
    ("QKV-03", "heads that do not add up", {}, heads(4, 2, 1)),
    ("QKV-03", "heads whose sum overflows", {}, heads(HUGE, HUGE, HUGE)),
    ("QKV-06", "odd width", {}, both(sizes(2, 3, 8, 31), resize("qkv", 6, 248))),
    ("QKV-07", "gamma of another type", {}, retype("float32", "q_gamma")),
    ("QKV-07", "q_out of another type", {}, retype("bfloat16", "q_out")),
    ("QKV-08", "index of another length", {}, put("index", [0, 1, 2])),
    ("QKV-08", "index of rank 2", {}, resize("index", 2, 3)),
    ("QKV-09", "gamma of another width", {}, resize("k_gamma", 16)),
    ("QKV-09", "gamma of rank 2", {}, resize("q_gamma", 1, 32)),
    ("QKV-09", "cos for each batch only", {}, resize("cos", 2, 32)),
    ("QKV-09", "sin of half a row", {}, resize("sin", 6, 16)),
    ("QKV-10", "q_out of other heads", {}, resize("q_out", 6, 64)),
    ("QKV-10", "q_out of rank 3", {}, resize("q_out", 6, 4, 32)),
    ("QKV-11", "a head that does not divide", {},
     both(sizes(2, 3, 8, 24), resize("qkv", 6, 192), resize("q_gamma", 24), resize("k_gamma", 24),
          resize("cos", 6, 24), resize("sin", 6, 24), resize("q_out", 6, 96))),
    ("QKV-11", "a cache of another width", {}, resize("k_cache", 8, 2, 4, 16)),
    ("QKV-11", "a cache in plain dims", {}, resize("v_cache", 8, 4, 2, 32)),
    ("QKV-11", "a cache of rank 5", {}, resize("v_cache", 8, 2, 2, 4, 16)),
    ("QKV-11", "unequal pages", {}, resize("k_cache", 9, 4, 4, 16)),
    ("QKV-11", "unequal page sizes", INT8, resize("v_cache", 8, 2, 8, 32)),
    ("QKV-14", "unknown mode", {}, attribute("cache_mode", "PA")),
    ("QKV-15", "scale with a plain cache", {}, put("v_scale", np.ones((2, 32)))),
    ("QKV-15", "int8 cache without scale", INT8, drop("k_scale")),
    ("QKV-16", "offset without scale", {}, put("k_offset", np.ones((2, 32)))),
    ("QKV-17", "scale of rank 1", INT8, resize("k_scale", 64)),
    ("QKV-17", "scale for one head", INT8, put("k_scale", np.ones((1, 32)))),
    ("QKV-17", "offset of another width", {**INT8, "offset": True}, resize("v_offset", 2, 16)),
    ("QKV-18", "a zero scale", INT8, element("k_scale", 0.0)),
    ("QKV-18", "a negative zero scale", INT8, element("v_scale", -0.0)),
    ("QKV-18", "a scale of nan", INT8, element("v_scale", np.nan)),
    ("QKV-18", "a scale of inf", INT8, element("k_scale", -np.inf)),
    ("QKV-19", "slot -2", {}, put("index", [0, 1, 2, 3, 4, -2])),
    ("QKV-19", "slot past the end", {}, put("index", [0, 1, 2, 3, 4, 32])),
    ("QKV-19", "the smallest int64", {}, put("index", [0, 1, 2, 3, 4, -(2**63)])),
    ("QKV-19", "the largest int64", {}, put("index", [0, 1, 2, 3, 4, 2**63 - 1])),
    ("QKV-19", "slot twice", {}, put("index", [5, 1, 2, 5, -1, -1])),
    ("QKV-23", "epsilon nan", {}, attribute("epsilon", float("nan"))),
    ("AT-02", "sizes as a number", {}, attribute("qkv_size", 4)),
    ("AT-02", "epsilon as a list", {}, attribute("epsilon", [1, 2])),
    ("AT-02", "a flag of 2", {}, attribute("is_output_qkv", 2)),
    ("AT-03", "no head numbers", {}, lambda call: call.attrs.pop("head_nums") and None),
    ("IN-03", "index of int32", {}, retype("int32", "index")),
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
    put("index", [0, 1, 2, 3, 4, 99])(call)
    assert one_node.refusal(NAME, call.inputs, call.attrs) == (
        "onnxruntime refuses the run; found QkvRmsNormRopeCache node 'the node': QKV-19: an index is out of range or "
        "written twice; found index[5] = 99, wanted -1 (skip) to 31"
    )


@pytest.mark.parametrize("qkv_size", [[-1, -1, 8, 32], [2, -1, 8, 32], [-1, 3, 8, 32], [6, 1, 8, 32]])
def test_open_sizes_are_read_from_qkv(qkv_size: list[int]) -> None:
    call = legal()
    expected = one_node.run(NAME, call.inputs, call.attrs)
    found = one_node.run(NAME, call.inputs, call.attrs | {"qkv_size": qkv_size})
    assert all(np.array_equal(found[name], expected[name]) for name in expected)

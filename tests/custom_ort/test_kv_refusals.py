"""Calls that have no meaning are refused with the id and text of the declaration's check, and nothing is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ir_ops.dtypes import Array
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME, Call, contents, values
from tests.custom_ort.changes import Change, assert_refused, attribute, both, drop, put, resize, retype

ALIASES = {"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"}


def legal(
    mode: str = "Norm", *, separate: bool = False, cache: str = "float16", offset: bool = False, batch: int = 2
) -> Call:
    """A legal call with 3 tokens a batch: k rows of 32, v rows of 64, pages of 4."""
    rng = np.random.default_rng(1)
    heads, tokens, k, v = 2 if separate else 1, 3, 32, 64
    paged = mode != "Norm"
    pages = (8, 4, heads) if paged else (batch, heads, 6)
    count = batch if "BLK" in mode else batch * tokens
    slots = np.arange(count) * (4 if "BLK" in mode else 1)
    inputs = {
        "kv": values(rng, (batch, heads, tokens, k if separate else v + k), "float16"),
        "gamma": values(rng, (k if separate else v,), "float16"),
        "cos": values(rng, (batch, 1, tokens, 8 if separate else k), "float16"),
        "sin": values(rng, (batch, 1, tokens, 8 if separate else k), "float16"),
        "index": slots if paged else np.tile(np.arange(tokens), (batch, 1)),
        "k_cache": contents(rng, (*pages, k), cache),
        "ckv_cache": contents(rng, (*pages, v), cache),
    }
    if cache != "float16":
        inputs["k_rope_scale"], inputs["c_kv_scale"] = np.ones(k, np.float32), np.ones((1, v), np.float32)
    if offset:
        inputs["k_rope_offset"], inputs["c_kv_offset"] = np.ones(1, np.float32), np.ones(v, np.float32)
    if separate:
        inputs["v"] = values(rng, (batch, heads, tokens, v), "float16")
    return Call(inputs, {"cache_mode": mode, "is_output_kv": True})


def rope(*shape: int) -> Change:
    """Gives cos and sin another shape."""
    return both(resize("cos", *shape), resize("sin", *shape))


INT8 = {"cache": "int8"}
CASES: list[tuple[str, str, dict[str, Any], Change]] = [
    ("KV-01", "kv of rank 3", {}, resize("kv", 2, 3, 96)),
    ("KV-01", "kv of rank 5", {}, resize("kv", 2, 1, 3, 96, 1)),
    ("KV-02", "no tokens", {}, resize("kv", 2, 1, 0, 96)),
    ("KV-02", "empty gamma", {}, resize("gamma", 0)),
    ("KV-02", "empty index", {}, resize("index", 0)),
    ("KV-02", "empty cache", {"mode": "PA"}, resize("k_cache", 0, 4, 1, 32)),
    ("KV-02", "empty cache of huge other dims", {"mode": "PA"}, resize("k_cache", 2**30, 2**25, 0, 32)),
    ("KV-02", "empty scale", INT8, resize("k_rope_scale", 0)),
    ("KV-03", "gamma of another type", {}, retype("float32", "gamma")),
    ("KV-03", "v of another type", {"separate": True}, retype("bfloat16", "v")),
    ("KV-06", "two heads without v", {}, resize("kv", 2, 2, 3, 96)),
    ("KV-07", "widths that do not add up", {}, resize("kv", 2, 1, 3, 98)),
    ("KV-07", "gamma of rank 2", {}, resize("gamma", 1, 64)),
    ("KV-07", "gamma without rank", {}, put("gamma", 1.0)),
    ("KV-08", "odd rotation", {}, both(resize("kv", 2, 1, 3, 95), rope(2, 1, 3, 31))),
    ("KV-10", "v of other heads", {"separate": True}, resize("v", 2, 1, 3, 64)),
    ("KV-10", "v of rank 3", {"separate": True}, resize("v", 2, 3, 64)),
    ("KV-10", "gamma is not the key", {"separate": True}, resize("gamma", 16)),
    ("KV-10", "rotation wider than the key", {"separate": True}, rope(2, 1, 3, 64)),
    ("KV-11", "sin unlike cos", {}, resize("sin", 2, 1, 1, 32)),
    ("KV-11", "cos of rank 3", {}, rope(2, 3, 32)),
    ("KV-11", "cos of another batch", {}, rope(1, 1, 3, 32)),
    ("KV-11", "cos of other tokens", {}, rope(2, 1, 2, 32)),
    ("KV-11", "cos of other heads", {"separate": True}, rope(2, 3, 3, 8)),
    ("KV-11", "cos without rank", {"separate": True}, both(put("cos", 1.0), put("sin", 1.0))),
    ("KV-12", "unknown mode", {}, attribute("cache_mode", "PA_NHSD")),
    ("KV-12", "empty mode", {}, attribute("cache_mode", "")),
    ("KV-13", "cache of another width", {}, resize("k_cache", 2, 1, 6, 30)),
    ("KV-13", "cache of rank 3", {}, resize("ckv_cache", 2, 6, 64)),
    ("KV-13", "heads in another place", {"separate": True}, resize("k_cache", 2, 6, 2, 32)),
    ("KV-14", "cache of another batch", {}, resize("k_cache", 3, 1, 6, 32)),
    ("KV-14", "cache shorter than the tokens", {},
     both(resize("k_cache", 2, 1, 2, 32), resize("ckv_cache", 2, 1, 2, 64))),
    ("KV-14", "caches of unequal length", {}, resize("k_cache", 2, 1, 7, 32)),
    ("KV-15", "unequal pages", {"mode": "PA"}, resize("k_cache", 9, 4, 1, 32)),
    ("KV-15", "unequal page sizes", {"mode": "PA_NZ"}, resize("k_cache", 4, 8, 1, 32)),
    ("KV-17", "row does not divide", {"mode": "PA_NZ"},
     both(resize("kv", 2, 1, 3, 90), rope(2, 1, 3, 26), resize("k_cache", 8, 4, 1, 26))),
    ("KV-18", "index of another shape", {}, resize("index", 6)),
    ("KV-18", "index too short", {"mode": "PA"}, put("index", [0, 1, 2, 3, 4])),
    ("KV-18", "slots where pages are wanted", {"mode": "PA_BLK_NZ"}, put("index", [0, 4, 8, 12, 16, 20])),
    ("KV-19", "slot -2", {"mode": "PA"}, put("index", [0, 1, 2, 3, 4, -2])),
    ("KV-19", "slot past the end", {"mode": "PA_NZ"}, put("index", [0, 1, 2, 3, 4, 32])),
    ("KV-19", "the smallest int64", {"mode": "PA"}, put("index", [0, 1, 2, 3, 4, -(2**63)])),
    ("KV-19", "the largest int64", {"mode": "PA"}, put("index", [0, 1, 2, 3, 4, 2**63 - 1])),
    ("KV-19", "slot twice", {"mode": "PA"}, put("index", [5, 1, 2, 5, -1, -1])),
    ("KV-19", "row twice in a batch", {}, put("index", [[0, 1, 2], [3, -1, 3]])),
    ("KV-19", "row past the end", {}, put("index", [[0, 1, 2], [3, 4, 6]])),
    ("KV-19", "page twice", {"mode": "PA_BLK_BNSD"}, put("index", [4, 7])),
    ("KV-20", "offset without scale", {}, put("k_rope_offset", [1.0])),
    ("KV-21", "scale with a plain cache", {}, put("c_kv_scale", [1.0])),
    ("KV-21", "8-bit cache without scale", {**INT8, "offset": False}, drop("k_rope_scale")),
    ("KV-22", "scale of another width", INT8, resize("k_rope_scale", 31)),
    ("KV-22", "scale for other heads", INT8, resize("c_kv_scale", 2, 64)),
    ("KV-22", "offset of rank 3", {**INT8, "offset": True}, resize("c_kv_offset", 1, 1, 64)),
    ("KV-23", "two 8-bit types", INT8, retype("float8_e5m2", "k_cache")),
    ("KV-29", "epsilon nan", {}, attribute("epsilon", float("nan"))),
    ("KV-29", "epsilon inf", {}, attribute("epsilon", float("inf"))),
    ("AT-02", "epsilon as a string", {}, attribute("epsilon", "small")),
    ("AT-02", "mode as a number", {}, attribute("cache_mode", 1)),
    ("AT-02", "a flag of 2", {}, attribute("is_output_kv", 2)),
    ("AT-04", "unknown cast", {"cache": "float8_e4m3fn"}, attribute("float8_cast", "truncate")),
    ("IN-03", "index of int32", {}, retype("int32", "index")),
    ("IN-03", "double precision", {}, retype("float64", "kv", "gamma", "cos", "sin", "k_cache", "ckv_cache")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "what", "options", "change"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_refused(rule: str, what: str, options: dict[str, Any], change: Change) -> None:
    """The kernel names the same rule in the same words as check(), and the bound caches keep every byte."""
    assert_refused(NAME, legal(**options), change, rule, ALIASES)


def test_every_generic_rule_has_a_case() -> None:
    """KV-nn rules that bind ``generic`` as errors are all in the table above."""
    rules = {rule.id for rule in OPS[NAME].constraints if rule.severity == "error" and "generic" in rule.products}
    assert rules == {case[0] for case in CASES if case[0].startswith("KV-")}


def test_message_names_node_found_and_wanted() -> None:
    call = legal("PA")
    put("index", [0, 1, 2, 3, 4, 99])(call)
    assert one_node.refusal(NAME, call.inputs, call.attrs) == (
        "onnxruntime refuses the run; found KvRmsNormRopeCache node 'the node': KV-19: an index is out of range or "
        "written twice; found index[5] = 99, wanted -1 (skip) to 31"
    )


def test_warnings_are_not_refused() -> None:
    """A page index inside its page means the page; epsilon 0 is defined."""
    call = legal("PA_BLK_BNSD")
    put("index", [5, 10])(call)
    attribute("epsilon", 0.0)(call)
    found = one_node.run(NAME, call.inputs, call.attrs)
    put("index", [4, 8])(call)
    assert np.array_equal(found["k_cache"], one_node.run(NAME, call.inputs, call.attrs)["k_cache"])


@pytest.mark.parametrize("mode", ["PA", "PA_NZ", "PA_BLK_BNSD"])
def test_paged_index_of_any_shape(mode: str) -> None:
    """The paged modes count the elements of index; its shape says nothing."""
    call = legal(mode)
    flat = one_node.run(NAME, call.inputs, call.attrs)
    call.inputs["index"] = call.inputs["index"].reshape(1, -1, 1)
    shaped: dict[str, Array] = one_node.run(NAME, call.inputs, call.attrs)
    assert all(np.array_equal(flat[name], shaped[name]) for name in flat)

"""MlaPrologV3 calls without a meaning are refused with the id and text of check(), and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import custom_ort
from ir_ops.declaration import Violation
from ir_ops.dtypes import by_name
from ir_ops.errors import KvfuseError
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call
from tests.custom_ort.mla_calls import ALIASES, NAME, random_call

Change = Callable[[Call], None]


def legal(mode: str = "PA_BSND", *, weights: int = 0, cache: int = 0, flat: bool = True, kv_type: str = "int8") -> Call:
    """A legal call of 6 tokens: [6, 64] or [2, 3, 64], caches of 8 pages of 4 rows, 2 heads."""
    rng = np.random.default_rng(1)
    flat = mode == "TND" or (flat and mode != "BSND")
    lead = (6,) if flat else (2, 3)
    while True:
        fixed = {"weights": weights, "cache": cache, "mode": "PA_BSND", "plain": "float16", "kv_type": kv_type}
        call = random_call(rng, **fixed)
        sizes = call.inputs["weight_uk"].shape
        if sizes[0] == 2 and sizes[2] == 32 and call.inputs["rope_cos"].shape[-1] == 32:
            break
    inputs = call.inputs
    for name in ("token_x", "rope_sin", "rope_cos"):
        inputs[name] = np.resize(inputs[name], (*lead, inputs[name].shape[-1]))
    if "dequant_scale_x" in inputs:
        inputs["dequant_scale_x"] = np.resize(inputs["dequant_scale_x"], (6, inputs["dequant_scale_x"].shape[1]))
    rows = {"BSND": (2, 3), "TND": (6,)}.get(mode, (8, 4))
    for name in ALIASES:
        if inputs[name].size:
            inputs[name] = np.resize(inputs[name], (*rows, 1, inputs[name].shape[-1]))
    inputs.pop("cache_index")
    if mode.startswith("PA_BLK"):
        inputs["cache_index"] = np.array([1, 0]) if flat else np.array([[1], [0]])
        if flat:
            inputs["actual_seq_len"] = np.array([2, 6], np.int32)
    elif mode.startswith("PA"):
        inputs["cache_index"] = np.arange(6).reshape(lead)
    call.attrs |= {"cache_mode": mode, "query_quant_mode": 0}
    return call


def put(name: str, array: Any, dtype: Any = None) -> Change:
    def change(call: Call) -> None:
        old = call.inputs.get(name)
        call.inputs[name] = np.asarray(array, dtype or (old.dtype if old is not None else np.float32))

    return change


def resize(name: str, *shape: int) -> Change:
    return lambda call: call.inputs.update({name: np.zeros(shape, call.inputs[name].dtype)})


def last(name: str, change: int) -> Change:
    """Gives an input that many columns more."""

    def apply(call: Call) -> None:
        old = call.inputs[name]
        call.inputs[name] = np.zeros((*old.shape[:-1], old.shape[-1] + change), old.dtype)

    return apply


def retype(dtype: str, *names: str) -> Change:
    return lambda call: call.inputs.update({name: call.inputs[name].astype(by_name(dtype).np) for name in names})


def drop(*names: str) -> Change:
    return lambda call: [call.inputs.pop(name) for name in names] and None


def attribute(**values: Any) -> Change:
    return lambda call: call.attrs.update(values)


def both(*changes: Change) -> Change:
    return lambda call: [change(call) for change in changes] and None


def rope(change: int) -> Change:
    return both(last("rope_sin", change), last("rope_cos", change))


BLK, PACKED = {"mode": "PA_BLK_BSND"}, {"cache": 3}
CASES: list[tuple[str, str, dict[str, Any], Change]] = [
    ("MLA-01", "token_x of rank 1", {}, put("token_x", [1.0, 2.0])),
    ("MLA-01", "token_x of rank 4", {}, resize("token_x", 1, 2, 3, 64)),
    ("MLA-02", "odd rotation", {}, rope(-1)),
    ("MLA-03", "weight_dq of rank 3", {}, resize("weight_dq", 1, 64, 32)),
    ("MLA-03", "weight_uk of rank 2", {}, resize("weight_uk", 2, 32)),
    ("MLA-03", "weight_dq of other rows", {}, last("token_x", 1)),
    ("MLA-03", "weight_uq_qr of other columns", {}, last("weight_uq_qr", 1)),
    ("MLA-03", "weight_uq_qr of other rows", {}, last("weight_dq", 1)),
    ("MLA-03", "weight_dkv_kr of other columns", {}, last("weight_dkv_kr", 3)),
    ("MLA-03", "rotation of another width", {}, rope(2)),
    ("MLA-03", "MX rows that do not divide", {"weights": 3},
     lambda call: [resize(name, *shape)(call) for name, shape in (
         ("token_x", (6, 40)), ("weight_dq", (40, call.inputs["weight_dq"].shape[1])),
         ("weight_dkv_kr", (40, call.inputs["weight_dkv_kr"].shape[1])))] and None),
    ("MLA-04", "gamma of another width", {}, last("rmsnorm_gamma_cq", 1)),
    ("MLA-04", "compressed gamma of another width", {}, last("rmsnorm_gamma_ckv", -1)),
    ("MLA-04", "cos of other tokens", {}, resize("rope_cos", 5, 32)),
    ("MLA-04", "sin of another width", {}, last("rope_sin", 2)),
    ("MLA-05", "unknown mode", {}, attribute(cache_mode="BNSD")),
    ("MLA-06", "BSND of flat tokens", {"mode": "TND"}, attribute(cache_mode="BSND")),
    ("MLA-06", "TND of batches", {"mode": "BSND"}, attribute(cache_mode="TND")),
    ("MLA-07", "no index", {}, drop("cache_index")),
    ("MLA-07", "an index in TND", {"mode": "TND"}, put("cache_index", range(6), np.int64)),
    ("MLA-07", "index of another length", {}, put("cache_index", [0, 1, 2])),
    ("MLA-07", "a flat index of batches", {"flat": False}, put("cache_index", range(6))),
    ("MLA-07", "a matrix of pages for flat tokens", BLK, put("cache_index", [[1], [0]])),
    ("MLA-07", "too many pages", {**BLK, "flat": False}, put("cache_index", [[0, 1], [2, 3]])),
    ("MLA-08", "cache of another width", {}, last("kv_cache", 1)),
    ("MLA-08", "kr_cache of another width", {}, last("kr_cache", 1)),
    ("MLA-08", "cache of rank 3", {}, resize("kv_cache", 8, 4, 32)),
    ("MLA-08", "two cache heads", {}, resize("kv_cache", 8, 2, 2, 32)),
    ("MLA-08", "unequal pages", {}, resize("kr_cache", 9, 4, 1, 32)),
    ("MLA-08", "packed row without its scales", PACKED, last("kv_cache", -4)),
    ("MLA-08", "TND cache of other tokens", {"mode": "TND"},
     both(resize("kv_cache", 7, 1, 32), resize("kr_cache", 7, 1, 32))),
    ("MLA-08", "row does not divide", {"mode": "PA_NZ", "cache": 1},
     both(last("weight_uk", -8), last("weight_dkv_kr", -8), last("rmsnorm_gamma_ckv", -8), last("kv_cache", -8),
          put("quant_scale_ckv", [1.0]))),
    ("MLA-10", "unknown weight mode", {}, attribute(weight_quant_mode=6)),
    ("MLA-10", "unknown cache mode", {}, attribute(kv_cache_quant_mode=-1)),
    ("MLA-11", "unknown query mode", {"cache": 1}, attribute(query_quant_mode=2)),
    ("MLA-11", "quantised query with a plain cache", {}, attribute(query_quant_mode=1)),
    ("MLA-12", "packed rows without the repo mode", PACKED, attribute(ckvkr_repo_mode=0)),
    ("MLA-12", "repo mode without packed rows", {}, attribute(quant_scale_repo_mode=1)),
    ("MLA-13", "packed rows in NZ", PACKED, attribute(cache_mode="PA_NZ")),
    ("MLA-13", "packed rows by page", PACKED, attribute(cache_mode="PA_BLK_BSND")),
    ("MLA-14", "a kr_cache with packed rows", PACKED, resize("kr_cache", 8, 4, 1, 32)),
    ("MLA-15", "int8 weights in mode 0", {"weights": 2}, attribute(weight_quant_mode=0)),
    ("MLA-15", "plain weights in mode 1", {}, attribute(weight_quant_mode=1)),
    ("MLA-15", "hifloat8", {}, attribute(weight_quant_mode=5)),
    ("MLA-15", "float32 scales in MX", {"weights": 4}, attribute(weight_quant_mode=3)),
    ("MLA-15", "an 8-bit cache in mode 0", {"cache": 1}, attribute(kv_cache_quant_mode=0)),
    ("MLA-15", "a plain cache in mode 1", {}, attribute(kv_cache_quant_mode=1)),
    ("MLA-15", "gamma of another type", {}, retype("float32", "rmsnorm_gamma_cq")),
    ("MLA-16", "no scale of weight_uq_qr", {"weights": 1}, drop("dequant_scale_w_uq_qr")),
    ("MLA-16", "no scale of token_x", {"weights": 2}, drop("dequant_scale_x")),
    ("MLA-16", "a scale of plain weights", {}, put("dequant_scale_w_dq", [[1.0]])),
    ("MLA-16", "smooth scales of plain weights", {}, put("smooth_scales_cq", [[1.0]])),
    ("MLA-16", "scale of other columns", {"weights": 1}, last("dequant_scale_w_uq_qr", 1)),
    ("MLA-16", "scale of other tokens", {"weights": 2}, resize("dequant_scale_x", 5, 1)),
    ("MLA-16", "MX scale of other blocks", {"weights": 3}, last("dequant_scale_w_dq", 1)),
    ("MLA-16", "no cache scale", {"cache": 1}, drop("quant_scale_ckv")),
    ("MLA-16", "unequal entries", {"cache": 1}, lambda call: put("quant_scale_ckv", [[1.0] * 31 + [2.0]])(call)),
    ("MLA-16", "one scale by channel", {"cache": 2}, put("quant_scale_ckv", [1.0])),
    ("MLA-16", "no clip", PACKED, drop("k_nope_clip_alpha")),
    ("MLA-16", "clip of a float8 tile", {"cache": 3, "kv_type": "float8_e4m3fn"}, put("k_nope_clip_alpha", [1.0])),
    ("MLA-17", "no lengths", BLK, drop("actual_seq_len")),
    ("MLA-17", "lengths of batches", {**BLK, "flat": False}, put("actual_seq_len", [3, 6], np.int32)),
    ("MLA-17", "lengths in PA_BSND", {}, put("actual_seq_len", [3, 6], np.int32)),
    ("MLA-17", "lengths that fall", BLK, put("actual_seq_len", [7, 6])),
    ("MLA-17", "a negative length", BLK, put("actual_seq_len", [-1, 6])),
    ("MLA-17", "lengths that do not end with T", BLK, put("actual_seq_len", [2, 5])),
    ("MLA-17", "lengths of rank 2", BLK, put("actual_seq_len", [[2, 6]])),
    ("MLA-18", "tiles that do not divide", PACKED, attribute(tile_size=5)),
    ("MLA-18", "tiles of nothing", PACKED, attribute(tile_size=0)),
    ("MLA-19", "slot -2", {}, put("cache_index", [0, 1, 2, 3, 4, -2])),
    ("MLA-19", "slot past the end", {}, put("cache_index", [0, 1, 2, 3, 4, 32])),
    ("MLA-19", "the largest int64", {}, put("cache_index", [0, 1, 2, 3, 4, 2**63 - 1])),
    ("MLA-19", "slot twice", {}, put("cache_index", [5, 1, 2, 5, -1, -1])),
    ("MLA-19", "page past the end", BLK, put("cache_index", [0, 8])),
    ("MLA-19", "page twice", BLK, put("cache_index", [3, 3])),
    ("MLA-20", "epsilon nan", {}, attribute(rmsnorm_epsilon_cq=float("nan"))),
    ("MLA-20", "compressed epsilon inf", {}, attribute(rmsnorm_epsilon_ckv=float("inf"))),
    ("MLA-21", "no hidden columns", {}, resize("token_x", 6, 0)),
    ("MLA-21", "an empty weight", {}, resize("weight_uk", 2, 0, 32)),
    ("MLA-21", "an empty weight of huge other dims", {}, resize("weight_uk", 0, 2**30, 2**30)),
    ("MLA-21", "an empty gamma", {}, resize("rmsnorm_gamma_cq", 0)),
    ("MLA-21", "a cache without columns", {}, resize("kr_cache", 8, 4, 1, 0)),
    ("MLA-21", "an empty scale", {"cache": 1}, resize("quant_scale_ckv", 0)),
    ("AT-02", "a flag of 2", {}, attribute(query_norm_flag=2)),
    ("AT-02", "a mode as a string", {}, attribute(weight_quant_mode="2")),
    ("IN-03", "index of int32", {}, retype("int32", "cache_index")),
    ("IN-03", "double precision", {}, retype("float64", "weight_uk")),
]  # fmt: skip


def errors(call: Call) -> list[Violation]:
    return [found for found in OPS[NAME].check(call.inputs, call.attrs) if found.severity == "error"]


@pytest.mark.parametrize(("rule", "what", "options", "change"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_refused(rule: str, what: str, options: dict[str, Any], change: Change) -> None:
    """The kernel names the same rule in the same words as check(), and the bound caches keep every byte."""
    call = legal(**options)
    assert not errors(call)
    change(call)
    expected = errors(call)[0]
    assert expected.id == rule
    before = {name: one_node.bits(call.inputs[name]).copy() for name in ALIASES}
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    with pytest.raises(KvfuseError) as caught:
        custom_ort.bind(one_node.session(proto), call.inputs, ALIASES).run()
    assert f"{rule}: {expected.text}; found " in str(caught.value)
    assert NAME in str(caught.value)
    assert "\n" not in str(caught.value)
    for name, kept in before.items():
        assert np.array_equal(one_node.bits(call.inputs[name]), kept), name


def test_every_generic_rule_has_a_case() -> None:
    rules = {rule.id for rule in OPS[NAME].constraints if rule.severity == "error" and "generic" in rule.products}
    assert rules == {case[0] for case in CASES if case[0].startswith("MLA-")}


def test_message_names_node_found_and_wanted() -> None:
    call = legal()
    put("cache_index", [0, 1, 2, 3, 4, 99])(call)
    assert one_node.refusal(NAME, call.inputs, call.attrs) == (
        "onnxruntime refuses the run; found MlaPrologV3 node 'the node': MLA-19: an index is out of range or written "
        "twice; found cache_index[5] = 99, wanted -1 (skip) to 31"
    )

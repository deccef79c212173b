"""One breach of each rule of FusedInferAttentionScore that binds ``generic``, as a change of a legal call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.custom_ort.block_breaches import Change, attribute, both, put, resize, retype
from tests.custom_ort.calls import Call
from tests.custom_ort.fia_calls import Plan, build, whole_int8

_BASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "single": {"lengths": [1, 1]},
    "bsh": {"layout": "BSH"},
    "tnd": {"layout": "TND"},
    "pages": {"pages": 3, "layout": "TND"},
    "nz": {"pages": 5},
    "rope": {"rope": 32},
    "full": {"mode": 1, "masked": True},
    "int8": {"key": "int8"},
    "int8 tokens": {"key": "int8", "antiquant": 1},
}


def legal(base: str) -> Call:
    """A small legal call."""
    rng = np.random.default_rng(5)
    if base == "whole":
        return whole_int8(rng, "BSND_NBSD", [2, 2], [9, 20], 3)
    plan = Plan("BSND", "float16", "float16", 4, 2, 64, 64, 0, 0, 16, [3, 3], [9, 20], 3, False, 0)
    for name, value in _BASES[base].items():
        setattr(plan, name, value)
    call = build(rng, plan)
    call.inputs.pop("learnable_sink", None)
    call.attrs |= {"num_key_value_heads": 2, "softmax_lse_flag": False}
    for name in ("key", "value"):
        if plan.key == "int8":
            call.attrs[f"{name}_antiquant_mode"] = plan.antiquant
            shape = (2, 30) if plan.antiquant == 1 else (2, 64)
            call.inputs[f"{name}_antiquant_scale"] = np.ones(shape, np.float16 if plan.antiquant == 0 else np.float32)
            call.inputs[f"{name}_antiquant_offset"] = call.inputs[f"{name}_antiquant_scale"]
    call.inputs.setdefault("actual_seq_lengths", np.array(plan.lengths, np.int64))
    if plan.mode == 1:
        call.inputs["atten_mask"] = np.zeros((2, 3, call.inputs["key"].shape[1]), np.bool_)
    return call


@dataclass(frozen=True)
class Breach:
    """A rule, the legal call, and the change that breaks it."""

    rule: str
    base: str
    what: str
    change: Change

    def __str__(self) -> str:
        return f"{self.rule}-{self.base}-{self.what}".replace(" ", "_")

    def call(self) -> Call:
        call = legal(self.base)
        self.change(call)
        return call


def give(name: str, array: Any) -> Change:
    return lambda call: call.inputs.update({name: array})


def drop(*names: str) -> Change:
    return lambda call: [call.inputs.pop(name) for name in names] and None


def _half(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


BREACHES = [Breach(*row) for row in (
    ("FA-22", "plain", "pse_shift", give("pse_shift", _half(2, 4, 3, 20))),
    ("FA-22", "plain", "left padding", give("kv_padding_size", np.zeros(1, np.int64))),
    ("FA-22", "plain", "joint antiquant", attribute("antiquant_mode", 1)),
    ("FA-01", "plain", "unknown layout", attribute("input_layout", "SBH")),
    ("FA-02", "plain", "no heads", attribute("num_heads", 0)),
    ("FA-02", "plain", "heads that do not divide", attribute("num_key_value_heads", 3)),
    ("FA-01", "plain", "query of rank 3", resize(query=(2, 3, 256))),
    ("FA-01", "plain", "other heads", attribute("num_heads", 8)),
    ("FA-01", "bsh", "columns that do not divide", resize(query=(2, 3, 255))),
    ("FA-01", "plain", "no batch", resize(query=(0, 3, 4, 64))),
    ("FA-03", "plain", "value of another type", retype("float32", "value")),
    ("FA-04", "plain", "bfloat16 key of a float16 query", retype("bfloat16", "key", "value")),
    ("FA-08", "plain", "block_size without table", attribute("block_size", 16)),
    ("FA-08", "pages", "table without block_size", attribute("block_size", 0)),
    ("FA-05", "rope", "no key_rope", drop("key_rope")),
    ("FA-05", "rope", "query_rope of another type", retype("float32", "query_rope")),
    ("FA-05", "rope", "key_rope of another type", retype("float32", "key_rope")),
    ("FA-11", "tnd", "no lengths", drop("actual_seq_lengths")),
    ("FA-11", "tnd", "no key lengths", drop("actual_seq_lengths_kv")),
    ("FA-11", "nz", "no key lengths of pages", drop("actual_seq_lengths_kv")),
    ("FA-12", "plain", "too few lengths", resize(query=(3, 3, 4, 64))),
    ("FA-12", "plain", "lengths of rank 2", resize(actual_seq_lengths_kv=(1, 2))),
    ("FA-12", "tnd", "one key length", resize(actual_seq_lengths_kv=(1,))),
    ("FA-12", "tnd", "no entries", resize(actual_seq_lengths=(0,))),
    ("FA-03", "plain", "key of another width", resize(key=(2, 20, 2, 63))),
    ("FA-03", "plain", "key of other heads", resize(key=(2, 20, 1, 64))),
    ("FA-03", "plain", "key of another batch", resize(key=(1, 20, 2, 64))),
    ("FA-03", "pages", "key of rank 2", resize(key=(9, 128))),
    ("FA-03", "nz", "fractals of another type", resize(key=(9, 2, 2, 16, 32))),
    ("FA-03", "nz", "pages of another size", resize(key=(9, 2, 4, 8, 16))),
    ("FA-03", "plain", "value of other tokens", resize(value=(2, 99, 2, 64))),
    ("FA-03", "pages", "value in other pages", resize(value=(99, 16, 128))),
    ("FA-03", "bsh", "value that does not divide", resize(value=(2, 20, 127))),
    ("FA-03", "plain", "value without columns", resize(value=(2, 20, 2, 0))),
    ("FA-05", "rope", "query_rope of other heads", resize(query_rope=(2, 3, 2, 32))),
    ("FA-05", "rope", "key_rope of another width", resize(key_rope=(2, 20, 2, 16))),
    ("FA-05", "rope", "key_rope of other tokens", resize(key_rope=(2, 99, 2, 32))),
    ("FA-08", "pages", "table of another batch", resize(block_table=(3, 2))),
    ("FA-13", "plain", "tree", attribute("sparse_mode", 9)),
    ("FA-13", "full", "no mask", drop("atten_mask")),
    ("FA-13", "full", "no triangle", attribute("sparse_mode", 3)),
    ("FA-14", "tnd", "full mask", both(attribute("sparse_mode", 0), give("atten_mask", np.zeros((6, 29), np.bool_)))),
    ("FA-14", "single", "band of one token", attribute("sparse_mode", 4)),
    ("FA-14", "single", "left corner of one token", attribute("sparse_mode", 2)),
    ("FA-15", "plain", "band of extremes", both(attribute("sparse_mode", 4), attribute("pre_tokens", -1),
                                               attribute("next_tokens", -(2**63)))),
    ("FA-15", "plain", "empty band", both(attribute("sparse_mode", 4), attribute("pre_tokens", -3),
                                          attribute("next_tokens", 2))),
    ("FA-15", "full", "band beside a mask", both(attribute("sparse_mode", 0), attribute("next_tokens", 0))),
    ("FA-16", "full", "too few columns", resize(atten_mask=(2, 3, 8))),
    ("FA-16", "full", "too few rows", resize(atten_mask=(1, 2, 30))),
    ("FA-16", "full", "mask of another batch", resize(atten_mask=(3, 1, 3, 30))),
    ("FA-16", "full", "mask for heads", resize(atten_mask=(2, 4, 3, 30))),
    ("FA-16", "single", "rows of the batch", both(attribute("sparse_mode", 1),
                                                  give("atten_mask", np.zeros((1, 30), np.bool_)))),
    ("FA-18", "int8", "no key scale", drop("key_antiquant_scale", "key_antiquant_offset", "value_antiquant_offset")),
    ("FA-18", "plain", "scale of a float key", give("value_antiquant_scale", np.ones(1, np.float32))),
    ("FA-17", "int8", "one offset", drop("value_antiquant_offset")),
    ("FA-17", "int8", "offset of another shape", resize(value_antiquant_offset=(128,))),
    ("FA-17", "int8", "offset of another type", retype("float32", "key_antiquant_offset")),
    ("FA-17", "int8", "scale of another type", retype("bfloat16", "key_antiquant_scale", "key_antiquant_offset")),
    ("FA-17", "int8", "unequal modes", attribute("key_antiquant_mode", 2)),
    ("FA-17", "int8", "scale of another shape", resize(key_antiquant_scale=(64,), key_antiquant_offset=(64,))),
    ("FA-17", "int8 tokens", "too few tokens", resize(value_antiquant_scale=(2, 8), value_antiquant_offset=(2, 8))),
    ("FA-19", "whole", "no scale of the query", drop("dequant_scale_query")),
    ("FA-19", "whole", "another mode", attribute("query_quant_mode", 0)),
    ("FA-19", "whole", "no rope parts", drop("query_rope", "key_rope")),
    ("FA-19", "whole", "scale of another shape", resize(dequant_scale_query=(2, 4, 2))),
    ("FA-19", "whole", "scale by token", both(attribute("key_antiquant_mode", 1),
                                              attribute("value_antiquant_mode", 1))),
    ("FA-19", "whole", "several scales", resize(value_antiquant_scale=(64,))),
    ("FA-19", "plain", "mode of int8", attribute("query_quant_mode", 3)),
    ("FA-19", "plain", "scale of a float query", give("dequant_scale_query", np.ones((2, 3, 4), np.float32))),
    ("FA-20", "plain", "sink of another size", give("learnable_sink", _half(2))),
    ("FA-20", "plain", "sink of another type", give("learnable_sink", np.zeros(4, np.float32))),
    ("FA-20", "int8", "sink beside int8 keys", give("learnable_sink", _half(4))),
    ("FA-25", "plain", "scale nan", attribute("scale", float("nan"))),
    ("FA-11", "tnd", "falling sums", put("actual_seq_lengths", [4, 3])),
    ("FA-11", "tnd", "a fall beyond what 64 bits hold", put("actual_seq_lengths", [4, -(2**63)])),
    ("FA-11", "tnd", "sums beyond the keys", put("actual_seq_lengths_kv", [9, 99])),
    ("FA-12", "plain", "negative length", put("actual_seq_lengths_kv", [-1, 3])),
    ("FA-12", "plain", "length beyond the tokens", put("actual_seq_lengths", [3, 4])),
    ("FA-12", "pages", "length beyond the pages", put("actual_seq_lengths_kv", [9, 999])),
    ("FA-09", "pages", "page -1", lambda call: call.inputs["block_table"].__setitem__((1, 0), -1)),
    ("FA-09", "pages", "page behind the last", lambda call: call.inputs["block_table"].__setitem__((0, 0), 77)),
)]  # fmt: skip

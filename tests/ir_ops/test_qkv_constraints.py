"""Every numbered constraint of QkvRmsNormRopeCache: a call that breaches it under each product that it binds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ir_ops.declaration import TensorSpec, Undecided
from ir_ops.ops import OPS
from tests.ir_ops.breaches import (
    Breach,
    Change,
    Inputs,
    assert_all_breached,
    assert_breach,
    attr,
    both,
    drop,
    dtype,
    give,
    index,
    shape,
)

OP = OPS["QkvRmsNormRopeCache"]


@dataclass(frozen=True)
class Base:
    """A legal call that A2 and A3 take: 2 batches of 3 tokens, 4 query and 2 key and value heads, 8 pages of 32."""

    kind: str = "float16"
    cache: str = ""

    def call(self) -> tuple[Inputs, dict[str, Any]]:
        cache = self.cache or self.kind
        d0 = 32 if cache == "int8" else 16
        inputs: Inputs = {
            "qkv": TensorSpec(self.kind, (6, 1024)),
            "q_gamma": TensorSpec(self.kind, (128,)),
            "k_gamma": TensorSpec(self.kind, (128,)),
            "cos": TensorSpec(self.kind, (6, 128)),
            "sin": TensorSpec(self.kind, (6, 128)),
            "index": np.arange(6),
            "q_out": TensorSpec(self.kind, (6, 512)),
            "k_cache": TensorSpec(cache, (8, 256 // d0, 32, d0)),
            "v_cache": TensorSpec(cache, (8, 256 // d0, 32, d0)),
        }
        if self.cache:
            inputs["k_scale"], inputs["v_scale"] = np.ones((2, 128), np.float32), np.ones((2, 128), np.float32)
        return inputs, {"qkv_size": [2, 3, 8, 128], "head_nums": [4, 2, 2]}


PLAIN = Base()
INT8 = Base(cache="int8")
ALL = ("qkv", "q_gamma", "k_gamma", "cos", "sin", "q_out", "k_cache", "v_cache")


def sizes(*values: int) -> Change:
    return attr("qkv_size", list(values))


def heads(*values: int) -> Change:
    return attr("head_nums", list(values))


def scale(name: str, value: float) -> Change:
    return lambda inputs, attrs: inputs.update({name: np.full((2, 128), value, np.float32)})


BREACHES = [
    Breach("QKV-20", "no input", PLAIN, shape("q_gamma", 0), "q_gamma [0]"),
    Breach("QKV-01", "qkv_size is", PLAIN, sizes(2, 3, 8), "qkv_size [2, 3, 8]"),
    Breach("QKV-01", "qkv_size is", PLAIN, sizes(0, 3, 8, 128), "qkv_size [0, 3, 8, 128]"),
    Breach("QKV-01", "qkv_size is", PLAIN, sizes(2, 3, -1, 128), "qkv_size [2, 3, -1, 128]"),
    Breach("QKV-01", "qkv_size is", PLAIN, heads(4, 2), "head_nums [4, 2]"),
    Breach("QKV-01", "qkv_size is", PLAIN, heads(4, 4, 0), "head_nums [4, 4, 0]"),
    Breach("QKV-01", "the product", PLAIN, sizes(2, -1, 8, 128), "qkv_size [2, -1, 8, 128]"),
    Breach("QKV-02", "qkv must", PLAIN, shape("qkv", 6, 1023), "qkv [6, 1023]"),
    Breach("QKV-02", "qkv must", PLAIN, sizes(2, 4, 8, 128), "qkv [6, 1024]"),
    Breach("QKV-02", "qkv must", PLAIN, sizes(4, -1, 8, 128), "qkv [6, 1024]"),
    Breach("QKV-03", "the heads", PLAIN, heads(4, 2, 1), "head_nums [4, 2, 1] with Nqkv = 8"),
    Breach("QKV-03", "the product", PLAIN, heads(4, 1, 3), "Nk = 1, Nv = 3"),
    Breach("QKV-04", "the product", PLAIN, heads(2, 3, 3), "Nq = 2, Nk = 3"),
    Breach("QKV-04", "query heads", PLAIN, heads(2, 3, 3), "Nq = 2, Nk = 3"),
    Breach("QKV-05", "the product", PLAIN, sizes(2, 3, 16, 64), "D = 64"),
    Breach("QKV-06", "the head", PLAIN, sizes(2, 3, 8, 127), "D 127"),
    Breach("QKV-06", "the product", PLAIN, sizes(2, 3, 8, 120), "D = 120, 240 bytes"),
    Breach("QKV-07", "the product", PLAIN, dtype("float32", *ALL), "qkv float32"),
    Breach("QKV-07", "q_gamma", PLAIN, dtype("float32", "sin"), "sin float32"),
    Breach("QKV-07", "q_gamma", PLAIN, dtype("bfloat16", "q_out"), "q_out bfloat16"),
    Breach("QKV-08", "index", PLAIN, index(0, 1, 2), "index [3]"),
    Breach("QKV-09", "a gamma", PLAIN, shape("k_gamma", 64), "k_gamma [64]"),
    Breach("QKV-09", "cos", PLAIN, shape("cos", 2, 128), "cos [2, 128]"),
    Breach("QKV-10", "q_out", PLAIN, shape("q_out", 6, 1024), "q_out [6, 1024]"),
    Breach("QKV-11", "a head", INT8, sizes(2, 3, 8, 120), "k_cache width 120"),
    Breach("QKV-11", "a cache", PLAIN, shape("k_cache", 8, 32, 2, 128), "k_cache [8, 32, 2, 128]"),
    Breach("QKV-11", "the caches", PLAIN, shape("v_cache", 8, 16, 64, 16), "k_cache [8, 32], v_cache [8, 64]"),
    Breach("QKV-12", "the product", INT8, both(shape("k_cache", 8, 8, 16, 32), shape("v_cache", 8, 8, 16, 32)),
           "block_size 16"),
    Breach("QKV-12", "the product", PLAIN, both(shape("k_cache", 8, 16, 8, 16), shape("v_cache", 8, 16, 8, 16)),
           "block_size 8"),
    Breach("QKV-13", "the product", PLAIN, both(shape("k_cache", 1, 16, 32, 16), shape("v_cache", 1, 16, 32, 16)),
           "block_num 1"),
    Breach("QKV-13", "block_num", PLAIN, both(shape("k_cache", 1, 16, 32, 16), shape("v_cache", 1, 16, 32, 16)),
           "block_num 1"),
    Breach("QKV-14", "unknown", PLAIN, attr("cache_mode", "PA"), "cache_mode 'PA'"),
    Breach("QKV-15", "a scale", PLAIN, give("v_scale", 2, 128), "v_scale with a float16 v_cache"),
    Breach("QKV-15", "a scale", INT8, drop("k_scale"), "int8 k_cache without k_scale"),
    Breach("QKV-16", "an offset", PLAIN, give("k_offset", 2, 128), "k_offset without k_scale"),
    Breach("QKV-17", "a quantisation parameter of the keys", INT8, give("k_scale", 128), "k_scale [128]"),
    Breach("QKV-17", "a quantisation parameter of the values", INT8, give("v_offset", 1, 128), "v_offset [1, 128]"),
    Breach("QKV-18", "a scale", INT8, scale("k_scale", 0.0), "k_scale[0] = 0.0"),
    Breach("QKV-18", "a scale", INT8, scale("v_scale", np.nan), "v_scale[0] = nan"),
    Breach("QKV-19", "an index", PLAIN, index(0, 1, 2, 3, 4, 256), "index[5] = 256"),
    Breach("QKV-19", "an index", PLAIN, index(0, 1, 2, 3, 4, -2), "index[5] = -2"),
    Breach("QKV-19", "an index", PLAIN, index(0, 1, 2, 3, 4, 1), "index[5] = 1 again"),
    Breach("QKV-23", "epsilon must", PLAIN, attr("epsilon", float("inf")), "epsilon inf"),
    Breach("QKV-23", "epsilon should", PLAIN, attr("epsilon", 0.0), "epsilon 0.0"),
]  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_breach(breach: Breach) -> None:
    assert_breach(OP, breach)


def test_every_constraint_is_breached_above() -> None:
    """But for QKV-22, which every call breaches under the products without the operator."""
    assert_all_breached(OP, BREACHES, but=("QKV-22",))


@pytest.mark.parametrize("base", [PLAIN, INT8, Base("bfloat16"), Base("bfloat16", "int8")], ids=str)
def test_legal_calls(base: Base) -> None:
    for product in ("generic", "A3", "A2"):
        assert OP.check(*base.call(), product) == []
    for product in ("950", "kirin"):
        assert [v.id for v in OP.check(*base.call(), product)] == ["QKV-22"]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("no buffer for q", drop("q_out")),
        ("open sizes", sizes(-1, -1, 8, 128)),
        ("one open size", sizes(-1, 3, 8, 128)),
        ("float32", both(dtype("float32", *ALL), shape("k_cache", 8, 32, 32, 8), shape("v_cache", 8, 32, 32, 8))),
        ("float32 rows in float16 caches", both(dtype("float32", *ALL), dtype("float16", "k_cache", "v_cache"))),
        ("more value heads than key heads", both(heads(4, 1, 3), shape("k_cache", 8, 8, 32, 16),
                                                 shape("v_cache", 8, 24, 32, 16))),
        ("pages of 3 tokens", both(shape("k_cache", 8, 16, 3, 16), shape("v_cache", 8, 16, 3, 16))),
        ("one int8 cache", both(dtype("int8", "v_cache"), shape("v_cache", 8, 8, 32, 32), give("v_scale", 2, 128))),
        ("-1 many times", index(-1, -1, 3, -1, -1, -1)),
        ("the last slot", index(255, 1, 2, 3, 4, 5)),
    ],
)  # fmt: skip
def test_generic_takes_what_has_a_meaning(what: str, change: Change) -> None:
    inputs, attrs = PLAIN.call()
    change(inputs, attrs)
    assert OP.check(inputs, attrs) == [], what


def test_what_is_not_known_is_not_violated() -> None:
    inputs, attrs = PLAIN.call()
    for shapes in (lambda rank: None, lambda rank: (None,) * rank):
        unknown = {
            name: TensorSpec(spec.dtype if isinstance(spec, TensorSpec) else "int64", shapes(len(spec.shape or ())))
            for name, spec in inputs.items()
        }
        assert OP.check(unknown, attrs) == []


def test_sizes_for_ge() -> None:
    """Open sizes come from the number of tokens; where both are open the tokens are one sequence."""
    specs = {"qkv": TensorSpec("float16", (6, 1024))}
    for given, settled in (([-1, -1], [1, 6]), ([2, -1], [2, 3]), ([-1, 3], [2, 3]), ([3, 2], [3, 2])):
        attrs = OP.with_defaults({"qkv_size": [*given, 8, 128], "head_nums": [4, 2, 2]})
        assert OP.ge_attrs(specs, attrs)["qkv_size"] == [*settled, 8, 128]
    unknown = {"qkv": TensorSpec("float16", (None, 1024))}
    attrs = OP.with_defaults({"qkv_size": [-1, 3, 8, 128], "head_nums": [4, 2, 2]})
    with pytest.raises(Undecided):
        OP.ge_attrs(unknown, attrs)

"""Every numbered constraint of KvRmsNormRopeCache: a call that breaches it under each product that it binds.

The calls are specs with a real index; the kernel's own refusals are tested in tests/custom_ort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ir_ops.declaration import PRODUCTS, TensorSpec
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

OP = OPS["KvRmsNormRopeCache"]


@dataclass(frozen=True)
class Base:
    """A legal call of the widths that all products take: 2 batches of 3 tokens, 8 pages of 32."""

    mode: str = "PA_BNSD"
    separate: bool = False
    kind: str = "float16"
    cache: str = ""
    products: tuple[str, ...] = PRODUCTS

    def call(self) -> tuple[Inputs, dict[str, Any]]:
        heads, rope, k, v = (4, 64, 192, 128) if self.separate else (1, 64, 64, 512)
        paged = self.mode != "Norm"
        cache = self.cache or self.kind
        pages = (8, 32, heads) if paged else (2, heads, 8)
        inputs: Inputs = {
            "kv": TensorSpec(self.kind, (2, heads, 3, k if self.separate else k + v)),
            "gamma": TensorSpec(self.kind, (k if self.separate else v,)),
            "cos": TensorSpec(self.kind, (2, heads, 3, rope)),
            "sin": TensorSpec(self.kind, (2, heads, 3, rope)),
            "index": np.arange(6).reshape((2, 3) if not paged else (6,)) if not self.blocks else np.array([32, 64]),
            "k_cache": TensorSpec(cache, (*pages, k)),
            "ckv_cache": TensorSpec(cache, (*pages, v)),
        }
        if self.cache:
            inputs["k_rope_scale"] = TensorSpec("float32", (heads, k) if self.separate else (k,))
            inputs["c_kv_scale"] = TensorSpec("float32", (heads, v) if self.separate else (v,))
        if self.separate:
            inputs["v"] = TensorSpec(self.kind, (2, heads, 3, v))
        return inputs, {"cache_mode": self.mode}

    @property
    def blocks(self) -> bool:
        return "BLK" in self.mode


PLAIN = Base()
NORM = Base("Norm")
NZ = Base("PA_NZ")
BLOCKS = Base("PA_BLK_NZ")
SEPARATE = Base(separate=True, products=("generic", "950", "A3", "A2"))
INT8 = Base(cache="int8")
SEPARATE_INT8 = Base(separate=True, cache="int8", products=("generic", "950", "A3", "A2"))
BASES = [
    PLAIN, NORM, NZ, BLOCKS, SEPARATE, INT8, SEPARATE_INT8, Base("PA", cache="int8"),
    Base("PA_BLK_BNSD", kind="bfloat16", products=("generic", "950", "A3", "A2")),
    Base("Norm", separate=True, cache="int8", products=("A3", "A2")),
]  # fmt: skip


def rope(*dims: int) -> Change:
    return both(shape("cos", *dims), shape("sin", *dims))


ALL = ("kv", "gamma", "cos", "sin", "k_cache", "ckv_cache")


BREACHES = [
    Breach("KV-01", "kv", PLAIN, shape("kv", 2, 3, 576), "kv [2, 3, 576]"),
    Breach("KV-02", "no", PLAIN, shape("gamma", 0), "gamma [0]"),
    Breach("KV-03", "gamma", PLAIN, dtype("float32", "sin"), "sin float32"),
    Breach("KV-03", "gamma", SEPARATE, dtype("float32", "v"), "v float32"),
    Breach("KV-04", "the", PLAIN, dtype("float32", *ALL), "kv float32"),
    Breach("KV-06", "a joined", PLAIN, shape("kv", 2, 2, 3, 576), "N = 2 without v"),
    Breach("KV-06", "the product", SEPARATE, shape("kv", 2, 3, 3, 192), "N = 3"),
    Breach("KV-07", "the", PLAIN, shape("kv", 2, 1, 3, 575), "D = 575"),
    Breach("KV-07", "the", PLAIN, shape("gamma", 1, 512), "gamma [1, 512]"),
    Breach("KV-08", "the", PLAIN, rope(2, 1, 3, 63), "rope width 63"),
    Breach("KV-09", "the", PLAIN, rope(2, 1, 3, 62), "Dk = 62, Dv = 512"),
    Breach("KV-10", "v,", SEPARATE, shape("v", 2, 4, 2, 128), "v [2, 4, 2, 128]"),
    Breach("KV-10", "v,", SEPARATE, shape("gamma", 190), "gamma [190]"),
    Breach("KV-10", "v,", SEPARATE, rope(2, 4, 3, 194), "rope width 194"),
    Breach("KV-10", "the", SEPARATE, rope(2, 4, 3, 32), "key, rope, v widths 192, 32, 128"),
    Breach("KV-11", "cos and sin must", PLAIN, shape("sin", 2, 1, 3, 32), "sin [2, 1, 3, 32]"),
    Breach("KV-11", "cos and sin must", PLAIN, rope(2, 1, 2, 64), "cos [2, 1, 2, 64]"),
    Breach("KV-11", "the product", SEPARATE, rope(2, 1, 3, 64), "cos dim 1 = 1"),
    Breach("KV-12", "unknown", PLAIN, attr("cache_mode", "PA_BSND"), "cache_mode 'PA_BSND'"),
    Breach("KV-13", "a", PLAIN, shape("k_cache", 8, 32, 1, 128), "k_cache [8, 32, 1, 128]"),
    Breach("KV-13", "a", NORM, shape("ckv_cache", 2, 8, 1, 512), "ckv_cache [2, 8, 1, 512]"),
    Breach("KV-14", "the", NORM, shape("k_cache", 3, 1, 8, 64), "k_cache batch 3"),
    Breach("KV-14", "the", NORM, shape("ckv_cache", 2, 1, 2, 512), "ckv_cache rows 2"),
    Breach("KV-14", "the", NORM, shape("ckv_cache", 2, 1, 9, 512), "rows 8 and 9"),
    Breach("KV-15", "the paged", PLAIN, shape("k_cache", 9, 32, 1, 64), "k_cache [9, 32], ckv_cache [8, 32]"),
    Breach("KV-15", "the product", PLAIN, both(shape("k_cache", 8, 1, 1, 64), shape("ckv_cache", 8, 1, 1, 512)),
           "block_size 1"),
    Breach("KV-16", "the", PLAIN, both(shape("k_cache", 8, 24, 1, 64), shape("ckv_cache", 8, 24, 1, 512)),
           "block_size 24"),
    Breach("KV-16", "the", INT8, both(shape("k_cache", 8, 48, 1, 64), shape("ckv_cache", 8, 48, 1, 512)),
           "block_size 48"),
    Breach("KV-17", "an", NZ, rope(2, 1, 3, 24), "k_cache width 24"),
    Breach("KV-17", "an", Base("PA_BLK_NZ", cache="int8"), shape("gamma", 528), "ckv_cache width 528"),
    Breach("KV-18", "index", PLAIN, index(0, 1, 2, 3, 4), "index [5]"),
    Breach("KV-18", "index", NORM, index(0, 1, 2, 3, 4, 5), "index [6]"),
    Breach("KV-18", "index", BLOCKS, index(0, 32, 64), "index [3]"),
    Breach("KV-19", "an", PLAIN, index(0, 1, 2, 3, 4, 256), "index[5] = 256"),
    Breach("KV-19", "an", PLAIN, index(-2, 1, 2, 3, 4, 5), "index[0] = -2"),
    Breach("KV-19", "an", PLAIN, index(7, 1, 2, 3, 4, 7), "index[5] = 7 again"),
    Breach("KV-19", "an", NORM, index([0, 1, 8], [0, 1, 2]), "index[2] = 8"),
    Breach("KV-19", "an", NORM, index([0, 1, 2], [4, -1, 4]), "index[5] = 4 again"),
    Breach("KV-19", "an", BLOCKS, index(32, 40), "index[1] = 40 again"),
    Breach("KV-19", "a page", BLOCKS, index(32, 65), "index[1] = 65"),
    Breach("KV-20", "an", PLAIN, give("k_rope_offset", 64), "k_rope_offset without k_rope_scale"),
    Breach("KV-21", "a", PLAIN, give("c_kv_scale", 512), "c_kv_scale with a float16 ckv_cache"),
    Breach("KV-21", "a", INT8, drop("k_rope_scale"), "int8 k_cache without k_rope_scale"),
    Breach("KV-21", "a", PLAIN, dtype("bfloat16", "k_cache"), "bfloat16 k_cache without k_rope_scale"),
    Breach("KV-21", "a", PLAIN, dtype("float32", "ckv_cache"), "float32 ckv_cache without c_kv_scale"),
    Breach("KV-22", "a", INT8, shape("k_rope_scale", 2, 64), "k_rope_scale [2, 64]"),
    Breach("KV-22", "the product", SEPARATE_INT8, both(give("k_rope_scale", 192), give("c_kv_scale", 128)),
           "k_rope_scale [192]"),
    Breach("KV-22", "the product", INT8, give("k_rope_scale", 1, 64), "k_rope_scale [1, 64], c_kv_scale [512]"),
    Breach("KV-23", "two", Base(cache="float8_e4m3fn", products=("generic", "950")), dtype("int8", "k_cache"),
           "k_cache int8, ckv_cache float8_e4m3fn"),
    Breach("KV-24", "the", INT8, dtype("float8_e5m2", "k_cache", "ckv_cache"), "k_cache float8_e5m2"),
    Breach("KV-24", "the", INT8, dtype("hifloat8", "k_cache", "ckv_cache"), "k_cache hifloat8"),
    Breach("KV-25", "the", NORM, both(dtype("int8", "k_cache"), give("k_rope_scale", 64)),
           "Norm mode with an 8-bit cache and no v"),
    Breach("KV-26", "the", INT8, give("k_rope_offset", 64), "k_rope_offset"),
    Breach("KV-27", "the product ignores", PLAIN, lambda inputs, attrs: inputs.update(Base(separate=True).call()[0]),
           "v given (V2)"),
    Breach("KV-27", "the product does", PLAIN, lambda inputs, attrs: inputs.update(Base(separate=True).call()[0]),
           "v given (V2)"),
    Breach("KV-28", "the", PLAIN, dtype("bfloat16", *ALL), "kv bfloat16"),
    Breach("KV-29", "epsilon must", PLAIN, attr("epsilon", float("inf")), "epsilon inf"),
    Breach("KV-29", "epsilon should", PLAIN, attr("epsilon", 0.0), "epsilon 0.0"),
    Breach("KV-31", "the", PLAIN, rope(2, 1, 1, 64), "one cos row for S = 3 in mode PA_BNSD"),
    Breach("KV-31", "the", Base("PA", cache="int8"), rope(2, 1, 1, 64), "one cos row for S = 3 in mode PA"),
    Breach("KV-32", "block_num", PLAIN, both(shape("kv", 2, 1, 160, 576)), "block_num 8"),
]  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_breach(breach: Breach) -> None:
    """Found under every product that the constraint binds and no other; the unchanged call does not breach it."""
    assert_breach(OP, breach)


def test_every_constraint_is_breached_above() -> None:
    assert_all_breached(OP, BREACHES)


@pytest.mark.parametrize("kept", [("float16", "float16"), ("bfloat16", "float32"), ("float32", "float16")])
def test_generic_keeps_float32_rows_narrower(kept: tuple[str, str]) -> None:
    inputs, attrs = PLAIN.call()
    for name in ALL:
        dtype("float32", name)(inputs, attrs)
    for name, kind in zip(("k_cache", "ckv_cache"), kept, strict=True):
        dtype(kind, name)(inputs, attrs)
    assert OP.check(inputs, attrs, "generic") == []
    assert {item.id for item in OP.check(inputs, attrs, "A2")} >= {"KV-04"}


@pytest.mark.parametrize("base", BASES, ids=str)
def test_legal_under_its_products(base: Base) -> None:
    for product in base.products:
        assert [v for v in OP.check(*base.call(), product) if v.severity == "error"] == []


@pytest.mark.parametrize(
    ("what", "base", "change"),
    [
        ("pages of 3 tokens", PLAIN, both(shape("k_cache", 8, 3, 1, 64), shape("ckv_cache", 8, 3, 1, 512))),
        ("pages of one token", PLAIN, both(shape("k_cache", 8, 1, 1, 64), shape("ckv_cache", 8, 1, 1, 512))),
        ("float32", PLAIN, dtype("float32", *ALL)),
        ("one row of cos for all tokens", NZ, rope(2, 1, 1, 64)),
        ("one head of cos for all heads", SEPARATE, rope(2, 1, 3, 64)),
        ("quantised Norm caches", NORM, both(dtype("int8", "k_cache"), give("k_rope_scale", 1))),
        ("an offset in V1", INT8, give("k_rope_offset", 1)),
        ("scales of unequal rank", INT8, give("k_rope_scale", 1, 64)),
        ("a whole key that is rotated", SEPARATE, rope(2, 4, 3, 192)),
        ("an index column", PLAIN, index([0], [1], [2], [3], [4], [-1])),
        ("-1 many times", PLAIN, index(-1, -1, -1, 3, -1, -1)),
        ("equal rows in two batches", NORM, index([0, 1, 2], [0, 1, 2])),
        ("the last slot", PLAIN, index(255, 1, 2, 3, 4, 5)),
    ],
)  # fmt: skip
def test_generic_takes_what_has_a_meaning(what: str, base: Base, change: Change) -> None:
    """Limits of products are not limits of the operator."""
    inputs, attrs = base.call()
    change(inputs, attrs)
    assert OP.check(inputs, attrs, "generic") == [], what


def test_violations_come_in_the_order_of_the_contract() -> None:
    inputs, attrs = PLAIN.call()
    both(shape("kv", 2, 2, 3, 576), dtype("float32", "sin"), attr("epsilon", float("nan")))(inputs, attrs)
    found = [v.id for v in OP.check(inputs, attrs, "generic")]
    assert found == sorted(found)
    assert {"KV-03", "KV-06", "KV-29"} <= set(found)


def test_empty_tensors_divide_nothing() -> None:
    """Zero batches, tokens and page sizes are one violation each, not an arithmetic error."""
    for mode in ("Norm", "PA", "PA_BLK_BNSD"):
        inputs, attrs = Base(mode).call()
        shape("kv", 0, 1, 0, 576)(inputs, attrs)
        shape("k_cache", 0, 0, 0, 64)(inputs, attrs)
        index()(inputs, attrs)
        assert "KV-02" in {v.id for v in OP.check(inputs, attrs, "generic")}

"""Every numbered constraint of DequantRopeQuantKvcache: a call that breaches it under each product that it binds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ir_ops.declaration import TensorSpec
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

OP = OPS["DequantRopeQuantKvcache"]


@dataclass(frozen=True)
class Base:
    """A legal call that A2 and A3 take: 2 batches of 3 tokens, 2 query and one key and value head of 128 columns."""

    mode: str = "page"
    quantised: bool = False
    flat: bool = False

    def call(self) -> tuple[Inputs, dict[str, Any]]:
        lead = (6,) if self.flat else (2, 3)
        table = (6, 128) if self.flat else (2, 3, 1, 128)
        count = 6 if self.flat or self.mode == "page" else 2
        inputs: Inputs = {
            "x": TensorSpec("int32" if self.quantised else "float16", (*lead, 512)),
            "cos": TensorSpec("float16", table),
            "sin": TensorSpec("float16", table),
            "k_cache": TensorSpec("int8", (6, 8, 1, 128)),
            "v_cache": TensorSpec("int8", (6, 8, 1, 128)),
            "indices": np.arange(count, dtype=np.int32),
            "scale_k": np.ones((1, 128), np.float32),
            "scale_v": np.ones((1, 128), np.float32),
        }
        if self.quantised:
            inputs["weight_scale"] = TensorSpec("float32", (512,))
        return inputs, {"size_splits": [256, 128, 128], "cache_mode": self.mode}


PAGE = Base()
ROWS = Base("contiguous")
INT32 = Base(quantised=True)
FLAT = Base(flat=True)


def splits(*sizes: int) -> Change:
    return attr("size_splits", list(sizes))


def caches(*dims: int) -> Change:
    return both(shape("k_cache", *dims), shape("v_cache", *dims))


def tables(*dims: int) -> Change:
    return both(shape("cos", *dims), shape("sin", *dims))


def indices(*values: int) -> Change:
    return lambda inputs, attrs: inputs.update(indices=np.array(values, np.int32))


def scale(name: str, value: float) -> Change:
    return lambda inputs, attrs: inputs.update({name: np.full((1, 128), value, np.float32)})


BREACHES = [
    Breach("DRQ-19", "no input", PAGE, shape("sin", 0), "sin [0]"),
    Breach("DRQ-01", "x must", PAGE, shape("x", 512), "x [512]"),
    Breach("DRQ-01", "x must", PAGE, shape("x", 2, 3, 4, 128), "x [2, 3, 4, 128]"),
    Breach("DRQ-02", "the product", PAGE, shape("x", 2, 3, 4160), "H = 4160"),
    Breach("DRQ-02", "the product", PAGE, shape("x", 2, 3, 520), "H = 520"),
    Breach("DRQ-03", "size_splits", PAGE, splits(256, 128), "size_splits [256, 128]"),
    Breach("DRQ-03", "size_splits", PAGE, splits(768, -128, -128), "size_splits [768, -128, -128]"),
    Breach("DRQ-03", "size_splits", PAGE, splits(128, 128, 128), "size_splits [128, 128, 128]"),
    Breach("DRQ-04", "k and v", PAGE, splits(256, 192, 64), "size_splits [256, 192, 64]"),
    Breach("DRQ-05", "the head", PAGE, caches(6, 8, 1, 127), "D 127"),
    Breach("DRQ-05", "the product", PAGE, caches(6, 8, 1, 24), "D = 24"),
    Breach("DRQ-06", "the splits", PAGE, caches(6, 8, 2, 128), "size_splits[1] = 128"),
    Breach("DRQ-06", "the splits", PAGE, splits(384, 64, 64), "size_splits[1] = 64"),
    Breach("DRQ-06", "the splits", PAGE, splits(192, 160, 160), "size_splits[0] = 192"),
    Breach("DRQ-07", "k_cache", PAGE, caches(8, 1, 128), "k_cache [8, 1, 128], v_cache [8, 1, 128]"),
    Breach("DRQ-07", "k_cache", PAGE, shape("v_cache", 6, 9, 1, 128),
           "k_cache [6, 8, 1, 128], v_cache [6, 9, 1, 128]"),
    Breach("DRQ-08", "cos and", PAGE, tables(2, 3, 128), "cos [2, 3, 128]"),
    Breach("DRQ-08", "cos and", FLAT, tables(6, 1, 1, 128), "cos [6, 1, 1, 128]"),
    Breach("DRQ-08", "cos and", PAGE, shape("sin", 2, 3, 1, 64), "sin [2, 3, 1, 64]"),
    Breach("DRQ-08", "sin must", PAGE, dtype("bfloat16", "sin"), "sin bfloat16"),
    Breach("DRQ-09", "x that", PAGE, dtype("bfloat16", "x"), "x bfloat16"),
    Breach("DRQ-09", "the product", PAGE, dtype("float32", "x", "cos", "sin"), "cos float32"),
    Breach("DRQ-10", "int32 x", INT32, drop("weight_scale"), "no weight_scale"),
    Breach("DRQ-10", "weight_scale", INT32, give("weight_scale", 128), "weight_scale [128]"),
    Breach("DRQ-11", "activation_scale", INT32, give("activation_scale", 2), "activation_scale [2]"),
    Breach("DRQ-11", "bias", INT32, give("bias", 128), "bias [128]"),
    Breach("DRQ-12", "a scale", PAGE, give("scale_k", 2, 128), "scale_k [2, 128]"),
    Breach("DRQ-12", "a scale", PAGE, give("offset_v", 64), "offset_v [64]"),
    Breach("DRQ-13", "unknown", PAGE, attr("quant_mode", "dynamic"), "quant_mode 'dynamic'"),
    Breach("DRQ-14", "unknown", PAGE, attr("layout", "BNSD"), "layout 'BNSD'"),
    Breach("DRQ-15", "the product", PAGE, give("offset_k", 1, 128), "offset_k only"),
    Breach("DRQ-16", "unknown", PAGE, attr("cache_mode", "Page"), "cache_mode 'Page'"),
    Breach("DRQ-17", "a contiguous", ROWS, caches(1, 8, 1, 128), "C1 = 1"),
    Breach("DRQ-17", "indices", ROWS, indices(0, 1, 2, 3, 4, 5), "indices [6]"),
    Breach("DRQ-17", "the rows", ROWS, indices(0, 6), "indices[1] = 6"),
    Breach("DRQ-17", "the rows", ROWS, indices(-1, 0), "indices[0] = -1"),
    Breach("DRQ-18", "indices", PAGE, indices(0, 1), "indices [2]"),
    Breach("DRQ-18", "an index", PAGE, indices(0, 1, 2, 3, 4, 48), "indices[5] = 48"),
    Breach("DRQ-18", "an index", PAGE, indices(0, 1, 2, 3, 4, -1), "indices[5] = -1"),
    Breach("DRQ-18", "an index", PAGE, indices(0, 1, 2, 3, 4, 0), "indices[5] = 0 again"),
    Breach("DRQ-20", "a scale", PAGE, scale("scale_k", 0.0), "scale_k[0] = 0.0"),
    Breach("DRQ-20", "a scale", PAGE, scale("scale_v", np.inf), "scale_v[0] = inf"),
    Breach("DRQ-21", "only int32", PAGE, give("weight_scale", 512), "weight_scale with float16 x"),
    Breach("DRQ-22", "the product", PAGE, index(0, 1, 2, 3, 4, 5, name="indices"), "indices int64"),
]  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_breach(breach: Breach) -> None:
    assert_breach(OP, breach)


def test_every_constraint_is_breached_above() -> None:
    """But for DRQ-23, which every call breaches under the products without the operator."""
    assert_all_breached(OP, BREACHES, but=("DRQ-23",))


@pytest.mark.parametrize("base", [PAGE, ROWS, INT32, FLAT, Base("contiguous", flat=True)], ids=str)
def test_legal_calls(base: Base) -> None:
    for product in ("generic", "A3", "A2"):
        assert OP.check(*base.call(), product) == []
    for product in ("950", "kirin"):
        assert [v.id for v in OP.check(*base.call(), product)] == ["DRQ-23"]


@pytest.mark.parametrize(
    ("what", "base", "change"),
    [
        ("scales as vectors", PAGE, both(give("scale_k", 128), give("scale_v", 128, 1))),
        ("one offset", PAGE, give("offset_v", 1, 128)),
        ("int64 indices", PAGE, index(0, 1, 2, 3, 4, 47, name="indices")),
        ("float32", PAGE, dtype("float32", "x", "cos", "sin")),
        ("more cache batches than batches", ROWS, caches(9, 8, 1, 128)),
        ("the last start", ROWS, indices(5, 0)),
        ("equal starts", ROWS, indices(2, 2)),
        ("a wide row", PAGE, both(shape("x", 2, 3, 8456), splits(8200, 128, 128), caches(6, 8, 64, 2),
                                  tables(2, 3, 1, 2))),
        ("no query", PAGE, both(shape("x", 2, 3, 256), splits(0, 128, 128))),
    ],
)  # fmt: skip
def test_generic_takes_what_has_a_meaning(what: str, base: Base, change: Change) -> None:
    inputs, attrs = base.call()
    change(inputs, attrs)
    assert OP.check(inputs, attrs) == [], what


def test_what_is_not_known_is_not_violated() -> None:
    for base in (PAGE, ROWS, INT32):
        inputs, attrs = base.call()
        for known_rank in (False, True):
            unknown: Inputs = {}
            for name, spec in inputs.items():
                kind = spec.dtype if isinstance(spec, TensorSpec) else str(spec.dtype)
                unknown[name] = TensorSpec(kind, (None,) * len(spec.shape or ()) if known_rank else None)
            assert OP.check(unknown, attrs) == []


def test_types_combine_as_the_contract_says() -> None:
    """x is int32 or of the type of cos: 2 for each of 3, times 2 index and 4 bias types."""
    assert len(OP.type_combinations()) == 48
    assert all(choice["X"] in ("int32", choice["T"]) for choice in OP.type_combinations())

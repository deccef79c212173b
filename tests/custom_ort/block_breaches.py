"""One breach of each rule of the building blocks, as a change of a legal call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir_ops.dtypes import by_name
from tests.custom_ort.calls import Call, values

Change = Callable[[Call], None]
F16 = "float16"


@dataclass(frozen=True)
class Breach:
    """A rule (the n-th of its id, counted over all products), and a call that breaks it."""

    operator: str
    rule: str
    what: str
    change: Change
    attrs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.operator}-{self.rule}-{self.what}".replace(" ", "_")

    def call(self) -> Call:
        """The legal call that is changed."""
        call = legal(self.operator)
        call.attrs.update(self.attrs)
        return call


ATTRS: dict[str, dict[str, Any]] = {
    "Quantize": {"dtype": "torch.qint8", "axis": 2},
    "AscendDequant": {"dtype": 1},
    "RopeWithSinCosCache": {"numQHeads": 2, "numKHeads": 1, "headSize": 64},
    "DequantSwigluQuant": {"quant_mode": "dynamic"},
}
"""Attributes of the legal calls."""


def legal(operator: str) -> Call:
    """A small legal call."""
    rng = np.random.default_rng(1)

    def rows(*shape: int) -> Any:
        return values(rng, shape, F16)

    def single(*shape: int) -> Any:
        return np.ones(shape, np.float32)

    made: dict[str, dict[str, Any]] = {
        "RmsNorm": {"x": rows(2, 3, 8), "gamma": rows(8)},
        "AddRmsNorm": {"x1": rows(2, 3, 8), "x2": rows(2, 3, 8), "gamma": rows(8)},
        "RotaryPositionEmbedding": {"x": rows(2, 3, 4, 8), "cos": rows(2, 1, 4, 8), "sin": rows(2, 1, 4, 8)},
        "InterleaveRope": {"x": rows(2, 3, 4, 8), "cos": rows(2, 1, 4, 8), "sin": rows(2, 1, 4, 8)},
        "SwiGlu": {"x": rows(2, 3, 8)},
        "AscendQuantV2": {"x": rows(2, 3, 8), "scale": rows(8), "offset": rows(8)},
        "DynamicQuant": {"x": rows(2, 3, 8), "smooth_scales": rows(2, 8), "group_index": np.array([2, 6], np.int32)},
        "ApplyRotaryPosEmb": {"query": rows(2, 3, 4, 8), "key": rows(2, 3, 2, 8), "cos": rows(2, 3, 1, 4),
                              "sin": rows(2, 3, 1, 4)},
        "ScatterPaKvCache": {"key": rows(3, 2, 32), "key_cache": rows(4, 5, 2, 32), "value": rows(3, 2, 16),
                             "value_cache": rows(4, 5, 2, 16), "slot_mapping": np.array([7, -1, 0])},
        "ScatterUpdate": {"var": rows(6, 2, 4), "indices": np.array([4, 0, 5]), "updates": rows(3, 2, 4)},
        "ScatterNdUpdate": {"var": rows(4, 5, 3), "indices": np.array([[1, 2], [3, 0]]), "updates": rows(2, 3)},
        "TensorMove": {"x": rows(2, 3)},
        "Quantize": {"x": rows(2, 3, 8), "scales": rows(8), "zero_points": np.arange(8).astype(np.int8)},
        "AscendDequant": {"x": np.arange(16).astype(np.int32).reshape(2, 8), "deq_scale": rows(8)},
        "RopeWithSinCosCache": {"positions": np.array([3, 0, 5]), "queryIn": rows(3, 128), "keyIn": rows(3, 64),
                                "cosSinCache": rows(8, 32)},
        "DequantSwigluQuant": {"x": np.arange(48).astype(np.int32).reshape(6, 8), "weight_scale": single(2, 8),
                               "activation_scale": single(6), "bias": single(2, 8), "quant_scale": single(2, 4),
                               "group_index": np.array([2, 3])},
    }  # fmt: skip
    return Call(made[operator], dict(ATTRS.get(operator, {})))


def put(name: str, array: Any) -> Change:
    """Gives an input another value."""
    return lambda call: call.inputs.update({name: np.asarray(array, call.inputs[name].dtype)})


def resize(**shapes: tuple[int, ...]) -> Change:
    """Gives inputs other shapes; one that is absent is float16."""

    def change(call: Call) -> None:
        for name, shape in shapes.items():
            old = call.inputs.get(name)
            call.inputs[name] = np.zeros(shape, np.float16 if old is None else old.dtype)

    return change


def retype(dtype: str, *names: str) -> Change:
    return lambda call: call.inputs.update({name: call.inputs[name].astype(by_name(dtype).np) for name in names})


def both(*changes: Change) -> Change:
    return lambda call: [change(call) for change in changes] and None


def attribute(name: str, value: Any) -> Change:
    return lambda call: call.attrs.update({name: value})


def static_rows(scale: list[float], offset: list[float], **attrs: Any) -> Change:
    """Another call of DequantSwigluQuant: rows of float16, statically quantised."""

    def change(call: Call) -> None:
        call.inputs = {"x": values(np.random.default_rng(2), (4, 8), F16)}
        call.inputs |= {"quant_scale": np.array(scale, np.float32), "quant_offset": np.array(offset, np.float32)}
        call.attrs |= {"quant_mode": "static", **attrs}

    return change


def drop(*names: str) -> Change:
    return lambda call: [call.inputs.pop(name) for name in names] and None


def _breaches(operator: str, *rows: tuple[Any, ...]) -> list[Breach]:
    return [Breach(operator, rule, what, change, *(rest or ({},))) for rule, what, change, *rest in rows]


BREACHES = [
    *_breaches(
        "RmsNorm",
        ("RN-1", "scalar x", put("x", 1.0)),
        ("RN-1", "gamma of another size", resize(gamma=(7,))),
        ("RN-1", "gamma of more dims", resize(gamma=(2, 2, 3, 8))),
        ("RN-1", "gamma without dims", put("gamma", 1.0)),
        ("RN-2", "gamma of another 16-bit type", retype("bfloat16", "gamma")),
        ("RN-4", "empty gamma", resize(x=(2, 3, 0), gamma=(0,))),
        ("RN-5", "epsilon nan", attribute("epsilon", float("nan"))),
    ),
    *_breaches(
        "AddRmsNorm",
        ("AN-1", "x2 of another type", retype("float32", "x2")),
        ("AN-1", "gamma of float32", retype("float32", "gamma")),
        ("AN-1", "scalar x1", put("x1", 1.0)),
        ("AN-1", "x2 of another shape", resize(x2=(1, 3, 8))),
        ("AN-2", "gamma of another size", resize(gamma=(3, 7))),
        ("AN-2", "empty gamma", resize(x1=(2, 3, 0), x2=(2, 3, 0), gamma=(0,))),
        ("AN-3", "epsilon inf", attribute("epsilon", float("inf"))),
        ("AN-3", "negative epsilon", attribute("epsilon", -1e-6)),
    ),
    *_breaches(
        "RotaryPositionEmbedding",
        ("RP-1", "x of rank 2", resize(x=(2, 8))),
        ("RP-1", "x of rank 5", resize(x=(1, 2, 3, 4, 8))),
        ("RP-2", "sin of another type", retype("float32", "sin")),
        ("RP-2", "cos of half the width", resize(cos=(2, 1, 4, 4))),
        ("RP-2", "cos of another rank", resize(cos=(2, 4, 8))),
        ("RP-2", "cos of another batch", resize(cos=(3, 1, 4, 8))),
        ("RP-2", "sin unlike cos", resize(sin=(1, 1, 4, 8))),
        ("RP-3", "odd width", resize(x=(2, 3, 4, 7), cos=(1, 1, 1, 7), sin=(1, 1, 1, 7))),
        ("RP-3", "quarters that do not divide",
         resize(x=(2, 3, 4, 6), cos=(1, 1, 1, 6), sin=(1, 1, 1, 6)), {"mode": 2}),
        ("RP-4", "unknown mode", attribute("mode", 4)),
        ("RP-4", "negative mode", attribute("mode", -1)),
        ("RP-6", "rotate of another size", resize(rotate=(8, 4))),
    ),
    *_breaches(
        "InterleaveRope",
        ("IR-1", "x of rank 3", resize(x=(2, 4, 8))),
        ("IR-1", "odd width", resize(x=(2, 3, 4, 7), cos=(2, 1, 4, 7), sin=(2, 1, 4, 7))),
        ("IR-2", "cos for heads", resize(cos=(2, 3, 4, 8))),
        ("IR-2", "cos of another batch", resize(cos=(1, 1, 4, 8))),
        ("IR-2", "cos of rank 3", resize(cos=(2, 4, 8))),
        ("IR-2", "sin unlike cos", resize(sin=(2, 1, 1, 8))),
        ("IR-3", "cos of another type", retype("float32", "cos")),
    ),
    *_breaches(
        "SwiGlu",
        ("SG-1", "scalar x", put("x", 1.0)),
        ("SG-1", "no such axis", attribute("dim", 3)),
        ("SG-1", "no such axis from the end", attribute("dim", -4)),
        ("SG-1", "odd size", attribute("dim", 1)),
    ),
    *_breaches(
        "AscendQuantV2",
        ("AQ-1", "scale of another type", retype("float32", "scale")),
        ("AQ-1", "offset of another shape", resize(offset=(1,))),
        ("AQ-2", "scalar x", put("x", 1.0)),
        ("AQ-2", "scale of another size", resize(scale=(3,), offset=(3,))),
        ("AQ-2", "scale of several axes", resize(scale=(2, 1, 8), offset=(2, 1, 8))),
        ("AQ-3", "no such axis", attribute("axis", 3)),
        ("AQ-4", "unknown dst_type", attribute("dst_type", 3)),
        ("AQ-4", "odd rows of int4", resize(x=(2, 3, 7), scale=(1,), offset=(1,)), {"dst_type": 29}),
        ("AQ-5", "unknown round_mode", attribute("round_mode", "rint")),
        ("AQ-4", "hybrid int8", attribute("round_mode", "hybrid")),
        ("AQ-4", "float8 cut off", attribute("round_mode", "trunc"), {"dst_type": 36}),
    ),
    *_breaches(
        "DynamicQuant",
        ("DQ-1", "x of rank 1", resize(x=(8,))),
        ("DQ-1", "empty rows", resize(x=(2, 3, 0))),
        ("DQ-2", "smooth_scales of another type", retype("float32", "smooth_scales")),
        ("DQ-2", "smooth_scales of another width", resize(smooth_scales=(2, 7))),
        ("DQ-2", "smooth_scales of other groups", resize(smooth_scales=(3, 8))),
        ("DQ-2", "group_index of rank 2", resize(group_index=(1, 2))),
        ("DQ-2", "too many groups", resize(smooth_scales=(1025, 8), group_index=(1025,))),
        ("DQ-2", "falling row ends", put("group_index", [4, 2])),
        ("DQ-2", "negative row end", put("group_index", [-1, 6])),
        ("DQ-2", "row ends beyond the rows", put("group_index", [2, 7])),
        ("DQ-3", "odd rows of int4", resize(x=(2, 3, 7), smooth_scales=(2, 7)), {"dst_type": 29}),
        ("DQ-4", "unknown dst_type", attribute("dst_type", 0)),
    ),
    *_breaches(
        "ApplyRotaryPosEmb",
        ("AR-5", "unknown layout", attribute("layout", 0)),
        ("AR-6", "unknown rotary_mode", attribute("rotary_mode", "interleave-half")),
        ("AR-1", "key of another type", retype("float32", "key")),
        ("AR-1", "query of rank 3", resize(query=(3, 4, 8))),
        ("AR-1", "rank of another layout", attribute("layout", 4)),
        ("AR-1", "key of another batch", resize(key=(1, 3, 2, 8))),
        ("AR-1", "heads in another place", attribute("layout", 3)),
        ("AR-2", "cos for heads", resize(cos=(2, 3, 4, 4))),
        ("AR-2", "cos of other tokens", resize(cos=(2, 1, 1, 4))),
        ("AR-2", "cos of rank 3", resize(cos=(3, 1, 4))),
        ("AR-2", "sin unlike cos", resize(sin=(1, 3, 1, 4))),
        ("AR-2", "cos wider than query", resize(cos=(2, 3, 1, 10), sin=(2, 3, 1, 10))),
        ("AR-2", "odd width", resize(cos=(2, 3, 1, 5), sin=(2, 3, 1, 5))),
        ("AR-2", "quarters that do not divide",
         resize(cos=(2, 3, 1, 6), sin=(2, 3, 1, 6)), {"rotary_mode": "quarter"}),
    ),
    *_breaches(
        "ScatterPaKvCache",
        ("SP-6", "unknown cache_mode", attribute("cache_mode", "PA")),
        ("SP-6", "unknown scatter_mode", attribute("scatter_mode", "Omni")),
        ("SP-6", "NZ by heads", both(attribute("cache_mode", "PA_NZ"), attribute("scatter_mode", "NHSD"))),
        ("SP-6", "compression",
         lambda call: call.inputs.update({"compress_lens": np.zeros(3, np.int64)})),
        ("SP-6", "strides", attribute("strides", [1, 2])),
        ("SP-6", "offsets", attribute("offsets", [0])),
        ("SP-1", "cache of another type", retype("float32", "key_cache")),
        ("SP-1", "value of another type", retype("float32", "value", "value_cache")),
        ("SP-7", "key of rank 2", resize(key=(3, 64))),
        ("SP-7", "value of other heads", resize(value=(3, 1, 16))),
        ("SP-4", "fractals that do not divide",
         both(attribute("cache_mode", "PA_NZ"), resize(key=(3, 2, 24), key_cache=(4, 2, 5, 16),
                                                       value_cache=(4, 2, 5, 16)))),
        ("SP-7", "cache of another width", resize(key_cache=(4, 5, 2, 31))),
        ("SP-7", "cache of rank 3", resize(value_cache=(20, 2, 16))),
        ("SP-7", "plain cache for fractals", attribute("cache_mode", "PA_NZ")),
        ("SP-7", "heads in another place", attribute("scatter_mode", "NHSD")),
        ("SP-7", "unequal pages", resize(value_cache=(5, 5, 2, 16))),
        ("SP-7", "unequal page sizes", resize(value_cache=(4, 6, 2, 16))),
        ("SP-7", "a slot too many", resize(slot_mapping=(4,))),
        ("SP-3", "slot past the end", put("slot_mapping", [7, -1, 20])),
        ("SP-3", "slot -2", put("slot_mapping", [7, -2, 0])),
        ("SP-3", "slot twice", put("slot_mapping", [7, 3, 7])),
    ),
    *_breaches(
        "ScatterUpdate",
        ("SU-1", "updates of another type", retype("float32", "updates")),
        ("SU-1", "scalar var", put("var", 1.0)),
        ("SU-2", "an update too many", resize(updates=(4, 2, 4))),
        ("SU-2", "updates of another width", resize(updates=(3, 2, 3))),
        ("SU-3", "index past the end", put("indices", [4, 0, 6])),
        ("SU-3", "negative index", put("indices", [4, -1, 5])),
        ("SU-4", "row twice", put("indices", [4, 0, 4])),
    ),
    *_breaches(
        "ScatterNdUpdate",
        ("SN-4", "updates of another type", retype("float32", "updates")),
        ("SN-1", "scalar var", put("var", 1.0)),
        ("SN-1", "indices of rank 1", resize(indices=(2,))),
        ("SN-1", "tuples longer than var", resize(indices=(2, 4), updates=(2,))),
        ("SN-1", "empty tuples", resize(indices=(2, 0))),
        ("SN-1", "updates of another slice", resize(updates=(2, 4))),
        ("SN-1", "an update too many", resize(updates=(3, 3))),
        ("SN-2", "index past the end", put("indices", [[1, 5], [3, 0]])),
        ("SN-2", "negative index", put("indices", [[1, 2], [-1, 0]])),
        ("SN-3", "slice twice", put("indices", [[1, 2], [1, 2]])),
    ),
    *_breaches(
        "Quantize",
        ("QU-1", "unknown dtype", attribute("dtype", "torch.qint4")),
        ("QU-2", "scalar x", put("x", 1.0)),
        ("QU-2", "no such axis", attribute("axis", 3)),
        ("QU-3", "scales of another size", resize(scales=(3,), zero_points=(3,))),
        ("QU-3", "scales of rank 2", resize(scales=(1, 8), zero_points=(1, 8))),
        ("QU-3", "zero_points of another shape", resize(zero_points=(1,))),
        ("QU-4", "scale 0", put("scales", [1, 2, 0, 4, 5, 6, 7, 8])),
        ("QU-4", "scale nan", put("scales", [1, 2, 3, float("nan"), 5, 6, 7, 8])),
    ),
    *_breaches(
        "AscendDequant",
        ("AD-1", "unknown dtype", attribute("dtype", 2)),
        ("AD-2", "scalar x", put("x", 1)),
        ("AD-2", "deq_scale of another size", resize(deq_scale=(3,))),
        ("AD-2", "deq_scale of rank 2", resize(deq_scale=(1, 8))),
    ),
    *_breaches(
        "RopeWithSinCosCache",
        ("RC-1", "key of another type", retype("float32", "keyIn")),
        ("RC-5", "no heads", attribute("numQHeads", 0)),
        ("RC-5", "empty heads", attribute("headSize", -1)),
        ("RC-5", "positions of rank 3", resize(positions=(1, 1, 3))),
        ("RC-5", "two rows of positions", resize(positions=(2, 3))),
        ("RC-1", "query of another width", resize(queryIn=(3, 64))),
        ("RC-1", "key of other tokens", resize(keyIn=(2, 64))),
        ("RC-2", "odd table", resize(cosSinCache=(8, 31))),
        ("RC-2", "table wider than heads", resize(cosSinCache=(8, 66))),
        ("RC-2", "table of rank 3", resize(cosSinCache=(8, 1, 32))),
        ("RC-5", "rows apart", attribute("qStride", 256)),
        ("RC-4", "four sections", attribute("mropeSection", [4, 4, 4, 4])),
        ("RC-4", "sections for one row", attribute("mropeSection", [8, 4, 4])),
        ("RC-4", "sections of another sum", resize(positions=(3, 3)), {"mropeSection": [0, 0, 0]}),
        ("RC-3", "position past the end", put("positions", [3, 0, 8])),
        ("RC-3", "negative position", put("positions", [3, -1, 5])),
    ),
    *_breaches(
        "DequantSwigluQuant",
        ("DS-6", "unknown quant_mode", attribute("quant_mode", "none")),
        ("DS-5", "int4", attribute("dst_type", 29)),
        ("DS-5", "another round_mode", attribute("round_mode", "floor")),
        ("DS-6", "unknown swiglu_mode", attribute("swiglu_mode", 4)),
        ("DS-6", "right half in mode 2", attribute("swiglu_mode", 2)),
        ("DS-7", "clamp_limit 0", attribute("clamp_limit", 0.0), {"swiglu_mode": 3, "activate_left": True}),
        ("DS-7", "clamp_limit nan", attribute("clamp_limit", float("nan")), {"swiglu_mode": 1, "activate_left": True}),
        ("DS-1", "sums without weight_scale", drop("weight_scale")),
        ("DS-1", "rows with weight_scale", retype(F16, "x")),
        ("DS-2", "x of rank 1", resize(x=(8,))),
        ("DS-2", "empty rows", resize(x=(6, 0))),
        ("DS-4", "no such axis", attribute("activate_dim", 2)),
        ("DS-2", "odd width", resize(x=(6, 7), weight_scale=(2, 7), bias=(2, 7))),
        ("DS-4", "first axis with groups", attribute("activate_dim", 0)),
        ("DS-6", "neighbours of the first axis",
         static_rows([1], [0], activate_dim=0, swiglu_mode=1, activate_left=True)),
        ("DS-8", "group_index of rank 2", resize(group_index=(1, 2))),
        ("DS-8", "no group", resize(group_index=(0,))),
        ("DS-8", "weight_scale of another width", resize(weight_scale=(2, 7))),
        ("DS-8", "bias of other groups", resize(bias=(1, 8))),
        ("DS-8", "activation_scale of other rows", resize(activation_scale=(5,))),
        ("DS-8", "static without offset", attribute("quant_mode", "static")),
        ("DS-8", "quant_scale of another width", resize(quant_scale=(2, 3))),
        ("DS-8", "dynamic with a scale for each group", resize(quant_scale=(2,))),
        ("DS-8", "offset of another shape", static_rows([1, 2, 3, 4], [0])),
        ("DS-2", "more rows in groups than there are", put("group_index", [2, 5])),
        ("DS-2", "negative count", put("group_index", [-1, 3])),
        ("DS-9", "scale 0", static_rows([1, 0, 3, 4], [0, 0, 0, 0])),
    ),
]  # fmt: skip

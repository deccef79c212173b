"""Experts one by one, as loops over them are traced: each takes the tokens that chose it, the data say how many.

What is computed from such rows has a shape that no trial knows; what they are added back to has one, and all behind it.
"""

from __future__ import annotations

import numpy as np
import onnx

from tests.fusion.rules.block_models import check, model_of, random
from tests.fusion.zoo.graph import Graph
from tests.fusion.zoo.norms import NORMS

WIDTH, INNER, EXPERTS = 16, 12, 3


def layer(g: Graph) -> dict[str, str]:
    """``norm(x + experts(x))``: token t chooses two experts by its first columns."""
    flat = g.op("Reshape", "x", g.ints(-1, WIDTH))
    scores, chosen = g.many("TopK", g.slice(flat, 0, EXPERTS, 1), g.ints(2), count=2, axis=-1)
    hot = g.op("OneHot", chosen, g.const(np.array(EXPERTS)), g.const(np.array([0, 1])), axis=-1)
    total = g.op("Mul", flat, g.scalar(0.0))
    for number in range(EXPERTS):
        mine = g.op("Gather", hot, g.const(np.array(number)), axis=2)
        tokens, places = g.many("Split", g.op("NonZero", mine), g.ints(1, 1), count=2, axis=0)
        tokens, places = (g.op("Squeeze", item, g.ints(0)) for item in (tokens, places))
        rows = g.op("MatMul", g.op("Gather", flat, tokens, axis=0), g.const(random((WIDTH, 2 * INNER), seed=number)))
        gate, up = g.slice(rows, 0, INNER, 1), g.slice(rows, INNER, 2 * INNER, 1)
        gated = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        given = g.op("MatMul", gated, g.const(random((INNER, WIDTH), seed=9 + number)))
        both = g.op("Concat", g.unsqueeze(tokens, 1), g.unsqueeze(places, 1), axis=1)
        weight = g.unsqueeze(g.op("GatherND", scores, both), 1)
        total = g.op("ScatterND", total, g.unsqueeze(tokens, 1), g.op("Mul", given, weight), reduction="add")
    hidden = g.op("Add", "x", g.op("Reshape", total, g.op("Shape", "x")))
    return {"y": NORMS["hf_reciprocal"](g, hidden, random((WIDTH,)), 1e-5, 3), "hidden": g.op("Neg", hidden)}


def model() -> onnx.ModelProto:
    return model_of(layer, {"x": ["B", "S", WIDTH]})


def test_what_is_behind_experts_and_inside_them_fuses() -> None:
    check(model(), {"x": random((2, 5, WIDTH))}, {"AddRmsNorm": 1, "SwiGlu": EXPERTS})


def test_an_expert_that_no_token_chose_has_no_rows() -> None:
    x = random((2, 5, WIDTH))
    x[..., 2] = -9
    check(model(), {"x": x}, {"AddRmsNorm": 1, "SwiGlu": EXPERTS})

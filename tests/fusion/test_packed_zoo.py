"""Every legal spelling of packed rows becomes DequantRopeQuantKvcache, and computes the definition (plain numpy)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import onnx
import pytest

import fusion
from ir_ops.ops import OPS
from tests.fusion.zoo.packed import (
    DEQUANTS,
    ROWS,
    SPLITS,
    TOKEN_WRITES,
    Packed,
    PackedPreamble,
    expected,
    feeds,
    legal,
)
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.run import run, worst

OP = "DequantRopeQuantKvcache"
FACTORS: dict[str, tuple[Any, ...]] = {
    "rope": tuple(ROPES), "write": tuple(TOKEN_WRITES), "quant": tuple(QUANTS), "rows": (*ROWS, "sums", "sums", "sums"),
    "dequant": DEQUANTS, "split": SPLITS, "activation": ("tokens", "number", "none"),
    "bias": ("none", "float32", "float16", "int32"), "layout": ("heads", "tokens"), "opset": tuple(range(11, 25)),
    "dtype": ("float32", "float16", "bfloat16"), "style": ("dynamo", "ts"), "rank": (3, 3, 2), "heads": (1, 2),
    "queries": (1, 4), "offset": (False, True), "outs": (False, True),
}  # fmt: skip


def specs(count: int) -> list[Packed]:
    """Legal specs: each takes the next spelling of every part that still fits, and draws the rest."""
    rng = random.Random(7)
    unused = {name: list(FACTORS[name]) for name in ("rope", "write", "quant", "dequant", "split", "rows")}
    found: list[Packed] = []
    while len(found) < count:
        spec = Packed(**{name: rng.choice(values) for name, values in FACTORS.items()})
        for name, values in unused.items():
            spec = next((fitting for value in values for fitting in with_part(spec, name, value)), spec)
        if legal(spec):
            found.append(spec)
            for name, values in unused.items():
                if getattr(spec, name) in values:
                    values.remove(getattr(spec, name))
    assert not any(unused.values()), unused
    return found


def with_part(spec: Packed, name: str, value: str) -> list[Packed]:
    """The spec with another spelling of one part, also of newer graphs in float32 with heads in front of tokens."""
    tried = replace(spec, **{name: value})
    newer = replace(tried, opset=24, dtype="float32", layout="heads")
    return [item for item in (tried, newer) if legal(item)]


def check(spec: Packed) -> fusion.FusionResult:
    model = PackedPreamble(spec).model()
    result = fusion.fuse(model)
    assert result.count(OP) == 1, [refusal.to_json() for refusal in result.refusals]
    assert result.sites[0].attrs["cache_mode"] == TOKEN_WRITES[spec.write].mode
    assert [entry.name for entry in result.model.graph.input] == [entry.name for entry in model.graph.input]
    if spec.dtype != "bfloat16":
        given = feeds(spec, 2, 3 if spec.rank == 3 else 1, seed=9)
        assert worst(run(result.model, given, spec.dtype), expected(spec, given), spec.dtype) == ""
    return result


def label(spec: Packed) -> str:
    return "-".join(str(value) for value in (spec.rope, spec.write, spec.quant, spec.rows, spec.opset, spec.dtype))


@pytest.mark.parametrize("spec", specs(36), ids=label)
def test_spelling_is_fused(spec: Packed) -> None:
    check(spec)


def operands(model: onnx.ModelProto) -> dict[str, str]:
    (node,) = (node for node in model.graph.node if node.op_type == OP)
    return dict(zip([entry.name for entry in OPS[OP].inputs], node.input, strict=False))


@pytest.mark.parametrize("bias", ["float32", "float16", "int32"])
def test_sums_go_in_with_a_bias_of_its_own_type(bias: str) -> None:
    result = check(Packed(bias=bias))
    given = operands(result.model)
    kinds = {tensor.name: tensor.data_type for tensor in result.model.graph.initializer}
    assert given["x"] == "x" and given["activation_scale"] == "activation"
    assert kinds[given["bias"]] == {"float32": 1, "float16": 10, "int32": 6}[bias]


@pytest.mark.parametrize("rows", ["integer_bias", "integer_separate_bias"])
def test_products_of_8_bit_numbers_go_in_as_sums(rows: str) -> None:
    """As quantize_dynamic writes them: the scale of the whole tensor becomes one for each token."""
    result = check(Packed(rows=rows))
    given, counts = operands(result.model), result.ops_after
    assert all(given[name] for name in ("weight_scale", "activation_scale", "bias"))
    assert counts["MatMulInteger"] == 1 and "Concat" not in counts  # three are packed into one
    assert counts["Add"] == 0 and counts["Mul"] == 1  # the number of tokens


def test_a_half_precision_cast_of_sums_stays_outside() -> None:
    """Beyond 65504 a float16 sum is infinite, the operator's is not: x is taken behind the cast."""

    class Narrow(PackedPreamble):
        def dequantised(self, x: str) -> str:
            scaled = self.g.op("Mul", self.g.cast(x, "float16"), self.g.const(self.p["weight_scale"], "float16"))
            return self.g.cast(scaled, "float32")

    result = fusion.fuse(Narrow(Packed(dtype="float16", activation="none", bias="none")).model())
    (site,) = result.sites
    assert "weight_scale" not in operands(result.model) and any("float16" in note for note in site.notes)


def test_keys_and_values_are_delivered_where_they_are_read() -> None:
    assert check(Packed(outs=True)).sites[0].attrs["kv_output"] == 1
    assert "kv_output" not in check(Packed()).sites[0].attrs

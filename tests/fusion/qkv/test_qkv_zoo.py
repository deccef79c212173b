"""Every legal spelling of the preamble with queries is fused, and the fused model computes the definition."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.qkv.cover import NZ, cover, label
from tests.fusion.qkv.spec import QUERIES, ROWS, SOURCES, SPLITS, Spec, expected, feeds, legal
from tests.fusion.qkv.spellings import Preamble
from tests.fusion.zoo.graph import NUMPY
from tests.fusion.zoo.norms import NORM_SINCE, NORMS
from tests.fusion.zoo.quants import QUANTS
from tests.fusion.zoo.ropes import ROPES
from tests.fusion.zoo.run import run, worst

OP = "QkvRmsNormRopeCache"
EXTRA = 400 if os.environ.get("EXPLORE") else 30


def check(**choices: Any) -> fusion.FusionResult:
    """Builds the preamble, sees that it computes the definition, fuses it, and sees that again."""
    spec = Spec(**choices)
    assert legal(spec)
    model = Preamble(spec).model()
    result = fusion.fuse(model)
    fused = result.model
    assert isinstance(fused, onnx.ModelProto)
    for batch, length in ((2, 3), (3, 1)):
        if spec.dims != "static" or (batch, length) == spec.sizes:
            given = feeds(spec, batch, length, seed=9)
            wanted = expected(spec, given)
            assert worst(run(model, given, spec.dtype), wanted, spec.dtype) == "", "the spelling itself"
            assert worst(run(fused, given, spec.dtype), wanted, spec.dtype) == ""
    assert result.count(OP) == spec.layers, [refusal.to_json() for refusal in result.refusals]
    for site in result.sites:
        eps = NUMPY[spec.dtype](spec.eps) if spec.norm == "own_type" else spec.eps
        assert np.isclose(site.attrs["epsilon"], float(eps), rtol=1e-5)
        assert site.attrs["head_nums"] == list(spec.heads)
    assert [entry.name for entry in fused.graph.input] == [entry.name for entry in model.graph.input]
    left = {node.op_type for node in fused.graph.node}
    assert not {"ReduceMean", "RMSNormalization", "QuantizeLinear", "ScatterND"} & left
    return result


@pytest.mark.parametrize("norm", NORMS)
def test_norm_spelling_is_fused(norm: str) -> None:
    check(norm=norm, opset=NORM_SINCE.get(norm, 18))


@pytest.mark.parametrize("rope", ROPES)
def test_rotation_spelling_is_fused(rope: str) -> None:
    check(rope=rope, opset=max(18, ROPES[rope].since), source="input")


@pytest.mark.parametrize("quant", [name for name in QUANTS if name != "linear_columns"])
def test_quantisation_spelling_is_fused(quant: str) -> None:
    how = QUANTS[quant]
    check(quant=quant, opset=20, offset=how.offset != "none", per_column=how.per_column, raw=True)


@pytest.mark.parametrize("write", NZ)
@pytest.mark.parametrize("quantised", ["", "k", "v"])
def test_write_spelling_is_fused(write: str, quantised: str) -> None:
    check(write=write, quant="divide" if quantised else "none", quantised=quantised or "both")


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("rows", ROWS)
def test_queries_are_delivered_in_any_form(rows: str, query: str) -> None:
    check(rows=rows, query=query, raw=True, dims="own")


@pytest.mark.parametrize(
    ("source", "split"), [(source, "split") for source in SOURCES] + [("bias", split) for split in SPLITS[1:]]
)
def test_any_source_of_rows_is_taken(source: str, split: str) -> None:
    result = check(source=source, split=split, dims="own", style="ts" if split == "slice" else "dynamo")
    kinds = [node.op_type for node in result.model.graph.node]
    products = sum(kind in ("MatMul", "Gemm") for kind in kinds)
    packed = any("packed into one" in note for site in result.sites for note in site.notes)
    assert packed == (source.startswith("separate") or source in ("some_bias", "kv_joint"))
    assert products == {"input": 0, "inputs": 0, "computed": 3}.get(source, 1)


@pytest.mark.parametrize("opset", [11, 12, 13, 16, 17, 20, 22, 24])
def test_every_opset_is_fused(opset: int) -> None:
    check(opset=opset, style="ts", quant="divide", offset=True, source="separate_bias")


@pytest.mark.parametrize("spec", cover(EXTRA), ids=label)
def test_combined_spellings_are_fused(spec: Spec) -> None:
    check(**vars(spec))

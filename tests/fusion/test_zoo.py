"""Every legal spelling of the preamble is fused, and the fused model computes the definition (plain numpy)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import fusion
from tests.fusion.zoo.cover import cover, label
from tests.fusion.zoo.graph import NUMPY
from tests.fusion.zoo.norms import NORM_SINCE
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds, legal
from tests.fusion.zoo.spellings import NORMS, QUANTS, ROPES, WRITES, Preamble

OP = "KvRmsNormRopeCache"


def check(**choices: Any) -> None:
    """Fuses the preamble: one node a layer, in a mode that describes the write, with the same result."""
    spec = Spec(**choices)
    assert legal(spec)
    model = Preamble(spec).model()
    result = fusion.fuse(model)
    assert result.count(OP) == spec.layers, [refusal.to_json() for refusal in result.refusals]
    for site in result.sites:
        if site.op != OP:
            continue  # a building block beside the preamble
        assert site.attrs["cache_mode"] in spec.how_written.modes
        eps = NUMPY[spec.dtype](spec.eps) if spec.norm == "own_type" else spec.eps
        assert np.isclose(site.attrs.get("epsilon", 1e-5), float(eps), rtol=1e-5)
    fused = result.model
    assert isinstance(fused, onnx.ModelProto)
    assert [entry.name for entry in fused.graph.input] == [entry.name for entry in model.graph.input]
    assert not {"ReduceMean", "RMSNormalization", "QuantizeLinear"} & {node.op_type for node in fused.graph.node}
    for batch, length in ((2, 3), (1, 5), (3, 1)):
        if spec.dims != "static" or (batch, length) == spec.sizes:
            given = feeds(spec, batch, length, seed=9)
            assert worst(run(fused, given, spec.dtype), expected(spec, given), spec.dtype) == ""


@pytest.mark.parametrize("norm", NORMS)
def test_norm_spelling_is_fused(norm: str) -> None:
    check(norm=norm, opset=NORM_SINCE.get(norm, 18), outs=True)


@pytest.mark.parametrize("rope", ROPES)
def test_rotation_spelling_is_fused(rope: str) -> None:
    check(rope=rope, opset=max(18, ROPES[rope].since))


@pytest.mark.parametrize("form", ["v1", "v2part"])
@pytest.mark.parametrize("rope", ["deint_view", "deint_chunk", "half_slices"])
@pytest.mark.parametrize("cos", ["pairs", "grids"])
def test_tables_that_are_no_rows_where_they_are_computed_are_read(cos: str, rope: str, form: str) -> None:
    check(cos=cos, rope=rope, form=form, dims="own", layers=2)
    check(cos=cos, rope=rope, form=form, kv="gemm", outs=True, write="page_row_pairs")


@pytest.mark.parametrize("quant", QUANTS)
def test_quantisation_spelling_is_fused(quant: str) -> None:
    how = QUANTS[quant]
    check(quant=quant, opset=20, offset=how.offset != "none", per_column=how.per_column)


@pytest.mark.parametrize("write", WRITES)
def test_write_spelling_is_fused(write: str) -> None:
    check(write=write, form="v1" if WRITES[write].one_head else "v2", opset=max(18, WRITES[write].since))


@pytest.mark.parametrize("spec", cover(60), ids=label)
def test_combined_spellings_are_fused(spec: Spec) -> None:
    check(**vars(spec))


@pytest.mark.parametrize("kv", ["input", "matmul", "gemm"])
@pytest.mark.parametrize("write", ["page_starts", "nz_page_starts"])
def test_number_of_pages_is_not_taken_for_the_batch(write: str, kv: str) -> None:
    """Both are equal as long as no batch has more tokens than a page has rows: feeds here have more."""
    check(write=write, kv=kv, dims="own")
    check(write=write, kv=kv, dims="own", cos="batch1", outs=True, quant="linear_scalar", per_column=False)

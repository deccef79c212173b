"""The zoo itself: every spelling computes the definition, written in plain numpy, when ONNX Runtime runs it."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from tests.fusion.zoo.cover import cover, label
from tests.fusion.zoo.norms import NORM_SINCE
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds, legal
from tests.fusion.zoo.spellings import NORMS, QUANTS, ROPES, WRITES, Preamble


def check(**choices: Any) -> None:
    spec = Spec(**choices)
    assert legal(spec)
    model = Preamble(spec).model()
    if spec.norm != "runtime_op":  # no schema: ONNX Runtime's own operator in the default domain
        onnx.checker.check_model(model, full_check=True)
    for batch, length in ((2, 3), (1, 5)):
        if spec.dims == "static" and (batch, length) != spec.sizes:
            continue
        given = feeds(spec, batch, length, seed=5)
        assert worst(run(model, given, spec.dtype), expected(spec, given), spec.dtype) == ""


def test_the_zoo_is_large_enough() -> None:
    assert len(NORMS) >= 24
    assert len(ROPES) >= 20
    assert len(QUANTS) >= 8
    assert len(WRITES) >= 10


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("norm", NORMS)
def test_norm_spelling_computes_the_definition(norm: str, dtype: str) -> None:
    check(norm=norm, dtype=dtype, opset=NORM_SINCE.get(norm, 18), outs=True)


@pytest.mark.parametrize("form", ["v1", "v2part"])
@pytest.mark.parametrize("rope", ROPES)
def test_rotation_spelling_computes_the_definition(rope: str, form: str) -> None:
    check(rope=rope, form=form, opset=max(18, ROPES[rope].since))


@pytest.mark.parametrize("form", ["v1", "v2"])
@pytest.mark.parametrize("quant", QUANTS)
def test_quantisation_spelling_computes_the_definition(quant: str, form: str) -> None:
    how = QUANTS[quant]
    if quant == "linear_columns" and form != "v1":
        form = "v1"  # one scale a column exists for one head only
    check(quant=quant, form=form, opset=20, offset=how.offset != "none", per_column=how.per_column)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("write", WRITES)
def test_write_spelling_puts_every_row_where_the_mode_says(write: str, dtype: str) -> None:
    how = WRITES[write]
    check(write=write, dtype=dtype, form="v1" if how.one_head else "v2", opset=max(18, how.since))


@pytest.mark.parametrize("opset", range(11, 25))
def test_every_opset_has_its_spelling(opset: int) -> None:
    check(opset=opset, style="ts", quant="divide", offset=True)
    check(opset=opset, rope="half_slices", form="v2", kv="gemm", cos="table", layers=2)


@pytest.mark.parametrize("spec", cover(100), ids=label)
def test_combined_spellings_compute_the_definition(spec: Spec) -> None:
    check(**vars(spec))

"""Models quantised by ONNX Runtime's ``quantize_static``, calibrated on two random calls, in both of its formats.

With its products quantised, queries, keys and values are rows of a product all the same (QDQ: a float one of rounded
numbers; QOperator: QLinearMatMul and DequantizeLinear), and DequantRopeQuantKvcache takes them. With every operator
quantised, the cached rows are rounded twice, and rotated in integers: refused, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import fusion
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.packed import Packed, PackedPreamble, feeds
from tests.fusion.zoo.run import run, worst

OP = "DequantRopeQuantKvcache"
FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
ROWS = ("matmul", "matmul_bias", "separate", "separate_bias")


class Calls(CalibrationDataReader):  # type: ignore[misc]
    """Two calls."""

    def __init__(self, spec: Packed, model: onnx.ModelProto) -> None:
        self._calls = iter([inputs(spec, model, seed) for seed in (0, 1)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._calls, None)


def inputs(spec: Packed, model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    names = {entry.name for entry in model.graph.input}
    return {name: value for name, value in feeds(spec, 2, 3, seed).items() if name in names}


def quantised(spec: Packed, folder: Path, form: str, **options: Any) -> onnx.ModelProto:
    model = PackedPreamble(spec).model()
    onnx.save(model, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx", folder / "quantised.onnx", Calls(spec, model), quant_format=FORMATS[form],
        weight_type=QuantType.QInt8, **options,
    )  # fmt: skip
    return onnx.load(folder / "quantised.onnx")


def spec_of(rows: str, write: str = "contiguous_pairs") -> Packed:
    return Packed(rows=rows, write=write, quant="divide", opset=18)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8], ids=["uint8", "int8"])
@pytest.mark.parametrize("by_column", [False, True], ids=["whole", "columns"])
def test_quantised_products_leave_the_site(
    tmp_path: Path, form: str, rows: str, kind: QuantType, by_column: bool
) -> None:
    spec = spec_of(rows, "rows_pairs" if by_column else "contiguous_pairs")
    model = quantised(
        spec, tmp_path, form, op_types_to_quantize=["MatMul"], per_channel=by_column, activation_type=kind
    )
    counted = [node.op_type for node in model.graph.node]
    assert ("QLinearMatMul" in counted) == (form == "qoperator") and "DequantizeLinear" in counted
    result = fusion.fuse(model)
    assert result.count(OP) == 1, [str(refusal) for refusal in result.refusals]
    given = inputs(spec, model, 5)
    plain = run(PackedPreamble(spec).model(), given)
    assert any(np.abs(plain[name].astype(np.float64) - value).max() > 1e-4 for name, value in run(model, given).items())
    assert worst(run(result.model, given), run(model, given), "float32") == ""


@pytest.mark.parametrize(("form", "code"), [("qdq", "row-plain"), ("qoperator", "write-unreadable")])
@pytest.mark.parametrize("rows", ["matmul_bias", "separate_bias"])
def test_rows_that_are_rounded_twice_are_refused(tmp_path: Path, form: str, code: str, rows: str) -> None:
    spec = spec_of(rows)
    model = quantised(spec, tmp_path, form)
    result = fusion.fuse(model)
    assert not result.count(OP)
    caches = [refusal for refusal in result.refusals if refusal.code == code]
    assert len(caches) == 2 and all("_cache" in refusal.fact for refusal in caches)
    given = inputs(spec, model, 5)
    assert worst(run(result.model, given), run(model, given), "float32") == ""

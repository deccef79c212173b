"""MLA preambles quantised by ONNX Runtime, and by weights alone: what MlaPrologV3 takes, what it says of the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import fusion
from tests.fusion.mla.preamble import Preamble, feeds, worst
from tests.fusion.mla.spec import Spec
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.run import run

OP = "MlaPrologV3"


class Calls(CalibrationDataReader):  # type: ignore[misc]
    """One call."""

    def __init__(self, spec: Spec, model: onnx.ModelProto) -> None:
        names = {entry.name for entry in model.graph.input}
        self._calls = iter([{name: value for name, value in feeds(spec, 0).items() if name in names}])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._calls, None)


def quantised(spec: Spec, folder: Path, how: str) -> onnx.ModelProto:
    model, source, target = Preamble(spec).model(), folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    if how == "dynamic":
        quantize_dynamic(source, target, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
    else:
        form = QuantFormat.QDQ if how == "qdq" else QuantFormat.QOperator
        quantize_static(source, target, Calls(spec, model), quant_format=form, op_types_to_quantize=["MatMul"],
                        weight_type=QuantType.QInt8)  # fmt: skip
    return onnx.load(target)


@pytest.mark.parametrize(
    ("how", "found"),
    [("dynamic", "one scale for all tokens"), ("qdq", "constant steps"), ("qoperator", "constant steps")],
)
def test_rows_rounded_in_front_of_the_products_are_the_reason(tmp_path: Path, how: str, found: str) -> None:
    """The operator quantises token by token, with scales of its own: this is another function."""
    spec = Spec()
    model = quantised(spec, tmp_path, how)
    result = fusion.fuse(model)
    assert not result.count(OP) and result.count("KvRmsNormRopeCache") == 1
    (refusal,) = [refusal for refusal in result.refusals if refusal.rule == OP]
    assert refusal.code == "mla-quant-products" and found in refusal.found
    given = feeds(spec, 1)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


@pytest.mark.parametrize("per_column", [True, False], ids=["columns", "whole"])
def test_weights_alone_may_be_integers(per_column: bool) -> None:
    spec = Spec()
    model = weights_only(Preamble(spec).model(), per_column)
    assert sum(node.op_type == "DequantizeLinear" for node in model.graph.node) == 3
    result = fusion.fuse(model)
    assert result.count(OP) == 1, [str(refusal) for refusal in result.refusals]
    given = feeds(spec, 1)
    assert worst(run(result.model, given), run(model, given), spec.dtype) == ""


def weights_only(model: onnx.ModelProto, per_column: bool) -> onnx.ModelProto:
    """Constant weights of products as int8 behind DequantizeLinear."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in [node.input[1] for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in stored]:
        weight = numpy_helper.to_array(stored[name])
        step = np.asarray(np.abs(weight).max(0 if per_column else None) / 127, np.float32)
        integers = np.round(weight / step).astype(np.int8)
        model.graph.initializer.remove(stored[name])
        for array, part in ((integers, "int8"), (step, "step")):
            model.graph.initializer.append(numpy_helper.from_array(array, f"{name}_{part}"))
        axis = {"axis": 1} if per_column else {}
        node = helper.make_node("DequantizeLinear", [f"{name}_int8", f"{name}_step"], [name], **axis)
        model.graph.node.insert(0, node)
    return model

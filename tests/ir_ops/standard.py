"""Models of one operator that carry its function body, run by ONNX Runtime without our library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

import custom_ort
from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_numpy
from ir_ops.onnx_function import function_body
from ir_ops.ops import OPS
from tests.custom_ort import one_node

# One rounding step of the type; what fp32 leaves open (order of the sum) shows in a few last bits.
STEP = {"float32": 2.0**-19, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def specs_of(inputs: Mapping[str, Array]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(by_numpy(array.dtype).name, array.shape) for name, array in inputs.items()}


def carrying(operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any], opset: int = 18) -> onnx.ModelProto:
    """A model of one node and its body; declared without shapes, so that one session takes all sizes."""
    model = one_node.model(operator, one_node.types_of(inputs), attrs)
    next(item for item in model.opset_import if not item.domain).version = opset
    model.functions.append(function_body(OPS[operator], specs_of(inputs), attrs, opset=opset))
    return model


def declare_shapes(
    model: onnx.ModelProto, operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any]
) -> None:
    """Gives the model's inputs and outputs the shapes of a call, as ``onnx.checker`` wants them."""
    specs = inferred(operator, inputs, attrs)
    results = {entry.onnx_name: specs[entry.name] for entry in OPS[operator].outputs}
    for value in (*model.graph.input, *model.graph.output):
        shape = inputs[value.name].shape if value.name in inputs else results[value.name].shape
        value.type.tensor_type.shape.SetInParent()
        for size in shape or ():
            value.type.tensor_type.shape.dim.add().dim_value = size or 0


def inferred(operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return OPS[operator].infer(specs_of(inputs), attrs)


def session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Sessions:
    """Sessions by configuration: making one costs more than running it."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def run(
        self, operator: str, inputs: Mapping[str, Array], attrs: Mapping[str, Any], opset: int = 18
    ) -> dict[str, Array]:
        """Results by GE output name."""
        types = tuple(sorted(one_node.types_of(inputs).items()))
        needed = {*OPS[operator].needs_rank, *(entry.name for entry in OPS[operator].inputs if entry.ref)}
        ranks = tuple((name, array.ndim) for name, array in inputs.items() if name in needed)
        key = (operator, types, ranks, repr(sorted(attrs.items())), opset)
        if key not in self._made:
            self._made[key] = session(carrying(operator, inputs, attrs, opset))
        return one_node.results(custom_ort.run(self._made[key], inputs))


def assert_equal(found: Mapping[str, Array], expected: Mapping[str, Array], where: str) -> int:
    """Asserts that results are a rounding step apart at most; returns how many int8 elements differ."""
    different = 0
    for name, wanted in expected.items():
        result = found[name]
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), f"{where} {name}"
        a, b = result.astype(np.float64), wanted.astype(np.float64)
        if wanted.dtype.kind not in "iu" and wanted.dtype.itemsize not in (2, 4):  # only moved: bool, float64
            assert np.array_equal(a, b, equal_nan=True), f"{where} {name}"
        elif wanted.dtype.kind in "iu" and wanted.dtype.itemsize > 1:
            assert np.array_equal(result, wanted), f"{where} {name}"
        elif wanted.dtype.kind in "iu":
            assert np.abs(a - b).max() <= 1, f"{where} {name}"
            different += int(np.count_nonzero(a != b))
        else:
            assert np.array_equal(np.isnan(a), np.isnan(b)), f"{where} {name}"
            step = STEP[by_numpy(wanted.dtype).name]
            np.testing.assert_allclose(a, b, rtol=step, atol=4e-6, err_msg=f"{where} {name}")
    return different

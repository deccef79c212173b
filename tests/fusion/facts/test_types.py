"""Element types that the file does not tell, and dims that it tells in its own way."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from fusion.facts.graph import dims_of, dtype_name
from tests.fusion.facts.build import value, view_of


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ("y = MatMulInteger (q, w)", "int32"),
        ("y = QLinearMatMul (q, s, z, w, s, z, s, u)", "uint8"),
        ("y = QuantizeLinear (x, s, z)", "int8"),
        ("y = QuantizeLinear (x, s)", "uint8"),
        ("y = QuantizeLinear <output_dtype: int = 3> (x, s)", "int8"),
        ("y = DequantizeLinear (q, s, z)", "float"),
        ("y, a, b = DynamicQuantizeLinear (x)", "uint8"),
        ("a, y, b = DynamicQuantizeLinear (x)", "float"),
        ("y = com.microsoft.MatMulIntegerToFloat (q, w, s, s)", "float"),
        ("y = Cast <to: int = 10> (x)", "float16"),
        ("y = Where (c, x, x)", "float"),
    ],
)
def test_type_follows_from_the_operands(node: str, wanted: str) -> None:
    view = view_of(
        f"""g (int8[2, 4] q, int8[4, 3] w, float[2, 4] x, bool[2, 4] c) => (float[N] out)
        <float s = {{0.5}}, int8 z = {{1}}, uint8 u = {{1}}> {{ {node} out = Identity (x) }}"""
    )
    assert dtype_name(value(view, "y")) == {"float": "float32"}.get(wanted, wanted)


def test_a_name_of_digits_is_a_size() -> None:
    view = view_of("g (float[B, 2] x) => (float[B, 2] out) { out = Identity (x) }")
    x = view.graph.inputs[0]
    x.shape = ir.Shape(["128", 2])
    assert dims_of(x) == (128, 2)
    x.shape = ir.Shape(["s128", 2])
    assert dims_of(x) == ("s128", 2)

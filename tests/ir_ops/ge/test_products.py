"""Products, SoCs and the command line that compiles an export."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ir_ops.errors import BadUsage, ExportError
from ir_ops.ge import GraphBuilder, export
from ir_ops.ge.atc import LARGE, atc_call, onnx_call
from ir_ops.ge.products import check_types, product_of, settled_product
from tests.ir_ops.ge.onnx_models import Case

X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("soc", "product"),
    [
        ("Ascend910B3", "A2"),
        ("ascend910b4-1", "A2"),
        ("Ascend910B2C", "A2"),
        ("Ascend910_9391", "A3"),
        ("Ascend950PR_9589", "950"),
        ("KirinX90", "kirin"),
    ],
)
def test_the_product_of_a_soc(soc: str, product: str) -> None:
    assert product_of(soc) == product
    assert settled_product("generic", soc) == settled_product(product, soc) == product


@pytest.mark.parametrize("soc", ["Ascend310P3", "910", "", "Ascend910A"])
def test_other_socs_are_refused(soc: str) -> None:
    with pytest.raises(BadUsage, match=r"unknown SoC; .*Ascend910B3 \(A2\)"):
        product_of(soc)


def test_soc_and_product_have_to_agree() -> None:
    with pytest.raises(BadUsage, match=r"of another product; found Ascend910B3 \(A2\), wanted A3"):
        export(Case("Neg", [X]).model(), product="A3", soc="Ascend910B3")
    with pytest.raises(BadUsage, match="unknown product; found A5"):
        export(Case("Neg", [X]).model(), product="A5")


def test_float8_is_of_the_950_only() -> None:
    b = GraphBuilder("g")
    x = b.data("x", "float8_e4m3fn", (2,))
    b.output(b.Add(b.Cast(x, dst_type=0), b.Cast(np.ones(2, ml_dtypes.float8_e5m2), dst_type=0)), "y")
    model = b.build()
    for product in ("generic", "950"):
        check_types(model, product)
    with pytest.raises(ExportError) as raised:
        check_types(model, "A2")
    text = "element types that A2 does not have; found 1 x Cast on float8_e4m3fn; 1 x Cast on float8_e5m2"
    assert text in str(raised.value)
    assert "1 x Data on float8_e4m3fn" in str(raised.value)


class TestAtc:
    def test_a_static_graph_needs_no_shapes(self, tmp_path: Path) -> None:
        result = export(Case("Neg", [X]).model(), tmp_path / "m.air", soc="Ascend910B3")
        assert result.atc is not None
        assert result.atc.command.split() == [
            "atc", "--mode=0", "--framework=1", f"--model={tmp_path / 'm.air'}", f"--output={tmp_path / 'm'}",
            "--soc_version=Ascend910B3", "--precision_mode_v2=origin",
        ]  # fmt: skip
        assert result.atc.remarks == ()

    def test_open_dims_and_the_chip_are_to_be_filled_in(self) -> None:
        b = GraphBuilder("g")
        b.data("mask", "bool", (4,))
        b.output(b.Neg(b.data("x", "float32", (-1, 3))), "y")
        call = atc_call(b.build(), Path("m.air"), product="A3")
        assert " --input_shape=x:-1,3 " in call.command
        assert call.remarks[0] == "<soc>: the chip, e.g. Ascend910_9391"
        assert "--soc_version=<soc>" in call.command
        assert any(remark.startswith("--input_shape") for remark in call.remarks)

    def test_large_weights_stay_out_of_the_result(self) -> None:
        b = GraphBuilder("g")
        weight = b.file_constant("/data/w", 0, 8, "float32", (2,))
        cache = b.ref_data("cache", "float32", (2,))
        b.output(b.Add(weight, cache), "y")
        call = atc_call(b.build(), Path("m.air"), soc="Ascend910B3", weight_bytes=3 * LARGE)
        assert call.command.endswith("--external_weight=1")
        texts = " ".join(call.remarks)
        assert "(3 GiB)" in texts
        assert "by absolute path" in texts
        assert "RefData" in texts

    def test_the_onnx_route(self) -> None:
        call = onnx_call(Path("d/m.onnx"), soc="Ascend910B3")
        assert "--framework=5 --model=d/m.onnx --output=d/m --soc_version=Ascend910B3" in call.command

"""Control flow and weights that the conversion makes: an If known at export, blockwise quantised weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import custom_ort
from ir_ops.errors import ExportError
from ir_ops.ge import export, run
from tests.ir_ops.ge.onnx_models import Case, Fixed, make_model, tensor

rng = np.random.default_rng(4)
X = rng.standard_normal((2, 3)).astype(np.float32)


def chosen(rank_is: int) -> onnx.ModelProto:
    """``x + w`` where the rank of x is ``rank_is``, else ``x * w``: as TorchScript spells a squeeze."""
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Size", ["dims"], ["rank"]),
        helper.make_node("Equal", ["rank", "wanted"], ["same"]),
        helper.make_node(
            "If", ["same"], ["y"],
            then_branch=helper.make_graph(
                [helper.make_node("Constant", [], ["one"], value=tensor("one", np.ones(3, np.float32))),
                 helper.make_node("Add", ["w", "one"], ["w1"]), helper.make_node("Add", ["x", "w1"], ["a"])],
                "then", [], [helper.make_empty_tensor_value_info("a")],
            ),
            else_branch=helper.make_graph(
                [helper.make_node("Mul", ["x", "w"], ["b"])], "else", [], [helper.make_empty_tensor_value_info("b")]
            ),
        ),
    ]  # fmt: skip
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    inits = [tensor("wanted", np.array(rank_is, np.int64)), tensor("w", np.full(3, 2.0, np.float32))]
    return make_model(helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")], inits))


@pytest.mark.parametrize(("rank", "wanted"), [(2, X + 3), (3, X * 2)])
def test_a_branch_known_at_export_is_taken(rank: int, wanted: np.ndarray) -> None:  # type: ignore[type-arg]
    result = export(chosen(rank))
    assert not {"If", "Shape", "Size"} & set(result.ops_after)
    np.testing.assert_allclose(run(result.model, {"x": X})["y"], wanted, rtol=1e-6)


def test_a_branch_chosen_at_run_time_is_refused() -> None:
    model = chosen(2)
    del model.graph.node[:3]
    model.graph.input.append(helper.make_tensor_value_info("same", TensorProto.BOOL, []))
    with pytest.raises(ExportError, match="1 x If: a branch that is chosen at run time, nearest: fixed input shapes"):
        export(model)


@pytest.mark.parametrize(("bits", "zero"), [(4, False), (4, True), (8, True), (2, False)])
def test_blockwise_weights_against_onnx_runtime(bits: int, zero: bool, tmp_path: Path) -> None:
    K, N, block = 40, 6, 16
    blocks, a = -(-K // block), rng.standard_normal((2, 5, K)).astype(np.float32)
    packed = rng.integers(0, 256, (N, blocks, block * bits // 8)).astype(np.uint8)
    scales = (rng.random((N, blocks)) + 0.1).astype(np.float32)
    points = [Fixed(rng.integers(0, 256, (N, -(-blocks * bits // 8))).astype(np.uint8))] if zero else []
    attrs = {"K": K, "N": N, "bits": bits, "block_size": block}
    case = Case("MatMulNBits", [a, Fixed(packed), Fixed(scales), *points], attrs, domain="com.microsoft")
    model = case.model()
    got = run(export(model, tmp_path / "m.air", weights="external").path or "", {"in0": a})["out0"]
    onnx.save(model, tmp_path / "m.onnx")
    (wanted,) = custom_ort.session(tmp_path / "m.onnx").run(None, {"in0": a})
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)

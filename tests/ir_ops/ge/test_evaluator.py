"""The numpy evaluator: meanings that differ from ONNX's, refusals, and agreement with the inferred types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ir_ops.dtypes import Array
from ir_ops.errors import BadInput, BadModel
from ir_ops.ge import GraphBuilder, execute, run, write
from ir_ops.ge.convert import load_families
from ir_ops.ge.evaluator import can_run
from ir_ops.ge.infer import can_infer
from ir_ops.ge.model import Port, TensorType
from ir_ops.ge.prototypes import prototypes

rng = np.random.default_rng(11)
X = rng.standard_normal((2, 4)).astype(np.float32)


def evaluate(make: Callable[..., Any], *arrays: Array) -> Any:
    """The result of one operator on graph inputs."""
    b = GraphBuilder()
    out = make(b, *(b.data(f"x{i}", array.dtype, array.shape) for i, array in enumerate(arrays)))
    for i, tensor in enumerate([out] if hasattr(out, "edge") else out):
        b.output(tensor, f"y{i}")
    made = list(run(b.build(), {f"x{i}": array for i, array in enumerate(arrays)}).values())
    return made[0] if len(made) == 1 else made


class TestMeanings:
    def test_quantisation_multiplies_by_the_scale_and_adds_the_offset_before_rounding(self) -> None:
        x = np.array([[1.0, 0.26, -3.0, 100.0]], np.float32)
        got = evaluate(lambda b, x: b.AscendQuantV2(x, np.array([2.0], np.float32), np.array([0.5], np.float32)), x)
        assert got.tolist() == [[2, 1, -6, 127]]

    def test_dynamic_quant_gives_zero_rows_for_zero(self) -> None:
        x = np.array([[0, 0], [1, -2]], np.float16)
        y, scale = evaluate(lambda b, x: b.DynamicQuant(x), x)
        assert y.tolist() == [[0, 0], [64, -127]]
        np.testing.assert_allclose(scale, [0, 2 / 127], rtol=1e-6)

    def test_an_expand_target_of_one_keeps_the_dim(self) -> None:
        assert evaluate(lambda b, x: b.Expand(x, np.array([3, 1, 1])), X).shape == (3, 2, 4)

    def test_a_broadcast_target_is_the_result(self) -> None:
        assert evaluate(lambda b, x: b.BroadcastTo(x, np.array([3, 2, 4])), X).shape == (3, 2, 4)

    def test_trilu_is_lower_by_default(self) -> None:
        np.testing.assert_array_equal(evaluate(lambda b, x: b.Trilu(x), X), np.tril(X))
        np.testing.assert_array_equal(evaluate(lambda b, x: b.Triu(x, diagonal=1), X), np.triu(X, 1))

    def test_rotations(self) -> None:
        cos, sin = (rng.standard_normal((2, 4)).astype(np.float32) for _ in range(2))
        a, b_, c, d = X.T
        half = X * cos + np.stack([-c, -d, a, b_], -1) * sin
        pairs = X * cos + np.stack([-b_, a, -d, c], -1) * sin
        split = np.stack([a, c, b_, d], -1)
        interleaved = split * cos + np.stack([-b_, -d, a, c], -1) * sin
        rotate = lambda mode: lambda b, *t: b.RotaryPositionEmbedding(*t, mode=mode)  # noqa: E731
        rows = [array[None, None] for array in (X, cos, sin)]  # B and N of 1
        np.testing.assert_allclose(evaluate(rotate(0), *rows)[0, 0], half, rtol=1e-6)
        np.testing.assert_allclose(evaluate(rotate(1), *rows)[0, 0], pairs, rtol=1e-6)
        np.testing.assert_allclose(evaluate(lambda b, *t: b.RotaryMul(*t), X, cos, sin), half, rtol=1e-6)
        np.testing.assert_allclose(evaluate(lambda b, *t: b.InterleaveRope(*t), *rows)[0, 0], interleaved, rtol=1e-6)

    def test_swiglu_activates_the_first_half(self) -> None:
        a, b_ = X[:, :2], X[:, 2:]
        np.testing.assert_allclose(evaluate(lambda b, x: b.SwiGlu(x), X), a / (1 + np.exp(-a)) * b_, rtol=1e-6)

    def test_integer_division(self) -> None:
        a, b_ = np.array([7, -7]), np.array([2, 2])
        assert evaluate(lambda b, *t: b.Div(*t), a, b_).tolist() == [3, -3]
        assert evaluate(lambda b, *t: b.FloorDiv(*t), a, b_).tolist() == [3, -4]

    def test_half_precision_is_computed_in_float32_and_rounded_once(self) -> None:
        x = np.full((1, 4096), 1.0, np.float16)
        assert evaluate(lambda b, x: b.ReduceSum(x, np.array([1])), x).tolist() == [4096.0]
        row = np.array([[1.0, 2.0**-8]], ml_dtypes.bfloat16)
        got = evaluate(lambda b, x: b.RmsNorm(x, np.ones(2, ml_dtypes.bfloat16), epsilon=0.0), row)[0]
        wide = row.astype(np.float32)
        np.testing.assert_array_equal(got, (wide / np.sqrt(np.mean(wide**2, -1, keepdims=True))).astype(row.dtype))

    def test_scatter_writes_blocks_at_their_starts(self) -> None:
        var, updates = np.zeros((2, 5, 2), np.float32), np.ones((2, 2, 2), np.float32)
        got = evaluate(
            lambda b, v, u: b.Scatter(b.TensorMove(v), np.array([1, 3]), u, reduce="update", axis=1), var, updates
        )
        assert got[:, :, 0].tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]

    def test_top_k_takes_the_smaller_index_first(self) -> None:
        x = np.array([[1.0, 3.0, 3.0]], np.float32)
        assert evaluate(lambda b, x: b.TopKV2(x, np.int32(2)), x)[1].tolist() == [[1, 2]]

    def test_updates_return_the_cache_and_leave_the_input(self) -> None:
        b = GraphBuilder()
        cache = b.ref_data("cache", "float32", (3, 2))
        b.output(b.ScatterNdUpdate(cache, np.array([[1]]), np.ones((1, 2), np.float32)), "out")
        before = np.zeros((3, 2), np.float32)
        result = execute(b.build(), {"cache": before})
        assert result.caches["cache"].tolist() == [[0, 0], [1, 1], [0, 0]]
        assert not before.any()


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda b, x: b.GatherV2(x, np.array([-1]), np.int64(0)), "out of range; found -1..-1, wanted 0..1"),
            (lambda b, x: b.GatherV2(x, np.array([2]), np.int64(0)), "out of range; found 2..2, wanted 0..1"),
            (lambda b, x: b.TensorScatterUpdate(x, np.array([[-1]]), np.ones((1, 4), np.float32)), "out of range"),
            (lambda b, x: b.GatherElements(x, np.array([[5]]), dim=1), "out of range"),
            (lambda b, x: b.TopKV2(x, np.int64(1)), "k; found int64, wanted int32"),
            (lambda b, x: b.Exp(x, base=2.0), "base, scale or shift"),
            (lambda b, x: b.RotaryPositionEmbedding(x, x, x, mode=2), "RP-1: x must have 3 or 4 dims"),
        ],
    )
    def test_what_a_device_does_not_take(self, make: Callable[..., Any], text: str) -> None:
        with pytest.raises(BadInput, match=text):
            evaluate(make, X)

    def test_inputs_that_do_not_fit(self) -> None:
        b = GraphBuilder("g")
        b.output(b.Neg(b.data("x", "float32", (-1, 4))), "y")
        model = b.build()
        with pytest.raises(BadInput, match=r"g: inputs do not fit the graph; found unknown \['z'\]; missing \['x'\]"):
            run(model, {"z": X})
        with pytest.raises(
            BadInput, match=r"x: an input has another type; found float64\[2, 4\], wanted float32\[\?,4\]"
        ):
            run(model, {"x": X.astype(np.float64)})
        with pytest.raises(BadInput, match="an input has another type"):
            run(model, {"x": X[:, :3]})

    def test_names_of_the_onnx_model_are_taken_too(self) -> None:
        b = GraphBuilder("g")
        b.output(b.Neg(b.data("x:0", "float32", (2, 4))), "y")
        np.testing.assert_array_equal(run(b.build(), {"x:0": X})["y"], -X)
        np.testing.assert_array_equal(run(b.build(), {"x_0": X})["y"], -X)

    def test_operators_without_an_evaluator(self) -> None:
        b = GraphBuilder("g")
        x = b.data("x", "float16", (2, 8))
        for name in "ab":
            types = {"y": TensorType(x.dtype, (2, 8))}
            b.output(b.RmsNormQuant(x, x, x, x, x, epsilon=1e-6, types=types), name)
        with pytest.raises(BadModel, match="operators without an evaluator; found 2 x RmsNormQuant"):
            run(b.build(), {"x": np.zeros((2, 8), np.float16)})

    def test_a_result_of_another_type_than_declared(self) -> None:
        b = GraphBuilder("g")
        b.output(b.Neg(b.data("x", "float32", (2, 4)), name="neg"), "y")
        model = b.build()
        node = model.root.node("neg")
        node.outputs[0] = Port("y", TensorType(node.outputs[0].type.dtype, (2, 5)))
        with pytest.raises(BadModel, match=r"neg \(Neg\) y: an output has another type than declared"):
            run(model, {"x": X})

    def test_shapes_that_clash_at_run_time_are_one_clear_line(self) -> None:
        b = GraphBuilder("g")
        b.output(b.Add(b.data("x", "float32", (-1,)), b.data("z", "float32", (-1,)), name="sum"), "y")
        with pytest.raises(
            BadInput, match=r"sum \(Add\): cannot be computed: .*; found x1 float32\[2\], x2 float32\[3\]"
        ):
            run(b.build(), {"x": np.zeros(2, np.float32), "z": np.zeros(3, np.float32)})


class TestFiles:
    def test_weights_beside_the_file_and_in_a_range(self, tmp_path: Path) -> None:
        values = np.arange(8, dtype=np.float32)
        (tmp_path / "w.bin").write_bytes(values.tobytes())
        b = GraphBuilder()
        b.output(b.Neg(b.const_file("w.bin", "float32", (8,))), "whole")
        b.output(b.Neg(b.file_constant(tmp_path / "w.bin", 8, 12, "float32", (3,))), "part")
        path = write(b.build(), tmp_path / "m.air")
        got = run(path, {})
        np.testing.assert_array_equal(got["whole"], -values)
        np.testing.assert_array_equal(got["part"], -values[2:5])
        (tmp_path / "w.bin").write_bytes(b"abc")
        with pytest.raises(BadInput, match="the weight file is too short"):
            run(path, {})
        (tmp_path / "w.bin").unlink()
        with pytest.raises(BadInput, match="no weight file"):
            run(path, {})


def test_every_operator_that_is_inferred_can_be_run() -> None:
    load_families()
    assert [name for name in prototypes() if can_infer(name) and not can_run(name)] == []

"""onnxruntime's own operators: shapes, and results where these are told, are those that onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusion.facts.semantics import Unsupported, lookup
from fusion.facts.semantics.table import MICROSOFT, stand_in
from ir_ops.dtypes import Array
from tests.fusion.surgery.group_query import Form, run


def shapes(op: str, attrs: dict[str, int], operands: list[tuple[int, ...] | None]) -> list[tuple[int, ...]]:
    definition = lookup(MICROSOFT, op)
    assert definition is not None
    assert definition.shapes is not None
    return definition.shapes(attrs, [None if item is None else stand_in(item) for item in operands])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("call", [([0, 0], [5, 2]), ([7], [3]), ([4, 2], [1, 1])])
def test_attention_that_keeps_its_caches(packed: bool, call: tuple[list[int], list[int]]) -> None:
    form = Form(packed=packed)
    feeds = form.call(np.random.default_rng(0), *call)
    names = ["query", "key", "value", "past_key", "past_value"]
    told = shapes("GroupQueryAttention", {"num_heads": form.heads, "kv_num_heads": form.kv_heads},
                  [feeds[name].shape if name in feeds else None for name in names])  # fmt: skip
    assert told == [item.shape for item in run(form.model(), feeds)]


def picked(table: Array, kind: int, scales: Array, block: int, bits: int) -> onnx.ModelProto:
    stored = helper.make_tensor("table", kind, table.shape, table.tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("GatherBlockQuantized", ["table", "ids", "scales"], ["rows"], domain=MICROSOFT,
                          block_size=block, bits=bits, gather_axis=0, quantize_axis=1)],
        "one", [helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)],
        [stored, numpy_helper.from_array(scales, "scales")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 22), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize(("stored", "bits"), [(32, 4), (64, 8)])
def test_rows_of_a_table_in_blocks(stored: int, bits: int) -> None:
    table, scales = np.full((9, stored), 7, np.uint8), np.ones((9, 2), np.float32)
    model = picked(table, TensorProto.UINT8, scales, 32, bits)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (rows,) = session.run(None, {"ids": np.array([[0, 1, 2], [3, 4, 8]])})
    attrs = {"block_size": 32, "bits": bits, "gather_axis": 0, "quantize_axis": 1}
    assert shapes("GatherBlockQuantized", attrs, [(9, stored), (2, 3), (9, 2)]) == [rows.shape]


def test_rows_whose_length_is_not_certain() -> None:
    with pytest.raises(Unsupported):
        shapes("GatherBlockQuantized", {"block_size": 128, "bits": 4}, [(9, 32), (2, 3), (9, 1)])


@pytest.mark.parametrize("given", [("gamma",), ("gamma", "beta"), ("gamma", "beta", "bias")])
def test_residual_and_layer_norm(given: tuple[str, ...]) -> None:
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal((2, 3, 8)).astype(np.float32) for name in ("x", "skip")}
    feeds |= {name: rng.standard_normal(8).astype(np.float32) for name in given}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, item.shape) for name, item in feeds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "sum")]
    node = helper.make_node("SkipLayerNormalization", list(feeds), ["y", "", "", "sum"], domain=MICROSOFT, epsilon=1e-5)
    imports = [helper.make_opsetid("", 22), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=imports, ir_version=10)
    definition = lookup(MICROSOFT, "SkipLayerNormalization")
    assert definition is not None
    assert definition.shapes is not None
    got = definition.run({"epsilon": 1e-5}, list(feeds.values()))
    for mine, its in zip((got[0], got[3]), run(model, feeds), strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-5)
    assert definition.shapes({}, list(feeds.values())) == [item.shape for item in got]

"""Attention that the model spells out: GE's operator where that is provably the same, by result; else left as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from ir_ops.dtypes import by_numpy
from ir_ops.ge import export, run
from ir_ops.ge.validator import errors
from tests.ir_ops.ge.onnx_models import make_model, tensor

FUSED = "FusedInferAttentionScore"
B, N, S, T, D = 2, 4, 3, 6, 16
rng = np.random.default_rng(3)
FLOAT, HALF, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BOOL


def x(*shape: int) -> Any:
    return (rng.standard_normal(shape) * 0.5).astype(np.float16)


def seen(*shape: int) -> Any:
    """A condition (true: keep) that leaves every row a key."""
    mask = rng.random(shape) > 0.4
    mask[..., 0] = True
    return mask


def hidden_row(mask: Any) -> Any:
    mask = mask.copy()
    mask[..., 1, :] = False
    return mask


@dataclass
class Net:
    """A graph under construction; every step returns the name of its result."""

    half: Any = np.float16
    feeds: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    varying: dict[str, list[Any]] = field(default_factory=dict)

    def give(self, name: str, array: Any, *dims: Any) -> str:
        """A graph input; ``dims`` are names of dims that vary."""
        self.feeds[name] = array.astype(self.half) if array.dtype == np.float16 else array
        self.varying[name] = list(dims) or list(array.shape)
        return name

    def const(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.fixed)}"
        self.fixed[name] = np.asarray(value, dtype or self.half)
        return name

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"n/{op}{len(self.nodes)}", **attrs))
        return name

    def model(self, opset: int = 18) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(name, by_numpy(array.dtype).onnx or 0, self.varying[name])
            for name, array in self.feeds.items()
        ]
        inits = [tensor(name, array) for name, array in self.fixed.items()]
        results = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        return onnx.shape_inference.infer_shapes(
            make_model(helper.make_graph(self.nodes, "g", infos, results, inits), opset)
        )


def operands(net: Net, kv_heads: int = N, batch: Any = B, rows: Any = S, keys: Any = T) -> tuple[str, str, str]:
    q = net.give("q", x(B, N, S, D), batch, N, rows, D)
    k = net.give("k", x(B, kv_heads, T, D), batch, kv_heads, keys, D)
    v = net.give("v", x(B, kv_heads, T, D), batch, kv_heads, keys, D)
    return q, k, v


def scores(net: Net, q: str, k: str, scale: float = 0.25) -> str:
    return net("Mul", net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2])), net.const(scale))


def attended(net: Net, masked: str, v: str, guard: bool = False) -> str:
    weights = net("Softmax", masked, axis=-1)
    if guard:
        weights = net("Where", net("IsNaN", weights), net.const(0.0), weights)
    net.outputs.append(net("MatMul", weights, v))
    return net.outputs[-1]


def additive(net: Net, condition: str, lowest: float = -np.inf) -> str:
    return net("Where", condition, net.const(0.0), net.const(lowest))


# ---------------------------------------------------------------------------------------------------- taken


def no_mask(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, scores(net, q, k), v)


def names_for_sizes(net: Net) -> None:
    q, k, v = operands(net, batch="batch", rows="new", keys="all")
    attended(net, scores(net, q, k), v)


def keys_shared_by_all_heads(net: Net) -> None:
    q, k, v = operands(net, kv_heads=1)
    attended(net, scores(net, q, k), v)


def divided_in_float32(net: Net) -> None:
    """transformers' eager attention: softmax in float32."""
    q, k, v = operands(net)
    raw = net("Div", net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2])), net.const(4.0))
    weights = net("Softmax", net("Cast", raw, to=FLOAT))
    net.outputs.append(net("MatMul", net("Cast", weights, to=HALF), v))


def keys_turned_elsewhere(net: Net) -> None:
    q, _, v = operands(net)
    turned = net.give("turned", x(B, N, D, T))
    attended(net, net("MatMul", q, turned), v)


def constant_mask(net: Net) -> None:
    q, k, v = operands(net)
    mask = net.const(np.where(np.tri(S, T, T - S, dtype=bool), 0, -65504))
    attended(net, net("Add", mask, scores(net, q, k)), v)


def constant_mask_of_float32(net: Net) -> None:
    q, k, v = operands(net)
    mask = net.const(np.where(np.tri(S, T, T - S, dtype=bool), 0, np.finfo(np.float32).min), np.float32)
    weights = net("Softmax", net("Add", net("Cast", scores(net, q, k), to=FLOAT), mask), axis=3)
    net.outputs.append(net("MatMul", net("Cast", weights, to=HALF), v))


def guarded_additive(net: Net, *dims: Any) -> None:
    """PyTorch's export of scaled_dot_product_attention with a bool mask."""
    q, k, v = operands(net)
    condition = net.give("mask", hidden_row(seen(B, 1, S, T)), *dims)
    spread = net("Expand", additive(net, condition), net.const([B, 1, S, T], np.int64))
    attended(net, net("Add", scores(net, q, k), spread), v, guard=True)


def guarded_choice(net: Net) -> None:
    q, k, v = operands(net)
    condition = net.give("mask", hidden_row(seen(1, 1, S, T)))
    attended(net, net("Where", condition, scores(net, q, k), net.const(-np.inf)), v, guard=True)


def guarded_choice_turned(net: Net) -> None:
    q, k, v = operands(net)
    condition = net("Not", net.give("mask", hidden_row(seen(S, T))))
    attended(net, net("Where", condition, net.const(-np.inf), scores(net, q, k)), v, guard=True)


TAKEN = (
    no_mask, names_for_sizes, keys_shared_by_all_heads, divided_in_float32, keys_turned_elsewhere, constant_mask,
    constant_mask_of_float32, guarded_additive, guarded_choice, guarded_choice_turned,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------- left


def finite_mask_at_run_time(net: Net) -> None:
    """A row that sees nothing, which other inputs may have, is a mean of v here and 0 in GE's operator."""
    q, k, v = operands(net)
    mask = additive(net, net.give("mask", seen(B, 1, S, T)), -65504.0)
    attended(net, net("Add", scores(net, q, k), mask), v, guard=True)


def infinite_mask_without_guard(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, net("Add", scores(net, q, k), additive(net, net.give("mask", seen(B, 1, S, T)))), v)


def given_mask(net: Net) -> None:
    q, k, v = operands(net)
    mask = net.give("mask", np.where(seen(B, 1, S, T), 0, -np.inf).astype(np.float16))
    attended(net, net("Add", scores(net, q, k), mask), v, guard=True)


def constant_mask_that_hides_a_row(net: Net) -> None:
    q, k, v = operands(net)
    mask = net.const(np.where(hidden_row(seen(S, T)), 0, -np.inf))
    attended(net, net("Add", scores(net, q, k), mask), v)


def bias(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, net("Add", scores(net, q, k), net.const(x(N, S, T))), v)


def not_quite_lowest(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, net("Add", scores(net, q, k), net.const(np.where(seen(S, T), 0, -4.0))), v)


def mask_of_each_head(net: Net) -> None:
    q, k, v = operands(net)
    mask = additive(net, net.give("mask", seen(B, N, S, T)))
    attended(net, net("Add", scores(net, q, k), mask), v, guard=True)


def scaled_mask(net: Net) -> None:
    q, k, v = operands(net)
    mask = net.const(np.where(seen(S, T), 0, -65504))
    attended(net, net("Mul", net("Add", scores(net, q, k), mask), net.const(1e-4)), v)


def two_masks(net: Net) -> None:
    q, k, v = operands(net)
    first = net("Add", scores(net, q, k), net.const(np.where(np.tri(S, T, 1, dtype=bool), 0, -65504)))
    attended(net, net("Add", first, net.const(np.where(seen(S, T), 0, -np.inf))), v)


def capped(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, net("Mul", net("Tanh", scores(net, q, k)), net.const(2.0)), v)


def sink(net: Net) -> None:
    q, k, v = operands(net)
    wide = net("Concat", scores(net, q, k), net.const(np.zeros((B, N, S, 1))), axis=-1)
    weights = net("Slice", net("Softmax", wide), net.const([0], np.int64), net.const([T], np.int64),
                  net.const([3], np.int64))  # fmt: skip
    net.outputs.append(net("MatMul", weights, v))


def guard_of_another_number(net: Net) -> None:
    q, k, v = operands(net)
    masked = net("Add", scores(net, q, k), additive(net, net.give("mask", hidden_row(seen(B, 1, S, T)))))
    weights = net("Softmax", masked)
    net.outputs.append(net("MatMul", net("Where", net("IsNaN", weights), net.const(0.25), weights), v))


def other_axis(net: Net) -> None:
    q, k, v = operands(net)
    net.outputs.append(net("MatMul", net("Softmax", scores(net, q, k), axis=2), v))


def weights_are_an_output(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, scores(net, q, k), v)
    net.outputs.append(net.nodes[-2].output[0])


def scores_are_read(net: Net) -> None:
    q, k, v = operands(net)
    found = scores(net, q, k)
    attended(net, found, v)
    net.outputs.append(net("ReduceMax", found))


def batch_that_broadcasts(net: Net) -> None:
    q, k, v = operands(net)
    net.feeds["k"], net.varying["k"] = net.feeds["k"][:1], [1, N, T, D]
    attended(net, scores(net, q, k), v)


def sizes_without_relation(net: Net) -> None:
    q, k, v = operands(net, batch="batch")
    net.varying["k"][0] = "another"
    attended(net, scores(net, q, k), v)


def mask_larger_than_the_scores(net: Net) -> None:
    q, k, v = operands(net)
    net.feeds["q"], net.varying["q"] = net.feeds["q"][:, :, :1], [B, N, 1, D]
    mask = net.const(np.where(np.tri(S, T, T - S, dtype=bool), 0, -65504))
    attended(net, net("Add", scores(net, q, k), mask), v)


def one_number_for_all_scores(net: Net) -> None:
    q, k, v = operands(net)
    attended(net, net("Add", scores(net, q, k), net.const(0.0)), v)


LEFT = (
    one_number_for_all_scores,
    finite_mask_at_run_time, infinite_mask_without_guard, given_mask, constant_mask_that_hides_a_row, bias,
    not_quite_lowest, mask_of_each_head, scaled_mask, two_masks, capped, sink, guard_of_another_number, other_axis,
    weights_are_an_output, scores_are_read, batch_that_broadcasts, sizes_without_relation, mask_larger_than_the_scores,
)  # fmt: skip


def check(build: Callable[[Net], None], **options: Any) -> Any:
    net = Net()
    build(net)
    model = net.model()
    result = export(model, **options)
    assert errors(result.findings) == []
    got = run(result.model, net.feeds)
    session_options = ort.SessionOptions()
    session_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), session_options)
    for name, wanted in zip(net.outputs, session.run(None, net.feeds), strict=True):
        np.testing.assert_allclose(
            got[name].astype(np.float64), wanted.astype(np.float64), rtol=2**-7, atol=2**-8, err_msg=name
        )
    return result.ops_after


@pytest.mark.parametrize("build", TAKEN, ids=lambda build: build.__name__)
def test_taken_where_it_is_the_same(build: Callable[[Net], None]) -> None:
    found = check(build)
    assert found[FUSED] == 1
    assert not {"SoftmaxV2", "BatchMatMulV2", "IsNan"} & set(found)


@pytest.mark.parametrize("build", TAKEN, ids=lambda build: build.__name__)
def test_left_on_demand(build: Callable[[Net], None]) -> None:
    assert check(build, attention="plain")[FUSED] == 0


@pytest.mark.parametrize("build", LEFT, ids=lambda build: build.__name__)
def test_left_where_that_is_not_certain(build: Callable[[Net], None]) -> None:
    assert check(build)[FUSED] == 0


def test_the_scale_and_the_layout_of_the_node() -> None:
    net = Net()
    keys_shared_by_all_heads(net)
    (node,) = export(net.model()).model.root.of_type(FUSED)
    assert (node.value("num_heads"), node.value("num_key_value_heads"), node.value("scale")) == (N, 1, 0.25)
    assert node.value("input_layout") == "BNSD"


def test_bfloat16_and_the_products_limits() -> None:
    net = Net(half=ml_dtypes.bfloat16)
    no_mask(net)
    assert export(net.model()).ops_after[FUSED] == export(net.model(), product="A2").ops_after[FUSED] == 1
    assert export(net.model(), product="kirin").ops_after[FUSED] == 0


def test_float32_stays_spelled_out() -> None:
    net = Net(half=np.float32)
    no_mask(net)
    assert export(net.model()).ops_after[FUSED] == 0


def test_unknown_shapes_prove_nothing() -> None:
    net = Net()
    names_for_sizes(net)
    model = net.model()
    del model.graph.value_info[:]
    assert export(model).ops_after[FUSED] == 0

"""The operators in ``onnx.reference``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ir_ops.errors import BadInput
from ir_ops.onnx_reference import reference_ops
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call, random_call
from tests.golden import GoldenCase, cases

OP = OPS["KvRmsNormRopeCache"]


def evaluate(call: Call) -> list[np.ndarray]:
    model = one_node.model(OP.name, one_node.types_of(call.inputs), call.attrs)
    return ReferenceEvaluator(model, new_ops=reference_ops()).run(None, call.inputs)


@pytest.mark.parametrize("case", cases(OP.name), ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    results = evaluate(Call(case.inputs, case.attrs))
    case.check({entry.name: array for entry, array in zip(OP.outputs, results, strict=True)})


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_bits_of_the_reference(seed: int) -> None:
    """All types, bfloat16 and float8 included, and attributes through protobuf (epsilon becomes float32)."""
    call = random_call(np.random.default_rng(seed))
    call.attrs["epsilon"] = float(np.float32(call.attrs["epsilon"]))
    expected = OP.reference(call.inputs, call.attrs)
    for entry, array in zip(OP.outputs, evaluate(call), strict=True):
        assert array.dtype == expected[entry.name].dtype
        assert np.array_equal(one_node.bits(array), one_node.bits(expected[entry.name]))


def test_one_class_for_each_operator() -> None:
    assert {(kind.op_domain, kind.__name__) for kind in reference_ops()} == {("ai.ascend", name) for name in OPS}


def test_fewer_outputs() -> None:
    """A node that names the caches only gets two arrays."""
    call = random_call(np.random.default_rng(1))
    model = one_node.model(OP.name, one_node.types_of(call.inputs), call.attrs, outputs=["k_cache", "ckv_cache"])
    del model.graph.node[0].output[2:]
    assert len(ReferenceEvaluator(model, new_ops=reference_ops()).run(None, call.inputs)) == 2


def test_breach_is_refused_with_its_id() -> None:
    call = random_call(np.random.default_rng(1), cache_mode="PA")
    call.inputs["index"][0] = -7
    with pytest.raises(BadInput, match="KvRmsNormRopeCache: KV-19"):
        evaluate(call)

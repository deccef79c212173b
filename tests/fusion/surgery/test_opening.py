"""GroupQueryAttention, opened, computes what onnxruntime's own operator computes; what is not understood stays whole.

The opened form appends new rows behind the whole cache, the operator behind the tokens of each sequence: presents are
compared row by row of each sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fusion.candidate import Refused
from fusion.facts.types import fill_types
from fusion.surgery.opening import open_steps
from tests.fusion.surgery.group_query import Form, run

FORMS = {
    "q, k and v apart": Form(),
    "packed": Form(packed=True),
    "a key head for each query head": Form(kv_heads=4),
    "one key head": Form(kv_heads=1, turned=16),
    "rotated halves": Form(turned=16),
    "packed and rotated": Form(turned=16, packed=True),
    "rotated neighbours": Form(turned=16, interleaved=True),
    "half of the columns rotated": Form(width=32, turned=16),
    "neighbours in half of the columns": Form(width=32, turned=16, interleaved=True, packed=True),
    "given positions": Form(turned=16, given_positions=True),
    "a scale": Form(attrs=(("scale", 0.5),)),
    "a softcap": Form(attrs=(("softcap", 2.0), ("scale", 1.5))),
    "a window": Form(turned=16, attrs=(("local_window_size", 3),)),
    "a window of one": Form(attrs=(("local_window_size", 1),)),
    "attributes that say nothing": Form(attrs=(
        ("causal", 1), ("smooth_softmax", 0), ("qk_output", 0), ("k_quant_type", "NONE"), ("v_quant_type", "NONE"),
        ("local_window_size", -1), ("softcap", 0.0), ("do_rotary", 0),
    )),
}  # fmt: skip
CALLS = {
    "a first prompt": ([0], [5]),
    "first prompts of different lengths": ([0, 0, 0], [5, 2, 1]),
    "a chunk": ([6], [3]),
    "a step": ([6], [1]),
    "steps of sequences of different lengths": ([6, 2, 0], [1, 1, 1]),
}
"""Tokens in the cache and new ones, of each sequence: onnxruntime takes chunks of one sequence only."""


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    own = ir.from_proto(model)
    fill_types(own.graph)
    assert open_steps(own) == sum(node.op_type == "GroupQueryAttention" for node in model.graph.node)
    result = ir.to_proto(own)
    onnx.checker.check_model(result)
    return result


def assert_equal(form: Form, before: list[int], new: list[int], seed: int = 0) -> None:
    model = form.model()
    feeds = form.call(np.random.default_rng(seed), before, new)
    wanted, got = run(model, feeds), run(opened(model), feeds)
    past = max(before)
    for row, (old, own) in enumerate(zip(before, new, strict=True)):
        np.testing.assert_allclose(got[0][row, :own], wanted[0][row, :own], atol=2e-6, rtol=2e-5)
        for mine, its in zip(got[1:], wanted[1:], strict=True):
            rows = np.concatenate([mine[row, :, :old], mine[row, :, past : past + own]], axis=1)
            np.testing.assert_allclose(rows, its[row, :, : old + own], atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", FORMS)
def test_the_opened_form_computes_what_onnxruntime_computes(form: str, call: str) -> None:
    assert_equal(FORMS[form], *CALLS[call])


@st.composite
def forms(draw: st.DrawFn) -> Form:
    kv_heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    width = draw(st.sampled_from([16, 32, 48]))
    turned = draw(st.sampled_from([0, *(size for size in (16, 32, 48) if size <= width)]))
    attrs = {"scale": draw(st.sampled_from([0.0, 0.3])), "softcap": draw(st.sampled_from([0.0, 5.0])),
             "local_window_size": draw(st.sampled_from([-1, 1, 2, 7]))}  # fmt: skip
    return Form(kv_heads * groups, kv_heads, width, draw(st.booleans()), turned, draw(st.booleans()) and turned > 0,
                draw(st.booleans()) and turned > 0, tuple(attrs.items()))  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    batch = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["prompts", "chunk", "steps"]))
    if kind == "chunk":
        return [draw(st.integers(1, 9))], [draw(st.integers(2, 5))]
    lengths = draw(st.lists(st.integers(1, 9), min_size=batch, max_size=batch))
    return ([0] * batch, lengths) if kind == "prompts" else (lengths, [1] * batch)


@settings(max_examples=40, deadline=None)
@given(forms(), calls(), st.integers(0, 1000))
def test_so_it_does_in_any_combination(form: Form, call: tuple[list[int], list[int]], seed: int) -> None:
    assert_equal(form, *call, seed)


def decoder(layers: int = 2) -> onnx.ModelProto:
    """Layers of attention behind each other, with the same lengths and tables."""
    one = Form(heads=2, kv_heads=2, turned=16).model()
    graph, model = one.graph, one
    first = graph.node[0]
    for layer in range(1, layers):
        names = [f"{name}.{layer}" for name in ("past_key", "past_value")]
        outs = [f"out.{layer}", *(f"{name}.{layer}" for name in ("present_key", "present_value"))]
        node = onnx.NodeProto()
        node.CopyFrom(first)
        node.name, node.input[0], node.input[3], node.input[4] = f"gqa{layer}", graph.output[0].name, *names
        del node.output[:]
        node.output.extend(outs)
        graph.node.append(node)
        graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 2, "P", "D"]) for name in names)
        graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 2, "T", "D"]) for name in outs[1:]
        )
        graph.output[0].name = outs[0]
    return model


def test_layers_share_positions_masks_and_rows_of_the_tables() -> None:
    counts = [
        sum(node.op_type in ("Range", "Max", "And", "Or", "Less", "Cast") or "_rows" in node.name
            for node in opened(decoder(layers)).graph.node)
        for layers in (1, 3)
    ]  # fmt: skip
    assert counts[0] == counts[1]
    rng = np.random.default_rng(2)
    model = decoder(3)
    feeds = Form(heads=2, kv_heads=2, turned=16).call(rng, [4], [2])
    feeds |= {item.name: rng.standard_normal((1, 2, 4, 16)).astype(np.float32)
              for item in model.graph.input if item.name.startswith("past")}  # fmt: skip
    for mine, its in zip(run(opened(model), feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(mine, its, atol=5e-6)


def test_outputs_keep_their_names_and_caches_get_the_operators_dims() -> None:
    result = opened(Form().model())
    assert [item.name for item in result.graph.output] == ["out", "present_key", "present_value"]
    past = next(item for item in result.graph.input if item.name == "past_key")
    assert [dim.dim_value or dim.dim_param for dim in past.type.tensor_type.shape.dim] == ["B", 2, "P", 16]


def with_attrs(**attrs: Any) -> onnx.ModelProto:
    return Form(attrs=tuple(attrs.items())).model()


def with_operand(place: int) -> onnx.ModelProto:
    model = Form(turned=16).model()
    node = model.graph.node[0]
    node.input.extend([""] * (place + 1 - len(node.input)))
    node.input[place] = "extra"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "extra"))
    return model


def edited(form: Form, **changes: Any) -> onnx.ModelProto:
    """A model with changes by what they are made to: an operand's name, or a value's dims or type."""
    model = form.model()
    node = model.graph.node[0]
    for name, change in changes.items():
        value = next((item for item in model.graph.input if item.name == name), None)
        if change is None:
            node.input[list(node.input).index(name)] = ""
        elif isinstance(change, int) and value is not None:
            value.type.tensor_type.elem_type = change
        elif value is not None:
            value.CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, change))
    return model


def with_scores() -> onnx.ModelProto:
    model = with_attrs(qk_output=0)
    model.graph.node[0].output.append("scores")
    model.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, None))
    return model


def with_past_of_a_node() -> onnx.ModelProto:
    model = Form().model()
    model.graph.node.insert(0, helper.make_node("Neg", ["past_key"], ["turned"]))
    model.graph.node[1].input[3] = "turned"
    return model


def without_present() -> onnx.ModelProto:
    model = Form().model()
    del model.graph.output[2]
    return model


REFUSED = {
    "no causal mask": (with_attrs(causal=0), "causal = 0"),
    "smooth softmax": (with_attrs(smooth_softmax=1), "smooth_softmax = 1"),
    "quantised keys": (with_attrs(k_quant_type="PER_TENSOR"), "k_quant_type = PER_TENSOR"),
    "quantised values": (with_attrs(v_quant_type="PER_CHANNEL"), "v_quant_type = PER_CHANNEL"),
    "a cache of a window": (with_attrs(sliding_window_cache=1, local_window_size=4), "sliding_window_cache = 1"),
    "an attribute of a later version": (with_attrs(turbo=1), "turbo = 1"),
    "a window of nothing": (with_attrs(local_window_size=0), "local_window_size = 0"),
    "scores as output": (with_scores(), "output_qk"),
    "a bias": (with_operand(10), "the operand attention_bias"),
    "a sink": (with_operand(11), "the operand head_sink"),
    "a scale of cached keys": (with_operand(12), "the operand k_scale"),
    "norms inside": (with_operand(14), "the operand q_norm_weight"),
    "lengths of the new tokens": (with_operand(16), "the operand query_seqlens"),
    "an operand of a later version": (with_operand(17), "18 operands"),
    "no tables": (edited(Form(attrs=(("do_rotary", 1),))), "do_rotary with cos_cache none"),
    "no value": (edited(Form(), value=None), "one of the operands key and value"),
    "no past": (edited(Form(), past_key=None), "past_key none"),
    "a past that is computed": (with_past_of_a_node(), "past_key turned"),
    "a present that nobody gets": (without_present(), "present of past_value"),
    "a past of another type": (edited(Form(), past_key=TensorProto.FLOAT16), "past_key of float16"),
    "a past of another width": (edited(Form(), past_value=["B", 2, "P", 8]), "past_value with 8 columns"),
    "a past of other heads": (edited(Form(), past_key=["B", 3, "P", 16]), "past_key with 3 heads"),
    "a cap below nothing": (with_attrs(softcap=-1.0), "softcap = -1"),
    "keys of another width": (edited(Form(), key=["B", "S", 48]), "key of the shape"),
    "queries that are not whole heads": (edited(Form(), query=["B", "S", 62]), "queries of the shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_and_stays_as_it_was(case: str) -> None:
    model, found = REFUSED[case]
    own = ir.from_proto(model)
    fill_types(own.graph)
    before = ir.to_proto(own).SerializeToString(deterministic=True)
    with pytest.raises(Refused, match=found) as raised:
        open_steps(own)
    node = raised.value.value.producer() if raised.value.value is not None else None
    assert node is not None
    assert (node.op_type, node.name) == ("GroupQueryAttention", "gqa")
    assert ir.to_proto(own).SerializeToString(deterministic=True) == before


def test_a_layer_that_is_not_understood_leaves_all_closed() -> None:
    model = decoder(2)
    model.graph.node[1].attribute.append(helper.make_attribute("smooth_softmax", 1))
    own = ir.from_proto(model)
    fill_types(own.graph)
    before = ir.to_proto(own).SerializeToString(deterministic=True)
    with pytest.raises(Refused, match="smooth_softmax"):
        open_steps(own)
    assert ir.to_proto(own).SerializeToString(deterministic=True) == before
    assert [value.name for value in own.graph.inputs if len(value.uses()) > 2] == []

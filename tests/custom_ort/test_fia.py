"""The kernel of FusedInferAttentionScore: published vectors, random calls, ONNX Runtime's own attention, threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import custom_ort
from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_numpy
from ir_ops.errors import KvfuseError
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call, values
from tests.custom_ort.effort import how_many
from tests.custom_ort.fia_breaches import BREACHES, Breach, legal
from tests.custom_ort.fia_calls import LAYOUTS, NAME, TYPES, page_layout, random_call, whole_int8
from tests.custom_ort.isa import ISAS
from tests.golden import BLOCKS, GoldenCase, cases
from tests.ir_ops.test_fused_infer_attention_score import assert_close

OP = OPS[NAME]
GOLDEN = cases(NAME, base=BLOCKS)
ATTENTION = [isa for isa in ISAS if isa in ("portable", "avx2", "avx512")]
"""The instruction sets with attention kernels of their own."""


def check(call: Call, sessions: one_node.Sessions, where: Any) -> None:
    expected = OP.reference(call.inputs, call.attrs)
    assert_close(sessions.run(NAME, call.inputs, call.attrs), expected, where)


@pytest.mark.parametrize("isa", ATTENTION)
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    case.check(one_node.run(NAME, case.inputs, case.attrs))


@pytest.mark.parametrize("isa", ATTENTION)
def test_random_calls(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layouts, types, pages, masks and lengths, zero among them; NaN where no valid token is."""
    monkeypatch.setenv("KVFUSE_ISA", isa)
    rng = np.random.default_rng(97)
    sessions = one_node.Sessions()
    for number in range(how_many(160) if isa == ATTENTION[-1] else how_many(52, share=0.3)):
        call = random_call(rng, layout=LAYOUTS[number % len(LAYOUTS)])
        check(call, sessions, (number, call.attrs))


@pytest.mark.parametrize("isa", ATTENTION)
def test_long_contexts(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough keys to be cut among tasks, in every kind of cache."""
    monkeypatch.setenv("KVFUSE_ISA", isa)
    rng = np.random.default_rng(101)
    sessions = one_node.Sessions()
    for number in range(2 * len(TYPES)):
        query, key = TYPES[number % len(TYPES)]
        entries, pages = 1 + number % 2, (0, 3, 4, 5)[number % 4]
        call = random_call(rng, query=query, key=key, pages=pages, width=64, value_width=64, page=16,
                           lengths=[1, 3][:entries], kv_lengths=[1500, 700][:entries])  # fmt: skip
        check(call, sessions, (number, call.attrs))


@pytest.mark.parametrize("layout", ["BSND", "BSH", "BSND_NBSD", "TND_NTD"])
def test_int8_queries(layout: str) -> None:
    rng = np.random.default_rng(103)
    sessions = one_node.Sessions()
    for lengths, kv_lengths, mode in (([1, 1], [5, 70], 0), ([3, 2], [0, 33], 3), ([9], [700], 3)):
        call = whole_int8(rng, layout, lengths, kv_lengths, mode)
        check(call, sessions, (layout, lengths))


def big(rng: np.random.Generator, lengths: list[int], kv_lengths: list[int], **fixed: Any) -> Call:
    return random_call(rng, heads=4, kv_heads=2, width=64, value_width=64, query="float16", key="float16", page=16,
                       lengths=lengths, kv_lengths=kv_lengths, **fixed)  # fmt: skip


@pytest.mark.parametrize("pages", [0, 3, 5])
def test_same_bits_with_any_number_of_threads(pages: int) -> None:
    """Decoding of one and of several sequences, and a prefill."""
    rng = np.random.default_rng(107)
    for lengths, kv_lengths in (([1], [3000]), ([1, 1, 1], [900, 10, 0]), ([150], [200])):
        call = big(rng, lengths, kv_lengths, pages=pages)
        proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
        single = custom_ort.run(one_node.session(proto), call.inputs)
        for threads in (2, 5):
            several = custom_ort.run(one_node.session(proto, threads=threads), call.inputs)
            assert all(np.array_equal(one_node.bits(several[key]), one_node.bits(single[key])) for key in single)


def test_constant_inputs_give_the_same_bits() -> None:
    """Masks of every type among them: constants are copied when the session is made."""
    rng = np.random.default_rng(111)
    for _ in range(20):
        call = random_call(rng, masked=True)
        fixed = one_node.run(NAME, call.inputs, call.attrs, constants=[name for name in call.inputs if name != "query"])
        wanted = one_node.run(NAME, call.inputs, call.attrs)
        assert all(np.array_equal(one_node.bits(fixed[name]), one_node.bits(wanted[name])) for name in wanted)


def test_inputs_are_not_written() -> None:
    call = big(np.random.default_rng(109), [3, 1], [40, 90], pages=4)
    before = {name: array.copy() for name, array in call.inputs.items()}
    one_node.run(NAME, call.inputs, call.attrs)
    assert all(np.array_equal(one_node.bits(before[name]), one_node.bits(call.inputs[name])) for name in before)


@pytest.mark.parametrize("output", ["attention_out", "softmax_lse"])
def test_every_single_output(output: str) -> None:
    call = legal("rope")
    call.attrs["softmax_lse_flag"] = True
    everything = one_node.run(NAME, call.inputs, call.attrs)
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, outputs=[output])
    found = custom_ort.run(one_node.session(proto), call.inputs)[output]
    assert np.array_equal(one_node.bits(found), one_node.bits(everything[output]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_are_inferred_when_the_model_is_loaded(layout: str) -> None:
    """Sizes and names of dims reach the outputs. Old runtimes infer none for operators with optional inputs."""
    call = random_call(np.random.default_rng(113), layout=layout)
    expected = OP.reference(call.inputs, call.attrs)
    shapes: dict[str, list[int | str]] = {name: list(array.shape) for name, array in call.inputs.items()}
    query = layout.partition("_")[0]
    shapes["query"] = ["tokens" if axis in "ST" else size for axis, size in zip(query, shapes["query"], strict=True)]
    session = one_node.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs, shapes=shapes))
    if one_node.CHOSEN_TYPES:
        tokens = call.inputs["query"].shape[query.index("T" if "T" in query else "S")]
        for value in session.get_outputs():
            found = [tokens if dim == "tokens" else dim for dim in value.shape]
            assert found == list(expected[value.name].shape)
            assert "tokens" in value.shape


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_refused(breach: Breach) -> None:
    """check(), the reference and the kernel name one rule in the same words."""
    call = breach.call()
    expected = OP.check(call.inputs, call.attrs)[0]
    assert expected.id == breach.rule
    message = one_node.refusal(NAME, call.inputs, call.attrs)
    assert f"{expected.id}: {expected.text}; found " in message
    assert NAME in message and "\n" not in message


def test_types_that_differ_are_named_without_shapes() -> None:
    """The second offset has another type than its scale, and no shape is known: check() says which rule it is."""
    call = random_call(np.random.default_rng(0), layout="BSH", query="bfloat16", key="int8", pages=0, antiquant=0)
    for name in ("key", "value"):
        call.inputs[f"{name}_antiquant_offset"] = call.inputs[f"{name}_antiquant_scale"].astype(np.float32)
        call.inputs[f"{name}_antiquant_scale"] = call.inputs[f"{name}_antiquant_offset"].copy()
    call.inputs["value_antiquant_offset"] = call.inputs["value_antiquant_offset"].astype(ml_dtypes.bfloat16)
    specs = {name: TensorSpec(by_numpy(array.dtype).name, None) for name, array in call.inputs.items()}
    assert "FA-17" in [found.id for found in OP.check(specs, call.attrs)]


def test_missing_number_of_heads_is_refused() -> None:
    call = legal("plain")
    del call.attrs["num_heads"]
    assert "AT-03" in one_node.refusal(NAME, call.inputs, call.attrs)


# ---- ONNX Runtime's own attention


def standard_model(op_type: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    domain = "com.microsoft" if op_type == "GroupQueryAttention" else ""
    node = helper.make_node(op_type, inputs, outputs, domain=domain, **attrs)
    kinds = {"seqlens": TensorProto.INT32, "total": TensorProto.INT32, "valid": TensorProto.INT64}
    infos = [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in inputs if name]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "attention", infos, results)
    imports = [helper.make_opsetid("", 20 if domain else 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def ours(inputs: dict[str, Array], **attrs: Any) -> Array:
    return one_node.run(NAME, inputs, attrs)["attention_out"]


@pytest.mark.skipif(one_node.MINOR < 24, reason="this runtime has no Attention-24")
@pytest.mark.parametrize("causal", [False, True])
def test_against_attention(causal: bool) -> None:
    """ai.onnx Attention of a whole sequence, with grouped heads and values of another width."""
    rng = np.random.default_rng(127)
    q, k = (values(rng, (2, heads, 37, 48), "float32") for heads in (6, 2))
    v = values(rng, (2, 2, 37, 32), "float32")
    session = standard_model("Attention", ["q", "k", "v"], ["y"], scale=0.2, is_causal=int(causal))
    (wanted,) = session.run(None, {"q": q, "k": k, "v": v})
    found = ours({"query": q, "key": k, "value": v}, num_heads=6, num_key_value_heads=2, input_layout="BNSD",
                 scale=0.2, sparse_mode=2 if causal else 0)  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pages", [0, 3, 4, 5])
def test_against_group_query_attention(pages: int) -> None:
    """One decoding step over a cache of two sequences, which the other operator keeps as [B, N, S, D]."""
    rng = np.random.default_rng(131)
    heads, kv_heads, width, capacity, lengths = 6, 2, 32, 64, np.array([40, 17])
    q = values(rng, (2, 1, heads * width), "float32")
    past = [values(rng, (2, kv_heads, capacity, width), "float32") for _ in range(2)]
    rows = [np.stack([cache[b, :, lengths[b] - 1] for b in range(2)]).reshape(2, 1, -1) for cache in past]
    inputs = ["q", "k", "v", "past_k", "past_v", "seqlens", "total"]
    session = standard_model("GroupQueryAttention", inputs, ["y", "present_k", "present_v"], num_heads=heads,
                             kv_num_heads=kv_heads, scale=0.25)  # fmt: skip
    feeds = {"q": q, "k": rows[0], "v": rows[1], "past_k": past[0], "past_v": past[1],
             "seqlens": (lengths - 1).astype(np.int32), "total": np.array(lengths.max(), np.int32)}  # fmt: skip
    wanted = session.run(["y"], feeds)[0]
    call: dict[str, Array] = {"query": q, "actual_seq_lengths_kv": lengths.astype(np.int64)}
    attrs: dict[str, Any] = {"num_heads": heads, "num_key_value_heads": kv_heads, "scale": 0.25, "input_layout": "BSH"}
    for name, cache in zip(("key", "value"), past, strict=True):
        tokens = cache.transpose(0, 2, 1, 3)  # [B, S, N, D]
        if pages:
            call[name] = page_layout(tokens.reshape(2 * 4, 16, kv_heads, width), pages, "float32")
        else:
            call[name] = np.ascontiguousarray(tokens.reshape(2, capacity, -1))
    if pages:
        call["block_table"] = np.arange(8, dtype=np.int32).reshape(2, 4)
        attrs["block_size"] = 16
    np.testing.assert_allclose(ours(call, **attrs), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("result", "attrs"),
    [("plain", {"scale": 32**-0.5}), ("causal", {"scale": 32**-0.5, "sparse_mode": 2}), ("masked", {"scale": 0.3})],
)
def test_against_torch(result: str, attrs: dict[str, Any]) -> None:
    """scaled_dot_product_attention of torch 2.13, recorded: grouped heads, its causal corner is the upper left one, and
    its mask is true where a key is seen."""
    recorded = np.load(Path(__file__).parents[1] / "data" / "attention" / "scaled_dot_product.npz")
    inputs = {name: recorded[name] for name in ("query", "key", "value")}
    if result == "masked":
        inputs["atten_mask"] = ~recorded["mask"]
    found = ours(inputs, num_heads=6, num_key_value_heads=2, input_layout="BNSD", **attrs)
    np.testing.assert_allclose(found, recorded[result], rtol=1e-4, atol=1e-5)


def test_wrong_input_is_one_line() -> None:
    """What only a run can show is refused before anything is written."""
    call = legal("pages")
    call.inputs["block_table"][0, 0] = 1000
    with pytest.raises(KvfuseError, match=r"FA-09: a page in use must exist; found block_table\[0, 0\] = 1000"):
        one_node.run(NAME, call.inputs, call.attrs)

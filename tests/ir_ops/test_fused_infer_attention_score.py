"""FusedInferAttentionScore: its reference, its function body in standard operators, and its rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array
from ir_ops.onnx_function import OPSETS, no_body_reason
from ir_ops.onnx_reference import reference_ops
from ir_ops.onnx_schema import register_onnx_schemas
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.fia_breaches import BREACHES, Breach, legal
from tests.custom_ort.fia_calls import LAYOUTS, NAME, random_call, whole_int8
from tests.golden import BLOCKS, GoldenCase, cases
from tests.ir_ops import standard

OP = OPS[NAME]
GOLDEN = cases(NAME, base=BLOCKS)
SESSIONS = standard.Sessions()
TOLERANCE = {"float32": (1e-4, 3e-5), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 4e-3)}


def assert_close(found: dict[str, Array], expected: dict[str, Array], where: object) -> None:
    """Within what sums in another order and one rounding step leave open."""
    for name, wanted in expected.items():
        rtol, atol = TOLERANCE[str(wanted.dtype)]
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape), f"{where} {name}"
        pair = [array.astype(np.float64) for array in (found[name], wanted)]
        np.testing.assert_allclose(*pair, rtol=rtol, atol=atol, equal_nan=False, err_msg=f"{where} {name}")


def test_all_30_published_vectors_are_here() -> None:
    assert len(GOLDEN) == 30


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors(case: GoldenCase) -> None:
    case.check(OP.reference(case.inputs, case.attrs))


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_function_body_of_published_vectors(case: GoldenCase) -> None:
    case.check(SESSIONS.run(NAME, case.inputs, case.attrs))


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_published_vectors_are_legal_on_the_devices(case: GoldenCase) -> None:
    for product in ("A2", "A3"):
        assert OP.check(case.inputs, case.attrs, product) == []


def test_function_bodies_of_random_calls() -> None:
    """All layouts, pages, masks and lengths, zero among them; junk where no token is."""
    rng = np.random.default_rng(71)
    for number in range(78):
        call = random_call(rng, layout=LAYOUTS[number % len(LAYOUTS)])
        expected = OP.reference(call.inputs, call.attrs)
        assert_close(SESSIONS.run(NAME, call.inputs, call.attrs), expected, (number, call.attrs))


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset: int) -> None:
    """The body passes the full check in every opset and computes the same."""
    register_onnx_schemas()
    rng = np.random.default_rng(73)
    query = "bfloat16" if opset >= 13 else "float16"
    for layout, pages, mode in (("BSH", 0, 1), ("TND", 5, 4), ("BNSD_NBSD", 3, 2)):
        call = random_call(rng, layout=layout, pages=pages, mode=mode, query=query, key=query, width=32,
                           value_width=32, masked=True, lengths=[3, 2], kv_lengths=[4, 37])  # fmt: skip
        model = standard.carrying(NAME, call.inputs, call.attrs, opset)
        standard.declare_shapes(model, NAME, call.inputs, call.attrs)
        onnx.checker.check_model(model, full_check=True)
        found = SESSIONS.run(NAME, call.inputs, call.attrs, opset)
        assert_close(found, OP.reference(call.inputs, call.attrs), (opset, layout))


def test_body_needs_the_rank_of_the_keys() -> None:
    specs = standard.specs_of(legal("plain").inputs) | {"key": TensorSpec("float16", None)}
    assert no_body_reason(OP, specs, legal("plain").attrs, 18) == "the rank of key is not known"


def test_reference_op() -> None:
    """onnx's evaluator runs a node through the reference."""
    call = legal("tnd")
    model = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    results = ReferenceEvaluator(model, new_ops=reference_ops()).run(None, call.inputs)
    expected = OP.reference(call.inputs, call.attrs)
    assert [a.tobytes() for a in results] == [expected[entry.name].tobytes() for entry in OP.outputs]


@pytest.mark.parametrize("causal", [False, True])
def test_against_onnx_attention(causal: bool) -> None:
    """ai.onnx Attention with past lengths zero: its corner is the upper left one, sparse_mode 2."""
    rng = np.random.default_rng(79)
    q, k, v = (rng.standard_normal((2, heads, 7, 16)).astype(np.float32) for heads in (6, 2, 2))
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=0.25, is_causal=int(causal))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "qkvy"]
    graph = helper.make_graph([node], "attention", infos[:3], infos[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    (wanted,) = ReferenceEvaluator(model).run(None, {"q": q, "k": k, "v": v})
    attrs = {"num_heads": 6, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": 0.25,
             "sparse_mode": 2 if causal else 0}  # fmt: skip
    found = OP.reference({"query": q, "key": k, "value": v}, attrs)["attention_out"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def by_hand(scores: list[float], **more: Any) -> tuple[float, float]:
    """One query of one column against keys with those scores and the values 0, 1, ..."""
    keys = np.array(scores, np.float32).reshape(1, -1, 1, 1)
    values = np.arange(len(scores), dtype=np.float32).reshape(keys.shape)
    inputs = {"query": np.ones((1, 1, 1, 1), np.float32), "key": keys, "value": values, **more}
    attrs = {"num_heads": 1, "input_layout": "BSND", "softmax_lse_flag": True}
    found = OP.reference(inputs, attrs)
    return float(found["attention_out"].item()), float(found["softmax_lse"].item())


def test_examples_of_the_contract() -> None:
    """Section 9: scores 0 and ln 3; with a sink of 0; a row that sees nothing."""
    assert by_hand([0, np.log(3)]) == pytest.approx((0.75, np.log(4)))
    assert by_hand([0, np.log(3)], learnable_sink=np.zeros(1, np.float32)) == pytest.approx((0.6, np.log(5)))
    assert by_hand([0, 1], atten_mask=np.ones((1, 1, 2), np.bool_)) == (0, np.inf)


@pytest.mark.parametrize(
    ("attrs", "lengths", "seen"),
    [
        ({"sparse_mode": 3}, (2, 4), [[0, 1, 2], [0, 1, 2, 3]]),
        ({"sparse_mode": 3}, (4, 2), [[], [], [0], [0, 1]]),
        ({"sparse_mode": 2}, (3, 2), [[0], [0, 1], [0, 1]]),
        ({"sparse_mode": 4, "pre_tokens": 1, "next_tokens": 0}, (3, 5), [[1, 2], [2, 3], [3, 4]]),
    ],
)
def test_which_keys_a_row_sees(attrs: dict[str, Any], lengths: tuple[int, int], seen: list[list[int]]) -> None:
    """Equal scores: each row is the mean of its keys' values, told apart as powers of two."""
    tokens, keys = lengths
    inputs = {
        "query": np.zeros((1, tokens, 1, 1), np.float32),
        "key": np.zeros((1, keys, 1, 1), np.float32),
        "value": (2.0 ** np.arange(keys, dtype=np.float32)).reshape(1, keys, 1, 1),
    }
    found = OP.reference(inputs, {"num_heads": 1, "input_layout": "BSND", **attrs})["attention_out"].ravel()
    assert found.tolist() == pytest.approx([sum(2.0**j for j in row) / max(len(row), 1) for row in seen])


def test_offset_comes_before_the_scale() -> None:
    """Section 9: int8 5, offset -2, scale 0.5 is 1.5."""
    one = np.ones(1, np.float32)
    inputs = {"query": np.ones((1, 1, 1, 1), np.float32), "key": np.full((1, 1, 1, 1), 5, np.int8)}
    inputs["value"] = inputs["key"]
    for name in ("key", "value"):
        inputs |= {f"{name}_antiquant_scale": 0.5 * one, f"{name}_antiquant_offset": -2 * one}
    found = OP.reference(inputs, {"num_heads": 1, "input_layout": "BSND", "softmax_lse_flag": True})
    assert (found["attention_out"].item(), found["softmax_lse"].item()) == (1.5, 1.5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_are_those_of_the_results(layout: str) -> None:
    rng = np.random.default_rng(83)
    for _ in range(8):
        call = random_call(rng, layout=layout)
        expected = OP.reference(call.inputs, call.attrs)
        for name, spec in OP.infer(standard.specs_of(call.inputs), call.attrs).items():
            assert (spec.dtype, spec.shape) == (str(expected[name].dtype), expected[name].shape)


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_breach(breach: Breach) -> None:
    """The changed call breaks that rule first, the unchanged one none."""
    call = legal(breach.base)
    assert not OP.check(call.inputs, call.attrs)
    call = breach.call()
    found = OP.check(call.inputs, call.attrs)
    assert found[0].id == breach.rule, str(found[0])
    assert str(found[0]).startswith(f"{breach.rule}: {found[0].text}; found {found[0].found}, wanted ")


def test_every_generic_rule_is_broken_once() -> None:
    rules = {(rule.id, rule.text) for rule in OP.constraints if "generic" in rule.products}
    calls = [breach.call() for breach in BREACHES]
    assert {(v.id, v.text) for call in calls for v in OP.check(call.inputs, call.attrs)[:1]} == rules


def test_unknown_sizes_break_nothing() -> None:
    """With ranks or nothing known, no rule and no shape rule fails."""
    for base in ("plain", "bsh", "tnd", "pages", "nz", "rope", "full", "int8", "whole"):
        call = legal(base)
        for known in (True, False):
            specs = {
                name: TensorSpec(spec.dtype, (None,) * len(spec.shape or ()) if known else None)
                for name, spec in standard.specs_of(call.inputs).items()
            }
            assert OP.check(specs, call.attrs) == []
            assert OP.infer(specs, call.attrs)["attention_out"].dtype in ("float16", "bfloat16")


def half(**shapes: tuple[int, ...]) -> dict[str, TensorSpec]:
    kinds = {"block_table": "int32", "atten_mask": "bool", "actual_seq_lengths": "int64",
             "actual_seq_lengths_kv": "int64"}  # fmt: skip
    return {name: TensorSpec(kinds.get(name, "float16"), shape) for name, shape in shapes.items()}


def bsnd(width: int = 64, heads: int = 4, **more: tuple[int, ...]) -> dict[str, TensorSpec]:
    return half(query=(2, 3, heads, width), key=(2, 9, heads, width), value=(2, 9, heads, width), **more)


def pages(page: int, heads: int = 1, width: int = 64) -> dict[str, TensorSpec]:
    cache = (5, page, heads * width)
    return half(query=(2, 3, heads, width), key=cache, value=cache, block_table=(2, 1), actual_seq_lengths_kv=(2,))


def int8_pages(*dims: int) -> dict[str, TensorSpec]:
    specs = half(query=(2, 3, 1, 64), block_table=(2, 1), actual_seq_lengths_kv=(2,), key_antiquant_scale=(1,),
                 value_antiquant_scale=(1,))  # fmt: skip
    return specs | {name: TensorSpec("int8", dims) for name in ("key", "value")}


_TRIANGLE = {"atten_mask": TensorSpec("bool", (2048, 2048))}
_LATENT = half(query=(2, 3, 4, 512), query_rope=(2, 3, 4, 64), key=(2, 9, 2, 512), value=(2, 9, 2, 512),
               key_rope=(2, 9, 2, 64))  # fmt: skip
LIMITS: list[tuple[dict[str, TensorSpec], dict[str, Any], set[str]]] = [
    (bsnd(), {}, set()),
    ({name: TensorSpec("float32", spec.shape) for name, spec in bsnd().items()}, {}, {"FA-04"}),
    (bsnd(24), {}, {"FA-04"}),
    (bsnd(528), {}, {"FA-04"}),
    (bsnd(), {"sparse_mode": 3}, {"FA-13"}),
    (half(query=(6, 4, 64), key=(9, 4, 64), value=(9, 4, 64), actual_seq_lengths=(2,), actual_seq_lengths_kv=(2,))
     | _TRIANGLE, {"input_layout": "TND", "sparse_mode": 2}, {"FA-14"}),
    (bsnd(128, query_rope=(2, 3, 4, 32), key_rope=(2, 9, 4, 32)), {}, {"FA-07"}),
    (_LATENT, {"num_key_value_heads": 2}, {"FA-06"}),
    (pages(24), {"num_heads": 1, "block_size": 24}, {"FA-08"}),
    (pages(16, 128, 512), {"num_heads": 128, "block_size": 16}, {"FA-10"}),
    (bsnd(32, learnable_sink=(4,)), {}, {"FA-20"}),
    (bsnd(heads=257), {"num_heads": 257}, {"FA-21"}),
    (int8_pages(5, 1, 2, 128, 32), {"num_heads": 1, "block_size": 128, "inner_precise": 1}, set()),
    (int8_pages(5, 1, 128, 64), {"num_heads": 1, "block_size": 128, "inner_precise": 1}, {"FA-23"}),
    (int8_pages(5, 1, 2, 128, 32), {"num_heads": 1, "block_size": 128}, {"FA-23"}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LIMITS)))
def test_limits_of_products(number: int) -> None:
    specs, attrs, expected = LIMITS[number]
    attrs = {"num_heads": 4, "input_layout": "BSND", **attrs}
    assert OP.check(specs, attrs) == []
    for product in ("A2", "A3"):
        assert {found.id for found in OP.check(specs, attrs, product)} == expected
    assert "FA-24" in {found.id for found in OP.check(specs, attrs, "kirin")}


def test_every_limit_of_a_product_is_broken_once() -> None:
    limits = {rule.id for rule in OP.constraints if "generic" not in rule.products} - {"FA-24"}
    assert {rule for _, _, found in LIMITS for rule in found} == limits


@pytest.mark.parametrize(("layout", "mode"), [("BSND_NBSD", 3), ("TND_NTD", 3), ("BSH", 0)])
def test_int8_queries_are_the_dequantised_ones(layout: str, mode: int) -> None:
    """The factors may as well be multiplied into query and keys first."""
    rng = np.random.default_rng(89)
    call = whole_int8(rng, layout, [2, 1], [20, 40], mode)
    x, packed = call.inputs, "T" in layout
    rows = x["dequant_scale_query"][..., None].astype(np.float64)
    wide: dict[str, Array] = dict(x)
    for name in ("query", "query_rope"):
        heads = x[name].reshape(*rows.shape[:-1], -1).astype(np.float64)
        scaled = heads * rows * x["key_antiquant_scale"]
        wide[name] = scaled.reshape(x[name].shape).astype(np.float32)
    for name in ("key", "value"):
        factor = 1.0 if name == "key" else x["value_antiquant_scale"].astype(np.float64)
        wide[name] = _nz(x[name], 32, 8).astype(np.float64).__mul__(factor).astype(np.float32)
    wide["key_rope"] = _nz(x["key_rope"], 16, 8).astype(np.float32)
    drop = ("dequant_scale_query", "key_antiquant_scale", "value_antiquant_scale")
    attrs = {**call.attrs, "query_quant_mode": 0}
    expected = OP.reference({name: array for name, array in wide.items() if name not in drop}, attrs)
    found = OP.reference(call.inputs, call.attrs)
    assert found["attention_out"].dtype == x["query_rope"].dtype
    assert packed == (found["softmax_lse"].ndim == 3)
    np.testing.assert_allclose(found["attention_out"].astype(np.float32), expected["attention_out"], rtol=1e-2,
                               atol=1e-2)  # fmt: skip


def _nz(cache: Array, d0: int, wanted: int) -> Array:
    """An NZ cache in fractals of another number of columns."""
    blocks, heads, fractals, page, _ = cache.shape
    rows = cache.transpose(0, 1, 3, 2, 4).reshape(blocks, heads, page, fractals * d0 // wanted, wanted)
    return np.ascontiguousarray(rows.transpose(0, 1, 3, 2, 4))

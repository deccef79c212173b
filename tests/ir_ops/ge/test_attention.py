"""ONNX's Attention: every use by result against ONNX's reference, and when GE's attention operator is taken."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ir_ops.errors import BadUsage, ExportError
from ir_ops.ge import export
from ir_ops.ge.validator import errors
from tests.ir_ops.ge.onnx_models import Case, Fixed, assert_same, converted, expected

rng = np.random.default_rng(9)
FUSED = "FusedInferAttentionScore"


def x(*shape: int, dtype: Any = np.float16) -> Any:
    return (rng.standard_normal(shape) * 0.5).astype(dtype)


def attention(*inputs: Any, outputs: int = 1, opset: int = 24, **attrs: Any) -> Case:
    return Case("Attention", list(inputs), attrs, outputs=outputs, opset=opset)


def qkv(dtype: Any = np.float16, heads: int = 4, kv_heads: int = 2, rows: int = 3, keys: int = 6) -> list[Any]:
    return [x(2, heads, rows, 16, dtype=dtype), *(x(2, kv_heads, keys, 16, dtype=dtype) for _ in range(2))]


def seen(*shape: int) -> Any:
    """A bool mask (true: keep) that leaves every row a key."""
    mask = rng.random(shape) > 0.4
    mask[..., 0] = True
    return mask


ADDITIVE = np.where(seen(3, 6), np.float16(0), np.float16(-65504))

TAKEN = {
    "no mask": attention(*qkv()),
    "scale": attention(*qkv(), scale=0.3),
    "bool mask for all": attention(*qkv(), seen(3, 6)),
    "bool mask of each entry": attention(*qkv(), seen(2, 1, 3, 6)),
    "bool mask that broadcasts": attention(*qkv(), seen(2, 1, 1, 6)),
    "constant additive mask": attention(*qkv(), Fixed(ADDITIVE)),
    "infinite constant mask": attention(*qkv(), Fixed(np.where(seen(3, 6), np.float16(0), np.float16("-inf")))),
    "3-D inputs": attention(x(2, 3, 64), x(2, 6, 32), x(2, 6, 32), q_num_heads=4, kv_num_heads=2),
    "past": attention(*qkv(), None, x(2, 2, 4, 16), x(2, 2, 4, 16), outputs=3),
    "a row that sees nothing": attention(*qkv(), np.arange(18).reshape(3, 6) > 5),
}
SPELLED = {
    "float32": attention(*qkv(np.float32), seen(3, 6)),
    "softcap": attention(*qkv(np.float32), softcap=2.0),
    "mask of each head": attention(*qkv(), seen(2, 4, 3, 6)),
    "additive mask at run time": attention(*qkv(), ADDITIVE),
    "additive bias": attention(*qkv(), Fixed(x(3, 6))),
    "valid lengths": attention(*qkv(np.float32), None, None, None, np.array([2, 6])),
    "valid lengths, causal": attention(*qkv(np.float32), None, None, None, np.array([3, 6]), is_causal=1),
    "past, causal": attention(*qkv(np.float32), None, *[x(2, 2, 4, 16, dtype=np.float32)] * 2, outputs=3, is_causal=1),
    "causal mask and another": attention(*qkv(), seen(3, 6), is_causal=1),
    "3-D inputs": attention(
        *(x(2, n, 64, dtype=np.float32) for n in (3, 5, 5)), q_num_heads=4, kv_num_heads=4, softcap=3.0
    ),
}
CAUSAL = {
    "causal": attention(*qkv(rows=6)),
    "more keys": attention(*qkv()),
    "one token of one": attention(*qkv(rows=1, keys=1)),
}


def check(case: Case, **options: Any) -> Any:
    got, result = converted(case.model(dynamic=options.pop("dynamic", False)), case.feeds(), **options)
    assert errors(result.findings) == []
    half = case.inputs[0].dtype == np.float16  # type: ignore[union-attr]
    assert_same(got, expected(case.model(), case.feeds()), 2.0**-8 if half else 1e-4)
    return result.ops_after


@pytest.mark.parametrize("name", TAKEN)
def test_fused_where_it_is_the_same(name: str) -> None:
    assert check(TAKEN[name])[FUSED] == 1


@pytest.mark.parametrize("name", [name for name in TAKEN if name != "a row that sees nothing"])
def test_the_same_spelled_out(name: str) -> None:
    assert check(TAKEN[name], attention="plain")[FUSED] == 0


@pytest.mark.parametrize("name", SPELLED)
def test_spelled_out_where_it_is_not(name: str) -> None:
    assert check(SPELLED[name])[FUSED] == 0


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_is_a_mode_of_the_operator(name: str) -> None:
    case = CAUSAL[name]
    case.attrs = {"is_causal": 1}
    assert check(case)[FUSED] == 1


def test_one_query_of_several_keys_takes_no_notice_of_the_mode() -> None:
    assert check(attention(*qkv(rows=1), is_causal=1))[FUSED] == 0


def test_the_triangle_is_stored_once() -> None:
    result = export(attention(*qkv(rows=6), is_causal=1).model())
    assert sum(node.name.startswith("causal_triangle") for node in result.model.root.nodes) == 1


@pytest.mark.parametrize("name", ["causal, unknown lengths", "valid lengths", "past, causal"])
def test_unknown_lengths(name: str) -> None:
    case = {**SPELLED, "causal, unknown lengths": attention(*qkv(np.float32), is_causal=1)}[name]
    static = case.model()
    for value in static.graph.input:
        shape = value.type.tensor_type.shape
        if len(shape.dim) == 4:
            shape.dim[2].dim_param = f"length_of_{value.name}"
    got, result = converted(static, case.feeds())
    assert errors(result.findings) == []
    assert_same(got, expected(case.model(), case.feeds()), 1e-4)


def test_bfloat16_and_the_products_limits() -> None:
    model = attention(*(x(2, 4, 3, 16, dtype=ml_dtypes.bfloat16) for _ in range(3))).model()
    assert export(model).ops_after[FUSED] == export(model, product="A2").ops_after[FUSED] == 1
    odd = attention(*(x(2, 4, 3, 24) for _ in range(3))).model()
    assert (export(odd).ops_after[FUSED], export(odd, product="A2").ops_after[FUSED]) == (1, 0)
    assert export(model, product="kirin").ops_after[FUSED] == 0


def test_refusals() -> None:
    for case, text in (
        (attention(*qkv(), outputs=4), "delivers its scores"),
        (attention(x(2, 3, 64), x(2, 6, 64), x(2, 6, 64)), "3-D inputs of unknown width"),
        (attention(*qkv(), seen(3, 4)), "a mask shorter than the keys"),
    ):
        with pytest.raises(ExportError, match=text):
            export(case.model())
    with pytest.raises(BadUsage, match="unknown form of attention"):
        export(attention(*qkv()).model(), attention="fast")

"""How near two results of MlaPrologV3 must be: a rounding step, where the order of a sum may decide."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ir_ops.dtypes import Array, by_numpy
from tests.custom_ort.calls import Call
from tests.custom_ort.mla_calls import unpacked

_STEP = {"float32": 2.0**-17, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Of element plus root mean square (or the size of the terms): three products in a row, each rounded to the
operand type."""
_SCALE_STEP = {"float32": 2.0**-17, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The same of float32 scales, by operand type: the largest value that makes one was rounded to that type before, and
may be its neighbour."""
_OF_QUERIES = ("query", "query_rope", "query_norm")
"""What is made of the normalised row of the first product."""
_SHARE = 0.05
"""Elements of 8 bits that may be a step apart: a value near a tie, or a scale that differs in its last bit."""


def assert_close(found: Mapping[str, Array], expected: Mapping[str, Array], call: Call, where: str) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        result, place = found[name], f"{where} {name} {call.attrs}"
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), place
        packed = name == "kv_cache" and call.attrs.get("kv_cache_quant_mode") == 3
        pairs = zip(unpacked(result, call), unpacked(wanted, call), strict=True) if packed else [(result, wanted)]
        terms = query_terms(call) if name == "query" else 0.0
        times = cancelled(call, wanted.ndim) if name in _OF_QUERIES else 1.0
        plain = by_numpy(call.inputs["weight_uk"].dtype).name
        for pair in pairs:
            _assert_near(*pair, place, plain, terms, times)


def query_terms(call: Call) -> Array:
    """``[N, 1]``: the size of what is added up to `query`, for signs at random.

    The width of a head may be 1: one sum that happens to cancel then makes a whole row small, and the row's own size
    says nothing about the rounding of its terms. The reference errs there as the kernel does.
    """
    given, attrs = call.inputs, call.attrs
    columns = given["weight_uq_qr"].astype(np.float64)
    scale = given.get("dequant_scale_w_uq_qr")
    if scale is not None and scale.dtype == np.uint8:  # MX: an exponent for 32 rows
        columns = columns * np.exp2(scale.astype(np.float64) - 127).T.repeat(32, axis=0)
    elif scale is not None:
        columns = columns * scale.astype(np.float64)
    columns = columns * given["rmsnorm_gamma_cq"].astype(np.float64)[:, None]  # the rest of the norm has size 1
    if "smooth_scales_cq" in given:
        columns = columns * given["smooth_scales_cq"].reshape(-1, 1)
    heads, nope, _ = given["weight_uk"].shape
    squares = np.square(columns).sum(axis=0).reshape(heads, -1)[:, :nope]
    spread = np.einsum("hn,hnk->hk", squares, np.square(given["weight_uk"].astype(np.float64)))
    terms: Array = np.sqrt(spread.mean(axis=-1, keepdims=True)) * attrs.get("qc_qr_scale", 1.0)
    return terms


def cancelled(call: Call, rank: int) -> Array:
    """``[tokens, 1, ..]``: how many times larger the terms of the first product are than its result, at least 1.

    The norm makes a row that cancels as large as any other, and the rounding of its terms with it.
    """
    given = call.inputs
    x, weight = (given[name].astype(np.float64) for name in ("token_x", "weight_dq"))
    tokens = x.shape[:-1]
    if given["weight_dq"].dtype.itemsize == 1:
        return np.ones((*tokens, *[1] * (rank - len(tokens))))  # sums of 8-bit numbers
    epsilon = call.attrs.get("rmsnorm_epsilon_cq", 1e-5)
    with np.errstate(all="ignore"):
        result, terms = np.square(x @ weight), np.square(x) @ np.square(weight)
        found = np.sqrt(terms.mean(axis=-1) / (result.mean(axis=-1) + epsilon))
    factor: Array = np.where(np.isfinite(found), np.maximum(found, 1.0), 1.0)
    return factor.reshape(*tokens, *[1] * (rank - len(tokens)))


def _assert_near(
    result: Array, wanted: Array, place: str, plain: str, terms: Array | float, times: Array | float
) -> None:
    same = np.ascontiguousarray(result).view(np.uint8) == np.ascontiguousarray(wanted).view(np.uint8)
    if same.all():
        return
    a, b = result.astype(np.float64), wanted.astype(np.float64)
    kind = by_numpy(wanted.dtype)
    finite = np.isfinite(b)
    assert np.array_equal(a[~finite], b[~finite], equal_nan=True), place
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    difference = np.abs(a - b)
    if kind.bits == 8:
        step = 1.0 if kind.name in ("int8", "uint8") else np.abs(b) / 8 + 2.0**-9
        assert (difference <= step * 1.001).all(), f"{place}: off by {difference.max()}"
        assert np.count_nonzero(difference) <= max(3, _SHARE * difference.size), place
        return
    size = np.maximum(np.sqrt(np.mean(np.square(b), axis=-1, keepdims=True)), terms) * times
    is_scale = kind.name == "float32" != plain
    step = _SCALE_STEP[plain] if is_scale else _STEP[kind.name]  # a cache may be narrower than the operands
    bound = step * (np.abs(b) + size) + 1e-7
    assert (difference <= bound).all(), f"{place}: {(difference / bound).max():.2f} of the bound"

"""What every operator's declaration gives: defaults, general checks, type combinations, partial knowledge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ir_ops.declaration import PRODUCTS, Operator, TensorSpec
from ir_ops.dtypes import by_name
from ir_ops.errors import BadInput, BadUsage
from ir_ops.ops import DOMAIN, OPS

OP = OPS["KvRmsNormRopeCache"]
SPECS = {
    "kv": TensorSpec("float16", (2, 1, 3, 96)),
    "gamma": TensorSpec("float16", (64,)),
    "cos": TensorSpec("float16", (2, 1, 3, 32)),
    "sin": TensorSpec("float16", (2, 1, 3, 32)),
    "index": TensorSpec("int64", (2, 3)),
    "k_cache": TensorSpec("float16", (2, 1, 8, 32)),
    "ckv_cache": TensorSpec("float16", (2, 1, 8, 64)),
}

every_operator = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)


@every_operator
def test_declaration_is_consistent(op: Operator) -> None:
    """Type variables exist, ref pairs have one type, names are unique, constraints have texts of one line."""
    inputs = {entry.name: entry for entry in op.inputs}
    assert len(inputs) == len(op.inputs)
    assert len({entry.onnx_name for entry in op.outputs} | set(inputs)) == len(op.inputs) + len(op.outputs)
    for entry in (*op.inputs, *op.outputs):
        assert all(by_name(name) for name in op.types[entry.type])
    for output in op.outputs:
        if output.ref:
            assert (inputs[output.name].ref, inputs[output.name].type) == (output.name, output.type)
    refs = {entry.ref for entry in op.inputs if entry.ref}
    assert refs == {output.name for output in op.outputs if output.ref}
    for constraint in op.constraints:
        assert set(constraint.products) <= set(PRODUCTS)
        assert "\n" not in constraint.text
        assert "; found" not in constraint.text
    for attr in op.attrs:
        assert attr.default is None or attr.accepts(attr.default)
        assert not attr.allowed or attr.default in (None, *attr.allowed)


@every_operator
def test_first_required_input_is_missing(op: Operator) -> None:
    first = next(entry.name for entry in op.inputs if not entry.optional)
    assert ("IN-02", f"no {first}") in {(found.id, found.found) for found in op.check({}, {})}


def test_domain() -> None:
    assert DOMAIN == "ai.ascend"


def test_types_combine_as_the_contract_says() -> None:
    """Three float types; a cache is plain or 8-bit, two 8-bit caches have one type: 1 + 3 * 3 for the 16-bit ones.
    float32 rows may be kept in any float: 3 * 3 plain pairs, 2 * 3 * 3 with one 8-bit cache, 3 with two."""
    combinations = OP.type_combinations()
    assert len(combinations) == 2 * (1 + 3 * 3) + (3 * 3 + 2 * 3 * 3 + 3)
    assert all(
        choice["TK"] in (choice["T"], "int8", "float8_e5m2", "float8_e4m3fn")
        or (choice["T"], choice["TK"]) in (("float32", "float16"), ("float32", "bfloat16"))
        for choice in combinations
    )
    assert {choice["I"] for choice in combinations} == {"int64"}
    assert "hifloat8" not in {choice["TK"] for choice in combinations}
    assert "hifloat8" in OP.types["TK"]


def test_defaults() -> None:
    assert OP.with_defaults({}) == {
        "epsilon": 1e-5, "cache_mode": "Norm", "is_output_kv": False, "float8_cast": "saturate",
    }  # fmt: skip


def test_attributes_come_in_the_spellings_of_onnx_and_numpy() -> None:
    full = OP.with_defaults({"epsilon": np.float32(0.5), "cache_mode": b"PA_NZ", "is_output_kv": np.int64(1)})
    assert (full["epsilon"], full["cache_mode"], full["is_output_kv"]) == (0.5, "PA_NZ", True)
    assert type(full["epsilon"]) is float
    assert not OP.check(SPECS, {"epsilon": np.float32(0.5), "is_output_kv": 1})


@pytest.mark.parametrize(
    ("rule", "attrs"),
    [
        ("AT-01", {"eps": 1e-5}),
        ("AT-02", {"epsilon": "small"}),
        ("AT-02", {"epsilon": True}),
        ("AT-02", {"cache_mode": 1}),
        ("AT-02", {"is_output_kv": 2}),
        ("AT-04", {"float8_cast": "round"}),
    ],
)
def test_wrong_attributes(rule: str, attrs: dict[str, Any]) -> None:
    assert [found.id for found in OP.check(SPECS, attrs)] == [rule]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("IN-01", {"mask": TensorSpec("float16", (1,))}),
        ("IN-03", {"index": TensorSpec("int32", (2, 3))}),
        ("IN-03", {"kv": TensorSpec("float64", (2, 1, 3, 96))}),
        ("IN-03", {"k_cache": np.zeros((2, 1, 8, 32), np.uint8)}),
    ],
)
def test_wrong_inputs(rule: str, change: dict[str, Any]) -> None:
    assert [found.id for found in OP.check(SPECS | change, {})] == [rule]


def test_numpy_types_outside_the_table_are_named() -> None:
    found = OP.check(SPECS | {"kv": np.zeros((1,), "datetime64[s]")}, {})
    assert found[0].found == "kv datetime64[s]"


def test_unknown_product() -> None:
    with pytest.raises(BadUsage, match=r"unknown product; found 310P, wanted generic \| 950 \| A3 \| A2 \| kirin"):
        OP.check(SPECS, {}, product="310P")


def test_legal_call_has_no_violations() -> None:
    assert OP.check(SPECS, {}) == []


def test_what_is_not_known_is_not_violated() -> None:
    """Neither unknown ranks nor unknown dims breach anything; the same call with a wrong known dim does."""
    assert OP.check({name: TensorSpec(spec.dtype, None) for name, spec in SPECS.items()}, {}) == []
    unknown = {name: TensorSpec(spec.dtype, (None,) * len(spec.shape or ())) for name, spec in SPECS.items()}
    assert OP.check(unknown, {}) == []
    wrong = unknown | {"kv": TensorSpec("float16", (None, 2, None, None))}
    assert [found.id for found in OP.check(wrong, {})] == ["KV-06"]


def test_shapes_follow_as_far_as_the_inputs_tell() -> None:
    specs = SPECS | {"kv": TensorSpec("float16", (2, 1, None, None)), "cos": TensorSpec("float16", None)}
    inferred = OP.infer(specs, {})
    assert inferred["k_rope"] == TensorSpec("float16", (2, 1, None, None))
    assert inferred["c_kv"] == TensorSpec("float16", (2, 1, None, 64))
    assert str(inferred["k_rope"]) == "float16[2, 1, ?, ?]"


def test_shapes_without_a_required_input() -> None:
    with pytest.raises(BadInput, match="KvRmsNormRopeCache: a required input is missing; found no kv"):
        OP.infer({}, {})


def test_separate_v_changes_the_widths() -> None:
    specs = {
        "kv": TensorSpec("float16", (2, 4, 3, 192)), "gamma": TensorSpec("float16", (192,)),
        "cos": TensorSpec("float16", (2, 1, 3, 64)), "sin": TensorSpec("float16", (2, 1, 3, 64)),
        "index": TensorSpec("int64", (6,)), "k_cache": TensorSpec("int8", (5, 16, 4, 192)),
        "ckv_cache": TensorSpec("float16", (5, 16, 4, 128)), "v": TensorSpec("float16", (2, 4, 3, 128)),
        "k_rope_scale": TensorSpec("float32", (4, 192)),
    }  # fmt: skip
    assert OP.check(specs, {"cache_mode": "PA"}) == []
    inferred = OP.infer(specs, {"cache_mode": "PA"})
    assert inferred == {
        "k_cache": specs["k_cache"], "ckv_cache": specs["ckv_cache"],
        "k_rope": TensorSpec("float16", (2, 4, 3, 192)), "c_kv": TensorSpec("float16", (2, 4, 3, 128)),
    }  # fmt: skip

"""Every rule of the validator, broken alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ir_ops.errors import BadModel
from ir_ops.ge import GraphBuilder, Model, air, validate
from ir_ops.ge.messages import ModelDef
from ir_ops.ge.validator import Finding, errors, grouped, rules
from tests.ir_ops.ge.damage import Damage, found, good_model, op
from tests.ir_ops.ge.damages import CASES, cycle, drop, second_writer

E, W = {"error"}, {"warning"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def good(folder: Path) -> Model:
    return good_model(folder)


def test_the_undamaged_model_is_good(good: Model, folder: Path) -> None:
    assert {str(finding) for finding in validate(good)} == {
        "note rule 35 good/attention: true in atten_mask means masked (ONNX: true means keep)"
    }


IDS = [f"{number}-{what}" for number, _, what, _ in CASES]


@pytest.mark.parametrize(("number", "severity", "what", "damage"), CASES, ids=IDS)
def test_damage_breaks_exactly_its_rule(
    number: int, severity: set[str], what: str, damage: Damage, good: Model, folder: Path
) -> None:
    assert found(good, damage, folder) == {number: severity}, what


def test_two_writers_of_one_buffer(good: Model, folder: Path) -> None:
    # the second writer is also a reader of the old content
    assert found(good, second_writer, folder)[24] == E


def test_a_cycle_is_out_of_order_too(good: Model, folder: Path) -> None:
    assert found(good, cycle, folder) == {13: E, 14: W}


def test_shape_without_dtype_also_has_another_default(good: Model, folder: Path) -> None:
    # rule 20 sees that the default int32 is not the int64 of the output
    assert found(good, drop("shape", "dtype"), folder) == {20: E, 34: E}


def test_names_of_different_length_leave_the_op_without_names(good: Model, folder: Path) -> None:
    damaged = found(good, lambda m: op(m, "norm").attr["_output_name_value"].list.i.append(9), folder)
    assert damaged[18] == E


def test_values_outside_the_slots(good: Model, folder: Path) -> None:
    damaged = found(good, lambda m: op(m, "cast").attr["_output_name_value"].list.i.__setitem__(0, 4), folder)
    assert damaged[18] == E


def test_a_missing_required_attribute(good: Model, folder: Path) -> None:
    assert found(good, drop("cast", "dst_type"), folder) == {19: E}


def test_bytes_in_another_order_are_a_note(good: Model, folder: Path) -> None:
    data = air.serialise(good)
    name = b"\x0a\x04good"
    assert data.startswith(name)
    reordered = data[len(name) :] + name
    assert [str(f) for f in validate(reordered, folder=folder)] == [
        "note rule 1 file: fields or map entries stand in another order than kvfuse writes them",
        "note rule 35 good/attention: true in atten_mask means masked (ONNX: true means keep)",
    ]


def test_a_custom_operator_can_be_allowed(good: Model, folder: Path) -> None:
    message = ModelDef.FromString(air.serialise(good))
    op(message, "triangle").type = "Mine"
    data = message.SerializeToString(deterministic=True)
    assert {f.rule for f in errors(validate(data, folder=folder))} == {5}
    assert errors(validate(data, folder=folder, custom_ops=frozenset({"Mine"}))) == []


def test_old_headers_are_a_warning() -> None:
    b = GraphBuilder()
    b.output(b.Expand(b.data("x", "bfloat16", (1, 4)), np.array([2, 4])), "y")
    assert [(f.rule, f.severity) for f in validate(b.build())] == [(21, "warning")]


def test_computed_shapes_are_a_warning_where_all_dims_are_static_and_a_note_elsewhere() -> None:
    for dim, severity in ((4, "warning"), (-1, "note")):
        b = GraphBuilder()
        x = b.data("x", "float32", (dim, 2))
        b.output(b.Reshape(x, b.Neg(b.Shape(x, dtype=9))), "y")
        assert [(f.rule, f.severity) for f in validate(b.build())] == [(22, severity)]


def test_empty_tensors() -> None:
    b = GraphBuilder()
    x = b.data("x", "float32", (4, 2))
    b.output(b.StridedSliceV2(x, np.array([2]), np.array([2])), "y")
    assert {(f.rule, f.severity) for f in validate(b.build())} == {(26, "warning")}


def test_an_unused_input_is_a_note() -> None:
    b = GraphBuilder()
    b.data("unused", "float32", (2,))
    b.output(b.Neg(b.data("x", "float32", (2,))), "y")
    assert [str(f) for f in validate(b.build())] == ["note rule 13 graph/unused: Data leads nowhere"]


def test_scale_without_a_record_is_a_note() -> None:
    b = GraphBuilder()
    b.output(b.AscendQuantV2(b.data("x", "float32", (2, 4)), b.data("s", "float32", (1,))), "y")
    assert [(f.rule, f.severity) for f in validate(b.build())] == [(36, "note")]


def test_there_are_36_rules_each_with_a_title() -> None:
    assert [rule.number for rule in rules()] == list(range(1, 37))
    assert all(rule.title for rule in rules())


def test_every_rule_has_a_case() -> None:
    assert {number for number, *_ in CASES} | {34} == set(range(1, 37))


def test_what_is_no_air_file_has_no_findings(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no such file"):
        validate(tmp_path / "none.air")
    with pytest.raises(BadModel, match="not an .air file"):
        validate(b"nonsense")


def test_remarks_of_one_rule_are_one_line() -> None:
    findings = [Finding(22, "note", f"g/n{i}", "odd") for i in range(3)] + [Finding(26, "note", "g/w", "cut")]
    findings.insert(1, Finding(22, "warning", "g/x", "worse"))
    assert list(grouped(findings)) == [
        "note rule 22 g/n0: odd (the first of 3 of this rule)",
        "warning rule 22 g/x: worse",
        "note rule 26 g/w: cut",
    ]

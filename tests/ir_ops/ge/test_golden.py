"""Every published vector of the fused operators, as a graph built by hand, written, read, validated and executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_numpy
from ir_ops.ge import GraphBuilder, execute, read, validate, write
from ir_ops.ge.model import FRACTAL_NZ
from ir_ops.ops import OPS
from tests.golden import GoldenCase, cases

FUSED = ("KvRmsNormRopeCache", "QkvRmsNormRopeCache", "DequantRopeQuantKvcache", "MlaPrologV3")
CASES = [case for name in FUSED for case in cases(name)]


def graph(case: GoldenCase, folder: Path, weights: str = "data") -> tuple[Path, dict[str, Array]]:
    """The case's operator alone in a graph; weights that the device keeps in NZ as inputs or as packed constants."""
    operator, inputs, b = OPS[case.operator], case.inputs, GraphBuilder("golden")
    given: dict[str, Any] = {}
    for entry in operator.inputs:
        if entry.name not in inputs:
            continue
        array = inputs[entry.name]
        if not array.size:  # GE takes no empty input: the cache that a per-tile mode does not have
            given[entry.name] = b.TensorMove(inputs.pop(entry.name))
        elif entry.nz and weights != "data":
            given[entry.name] = b.const(inputs.pop(entry.name), layout=weights)
        else:
            add = b.ref_data if entry.ref else b.data
            given[entry.name] = add(entry.name, by_numpy(array.dtype), array.shape)
    values = operator.ge_attrs(_specs(case.inputs), operator.with_defaults(case.attrs))
    attrs = {attr.name: values[attr.name] for attr in operator.attrs if not attr.onnx_only}
    out = getattr(b, case.operator)(**given, **attrs)
    for name in out.names():
        if 0 not in (out[name].shape or ()):  # outputs that a mode leaves empty
            b.output(out[name], f"out_{name}")
    return write(b.build(), folder / "case.air"), inputs


def _specs(inputs: dict[str, Array]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(by_numpy(array.dtype).name, array.shape) for name, array in inputs.items()}


def check(case: GoldenCase, path: Path, inputs: dict[str, Array]) -> None:
    findings = [finding for finding in validate(path) if finding.rule != 21]  # TensorMove of bf16: recent GE only
    assert {finding.severity for finding in findings} <= {"note"}, findings
    model = read(path)
    execution = execute(model, inputs)
    (node,) = model.root.of_type(case.operator)
    empty = {port.name: port.type for port in node.outputs if 0 in (port.type.shape or ())}
    results = {name: np.zeros(port.shape or (), port.dtype.np if port.dtype else None) for name, port in empty.items()}
    case.check(results | {name.removeprefix("out_"): array for name, array in execution.outputs.items()})
    operator = OPS[case.operator]
    refs = {entry.name for entry in operator.inputs if entry.ref and entry.name in inputs}
    assert set(execution.caches) == refs
    for name in refs:
        np.testing.assert_array_equal(execution.caches[name], execution.outputs[f"out_{name}"])


def test_all_published_cases_are_there() -> None:
    assert len(CASES) == 84


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operator}-{case.name}")
def test_a_graph_by_hand_gives_the_golden_result(case: GoldenCase, tmp_path: Path) -> None:
    check(case, *graph(case, tmp_path))


@pytest.mark.parametrize("case", [c for c in CASES if "real_dims" in c.name or "kvtile_pabsnd" in c.name], ids=str)
def test_packed_weights_give_the_golden_result(case: GoldenCase, tmp_path: Path) -> None:
    """The same with the weights as FRACTAL_NZ constants, as the device keeps them."""
    path, inputs = graph(case, tmp_path, FRACTAL_NZ)
    packed = [node for node in read(path).root.of_type("Const") if node.outputs[0].type.layout == FRACTAL_NZ]
    assert len(packed) == 3
    for node in packed:
        made = node.outputs[0].type
        K, M = made.shape or (0, 0)
        assert made.dtype is not None
        w0 = 32 // made.dtype.itemsize
        assert made.storage == (M // w0, K // 16, 16, w0)
    check(case, path, inputs)

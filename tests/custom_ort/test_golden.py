"""The published vectors, through onnxruntime, with every instruction set that this CPU runs."""

from __future__ import annotations

import pytest

from tests.custom_ort import one_node
from tests.custom_ort.isa import ISAS
from tests.golden import COUNTS, GoldenCase, cases

ALL = [case for operator in COUNTS for case in cases(operator)]


def test_all_cases_are_here() -> None:
    assert {operator: len(cases(operator)) for operator in COUNTS} == COUNTS


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.operator}-{case}")
def test_kernel_within_tolerance(case: GoldenCase, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    case.check(one_node.run(case.operator, case.inputs, case.attrs))

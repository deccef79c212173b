"""The published vectors, through onnxruntime, with every instruction set that this CPU runs."""

from __future__ import annotations

import pytest

from tests.custom_ort import one_node
from tests.custom_ort.isa import ISAS
from tests.golden import GoldenCase, cases

KV = cases("KvRmsNormRopeCache")


def test_all_cases_are_here() -> None:
    assert len(KV) == 29


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", KV, ids=str)
def test_kernel_within_tolerance(case: GoldenCase, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    case.check(one_node.run(case.operator, case.inputs, case.attrs))

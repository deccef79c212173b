"""The published vectors of MlaPrologV3, through onnxruntime, with every instruction set that this CPU runs."""

from __future__ import annotations

import pytest

from tests.custom_ort import one_node
from tests.custom_ort.isa import ISAS
from tests.golden import GoldenCase, cases

MLA = cases("MlaPrologV3")
WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr")


def test_all_cases_are_here() -> None:
    assert len(MLA) == 24


@pytest.mark.parametrize("constants", [(), WEIGHTS], ids=["computed weights", "constant weights"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", MLA, ids=str)
def test_kernel_within_tolerance(
    case: GoldenCase, isa: str, constants: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    case.check(one_node.run(case.operator, case.inputs, case.attrs, constants=constants))

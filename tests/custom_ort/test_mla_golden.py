"""The published vectors of MlaPrologV3, through onnxruntime, with every instruction set that this CPU runs."""

from __future__ import annotations

import pytest

from ir_ops.errors import KvfuseError
from tests.custom_ort import one_node
from tests.custom_ort.isa import ISAS
from tests.custom_ort.mla_calls import QUERY_TYPES, WEIGHTS
from tests.golden import GoldenCase, cases

MLA = cases("MlaPrologV3")


def test_all_cases_are_here() -> None:
    assert len(MLA) == 24


@pytest.mark.parametrize("constants", [(), WEIGHTS], ids=["computed weights", "constant weights"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", MLA, ids=str)
def test_kernel_within_tolerance(
    case: GoldenCase, isa: str, constants: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFUSE_ISA", isa)
    if case.attrs["query_quant_mode"] and not QUERY_TYPES:
        with pytest.raises(KvfuseError, match="query"):
            one_node.run(case.operator, case.inputs, case.attrs, constants=constants)
        return
    case.check(one_node.run(case.operator, case.inputs, case.attrs, constants=constants))

"""What several fused nodes need alike is computed once."""

from __future__ import annotations

from collections import Counter

import pytest

import fusion
from tests.fusion.zoo.run import run, worst
from tests.fusion.zoo.spec import Spec, expected, feeds
from tests.fusion.zoo.spellings import Preamble

OP = "KvRmsNormRopeCache"


def counted(spec: Spec) -> Counter[str]:
    """Operators around the fused nodes, which give the expected results."""
    result = fusion.fuse(Preamble(spec).model())
    assert result.count(OP) == spec.layers
    given = feeds(spec, 2, 3, 0)
    assert worst(run(result.model, given), expected(spec, given), spec.dtype) == ""
    return Counter(node.op_type for node in result.model.graph.node)


@pytest.mark.parametrize("choices", [{"rope": "deint_chunk"}, {"write": "index_copy"}], ids=["tables", "slots"])
def test_layers_share_tables_and_slots(choices: dict[str, str]) -> None:
    one, three = (counted(Spec(layers=layers, **choices)) for layers in (1, 3))
    assert sum(one.values()) > 1
    assert three - one == Counter({OP: 2})

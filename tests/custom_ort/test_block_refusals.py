"""Calls of the building blocks that have no meaning are refused with the id and text of the declaration's check."""

from __future__ import annotations

import numpy as np
import pytest

from ir_ops.errors import BadModel
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.block_breaches import ATTRS, BREACHES, Breach, legal
from tests.custom_ort.block_calls import CALLS

LOADED = [breach for breach in BREACHES if one_node.loads(breach.attrs)]
"""Those whose model the runtime loads but for the breach."""


@pytest.mark.parametrize("breach", LOADED, ids=str)
def test_refused(breach: Breach) -> None:
    """check(), the reference and the kernel name one rule in the same words."""
    call, operator = breach.call(), OPS[breach.operator]
    assert not [found for found in operator.check(call.inputs, call.attrs) if found.severity == "error"]
    breach.change(call)
    expected = next(found for found in operator.check(call.inputs, call.attrs) if found.severity == "error")
    assert expected.id == breach.rule
    message = one_node.refusal(breach.operator, call.inputs, call.attrs)
    assert f"{expected.id}: {expected.text}; found " in message
    assert breach.operator in message
    assert "\n" not in message


@pytest.mark.parametrize("name", CALLS)
def test_every_generic_rule_is_broken_once(name: str) -> None:
    """Each text that binds ``generic`` as an error comes out of the table above."""
    rules = {
        (rule.id, rule.text)
        for rule in OPS[name].constraints
        if rule.severity == "error" and "generic" in rule.products
    }
    broken = set()
    for breach in BREACHES:
        if breach.operator == name:
            call = breach.call()
            breach.change(call)
            found = next(found for found in OPS[name].check(call.inputs, call.attrs) if found.severity == "error")
            broken.add((found.id, found.text))
    assert broken == rules


@pytest.mark.parametrize(
    ("name", "attribute"),
    [(name, attr.name) for name in ATTRS for attr in OPS[name].attrs if attr.default is None],
)
def test_a_required_attribute_is_missing(name: str, attribute: str) -> None:
    call = legal(name)
    del call.attrs[attribute]
    expected = OPS[name].check(call.inputs, call.attrs)[0]
    assert (expected.id, expected.found) == ("AT-03", f"no {attribute}")
    assert f"AT-03: {expected.text}; found no {attribute}, wanted {expected.wanted}" in one_node.refusal(
        name, call.inputs, call.attrs
    )


def test_float8_and_int4_need_a_known_rank() -> None:
    """ONNX Runtime would otherwise take such an output for int8: the kernel does not run then."""
    call = CALLS["DynamicQuant"](np.random.default_rng(3))
    proto = one_node.model("DynamicQuant", one_node.types_of(call.inputs), {"dst_type": 29})
    with pytest.raises(BadModel, match="onnxruntime 1.24 and a known rank of x"):
        one_node.session(proto)

"""Changes to legal calls that make them illegal, and the proof that kernel and check() refuse them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import custom_ort
from ir_ops.declaration import Violation
from ir_ops.dtypes import by_name
from ir_ops.errors import KvfuseError
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import Call

Change = Callable[[Call], None]


def put(name: str, array: Any) -> Change:
    """Replaces an input."""

    def change(call: Call) -> None:
        old = call.inputs.get(name)
        call.inputs[name] = np.asarray(array, old.dtype if old is not None else np.float32)

    return change


def resize(name: str, *shape: int) -> Change:
    """Gives an input another shape."""
    return lambda call: call.inputs.update({name: np.zeros(shape, call.inputs[name].dtype)})


def retype(dtype: str, *names: str) -> Change:
    return lambda call: call.inputs.update({name: call.inputs[name].astype(by_name(dtype).np) for name in names})


def drop(*names: str) -> Change:
    return lambda call: [call.inputs.pop(name) for name in names] and None


def attribute(name: str, value: Any) -> Change:
    return lambda call: call.attrs.update({name: value})


def both(*changes: Change) -> Change:
    return lambda call: [change(call) for change in changes] and None


def errors(operator: str, call: Call) -> list[Violation]:
    return [found for found in OPS[operator].check(call.inputs, call.attrs) if found.severity == "error"]


def assert_refused(operator: str, call: Call, change: Change, rule: str, aliases: Mapping[str, str]) -> None:
    """The kernel names the same rule in the same words as check(), and the bound caches keep every byte."""
    assert not errors(operator, call)
    change(call)
    expected = errors(operator, call)[0]
    assert expected.id == rule
    bound = {name: output for name, output in aliases.items() if name in call.inputs}
    before = {name: one_node.bits(call.inputs[name]).copy() for name in bound}
    proto = one_node.model(operator, one_node.types_of(call.inputs), call.attrs)
    with pytest.raises(KvfuseError) as caught:
        custom_ort.bind(one_node.session(proto), call.inputs, bound).run()
    assert f"{rule}: {expected.text}; found " in str(caught.value)
    assert operator in str(caught.value)
    assert "\n" not in str(caught.value)
    for name, kept in before.items():
        assert np.array_equal(one_node.bits(call.inputs[name]), kept), name

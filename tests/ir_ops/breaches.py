"""Breaching numbered constraints: calls of specs, changes to them, and what check() must then say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ir_ops.declaration import PRODUCTS, Constraint, Operator, TensorSpec
from ir_ops.dtypes import Array

Inputs = dict[str, "TensorSpec | Array"]
Change = Callable[[Inputs, dict[str, Any]], None]


class Base(Protocol):
    """A legal call, made anew each time."""

    def call(self) -> tuple[Inputs, dict[str, Any]]: ...


def shape(name: str, *dims: int) -> Change:
    """Gives an input another shape."""

    def change(inputs: Inputs, attrs: dict[str, Any]) -> None:
        inputs[name] = TensorSpec(dtype_of(inputs[name]), dims)

    return change


def dtype_of(value: TensorSpec | Array) -> str:
    return value.dtype if isinstance(value, TensorSpec) else str(value.dtype)


def dtype(kind: str, *names: str) -> Change:
    """Gives inputs another element type."""

    def change(inputs: Inputs, attrs: dict[str, Any]) -> None:
        for name in names:
            old = inputs[name]
            assert isinstance(old, TensorSpec)
            inputs[name] = TensorSpec(kind, old.shape)

    return change


def index(*values: Any, name: str = "index") -> Change:
    """Gives the index these values."""
    return lambda inputs, attrs: inputs.update({name: np.array(values, np.int64)})


def give(name: str, *dims: int) -> Change:
    return lambda inputs, attrs: inputs.update({name: TensorSpec("float32", dims)})


def drop(name: str) -> Change:
    return lambda inputs, attrs: inputs.__delitem__(name)


def attr(name: str, value: Any) -> Change:
    return lambda inputs, attrs: attrs.update({name: value})


def both(*changes: Change) -> Change:
    def change(inputs: Inputs, attrs: dict[str, Any]) -> None:
        for part in changes:
            part(inputs, attrs)

    return change


@dataclass(frozen=True)
class Breach:
    """``change`` breaches the constraint with that id and text; ``found`` is how the message says so."""

    id: str
    text: str
    base: Base
    change: Change
    found: str

    def constraint(self, op: Operator) -> Constraint:
        """The one constraint with that id whose text begins so."""
        match = [entry for entry in op.constraints if entry.id == self.id and entry.text.startswith(self.text)]
        assert len(match) == 1, f"{self.id} {self.text}"
        return match[0]

    def __str__(self) -> str:
        return f"{self.id}-{self.found}"


def assert_breach(op: Operator, breach: Breach) -> None:
    """Found under every product that the constraint binds and no other; the unchanged call does not breach it."""
    constraint = breach.constraint(op)
    inputs, attrs = breach.base.call()
    for product in PRODUCTS:
        assert (constraint.id, constraint.text) not in {(v.id, v.text) for v in op.check(inputs, attrs, product)}
    breach.change(inputs, attrs)
    for product in PRODUCTS:
        found = [v for v in op.check(inputs, attrs, product) if (v.id, v.text) == (constraint.id, constraint.text)]
        assert bool(found) == (product in constraint.products), product
        if found:
            assert breach.found in {v.found.split(";")[0] for v in found} or found[0].found == breach.found
            assert all(
                (v.severity, v.changes_result) == (constraint.severity, constraint.changes_result) for v in found
            )
            assert str(found[0]).startswith(f"{constraint.id}: {constraint.text}; found {found[0].found}, wanted ")
            assert "\n" not in str(found[0])


def assert_all_breached(op: Operator, breaches: Sequence[Breach], *, but: tuple[str, ...] = ()) -> None:
    """Every constraint has a breach, except those of the ids in ``but``."""
    named = {(c.id, c.text) for c in op.constraints if c.id not in but}
    assert {(b.id, b.constraint(op).text) for b in breaches} == named

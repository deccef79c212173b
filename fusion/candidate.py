"""A place where a fused operator could stand: the new nodes, what they replace, and what that relies on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

import onnx_ir as ir

from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from fusion.reduction import NONE, Reduction
from fusion.result import Refusal
from fusion.surgery.packing import Join
from ir_ops.declaration import TensorSpec

BLOCK = 10
"""Operators below this size are building blocks: where one does not fit, another one of them may."""


P = ParamSpec("P")
T = TypeVar("T")


class Refused(Exception):
    """A rule's reason to leave a place alone; ``value`` is where."""

    def __init__(
        self, code: str, fact: str, found: str, wanted: str, suggestion: str = "", value: ir.Value | None = None
    ) -> None:
        super().__init__(f"{fact}: found {found}, wanted {wanted}")
        self.code, self.fact, self.found, self.wanted = code, fact, found, wanted
        self.suggestion, self.value = suggestion, value

    def refusal(self, view: GraphView, rule: str, value: ir.Value, layer: int | None) -> Refusal:
        """The record for the report, placed at ``value`` where nothing more exact is known."""
        place = view.place(self.value if self.value is not None else value, layer)
        return Refusal(self.code, place, layer, rule, self.fact, self.found, self.wanted, self.suggestion)


def evaluated(build: Callable[P, T]) -> Callable[P, T]:
    """What a builder raises at values that cannot be evaluated or followed at trial sizes refuses the place.

    So do operands that no such operator has, a scalar for a table: whatever is looked for in them is not there.
    """

    @functools.wraps(build)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return build(*args, **kwargs)
        except (Conflict, OutOfRange, Unsupported, Unreadable, LookupError, ValueError) as error:
            found = str(error) or "parts that do not go together"
            raise Refused(
                "unreadable", "the match can be evaluated at one set of sizes", found, "sizes that agree"
            ) from None

    return guarded


@dataclass
class Candidate:
    """One fusion, built beside the graph and not yet part of it.

    Attributes:
        op: the operator.
        node: the fused node.
        emitter: all new nodes and constants, the fused node among them.
        replaced: old value -> new value; readers of the old one move over.
        region: nodes of the graph that the fused node stands for.
        feeds: values at which the region begins; the proof feeds them.
        probes: the trial sizes under which the facts were read.
        fresh: a further trial size for the proof, None when none fits; or what finds it, for structures not yet proven.
        place, layer: where, for messages.
        shapes: shape vectors of values of the region -> the same vectors told from graph inputs.
        stand_ins: values of the region whose shape is asked for, and a value outside of the same shape.
        assumptions, notes: for the report.
        attrs: attributes of the fused node.
        joins: projections that the new nodes lay side by side, which may be packed into one.
        size: that of the rule.
        specs: types and dims of the fused node's inputs, as the proof has seen them.
        slack: how far the graph's constants, rounded to its own type, may move a result of the float64 proof.
        zero_rows: whether the proof feeds a row of zeros; False where the graph divides by the row's largest value.
        reduction: hidden sizes that the proof takes smaller.
        draws: id of a feed -> what the proof feeds it: ``sums`` (int32 data, no structure) or ``scale`` (never 0).
    """

    op: str
    node: ir.Node
    emitter: Emitter
    replaced: list[tuple[ir.Value, ir.Value]]
    region: list[ir.Node]
    feeds: list[ir.Value]
    probes: list[Probe]
    place: str
    layer: int | None
    fresh: Probe | Callable[[], Probe | None] | None = None
    stand_ins: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    shapes: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    joins: list[Join] = field(default_factory=list)
    size: int = BLOCK
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    slack: float = 0.0
    zero_rows: bool = True
    reduction: Reduction = NONE
    draws: Mapping[int, str] = field(default_factory=dict)


EmitterFactory = Callable[[str], Emitter]
"""Makes the emitter of a new site from the prefix of its names."""


class Rule(Protocol):
    """What a rule file provides as ``RULE``.

    Attributes:
        op: the operator it fuses.
        size: larger operators are tried first.
    """

    op: str
    size: int

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        """All places of one graph, in graph order."""

"""What fusing and verifying answer with: frozen records and their stable JSON form (described in docs/json.md).

The field names of ``to_json()`` are public: tools read them. A change that is not an addition raises ``FORMAT``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ASSUMPTIONS_KEY = "kvfuse.assumptions"
"""Metadata key of a fused node: the assumptions it was fused under, joined by "; "."""
FORMAT = 1
"""Version of the JSON form; it changes only when a field goes away or changes its meaning."""


def plain(value: Any) -> Any:
    """``value`` as something JSON can hold: tuples become lists, numpy scalars numbers, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy here
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True)
class Proof:
    """The numeric proof of one site: its subgraph evaluated beside the fused operator's reference.

    Attributes:
        cases: how many feeds were compared (shapes, edge values, corner slots).
        max_error: the largest difference seen over all cases and outputs.
        bound: the largest difference that would have been accepted.
        dtype: the type both sides were evaluated in, e.g. ``float64``.
        shared_with: the node name of the site whose proof this is, when an identical structure was proven before.
        text: anything a reader should know, e.g. "one int8 step at exact ties".
    """

    cases: int
    max_error: float
    bound: float
    dtype: str
    shared_with: str | None = None
    text: str = ""

    def to_json(self) -> Json:
        return {
            "cases": self.cases,
            "max_error": plain(self.max_error),
            "bound": plain(self.bound),
            "dtype": self.dtype,
            "shared_with": self.shared_with,
            "text": self.text,
        }


@dataclass(frozen=True)
class Site:
    """One fused operator in the result (or, from ``explain``, one that would be there).

    Attributes:
        op: operator name, a key of ``ir_ops.OPS``.
        name: name of the fused node.
        place: where it is, for a reader: ``layer 17, node /model/layers.17/...``.
        layer: decoder layer number, None where the graph does not tell.
        inputs: value names in operator order, ``""`` for an absent optional input.
        outputs: value names in operator order, ``""`` for an output that nobody reads.
        attrs: attributes of the node, GE names.
        assumptions: what the graph does not guarantee and the fusion relies on, e.g. ``slots >= 0``.
        proof: the numeric proof, None when it has not been run.
        removed: number of nodes that the fused node stands for.
        notes: anything else worth telling, e.g. "columns of kv_a_proj permuted".
    """

    op: str
    name: str
    place: str
    layer: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    proof: Proof | None = None
    removed: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {
            "op": self.op,
            "name": self.name,
            "place": self.place,
            "layer": self.layer,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "attrs": plain(self.attrs),
            "assumptions": list(self.assumptions),
            "proof": None if self.proof is None else self.proof.to_json(),
            "removed": self.removed,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Refusal:
    """A place that looked like a fused operator and was left alone, and why.

    Attributes:
        code: stable identifier of the reason, e.g. ``alias-second-reader``.
        place: where, for a reader: ``layer 17, node /model/layers.17/...``.
        layer: decoder layer number, None where the graph does not tell.
        rule: the operator (rule) that refused.
        fact: the statement that failed, e.g. "both caches are written at the same slots".
        found: what was there.
        wanted: what would have been accepted.
        suggestion: what the user can do about it.
    """

    code: str
    place: str
    layer: int | None = None
    rule: str = ""
    fact: str = ""
    found: str = ""
    wanted: str = ""
    suggestion: str = ""

    def to_json(self) -> Json:
        return {
            "code": self.code,
            "place": self.place,
            "layer": self.layer,
            "rule": self.rule,
            "fact": self.fact,
            "found": self.found,
            "wanted": self.wanted,
            "suggestion": self.suggestion,
        }


@dataclass(frozen=True)
class FusionResult:
    """What ``fusion.fuse`` and ``fusion.explain`` give back.

    Attributes:
        model: the fused model, of the kind that was given (``onnx.ModelProto`` for a path); from ``explain`` the
            unchanged model.
        sites: the fused (or fusable) places in graph order.
        refusals: the places that were left alone, the best partial match of each.
        timings: seconds per step, in the order the steps ran.
        ops_before: operator -> number of nodes in the model given, subgraphs included.
        ops_after: the same of the model given back; custom operators as ``ai.ascend::Name``.
        notes: what else a user should know about the model or the file written, one sentence each.
    """

    model: Any
    sites: list[Site] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    timings: Mapping[str, float] = field(default_factory=dict)
    ops_before: Counter[str] = field(default_factory=Counter)
    ops_after: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()

    def count(self, op: str) -> int:
        """How many sites of operator ``op`` were fused."""
        return sum(site.op == op for site in self.sites)

    def to_json(self) -> Json:
        return {
            "kind": "fusion",
            "format": FORMAT,
            "sites": [site.to_json() for site in self.sites],
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "timings": {step: round(seconds, 6) for step, seconds in self.timings.items()},
            "ops_before": dict(sorted(self.ops_before.items())),
            "ops_after": dict(sorted(self.ops_after.items())),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Difference:
    """One output of one case compared against one source of truth.

    Attributes:
        case: name of the feed, e.g. ``case0`` or ``generated batch=2 seq=3``.
        output: graph output.
        against: ``original`` (the original model's result) or ``recorded`` (values given by the user).
        dtype, shape: of the fused model's result.
        max_abs, max_rel: largest absolute difference, and largest difference relative to the element's magnitude.
        bound: the absolute difference accepted at the element that comes closest to its bound, or passes it most.
        used: that element's difference as a share of its bound; above 1 it is too large.
        differing: share of the elements that lie beyond the bound (for integers: that differ at all).
        first: index of the first element beyond the bound, None when there is none.
        ok: whether the output is accepted.
        note: why not, or what else to know ("missing in the fused model", "shape differs").
    """

    case: str
    output: str
    against: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    bound: float
    used: float
    differing: float
    first: tuple[int, ...] | None
    ok: bool
    note: str = ""

    def to_json(self) -> Json:
        return {
            "case": self.case,
            "output": self.output,
            "against": self.against,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "max_abs": plain(self.max_abs),
            "max_rel": plain(self.max_rel),
            "bound": plain(self.bound),
            "used": plain(self.used),
            "differing": plain(self.differing),
            "first": None if self.first is None else list(self.first),
            "ok": self.ok,
            "note": self.note,
        }


@dataclass(frozen=True)
class VerifyResult:
    """What ``fusion.verify`` gives back.

    Attributes:
        differences: one record per case, output and source of truth.
        how: what was compared, in one line: which runtime ran which side, in which types.
        notes: what could not be compared, and why.
    """

    differences: list[Difference]
    how: str
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether something was compared and everything compared was accepted."""
        return bool(self.differences) and all(item.ok for item in self.differences)

    @property
    def cases(self) -> list[str]:
        """Names of the feeds, in the order they ran."""
        return list(dict.fromkeys(item.case for item in self.differences))

    def to_json(self) -> Json:
        return {
            "kind": "verify",
            "format": FORMAT,
            "ok": self.ok,
            "how": self.how,
            "notes": list(self.notes),
            "cases": self.cases,
            "differences": [item.to_json() for item in self.differences],
        }

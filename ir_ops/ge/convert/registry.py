"""Which ONNX operator is converted by which function.

A converter registers itself with what it supports; those rows are the documentation (docs/ge.md) as well. Adding an
operator touches one family file and nothing central.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ir_ops.ge.convert.unsupported import Unsupported
from ir_ops.ge.tensor import Outputs, Tensor

if TYPE_CHECKING:
    from ir_ops.ge.convert.call import NodeCall

Result = Tensor | Outputs | Sequence["Tensor | None"]
"""The output tensors in ONNX order; None for outputs that nothing reads."""
Convert = Callable[["NodeCall"], Result]

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Support:
    """A row of the table of supported operators.

    Attributes:
        dtypes: the element types (of the first data input), "any" for all GE has.
        ge: the GE operators it becomes.
        note: differences in meaning, limits.
    """

    dtypes: str
    ge: str
    note: str = ""


@dataclass(frozen=True)
class Converter:
    """A conversion of one operator from opset ``since`` on, until a later one takes over."""

    domain: str
    op_type: str
    since: int
    support: tuple[Support, ...]
    run: Convert
    family: str


_CONVERTERS: dict[tuple[str, str], list[Converter]] = {}
_REFUSALS: dict[tuple[str, str], tuple[str, str]] = {}


def converts(
    *op_types: str, dtypes: str, ge: str, note: str = "", since: int = 1, domain: str = ""
) -> Callable[[Convert], Convert]:
    """Registers a converter for operators of ``domain`` from version ``since`` on."""

    def register(run: Convert) -> Convert:
        family = run.__module__.rpartition(".")[2]
        for op_type in op_types:
            row = Converter(domain, op_type, since, (Support(dtypes, ge, note),), run, family)
            entries = _CONVERTERS.setdefault((domain, op_type), [])
            assert all(entry.since != since for entry in entries), op_type
            entries.append(row)
        return run

    return register


def refuses(*op_types: str, reason: str, nearest: str, domain: str = "") -> None:
    """States why operators have no conversion and what is nearest."""
    for op_type in op_types:
        _REFUSALS[domain, op_type] = (reason, nearest)


def find_converter(domain: str, op_type: str, version: int) -> Converter:
    """The converter for a node.

    Raises:
        Unsupported: there is none, with the stated reason where one is known.
    """
    entries = [entry for entry in _CONVERTERS.get((domain, op_type), ()) if entry.since <= version]
    if entries:
        return max(entries, key=lambda entry: entry.since)
    reason, nearest = _REFUSALS.get((domain, op_type), ("no conversion", ""))
    raise Unsupported(reason, nearest or _similar(op_type))


def _similar(op_type: str) -> str:
    """Supported operators with a similar name."""
    import difflib

    known = sorted({name for _, name in _CONVERTERS})
    return ", ".join(difflib.get_close_matches(op_type, known, n=2, cutoff=0.75))


def all_converters() -> list[Converter]:
    """Every converter, ordered by family, domain and name."""
    found: Iterable[Converter] = (entry for entries in _CONVERTERS.values() for entry in entries)
    return sorted(found, key=lambda entry: (entry.family, entry.domain, entry.op_type, entry.since))


def all_refusals() -> Iterator[tuple[str, str, str, str]]:
    """(domain, operator, reason, nearest) of the operators refused for a stated reason."""
    for (domain, op_type), (reason, nearest) in sorted(_REFUSALS.items()):
        yield domain, op_type, reason, nearest

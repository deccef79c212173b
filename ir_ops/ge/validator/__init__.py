"""The validator: every numbered rule of what GE takes, one small function each.

What loads silently wrong in GE is an error here; what a file saved by GE itself may differ in is a note. The rules and
their severities are listed in docs/ge.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from ir_ops.ge import air
from ir_ops.ge.collector import without_collector
from ir_ops.ge.messages import Message
from ir_ops.ge.model import Model
from ir_ops.ge.validator.context import ERROR, NOTE, WARNING, Context, Finding, Rule, all_rules

_FAMILIES = ("files", "nodes", "edges", "conformance", "references", "formats", "semantics")

__all__ = ["ERROR", "NOTE", "WARNING", "Finding", "errors", "grouped", "rules", "validate"]


@cache
def _load() -> None:
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")


def rules() -> list[Rule]:
    """All rules in the order of their numbers."""
    _load()
    return [all_rules()[number] for number in sorted(all_rules())]


@without_collector()
def validate(
    source: str | os.PathLike[str] | bytes | Model,
    *,
    folder: str | os.PathLike[str] | None = None,
    custom_ops: frozenset[str] = frozenset(),
    coming: Mapping[Path, int] | None = None,
) -> list[Finding]:
    """Checks an ``.air`` file, its bytes, or a model that is not written yet.

    Args:
        source: path, bytes or model.
        folder: where relative weight files are looked up; by default the file's folder.
        custom_ops: operator types that are right although GE's public prototypes do not have them.
        coming: absolute path -> bytes of weight files that are written after the check.

    Returns:
        The findings in the order of the rules; the file is good when none has severity "error".

    Raises:
        BadModel: not an ``.air`` file at all.
    """
    if isinstance(source, Model):
        data, where = air.serialise(source), source.folder
    elif isinstance(source, bytes):
        data, where = source, None
    else:
        data, where = air.content(source), Path(source).resolve().parent
    message: Message = air.parse(data, "" if isinstance(source, (bytes, Model)) else str(source))
    context = Context(message, data, Path(folder) if folder is not None else where, custom_ops, coming or {})
    return [Finding(rule.number, *report) for rule in rules() for report in rule.check(context)]


def errors(findings: list[Finding]) -> list[Finding]:
    """The findings that make a file unusable."""
    return [finding for finding in findings if finding.severity == ERROR]


def grouped(findings: Iterable[Finding]) -> Iterator[str]:
    """A line for each rule and severity: how many findings, and the first one."""
    groups: dict[tuple[int, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.severity), []).append(finding)
    for found in groups.values():
        yield f"{found[0]} (the first of {len(found)} of this rule)" if len(found) > 1 else str(found[0])

"""Results for people: plain text of at most 100 columns. The page of HTML is `fusion.html`.

The JSON form is `fusion.result`'s own ``to_json()``.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusion.result import Difference, FusionResult, Proof, Refusal, Site, VerifyResult

WIDTH = 100
_IN_A_NAME = re.compile(r"(?<=[A-Za-z][._/])\d+")
"""A number that a name counts with: layers.3, node_cat_7, cache.0; not the digits of float16 or of 0.5."""
_CONSTRAINT = re.compile(r"[A-Z]+-\d+")


@dataclass(frozen=True)
class Style:
    """How text is marked and how wide it may be; without colour every mark is the text itself."""

    colour: bool = False
    width: int = WIDTH

    def _mark(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def bold(self, text: str) -> str:
        return self._mark("1", text)

    def good(self, text: str) -> str:
        return self._mark("32", text)

    def bad(self, text: str) -> str:
        return self._mark("31", text)

    def dim(self, text: str) -> str:
        return self._mark("2", text)


PLAIN = Style()


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines with columns of equal width; ``right`` numbers the right-aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    aligned = set(right)
    return [
        "  ".join(
            cell.rjust(width) if column in aligned else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrapped(label: str, text: str, width: int = WIDTH, indent: int = 4) -> list[str]:
    """``label  text`` with the text wrapped beside its label."""
    head = " " * indent + f"{label:<9}"
    return textwrap.wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]


def ranges(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


# --- a fusion --------------------------------------------------------------------------------------------------------


def fusion_text(result: FusionResult, style: Style = PLAIN, *, planned: bool = False) -> str:
    """The whole report: operators before and after, the sites, the places left alone.

    ``planned``: it is `explain`'s, and speaks of what would be.
    """
    lines = [*op_lines(result, style), *_site_lines(result, style, planned), *_refusal_lines(result, style)]
    notes = note_lines(result.notes, style)
    return "\n".join([*lines, *([""] if notes else []), *notes])


def note_lines(notes: Iterable[str], style: Style = PLAIN) -> list[str]:
    """``note: ..`` lines, wrapped."""
    return [line for note in notes for line in _paragraph(f"note: {note}", style, "      ")]


def _paragraph(text: str, style: Style, indent: str = "") -> list[str]:
    return textwrap.wrap(text, style.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def op_rows(result: FusionResult) -> tuple[list[tuple[str, int, int]], int]:
    """Operators whose number changed, as (operator, before, after), and how many operators kept their number."""
    names = sorted(set(result.ops_before) | set(result.ops_after), key=lambda name: ("::" in name, name))
    rows = [(name, result.ops_before[name], result.ops_after[name]) for name in names]
    changed = [row for row in rows if row[1] != row[2]]
    return changed, len(rows) - len(changed)


def op_lines(result: FusionResult, style: Style = PLAIN) -> list[str]:
    """The table of operators before and after."""
    changed, same = op_rows(result)
    total = (result.ops_before.total(), result.ops_after.total())
    if not changed:
        return [style.bold(f"{total[0]} nodes"), ""]
    cells = [["operator", "before", "after", ""]]
    cells += [[name, str(before), str(after), f"{after - before:+d}"] for name, before, after in changed]
    if same:
        cells.append([f"{same} more operators, unchanged", "", "", ""])
    cells.append(["all nodes", str(total[0]), str(total[1]), f"{total[1] - total[0]:+d}"])
    lines = table(cells, right=(1, 2, 3))
    return [style.bold(lines[0]), *lines[1:-1], style.bold(lines[-1]), ""]


@dataclass(frozen=True)
class SiteGroup:
    """Sites that differ in nothing but their place."""

    sites: tuple[Site, ...]

    @property
    def first(self) -> Site:
        return self.sites[0]

    @property
    def where(self) -> str:
        layers = [site.layer for site in self.sites if site.layer is not None]
        if len(self.sites) == 1 or len(layers) < len(self.sites):
            return self.first.place + (f" and {len(self.sites) - 1} more" if len(self.sites) > 1 else "")
        return f"layer{'s' if len(set(layers)) > 1 else ''} {ranges(layers)}"


def groups(sites: Iterable[Site]) -> list[SiteGroup]:
    """Sites grouped by everything but their place, in order of first appearance."""
    found: dict[str, list[Site]] = {}
    for site in sites:
        key = repr(
            (site.op, sorted(site.attrs.items()), site.assumptions, site.notes, site.removed, site.layer is None)
        )
        found.setdefault(key, []).append(site)
    return [SiteGroup(tuple(members)) for members in found.values()]


def attributes(attrs: Mapping[str, Any]) -> str:
    """``name=value`` pairs in the order of the operator."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in attrs.items()
    )


def proof_text(proof: Proof | None) -> str:
    """A proof in one sentence."""
    if proof is None:
        return "not run"
    text = f"{proof.cases} cases in {proof.dtype}, largest difference {proof.max_error:.3g}, accepted {proof.bound:.3g}"
    return text + (f"; {proof.text}" if proof.text else "")


def _site_lines(result: FusionResult, style: Style, planned: bool) -> list[str]:
    title = "would be fused: " if planned else "fused: "
    if not result.sites:
        return [style.bold(title + "nothing"), ""]
    counts = Counter(site.op for site in result.sites)
    lines = [style.bold(title + ", ".join(f"{count} x {op}" for op, count in counts.items()))]
    for group in groups(result.sites):
        site = group.first
        lines += ["", f"  {style.good(site.op)}  {group.where}"]
        facts = [
            ("node", f"{site.name}, stands for {site.removed} nodes"),
            ("with", attributes(site.attrs)),
            ("proof", _group_proof(group)),
            *(("assumes", text) for text in site.assumptions),
            *(("note", text) for text in site.notes),
        ]
        if len(group.sites) > 1:
            more = len(group.sites) - 1
            facts[0] = ("nodes", f"{site.name} and {more} more, each stands for {site.removed} nodes")
        lines += _fact_lines(facts, style)
    return [*lines, ""]


def _fact_lines(facts: Iterable[tuple[str, str]], style: Style) -> list[str]:
    return [line for label, text in facts if text for line in wrapped(label, text, style.width)]


def _group_proof(group: SiteGroup) -> str:
    proven = [site.proof for site in group.sites if site.proof is not None]
    own = [proof for proof in proven if proof.shared_with is None]
    text = proof_text((own or proven or [None])[0])  # type: ignore[list-item]
    shared = len(proven) - len(own)
    times = "once" if len(own) == 1 else f"{len(own)} times"
    return text + (f" (proven {times}, {shared} more of the same structure)" if shared and own else "")


def _refusal_lines(result: FusionResult, style: Style) -> list[str]:
    if not result.refusals:
        return [style.dim("left alone: nothing that looked like a fused operator")]
    reasons = refusal_groups(result.refusals)
    plural = "s" if len(reasons) > 1 else ""
    lines = [style.bold(f"left alone: {len(result.refusals)} place(s), {len(reasons)} reason{plural}")]
    for members in reasons:
        refusal = members[0]
        rule = f"{refusal.rule}: " if refusal.rule else ""
        lines += ["", f"  {style.bad(refusal.code)}  {rule}{len(members)} place(s)"]
        shown = "; ".join(member.place for member in members[:4])
        more = f" and {len(members) - 4} more" if len(members) > 4 else ""
        lines += _fact_lines([*refusal_facts(refusal), ("at", shown + more)], style)
    return lines


def refusal_facts(refusal: Refusal) -> list[tuple[str, str]]:
    """What a refusal says, each text with its label: a constraint is a rule that is broken, others are needs."""
    of_contract = _CONSTRAINT.fullmatch(refusal.code) is not None
    return [
        ("rule" if of_contract else "needs", refusal.fact),
        ("found", refusal.found),
        ("wanted", refusal.wanted),
        ("from" if of_contract else "do", refusal.suggestion),
    ]


def refusal_groups(refusals: Iterable[Refusal]) -> list[list[Refusal]]:
    """Refusals of one code, rule and fact together, whatever number the names in them have; the most frequent first."""
    found: dict[tuple[str, ...], list[Refusal]] = {}
    for refusal in refusals:
        texts = (refusal.fact, refusal.found, refusal.wanted)
        key = (refusal.code, refusal.rule, *(_IN_A_NAME.sub("*", text) for text in texts))
        found.setdefault(key, []).append(refusal)
    return sorted(found.values(), key=len, reverse=True)


# --- a verification --------------------------------------------------------------------------------------------------


def verify_text(result: VerifyResult, style: Style = PLAIN) -> str:
    """One line per case, output and source of truth, then the verdict."""
    cells = [["case", "output", "against", "type", "largest", "of bound", ""]]
    cells += [_difference_row(item) for item in result.differences]
    lines = table(cells, right=(4, 5))
    marked = [style.bold(lines[0])]
    for item, line in zip(result.differences, lines[1:], strict=True):
        marked.append(line if item.ok else style.bad(line))
        if not item.ok and item.note:
            marked += wrapped("", item.note, style.width, indent=2)
    bad = [item for item in result.differences if not item.ok]
    if result.ok:
        verdict = style.good(f"equal: {len(result.differences)} comparisons over {len(result.cases)} case(s)")
    else:
        verdict = style.bad(f"NOT equal: {len(bad)} of {len(result.differences)} comparisons failed")
    return "\n".join([*marked, "", verdict, *_paragraph(result.how, style), *note_lines(result.notes, style)])


def _difference_row(item: Difference) -> list[str]:
    used = f"{item.used:.0%}" if item.used <= 100 else "-"
    case = item.case.partition(" (")[0]
    return [case, item.output, item.against, item.dtype, f"{item.max_abs:.3g}", used, "ok" if item.ok else "DIFFERS"]

"""A fusion report as one page of HTML: no scripts, no other files."""

from __future__ import annotations

import html
from collections import Counter

from fusion.report import attributes, groups, op_rows, proof_text, refusal_facts, refusal_groups
from fusion.result import FusionResult

_CSS = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #b3261e; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse } th, td { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top }
tr { border-bottom: 1px solid var(--line) } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: .92em; overflow-wrap: anywhere }
section { border-left: 3px solid var(--line); padding: .1rem 0 .1rem 1rem; margin: 1rem 0 }
section.good { border-color: var(--good) } section.bad { border-color: var(--bad) }
section h3 { margin: .2rem 0; font-size: 1rem } dl { display: grid; grid-template-columns: 6rem 1fr; margin: .3rem 0 }
dt { opacity: .65 } dd { margin: 0 } details { margin: .3rem 0 }
"""


def fusion_html(result: FusionResult, title: str) -> str:
    """The page: operators before and after, every site, every refusal, timings."""
    counts = Counter(site.op for site in result.sites)
    fused = ", ".join(f"{count} × {op}" for op, count in counts.items()) or "nothing"
    before, after = result.ops_before.total(), result.ops_after.total()
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>Fused: <b>{_text(fused)}</b>. Nodes: {before} before, {after} after. "
        f"Left alone: {len(result.refusals)} place(s).</p>",
        _operators(result),
        "<h2>Fused</h2>",
        *_sites(result),
        "<h2>Left alone</h2>",
        *_refusals(result),
        *(f"<p>Note: {_text(note)}</p>" for note in result.notes),
        "<h2>Time</h2>",
        _table(["step", "seconds"], [[step, f"{seconds:.3f}"] for step, seconds in result.timings.items()], {1}),
    ]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{_CSS}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(head: list[str], rows: list[list[str]], numbers: set[int]) -> str:
    def row(cells: list[str], tag: str) -> str:
        marked = (f'<{tag} class="n">' if i in numbers else f"<{tag}>" for i in range(len(cells)))
        return "<tr>" + "".join(f"{m}{_text(cell)}</{tag}>" for m, cell in zip(marked, cells, strict=True)) + "</tr>"

    return "<table>" + row(head, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"


def _operators(result: FusionResult) -> str:
    changed, same = op_rows(result)
    rows = [[name, str(before), str(after), f"{after - before:+d}"] for name, before, after in changed]
    table = _table(["operator", "before", "after", "change"], rows, {1, 2, 3})
    return f"<h2>Operators</h2>{table}<p>{same} more operators, unchanged.</p>"


def _facts(facts: list[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in facts if text) + "</dl>"


def _sites(result: FusionResult) -> list[str]:
    parts = []
    for group in groups(result.sites):
        site = group.first
        facts = [
            ("stands for", f"{site.removed} nodes each" if len(group.sites) > 1 else f"{site.removed} nodes"),
            ("attributes", attributes(site.attrs)),
            ("proof", proof_text(site.proof)),
            *(("assumes", text) for text in site.assumptions),
            *(("note", text) for text in site.notes),
        ]
        rows = [[member.name, member.place, proof_text(member.proof)] for member in group.sites]
        listing = _table(["node", "place", "proof"], rows, set())
        nodes = f"<details><summary>{len(rows)} node(s)</summary>{listing}</details>"
        parts.append(
            f'<section class="good"><h3>{_text(site.op)}: {_text(group.where)}</h3>{_facts(facts)}{nodes}</section>'
        )
    return parts or ["<p>Nothing.</p>"]


def _refusals(result: FusionResult) -> list[str]:
    parts = []
    for members in refusal_groups(result.refusals):
        first = members[0]
        places = "".join(f"<li><code>{_text(member.place)}</code></li>" for member in members)
        where = f"<details><summary>{len(members)} place(s)</summary><ul>{places}</ul></details>"
        heading = f"{first.rule}: {first.code}" if first.rule else first.code
        parts.append(f'<section class="bad"><h3>{_text(heading)}</h3>{_facts(refusal_facts(first))}{where}</section>')
    return parts or ["<p>Nothing that looked like a fused operator.</p>"]

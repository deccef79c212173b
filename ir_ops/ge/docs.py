"""The generated part of docs/ge.md: what is converted, refused, checked, inferred and evaluated.

``python -m ir_ops.ge.docs docs/ge.md`` renews the tables in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ir_ops.files import replacing
from ir_ops.ge.convert import load_families
from ir_ops.ge.convert.registry import all_converters, all_refusals
from ir_ops.ge.evaluator import can_run
from ir_ops.ge.infer import can_infer
from ir_ops.ge.prototypes import prototypes
from ir_ops.ge.validator import rules

BEGIN, END = "<!-- generated: python -m ir_ops.ge.docs docs/ge.md -->", "<!-- end of the generated part -->"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield _row(head)
    yield "|" + "---|" * len(head)
    yield from (_row(row) for row in rows)


def _full_name(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


def conversion_table() -> Iterator[str]:
    """ONNX operators with a conversion, by family."""
    load_families()
    rows = (
        [
            _full_name(c.domain, c.op_type) + (f" (from {c.since})" if c.since > 1 else ""),
            c.family,
            row.dtypes,
            row.ge,
            row.note,
        ]
        for c in all_converters()
        for row in c.support
    )
    yield from _table(["ONNX operator", "family", "element types", "GE operators", "notes"], rows)


def refusal_table() -> Iterator[str]:
    """ONNX operators refused for a stated reason."""
    load_families()
    rows = ([_full_name(domain, op), reason, nearest] for domain, op, reason, nearest in all_refusals())
    yield from _table(["ONNX operator", "why not", "nearest"], rows)


def rule_table() -> Iterator[str]:
    """The validator's rules."""
    yield from _table(["rule", "what holds"], ([str(rule.number), rule.title] for rule in rules()))


def operator_table() -> Iterator[str]:
    """GE operators whose types are inferred or that can be run."""
    load_families()
    known = [name for name in sorted(prototypes()) if can_infer(name) or can_run(name)]
    mark = {True: "yes", False: "-"}
    yield from _table(
        ["GE operator", "types inferred", "evaluated"], ([n, mark[can_infer(n)], mark[can_run(n)]] for n in known)
    )


def generated() -> str:
    """The whole generated part, markers included."""
    parts = [
        ("ONNX operators that are exported", conversion_table()),
        ("Operators that are refused", refusal_table()),
        ("Rules of the validator", rule_table()),
        ("GE operators known beyond their prototype", operator_table()),
    ]
    lines = [BEGIN]
    for title, table in parts:
        lines += ["", f"## {title}", "", *table]
    return "\n".join([*lines, "", END])


def renewed(text: str) -> str:
    """A page with its generated part renewed (added at the end where there is none)."""
    if BEGIN not in text:
        return text.rstrip("\n") + "\n\n" + generated() + "\n"
    head, _, rest = text.partition(BEGIN)
    return head + generated() + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    """Renews the pages named on the command line."""
    for name in arguments:
        path = Path(name)
        with replacing(path) as part:
            part.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

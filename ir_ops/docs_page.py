"""An operator's contract as text (``kvfuse ops NAME``) and as a page of the documentation, from its declaration.

``python -m ir_ops.docs_page [FOLDER]`` writes the pages of all operators, by default into ``docs/ops``.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ir_ops.declaration import MOST_DIMS, PRODUCTS, Attr, Constraint, Operator
from ir_ops.dtypes import by_name
from ir_ops.files import replacing
from ir_ops.ops import DOMAIN, DOMAIN_VERSION, OPS

FOLDER = Path(__file__).parent.parent / "docs" / "ops"
_WIDTH = 120


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then a table (header first), then a list."""

    title: str
    paragraphs: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    items: Sequence[str] = ()


def sections(op: Operator) -> list[Section]:
    """The contract of an operator, in the order it is read."""
    purpose = [" ".join(part.replace("``", "`").split()) for part in op.doc.strip().split("\n\n")]
    purpose[0] = purpose[0].removeprefix(f"{op.name}: ")
    face = f"ONNX: `{DOMAIN}::{op.name}` version {DOMAIN_VERSION}. GE: `{op.name}`. Inputs and outputs in GE's order."
    return [
        Section(op.name, [*purpose, face]),
        Section("Inputs", table=[("#", "name", "type", "shape", "meaning"), *_inputs(op)]),
        Section("Outputs", table=[("#", "name", "type", "shape", "meaning"), *_outputs(op)]),
        Section("Attributes", table=[("name", "type", "default", "meaning"), *(_attribute(attr) for attr in op.attrs)]),
        Section(
            "Element types", table=[("variable", "inputs", "element types"), *_types(op)], items=list(_combinations(op))
        ),
        *(Section(note.title, table=note.table, items=note.items) for note in op.notes[:-1]),
        Section(
            "Constraints",
            [
                "Checked by `check()` and the kernel, with the same ids and words. The CPU kernel accepts `generic`. "
                "For every operator IN-01 to IN-04 refuse unknown and missing inputs, element types that an input does "
                f"not take and more than {MOST_DIMS} dims, AT-01 to AT-04 unknown, missing and wrong attributes."
            ],
            [("id", "rule", "products", "breach is"), *(_constraint(entry) for entry in op.constraints)],
        ),
        *(Section(note.title, table=note.table, items=note.items) for note in op.notes[-1:]),
    ]


def _inputs(op: Operator) -> Iterator[tuple[str, ...]]:
    for place, entry in enumerate(op.inputs):
        marks = [word for word, set_ in (("optional", entry.optional), ("written in place", entry.ref)) if set_]
        doc = "; ".join(part for part in (", ".join(marks), entry.doc) if part and part != "in place")
        yield str(place), entry.name, entry.type, entry.shape, doc


def _outputs(op: Operator) -> Iterator[tuple[str, ...]]:
    for place, entry in enumerate(op.outputs):
        named = f"; formal name `{entry.onnx_name}` in ONNX" if entry.ref else ""
        yield str(place), entry.name, entry.type, entry.shape, entry.doc + named


def _attribute(attr: Attr) -> tuple[str, ...]:
    allowed = f": {', '.join(f'`{word}`' for word in attr.allowed)}" if attr.allowed else ""
    shown = "required" if attr.default is None else str(attr.default)
    return attr.name, attr.type, shown, attr.doc + allowed + (" (ONNX only)" if attr.onnx_only else "")


def _types(op: Operator) -> Iterator[tuple[str, ...]]:
    for variable, names in op.types.items():
        users = [entry.name for entry in op.inputs if entry.type == variable]
        shown = [name if by_name(name).onnx is not None else f"{name} (GE only)" for name in names]
        yield variable, ", ".join(users), ", ".join(shown)


def _combinations(op: Operator) -> Iterator[str]:
    """The legal choices, one line for each type of the first variable; variables with one type are left out."""
    choices = op.type_combinations()
    first, *others = [variable for variable in op.types if len(op.onnx_types(variable)) > 1]
    yield f"{len(choices)} combinations in ONNX."
    for kind in op.onnx_types(first):
        pairs = [" / ".join(choice[name] for name in others) for choice in choices if choice[first] == kind]
        if others:
            yield f"{first} = {kind}: {' / '.join(others)} = {', '.join(dict.fromkeys(pairs))}"


def _constraint(entry: Constraint) -> tuple[str, ...]:
    products = "all" if entry.products == PRODUCTS else ", ".join(entry.products)
    effect = "a warning; the product computes without it" if entry.changes_result else entry.severity
    return entry.id, entry.text, products, "refused" if effect == "error" else effect


def contract_text(op: Operator, width: int = 100) -> str:
    """The contract as plain text, in lines of at most ``width`` characters."""
    parts: list[str] = []
    for section in sections(op):
        lines = [section.title, "-" * len(section.title)]
        for paragraph in section.paragraphs:
            lines += [textwrap.fill(_plain(paragraph), width, break_on_hyphens=False), ""]
        lines += _aligned([[_plain(cell) for cell in row] for row in section.table], width)
        for item in section.items:
            lines.append(
                textwrap.fill(_plain(item), width, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
            )
        parts.append("\n".join(lines).rstrip())
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return text.replace("`", "")


def _aligned(table: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines with columns of equal width; where they do not fit, the widest columns are wrapped inside their cells."""
    if not table:
        return []
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    narrowest = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    while sum(widths) + 2 * len(widths) - 2 > width:
        spare = [(natural, place) for place, natural in enumerate(widths) if natural > narrowest[place]]
        if not spare:
            break
        widths[max(spare)[1]] -= 1
    lines = []
    for row in table:
        cells = [
            textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False)
            for cell, size in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return lines


def contract_markdown(op: Operator) -> str:
    """The contract as a Markdown page."""
    parts: list[str] = []
    for place, section in enumerate(sections(op)):
        lines = [f"{'#' if place == 0 else '##'} {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [textwrap.fill(paragraph, _WIDTH), ""]
        for number, row in enumerate(section.table):
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
            if number == 0:
                lines.append("| " + " | ".join("---" for _ in row) + " |")
        if section.items:
            lines += [""] * bool(section.table)
            lines += [
                textwrap.fill(item, _WIDTH, initial_indent="* ", subsequent_indent="  ") for item in section.items
            ]
        parts.append("\n".join(lines).rstrip())
    note = "<!-- written by python -m ir_ops.docs_page; do not edit -->"
    return "\n\n".join([note, *parts]) + "\n"


def write_pages(folder: Path = FOLDER) -> list[Path]:
    """Writes ``<operator>.md`` for every operator and returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{op.name}.md" for op in OPS.values()]
    for path, op in zip(paths, OPS.values(), strict=True):
        with replacing(path) as part:
            part.write_text(contract_markdown(op), encoding="utf-8")
    return paths


if __name__ == "__main__":
    for written in write_pages(*map(Path, sys.argv[1:2])):
        print(written)

"""``kvfuse ops``: the operators, and the contract of one."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir_ops.declaration import Operator

HELP = "list the fused operators, or print the contract of one"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="print this operator's contract")


def run(args: argparse.Namespace) -> int:
    """Prints the list or one contract."""
    from fusion import cli
    from ir_ops import OPS
    from ir_ops.errors import BadUsage

    if args.name is None:
        print("\n".join(_hanging([(name, _summary(operator)) for name, operator in OPS.items()], 0)))
        return cli.DONE
    if args.name not in OPS:
        raise BadUsage("unknown operator", found=args.name, wanted=", ".join(OPS))
    print("\n".join(_contract(OPS[args.name])))
    return cli.DONE


def _summary(operator: Operator) -> str:
    return operator.doc.strip().splitlines()[0].removeprefix(f"{operator.name}: ")


def _contract(operator: Operator) -> list[str]:
    from fusion.report import WIDTH

    text = operator.doc.strip().removeprefix(f"{operator.name}: ")
    lines = [operator.name]
    for paragraph in text.split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), WIDTH)]
    inputs = [
        (entry.name + (" (optional)" if entry.optional else ""), entry.type, _joined(entry.shape, entry.doc))
        for entry in operator.inputs
    ]
    outputs = [
        (entry.name + (" (in place)" if entry.ref else ""), entry.type, _joined(entry.shape, entry.doc))
        for entry in operator.outputs
    ]
    attrs = [
        (entry.name, entry.type, "required" if entry.default is None else repr(entry.default), entry.doc)
        for entry in operator.attrs
    ]
    types = [(name, ", ".join(choices)) for name, choices in operator.types.items()]
    rules = [(rule.id, rule.text + _bound(rule.products)) for rule in operator.constraints]
    sections: list[tuple[str, Sequence[tuple[str, ...]]]] = [
        ("inputs", inputs),
        ("outputs", outputs),
        ("attributes", attrs),
        ("types", types),
        ("constraints", rules),
    ]
    for title, rows in sections:
        lines += ["", title, *_hanging(rows, 2)]
    return lines


def _joined(shape: str, doc: str) -> str:
    return f"{shape}: {doc}" if doc else shape


def _bound(products: Sequence[str]) -> str:
    return "" if "generic" in products else f" ({', '.join(products)} only)"


def _hanging(rows: Sequence[tuple[str, ...]], indent: int) -> list[str]:
    """Aligned columns whose last one is wrapped beside itself."""
    from fusion.report import WIDTH

    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        head = " " * indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        lines += textwrap.wrap(row[-1], WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [
            head.rstrip()
        ]
    return lines

"""``kvfuse ops``: the operators, and the contract of one."""

from __future__ import annotations

import argparse

HELP = "list the fused operators, or print the contract of one"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="print this operator's contract")


def run(args: argparse.Namespace) -> int:
    """Prints the list or one contract, both from the declarations."""
    from fusion import cli, report
    from fusion.cli import console
    from fusion.rules import all_rules
    from ir_ops import OPS
    from ir_ops.docs_page import contract_text
    from ir_ops.errors import BadUsage

    if args.name is None:
        rows = [
            (name, operator.doc.strip().splitlines()[0].removeprefix(f"{name}: ")) for name, operator in OPS.items()
        ]
        print("\n".join(report.table(rows)))
        fused = ", ".join(sorted(rule.op for rule in all_rules()))
        print(f"\nfuse looks for {fused}; run, export-ge and defuse take all")
        return cli.DONE
    if args.name not in OPS:
        raise BadUsage("unknown operator", found=args.name, hint=console.near(args.name, OPS))
    print(contract_text(OPS[args.name]).rstrip())
    return cli.DONE

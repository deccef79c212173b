"""``kvfuse explain``: what would fuse, what not, and why; nothing is written."""

from __future__ import annotations

import argparse

HELP = "show what would be fused in IN.onnx and what not, and why; writes nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("input", metavar="IN.onnx")
    parser.add_argument("--layer", type=int, metavar="N", help="this decoder layer only")
    parser.add_argument("--op", type=console.names, metavar="OP", help="this operator only")
    parser.add_argument("--json", action="store_true", help="print the stable JSON form (docs/json.md)")


def run(args: argparse.Namespace) -> int:
    """Explains."""
    from fusion import cli, explain, report
    from fusion.cli import console

    result = explain(args.input, layer=args.layer, op=args.op[0] if args.op else None)
    if args.json:
        console.print_json(result.to_json())
    else:
        print(report.fusion_text(result, console.style()))
    return cli.DONE

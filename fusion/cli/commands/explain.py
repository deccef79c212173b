"""``kvfuse explain``: what would fuse, what not, and why; nothing is written."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusion.result import FusionResult

HELP = "show what would be fused in IN.onnx and what not, and why; writes nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("input", metavar="IN.onnx")
    console.add_product(parser)
    parser.add_argument("--layer", type=console.at_least(0), metavar="N", help="this decoder layer only")
    parser.add_argument("--op", type=console.names, metavar="OP", help="this operator only")
    parser.add_argument("--json", action="store_true", help="print the stable JSON form (docs/json.md)")


def run(args: argparse.Namespace) -> int:
    """Explains."""
    from fusion import cli, explain, report
    from fusion.cli import console

    result = explain(args.input, op=args.op[0] if args.op else None, product=args.product)
    if args.layer is not None:
        result = _of_layer(result, args.layer)
    if args.json:
        console.print_json(result.to_json())
    else:
        print(report.fusion_text(result, console.style(), planned=True))
    return cli.DONE


def _of_layer(result: FusionResult, layer: int) -> FusionResult:
    """The places of one decoder layer; a note says where there are some when it has none."""
    from fusion.report import ranges

    sites = [site for site in result.sites if site.layer == layer]
    refusals = [refusal for refusal in result.refusals if refusal.layer == layer]
    layers = [site.layer for site in result.sites] + [refusal.layer for refusal in result.refusals]
    notes = result.notes
    if layers and layer not in layers:
        known = ranges(number for number in layers if number is not None)
        notes += (f"nothing in layer {layer}; there are places in layer {known}" if known else "no layer is known",)
    return dataclasses.replace(result, sites=sites, refusals=refusals, notes=notes)

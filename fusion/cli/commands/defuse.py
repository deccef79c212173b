"""``kvfuse defuse``: turns a fused model back into standard operators."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusion.result import FusionResult

HELP = "turn FUSED.onnx back into standard operators and write OUT.onnx"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("input", metavar="FUSED.onnx")
    parser.add_argument("output", metavar="OUT.onnx", help="may be the input itself; replaced only by a complete model")
    console.add_weights(parser)


def run(args: argparse.Namespace) -> int:
    """Turns back and writes."""
    from fusion import cli, defuse, model_io, report
    from fusion.cli import console

    model_io.check_target(args.output)
    result = defuse(args.input, args.output, weights=args.weights)
    style = console.style()
    lines = [*report.op_lines(result, style), style.bold(f"turned back: {_turned(result)}")]
    lines += report.note_lines(result.notes, style)
    print("\n".join([*lines, "", f"written: {args.output}"]))
    return cli.DONE


def _turned(result: FusionResult) -> str:
    """How many fused operators are gone, by name."""
    gone = {name.partition("::")[2]: count - result.ops_after[name] for name, count in result.ops_before.items()}
    return ", ".join(f"{count} x {name}" for name, count in gone.items() if name and count > 0) or "nothing"

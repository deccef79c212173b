"""``kvfuse defuse``: turns a fused model back into standard operators."""

from __future__ import annotations

import argparse

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
    print("\n".join(report.op_lines(result, console.style())).rstrip())
    for note in result.notes:
        print(f"note: {note}")
    print(f"written: {args.output}")
    return cli.DONE

"""``kvfuse verify``: runs the original and the fused model on the same feeds and compares all outputs."""

from __future__ import annotations

import argparse

HELP = "run IN.onnx and FUSED.onnx on the same inputs and compare every output"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("original", metavar="IN.onnx")
    parser.add_argument("fused", metavar="FUSED.onnx")
    parser.add_argument(
        "--inputs", metavar="F.npz", help="NAME -> array, or recorded CASE/in/NAME and CASE/out/NAME; default: made up"
    )
    parser.add_argument("--expected", metavar="F.npz", help="outputs that belong to --inputs, NAME -> array")
    parser.add_argument(
        "--cases", type=console.at_least(1), default=3, metavar="N", help="how many made-up inputs (default 3)"
    )
    parser.add_argument(
        "--seed", type=console.at_least(0), default=0, metavar="N", help="of made-up inputs (default 0)"
    )
    parser.add_argument(
        "--no-kernel", action="store_true", help="run the fused model's function bodies, without the kvfuse kernels"
    )
    parser.add_argument(
        "--bf16", choices=("widen", "round"), default="widen",
        help="models with bfloat16 arithmetic: compare in float32 (default), or round every node's output to bfloat16",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the stable JSON form (docs/json.md)")


def run(args: argparse.Namespace) -> int:
    """Verifies; exit code 3 when anything differs."""
    from fusion import cli, report, verify
    from fusion.cli import console

    result = verify(
        args.original,
        args.fused,
        inputs=args.inputs,
        expected=args.expected,
        seed=args.seed,
        cases=args.cases,
        kernel=not args.no_kernel,
        bf16=args.bf16,
    )
    if args.json:
        console.print_json(result.to_json())
    else:
        print(report.verify_text(result, console.style()))
    return cli.DONE if result.ok else cli.FAILED

"""``kvfuse export-ge``: a fused model as a GE IR graph for Ascend's graph mode."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HELP = "convert FUSED.onnx to GE IR (OUT.air), validated"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("model", metavar="FUSED.onnx")
    parser.add_argument("output", metavar="OUT.air", help="its input/output record goes to OUT.io.json")
    console.add_product(parser)
    parser.add_argument("--text", action="store_true", help="also write OUT.txt, the graph readable and diffable")
    parser.add_argument(
        "--cache", choices=("ref", "copy"), default="ref", help="caches in place as RefData (default), or copied"
    )
    parser.add_argument(
        "--weights",
        choices=("auto", "inline", "external", "file-per-tensor"),
        default="auto",
        help="weights in the file, as references into the model's external data, or one file for each in OUT_weights; "
        "auto (default): inline as long as they fit",
    )
    parser.add_argument(
        "--nz-weights",
        choices=("auto", "always", "never"),
        default="auto",
        help="pack weights that an operator reads in FRACTAL_NZ; auto (default): those that are stored anew anyway",
    )
    parser.add_argument(
        "--input-shape",
        metavar="NAME:D,D,..",
        type=input_shape,
        action="append",
        default=[],
        help="fix the shape of an input; repeatable",
    )


def input_shape(text: str) -> tuple[str, list[int]]:
    """``NAME:1,128`` of ``--input-shape``.

    Raises:
        argparse.ArgumentTypeError: not of that form.
    """
    name, mark, dims = text.rpartition(":")
    sizes = dims.split(",")
    if not mark or not name or not all(size.isdigit() for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:D,D,.. with whole numbers, e.g. input_ids:1,128")
    return name, [int(size) for size in sizes]


def run(args: argparse.Namespace) -> int:
    """Converts, validates and writes."""
    from fusion import cli, model_io
    from fusion.cli import console
    from ir_ops import ge

    console.check_paths(model=args.model, output=args.output)
    model_io.check_target(args.output)
    loaded = model_io.load(args.model)
    result = ge.export(
        loaded.model,
        args.output,
        product=args.product,
        cache=args.cache,
        text=args.text,
        input_shapes=dict(args.input_shape) or None,
        weights=args.weights,
        nz_weights=args.nz_weights,
    )
    before, after = result.ops_before.total(), result.ops_after.total()
    print(f"{before} ONNX nodes became {after} GE nodes; {console.size(result.inline_bytes)} of weights inside", end="")
    print(f", {console.size(result.external_bytes)} by reference" if result.external_bytes else "")
    print(f"validator: {_verdict(result.findings)}")
    for finding in result.findings:
        print(f"  {finding}")
    for note in (*loaded.notes, *result.notes):
        print(f"note: {note}")
    for path in (result.path, result.sidecar, result.text, *_weights(result.weight_files)):
        if path is not None:
            print(f"written: {path}")
    return cli.DONE


def _weights(files: Sequence[Path]) -> list[str]:
    """Weight files as they are listed: a folder of them on one line."""
    folders = Counter(path.parent for path in files)
    return [str(files[0])] if len(files) == 1 else [f"{folder} ({count} weights)" for folder, count in folders.items()]


def _verdict(findings: Sequence[object]) -> str:
    return "no objections" if not findings else f"good, with {len(findings)} remark(s)"

"""``kvfuse run``: runs a fused model on inputs from an npz file."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "run FUSED.onnx with the kvfuse kernels on inputs from an npz file"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("model", metavar="FUSED.onnx")
    parser.add_argument("--inputs", metavar="F.npz", required=True, help="NAME -> array, or recorded CASE/in/NAME")
    parser.add_argument("--outputs", metavar="F.npz", required=True, help="file to write, names as in the inputs")
    parser.add_argument(
        "--bf16", choices=("auto", "native", "round"), default="auto",
        help="where onnxruntime has no bfloat16 kernel: compute in float32 and round every node's output (auto: only "
        "when the model does not load otherwise; native: never)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs every case of the inputs and writes all outputs in one file."""
    from fusion import cli, model_io
    from fusion.cli import console
    from fusion.runtime import Runner
    from fusion.verification import read_feeds

    console.check_paths(model=args.model, inputs=args.inputs, outputs=args.outputs)
    model_io.check_target(args.outputs)
    feeds = [feed for feed, _ in read_feeds(args.inputs)]
    runner = Runner(args.model, _session(args.model, args.bf16), kernels=True)
    results = {feed.name: runner.run(runner.prepare(feed.inputs)) for feed in feeds}
    console.write_outputs(args.outputs, results)
    return cli.DONE


def _session(path: str, bf16: Any) -> Any:
    import custom_ort
    from fusion import model_io
    from ir_ops.errors import BadModel

    try:
        return custom_ort.session(path, bf16=bf16)
    except BadModel:
        model_io.load(path)  # says in plain words what is wrong, where it is the file
        raise

"""``kvfuse run``: runs a fused model on inputs from an npz file."""

from __future__ import annotations

import argparse

HELP = "run FUSED.onnx with the kvfuse kernels on inputs from an npz file"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("model", metavar="FUSED.onnx")
    parser.add_argument("--inputs", metavar="F.npz", required=True, help="NAME -> array, or recorded CASE/in/NAME")
    parser.add_argument("--outputs", metavar="F.npz", required=True, help="file to write, names as in the inputs")


def run(args: argparse.Namespace) -> int:
    """Runs every case of the inputs and writes all outputs in one file."""
    import custom_ort
    from fusion import cli
    from fusion.cli import console
    from fusion.runtime import Runner
    from fusion.verification import read_feeds

    console.check_paths(model=args.model, inputs=args.inputs, outputs=args.outputs)
    feeds = [feed for feed, _ in read_feeds(args.inputs)]
    runner = Runner(args.model, custom_ort.session(args.model), kernels=True)
    results = {feed.name: runner.run(runner.prepare(feed.inputs)) for feed in feeds}
    console.write_outputs(args.outputs, results)
    return cli.DONE

"""``kvfuse bench``: measures the kernels on this machine."""

from __future__ import annotations

import argparse

HELP = "measure here: kernels against exporter graphs, whole decoders step by step"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="which measurements: decode, kernels (default), mla, attention, scale"
    )
    parser.add_argument("--quick", action="store_true", help="a fraction of the time, rougher figures")
    parser.add_argument("--small", action="store_true", help="mla, decode: layers of a fraction of the size")
    parser.add_argument("--layers", type=console.at_least(1), metavar="N", help="decode: layers (default 8 and 4)")
    parser.add_argument("--long", action="store_true", help="decode: 8k tokens of context too")
    parser.add_argument("--threads", type=console.at_least(1), metavar="N", help="threads of the kernels (default 1)")


def run(args: argparse.Namespace) -> int:
    """Measures and prints tables."""
    import benchmarks

    options = [f"--{name}" for name in ("quick", "small", "long") if getattr(args, name)]
    for name in ("threads", "layers"):
        number = getattr(args, name)
        options += [f"--{name}", str(number)] if number is not None else []
    return benchmarks.main([*args.names, *options])

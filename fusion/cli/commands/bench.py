"""``kvfuse bench``: measures the kernels on this machine."""

from __future__ import annotations

import argparse

HELP = "measure the kernels here: against exporter graphs, and decode against cache size"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="which measurements: decode, kernels (default), mla, scale"
    )
    parser.add_argument("--quick", action="store_true", help="a fraction of the time, rougher figures")
    parser.add_argument("--small", action="store_true", help="mla: a layer of a fortieth of DeepSeek-V3's size")
    parser.add_argument("--threads", type=console.at_least(1), metavar="N", help="threads of the kernels (default 1)")


def run(args: argparse.Namespace) -> int:
    """Measures and prints tables."""
    import benchmarks

    options = [f"--{name}" for name in ("quick", "small") if getattr(args, name)]
    options += ["--threads", str(args.threads)] if args.threads is not None else []
    return benchmarks.main([*args.names, *options])

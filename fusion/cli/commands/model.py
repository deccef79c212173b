"""``kvfuse model``: writes a DeepSeek or Qwen decoder as an exporter would, from toy size to the full topology."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.architecture import Architecture

HELP = "write a DeepSeek or Qwen decoder as torch.onnx.export spells it, toy size or full topology"

_SIZES = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocab")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    number = console.at_least(1)
    parser.add_argument("name", metavar="NAME", help="deepseek-v3, qwen3, qwen3-235b-a22b, ... (a wrong one lists all)")
    parser.add_argument("output", metavar="OUT.onnx", help="large weights become references into OUT.onnx.data")
    parser.add_argument("--tiny", action="store_true", help="two layers of toy width with random weights")
    for size in _SIZES:
        parser.add_argument(f"--{size.replace('_', '-')}", metavar="N", type=number, help=f"other than NAME's {size}")
    parser.add_argument("--experts", metavar="N", type=number, help="number of routed experts in a layer")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default bfloat16, --tiny float32")
    parser.add_argument("--cache", choices=("static", "growth", "paged"), default="static", help="default static")
    parser.add_argument("--batch", metavar="N", type=number, default=1, help="sequences of a static cache (default 1)")
    parser.add_argument("--length", metavar="N", type=number, help="positions of a cache (default 4096, --tiny 16)")
    parser.add_argument("--page", metavar="N", type=number, help="rows of a page (default 128, --tiny 16)")
    parser.add_argument(
        "--absorbed", nargs="?", const="einsum", choices=("einsum", "matmul"), default="",
        help="take the query of latent attention into the latent, by Einsum (default) or MatMul",
    )  # fmt: skip
    parser.add_argument(
        "--expanded", action="store_true",
        help="growing caches of latent attention keep keys and values of every head, as transformers 4 exports them",
    )  # fmt: skip
    parser.add_argument("--opset", metavar="N", type=number, default=18, help="18 (default) to 23")
    parser.add_argument(
        "--weights", choices=("auto", "random", "sparse"), default="auto",
        help="random numbers inside the file, or references into a sparse file; auto: random up to 256 MB",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of random weights (default 0)")


def run(args: argparse.Namespace) -> int:
    """Builds and writes."""
    from fusion import cli
    from fusion.cli import console
    from models.decoder import Options, write

    options = Options(
        dtype=args.dtype or ("float32" if args.tiny else "bfloat16"),
        cache=args.cache,
        batch=args.batch,
        length=args.length or (16 if args.tiny else 4096),
        page=args.page or (16 if args.tiny else 128),
        absorbed=args.absorbed,
        expanded=args.expanded,
        opset=args.opset,
    )
    written = write(_architecture(args), args.output, options, weights=args.weights, seed=args.seed)
    print(f"written: {args.output}, {written.nodes} nodes")
    if written.data is not None:
        print(f"weights: {written.data}, {console.size(written.weight_bytes)} of holes")
    else:
        print(f"weights: {console.size(written.weight_bytes)} of random numbers in it")
    return cli.DONE


def _architecture(args: argparse.Namespace) -> Architecture:
    """The named decoder with the sizes that were asked for."""
    from dataclasses import replace

    from ir_ops.errors import BadUsage
    from models.architecture import ALIASES, PRESETS, tiny

    model = PRESETS.get(ALIASES.get(args.name, args.name))
    if model is None:
        raise BadUsage("unknown decoder", found=args.name, wanted=" | ".join(sorted({*PRESETS, *ALIASES})))
    if args.tiny:
        model = tiny(model)
    if args.experts is not None:
        if model.experts is None:
            raise BadUsage(
                "this decoder has no experts", found=f"--experts {args.experts}", wanted="a -moe or deepseek name"
            )
        model = replace(model, experts=replace(model.experts, count=args.experts))
    sizes = {size: getattr(args, size) for size in _SIZES if getattr(args, size) is not None}
    if "kv_heads" in sizes and model.latent is not None:
        raise BadUsage("latent attention has no key heads", found=f"--kv-heads {args.kv_heads}", wanted="a qwen name")
    return replace(model, **sizes)

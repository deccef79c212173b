"""``kvfuse fuse``: fuses a model and writes the result."""

from __future__ import annotations

import argparse
import dataclasses
import sys

HELP = "fuse IN.onnx and write OUT.onnx; prints what was fused and what was not, and why"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("input", metavar="IN.onnx")
    parser.add_argument("output", metavar="OUT.onnx", help="may be the input itself; replaced only by a complete model")
    console.add_product(parser)
    parser.add_argument("--only", metavar="OP,..", type=console.names, default=(), help="fuse these operators only")
    console.add_weights(parser)
    parser.add_argument(
        "--pack",
        choices=("auto", "always", "never"),
        default="auto",
        help="make one MatMul of the projections that an operator wants together, rewriting their weights; "
        "auto: where they are small or in the model file",
    )
    parser.add_argument(
        "--cache", choices=("keep", "auto", "contiguous", "paged"), default="keep",
        help="make caches that grow with every token caches in place: in pages (auto, paged) or one page a sequence",
    )  # fmt: skip
    parser.add_argument(
        "--block-size", type=console.at_least(1), default=0, metavar="N", help="tokens of a page (default 128)"
    )
    parser.add_argument(
        "--capacity", type=console.at_least(1), default=0, metavar="N",
        help="most tokens of a sequence (default: free when paged, else 4096)",
    )  # fmt: skip
    parser.add_argument(
        "--kv-dtype", choices=("float16", "bfloat16"), help="converted caches keep float32 rows in this type"
    )
    parser.add_argument(
        "--kv-quant", choices=("int8",), help="converted caches are int8, with scales measured on --calibrate"
    )
    parser.add_argument(
        "--calibrate", metavar="F.npz", help="inputs of IN.onnx: NAME -> array, or recorded CASE/in/NAME"
    )
    parser.add_argument(
        "--expand-prompts", type=console.at_least(1), default=0, metavar="N",
        help="caches of latents: first prompts of N tokens or more are projected to keys and values once",
    )  # fmt: skip
    parser.add_argument(
        "--strict-slots",
        action="store_true",
        help="refuse where cache slots could be -1 and the graph does not say skip",
    )
    parser.add_argument(
        "--no-functions", action="store_true", help="leave out the bodies that let any ONNX Runtime run the result"
    )
    parser.add_argument("--report", metavar="F.json|F.html", help="write the report there too")
    console.add_expect(parser)


def run(args: argparse.Namespace) -> int:
    """Fuses and writes; with ``--expect`` only if the expectations are met."""
    from fusion import cli, fuse, model_io, report
    from fusion.cli import console

    console.check_paths(output=args.output, report=args.report)
    console.check_paths(input=args.input, report=args.report)
    model_io.check_target(args.output)
    if args.report is not None:
        console.report_kind(args.report)
        model_io.check_target(args.report)
    loaded = model_io.load(args.input) if args.expect else None
    result = fuse(
        loaded.model if loaded is not None else args.input,
        None if args.expect else args.output,
        product=args.product,
        only=args.only,
        strict_slots=args.strict_slots,
        functions=not args.no_functions,
        weights=args.weights,
        pack=args.pack,
        cache=args.cache,
        block_size=args.block_size,
        capacity=args.capacity,
        kv_dtype=args.kv_dtype,
        kv_quant=args.kv_quant,
        calibrate=args.calibrate,
        expand_prompts=args.expand_prompts,
    )
    if loaded is not None:
        result = dataclasses.replace(result, notes=(*loaded.notes, *result.notes))
    missed = console.unmet(result, args.expect)
    if args.expect and not missed:
        saved = model_io.save(result.model, args.output, weights=args.weights)
        result = dataclasses.replace(result, notes=(*result.notes, *saved.notes))
    if args.report is not None:
        console.write_report(result, args.report, args.input)
    print(report.fusion_text(result, console.style()))
    if missed:
        print(f"kvfuse fuse: {'; '.join(missed)}; {args.output} is not written", file=sys.stderr)
        return cli.UNMET
    print(f"\nwritten: {args.output}")
    return cli.DONE

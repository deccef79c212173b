"""``kvfuse export-ge``: a fused model as a GE IR graph for Ascend's graph mode, or as ONNX with a parser plugin."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.model_io import Loaded
    from ir_ops.ge.atc import AtcCall

HELP = "convert FUSED.onnx to GE IR (OUT.air), validated"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    from fusion.cli import console

    parser.add_argument("model", metavar="FUSED.onnx")
    parser.add_argument("output", metavar="OUT.air", nargs="?", help="its input/output record goes to OUT.io.json")
    console.add_product(parser)
    parser.add_argument("--soc", metavar="SOC", help="the chip that atc compiles for, e.g. Ascend910B3; sets --product")
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
        help="fix the shape of an input of OUT.air; repeatable",
    )
    parser.add_argument(
        "--attention",
        choices=("auto", "plain"),
        default="auto",
        help="Attention as GE's operator where that is provably the same (default), or always spelled out",
    )
    parser.add_argument(
        "--onnx-plugin",
        metavar="DIR",
        help="the other route (atc --framework=5): write the model in opset 18 and parser plugins for its operators",
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
    from ir_ops.errors import BadUsage

    if args.output is None and args.onnx_plugin is None:
        raise BadUsage("nothing to write", wanted="OUT.air or --onnx-plugin DIR")
    if args.output is None and args.input_shape:
        raise BadUsage("--input-shape is of OUT.air", found="--onnx-plugin alone",
                       wanted="a model with fixed dims, or atc --input_shape")  # fmt: skip
    console.check_paths(model=args.model, output=args.output)
    if args.output is not None:
        model_io.check_target(args.output)
    loaded = model_io.load(args.model)
    if args.output is not None:
        _air(args, loaded)
    if args.onnx_plugin is not None:
        _onnx(args, loaded)
    return cli.DONE


def _air(args: argparse.Namespace, loaded: Loaded) -> None:
    from fusion.cli import console
    from ir_ops import ge
    from ir_ops.ge.validator import grouped

    result = ge.export(
        loaded.model,
        args.output,
        product=args.product,
        soc=args.soc,
        cache=args.cache,
        text=args.text,
        input_shapes=_shapes(args.input_shape),
        weights=args.weights,
        nz_weights=args.nz_weights,
        attention=args.attention,
    )
    before, after = result.ops_before.total(), result.ops_after.total()
    print(f"{before} ONNX nodes became {after} GE nodes; {console.size(result.inline_bytes)} of weights inside", end="")
    print(f", {console.size(result.external_bytes)} by reference" if result.external_bytes else "")
    print(f"validator: {_verdict(result.findings)}")
    for line in grouped(result.findings):
        print(f"  {line}")
    for note in (*loaded.notes, *result.notes):
        print(f"note: {note}")
    for path in (result.path, result.sidecar, result.text, *_weights(result.weight_files)):
        if path is not None:
            print(f"written: {path}")
    if result.atc is not None:
        _print_call(result.atc)


def _shapes(given: Sequence[tuple[str, list[int]]]) -> dict[str, list[int]] | None:
    """All ``--input-shape`` together. Raises BadUsage for an input that is given two shapes."""
    from ir_ops.errors import BadUsage

    found: dict[str, list[int]] = {}
    for name, dims in given:
        if found.setdefault(name, dims) != dims:
            both = f"{found[name]} and {dims}"
            raise BadUsage("an input is given two shapes", where=f"--input-shape {name}", found=both, wanted="one")
    return found or None


def _onnx(args: argparse.Namespace, loaded: Loaded) -> None:
    """Writes what the ONNX route needs into a folder."""
    from fusion import model_io
    from ir_ops.files import replacing
    from ir_ops.ge.atc import onnx_call
    from ir_ops.ge.onnx_route import plugin_files
    from ir_ops.ge.onnx_route.model import lower
    from ir_ops.ge.products import settled_product

    product = settled_product(args.product, args.soc)
    lowered = lower(loaded.model)
    folder = _folder(Path(args.onnx_plugin))
    target = folder / f"{Path(args.model).stem}_opset{lowered.opset}.onnx"
    model_io.save(lowered.model, target, weights="copy")
    for name, text in plugin_files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        with replacing(folder / name) as part:
            part.write_text(text, encoding="utf-8")
    for note in lowered.notes:
        print(f"note: {note}")
    for path in (target, *(folder / name for name in plugin_files())):
        print(f"written: {path}")
    print(f"either export ASCEND_CUSTOM_OPP_PATH={folder / 'python'}, or build {folder / 'cpp'} (not both); then")
    _print_call(onnx_call(target, soc=args.soc, product=product))


def _folder(path: Path) -> Path:
    from ir_ops.errors import BadUsage

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUsage("cannot make this folder", where=str(path), found=error.strerror or str(error)) from None
    return path


def _print_call(call: AtcCall) -> None:
    print(f"compile: {call.command}")
    for remark in call.remarks:
        print(f"  {remark}")


def _weights(files: Sequence[Path]) -> list[str]:
    """Weight files as they are listed: a folder of them on one line."""
    folders = Counter(path.parent for path in files)
    return [str(files[0])] if len(files) == 1 else [f"{folder} ({count} weights)" for folder, count in folders.items()]


def _verdict(findings: Sequence[Any]) -> str:
    return "no objections" if not findings else f"good, with {len(findings)} remark(s)"

"""``kvfuse demo``: everything kvfuse does, on a real exported DeepSeek-V3 layer that it ships."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.report import Style
    from fusion.result import FusionResult

HELP = "show it all on a shipped DeepSeek-V3 layer: explain, fuse, verify, decode, export"

_PROMPT = [[53, 28, 11, 5], [13, 23, 22, 40]]
_STEPS = 11


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--out", metavar="DIR", default="out/demo", help="folder for the results (default out/demo)")


def run(args: argparse.Namespace) -> int:
    """Runs the steps in order; stops with exit code 3 where a comparison fails."""
    import models
    from fusion import cli
    from fusion.cli import console
    from ir_ops.errors import BadUsage

    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUsage("cannot make this folder", where=args.out, found=error.strerror or str(error)) from None
    style = console.style()
    graph, record = models.demo_graph(), models.demo_record()
    print(f"One decoder layer of DeepSeek-V3, exported by torch.onnx: {graph.name}\n")
    _explain(graph, style)
    fused = _fuse(graph, out, style)
    if not (_verify(graph, fused, record, style) and _decode(graph, fused, style)):
        return cli.FAILED
    if not _export(fused, record, out, style):
        return cli.FAILED
    print(style.bold("6  The files"))
    for path in sorted(out.iterdir()):
        print(f"   {path}  {console.size(path.stat().st_size)}")
    return cli.DONE


def _explain(graph: Path, style: Style) -> None:
    from fusion import explain

    result = explain(graph)
    print(style.bold("1  What is in it?") + style.dim("  kvfuse explain MODEL.onnx"))
    total = result.ops_before.total()
    print(f"   {total} nodes of {len(result.ops_before)} operators. {len(result.sites)} place(s) to fuse:")
    for site in result.sites:
        print(f"   {style.good(site.op)} at {site.place}: {site.removed} nodes")
    for refusal in result.refusals:
        print(f"   left alone: {refusal.place}: {refusal.fact}")
    print()


def _fuse(graph: Path, out: Path, style: Style) -> Path:
    from fusion import fuse, model_io, report
    from fusion.cli import console

    print(style.bold("2  Fuse it") + style.dim("  kvfuse fuse MODEL.onnx fused.onnx --report fused.html"))
    result: FusionResult = fuse(graph)
    target = out / "fused.onnx"
    model_io.save(result.model, target, folder=graph.parent)
    for suffix in ("html", "json"):
        console.write_report(result, str(out / f"fused.{suffix}"), graph.name)
    print(_indented(report.fusion_text(result, style)), end="\n\n")
    return target


def _verify(graph: Path, fused: Path, record: Path, style: Style) -> bool:
    import onnx

    from fusion import report, verify

    print(style.bold("3  Is it the same?") + style.dim("  kvfuse verify MODEL.onnx fused.onnx --inputs MODEL.npz"))
    recorded = verify(graph, fused, inputs=record)
    print(_indented(report.verify_text(recorded, style)))
    results = {"made-up inputs": verify(graph, fused)}
    if onnx.load_model(fused).functions:
        results["the function bodies, without the kernels"] = verify(graph, fused, kernel=False)
    for title, result in results.items():
        count = f"{len(result.differences)} comparisons over {len(result.cases)} cases"
        print(f"   {title}: {_said(result.ok, style)} ({count})")
    print()
    return recorded.ok and all(result.ok for result in results.values())


def _said(good: bool, style: Style) -> str:
    return style.good("equal") if good else style.bad("NOT equal")


def _indented(text: str) -> str:
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())


def _decode(graph: Path, fused: Path, style: Style) -> bool:
    """Greedy decoding with both models: the tokens must agree."""
    import numpy as np

    from fusion.cli import decode

    print(
        style.bold("4  Decode with it") + style.dim("  caches bound in place: custom_ort.bind(session, feeds, aliases)")
    )
    prompt, ours, theirs = np.asarray(_PROMPT), decode.empty_caches(), decode.empty_caches()
    tokens = decode.greedy(decode.in_place(decode.open_session(fused), ours), prompt, _STEPS)
    wanted = decode.greedy(decode.plain(decode.open_session(graph), theirs), prompt, _STEPS)
    same = bool(np.array_equal(tokens, wanted))
    for given, chosen in zip(prompt, tokens, strict=True):
        print(f"   prompt {' '.join(map(str, given))} -> {' '.join(map(str, chosen))}")
    apart = max(float(np.abs(ours[name].astype("f4") - theirs[name].astype("f4")).max()) for name in ours)
    print(
        f"   against the original, run the plain way: tokens {_said(same, style)}, caches at most {apart:.2g} apart\n"
    )
    print(_indented("\n".join(_cost_table(graph, fused))), end="\n\n")
    return same


def _cost_table(graph: Path, fused: Path) -> list[str]:
    from fusion.cli import decode
    from fusion.report import table

    times = decode.costs(graph, fused)
    sizes = [len(decode.preamble(path).graph.node) for path in (graph, fused)]
    rows = [["one token, one thread", "original", "fused, in place", ""]]
    for part, label in (("layer", "the whole layer"), ("preamble", f"its preamble ({sizes[0]} nodes, now {sizes[1]})")):
        before, after = times[f"{part} plain"], times[f"{part} in place"]
        rows.append([label, f"{1e6 * before:.0f} us", f"{1e6 * after:.0f} us", f"{before / after:.1f}x"])
    return table(rows, right=(1, 2, 3))


def _export(fused: Path, record: Path, out: Path, style: Style) -> bool:
    from fusion.compare import compare
    from fusion.verification import read_feeds
    from ir_ops import ge

    print(style.bold("5  Take it to Ascend") + style.dim("  kvfuse export-ge fused.onnx fused.air --text"))
    result = ge.export(fused, out / "fused.air", text=True)
    used = ", ".join(f"{count} x {name}" for name, count in _fused_types(result.ops_after))
    print(f"   {result.ops_before.total()} ONNX nodes became {result.ops_after.total()} GE nodes: {used}")
    findings = ge.validate(out / "fused.air")
    bad = [finding for finding in findings if finding.severity == "error"]
    verdict = style.bad(f"{len(bad)} error(s)") if bad else style.good("good")
    print(f"   validator: {verdict}, {len(findings) - len(bad)} remark(s)")
    records = []
    for feed, wanted in read_feeds(record):
        got = ge.run(out / "fused.air", feed.inputs)
        records += [compare(feed.name, name, got[name], value, "recorded") for name, value in wanted.items()]
    same = all(item.ok for item in records)
    worst = max(item.used for item in records)
    print(
        f"   run in numpy against PyTorch's recorded outputs: {_said(same, style)}, at most {worst:.0%} of the bound\n"
    )
    return same and not bad


def _fused_types(ops: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    from ir_ops import OPS

    yield from ((name, count) for name, count in ops.items() if name in OPS or name == "RefData")

"""``kvfuse demo``: everything kvfuse does, on a real exported DeepSeek-V3 layer that it ships."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.report import Style
    from fusion.result import FusionResult
    from ir_ops.dtypes import Array

HELP = "show it all on a shipped DeepSeek-V3 layer: explain, fuse, verify, decode, export"

_CACHE_SHAPES = {"key_cache.0": (2, 1, 16, 512), "value_cache.0": (2, 1, 16, 64)}
_PROMPT = [[53, 28, 11, 5], [13, 23, 22, 40]]
_STEPS = 11
_ROUNDS = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--out", metavar="DIR", default="out/demo", help="folder for the results (default out/demo)")


def run(args: argparse.Namespace) -> int:
    """Runs the steps in order; stops with exit code 3 where a comparison fails."""
    import models
    from fusion import cli
    from fusion.cli import console

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
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

    import custom_ort
    from fusion.cli import decode

    print(
        style.bold("4  Decode with it") + style.dim("  caches bound in place: custom_ort.bind(session, feeds, aliases)")
    )
    prompt = np.asarray(_PROMPT)
    sessions = {"original": custom_ort.session(graph), "fused": custom_ort.session(fused)}
    caches: dict[str, dict[str, Array]] = {}
    results: dict[str, list[decode.Decoded]] = {"original": [], "fused": []}
    for _ in range(_ROUNDS):  # in turns, so that both meet the same machine
        for name, prepare in (("original", decode.plain), ("fused", decode.in_place)):
            caches[name] = decode.empty_caches(_CACHE_SHAPES)
            results[name].append(decode.greedy(prepare(sessions[name], caches[name]), prompt, _STEPS))
    tokens = {name: found[0].tokens for name, found in results.items()}
    same = bool(np.array_equal(tokens["original"], tokens["fused"]))
    for row in range(prompt.shape[0]):
        chosen = " ".join(str(token) for token in tokens["fused"][row])
        print(f"   prompt {' '.join(map(str, prompt[row]))} -> {chosen}")
    apart = _cache_difference(caches)
    print(f"   tokens of the original: {_said(same, style)}; largest difference in a cache {apart:.2g}")
    micro = {name: 1e6 * min(item.seconds for item in found) for name, found in results.items()}
    ratio = micro["original"] / micro["fused"]
    print(f"   a step of the original, plain run:       {micro['original']:6.0f} us")
    print(f"   a step of the fused one, bound in place: {micro['fused']:6.0f} us, ", end="")
    print(style.bold(f"{ratio:.1f} times as fast"), end="\n\n")
    return same


def _cache_difference(caches: Mapping[str, Mapping[str, Array]]) -> float:
    pairs = [(caches["original"][name], caches["fused"][name]) for name in _CACHE_SHAPES]
    return max(float(abs(a.astype("f4") - b.astype("f4")).max()) for a, b in pairs)


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

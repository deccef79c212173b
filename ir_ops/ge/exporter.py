"""``export``: an ONNX model as a validated ``.air`` file."""

from __future__ import annotations

import gc
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ir_ops.errors import BadUsage, ExportError
from ir_ops.files import check_place, replacing
from ir_ops.ge import air
from ir_ops.ge.atc import AtcCall, atc_call
from ir_ops.ge.builder import GraphBuilder
from ir_ops.ge.collector import without_collector
from ir_ops.ge.convert.cache_views import settle_views
from ir_ops.ge.convert.engine import Engine
from ir_ops.ge.convert.load import InputShapes, Source, load
from ir_ops.ge.convert.load import input_shapes as dims_of_inputs
from ir_ops.ge.convert.weights import INLINE_LIMIT, make_plan
from ir_ops.ge.model import Model
from ir_ops.ge.products import check_types, settled_product
from ir_ops.ge.prune import prune
from ir_ops.ge.text import show
from ir_ops.ge.validator import Finding, errors, validate

ATTENTION_FORMS = ("auto", "plain")
CACHE_FORMS = ("ref", "copy")


@dataclass
class ExportResult:
    """What an export made.

    Attributes:
        model: the GE graph.
        path: the ``.air`` file, None when none was written.
        sidecar: the input/output record beside it.
        text: the readable dump, when asked for.
        weight_files: what was written of weights: those without a file, or (``file-per-tensor``) all of them.
        findings: what the validator says (no errors, or there is no result).
        notes: differences in meaning a user has to know.
        ops_before: ONNX operators of the model (as converted).
        ops_after: GE operators.
        inline_bytes, external_bytes: bytes of weights inside the file, and referred to.
        atc: how to compile the file, None when none was written.
        timings: seconds by step.
    """

    model: Model = field(repr=False)
    findings: list[Finding]
    notes: list[str]
    ops_before: Counter[str]
    ops_after: Counter[str]
    inline_bytes: int
    external_bytes: int
    path: Path | None = None
    sidecar: Path | None = None
    text: Path | None = None
    weight_files: list[Path] = field(default_factory=list)
    atc: AtcCall | None = None
    timings: dict[str, float] = field(default_factory=dict)


@without_collector()
def export(
    model: Source,
    out: str | Path | None = None,
    *,
    product: str = "generic",
    soc: str | None = None,
    cache: str = "ref",
    text: bool = False,
    input_shapes: InputShapes | None = None,
    weights: str = "auto",
    nz_weights: str = "auto",
    attention: str = "auto",
    inline_limit: int = INLINE_LIMIT,
) -> ExportResult:
    """Converts an ONNX model to GE IR, validates it and writes it.

    Nothing is written unless everything converts and the validator finds no error.

    Args:
        model: path, ``onnx.ModelProto`` or ``onnx_ir.Model`` (left as it is); weights in external data stay there when
            the whole does not fit into one file, and are not read then.
        out: the ``.air`` file; its sidecar ``NAME.io.json`` stands beside it. None converts and validates only.
        product: whose limits fused operators and element types have to keep.
        soc: the chip (``--soc_version`` of atc); decides the product, too.
        cache: "ref": caches that are graph input and output are updated in place (RefData); "copy": never.
        text: also write ``NAME.txt``, readable and diffable.
        input_shapes: graph input -> dims, to fix dims that vary; a dim name fixed at one input is fixed everywhere.
        weights: "auto" (inline as long as they fit), "inline", "external" (FileConstant into the model's own external
            data), "file-per-tensor" (each weight copied into ``NAME_weights`` beside the file).
        nz_weights: weights that operators want in FRACTAL_NZ are packed: "auto" (where they are stored anew anyway),
            "always", "never" (GE packs them).
        attention: "auto" takes FusedInferAttentionScore where that is provably the same, "plain" never.
        inline_limit: bytes of weights from which ``auto`` keeps them in files.

    Raises:
        BadModel: the ONNX model cannot be read.
        BadUsage: an unknown option, product, SoC or input, or an output that is not called NAME.air.
        KvfuseError: the output's folder does not exist, or a folder stands where a file should go.
        ExportError: operators, attributes or element types without a counterpart (all are listed with counts and the
            nearest alternative), or an export that does not validate.
    """
    if cache not in CACHE_FORMS:
        raise BadUsage("unknown cache form", found=cache, wanted=" | ".join(CACHE_FORMS))
    if attention not in ATTENTION_FORMS:
        raise BadUsage("unknown form of attention", found=attention, wanted=" | ".join(ATTENTION_FORMS))
    product = settled_product(product, soc)
    target = None if out is None else _target(out, text)
    clock = _Clock()
    notes: list[str] = []
    source = load(model, notes)
    before = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in source.graph)
    plan = make_plan(source, weights, target, inline_limit, nz_weights)
    clock.lap("load")
    name = target.stem if target is not None else source.graph.name or "model"
    dims = dims_of_inputs(source, input_shapes)
    notes += settle_views(source.graph, dims) if cache == "ref" else []
    engine = Engine(source, dims, plan, cache, product, GraphBuilder(name), attention, notes)
    made = prune(engine.run())
    check_types(made, product)
    made.folder = None if target is None else target.resolve().parent
    made.source_names = engine.source_names
    notes = engine.notes
    del engine, source  # hundreds of MiB with 100,000 nodes, and cyclic
    gc.collect()
    clock.lap("convert")
    after = Counter(node.type for graph in made.graphs for node in graph.nodes)
    data = air.serialise(made)
    findings = validate(data, folder=made.folder, coming=plan.sizes())
    clock.lap("validate")
    _refuse(findings, name)
    result = ExportResult(made, findings, notes, before, after, plan.inline_bytes, plan.external_bytes)
    if target is not None:
        size = result.inline_bytes + result.external_bytes
        result.atc = atc_call(made, target, soc=soc, product=product, weight_bytes=size)
    result.weight_files = plan.write()
    if target is not None:
        _write(result, target, text, data)
    clock.lap("write")
    result.timings = clock.laps
    return result


def _target(out: str | Path, text: bool) -> Path:
    """Where to write. What cannot be written is said before anything is."""
    target = Path(out)
    if target.suffix != ".air":
        raise BadUsage("a GE IR file is called NAME.air", where=str(out), found=target.suffix or "no suffix",
                       hint=f"write to {target.with_suffix('.air').name}")  # fmt: skip
    for path in (target, air.sidecar_path(target), *([target.with_suffix(".txt")] if text else [])):
        check_place(path)
    return target


def _refuse(findings: list[Finding], name: str) -> None:
    bad = errors(findings)
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise ExportError("the exported graph does not validate", where=name, found="; ".join(map(str, bad[:3])) + more)


def _write(result: ExportResult, target: Path, text: bool, data: bytes) -> None:
    result.path = air.write(result.model, target, source_names=result.model.source_names, data=data)
    result.sidecar = air.sidecar_path(target)
    if text:
        result.text = target.with_suffix(".txt")
        with replacing(result.text) as part:
            part.write_text(show(result.model), encoding="utf-8")


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now

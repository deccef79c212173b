"""``fuse`` and ``explain``: the public face of the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Literal, get_args

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from fusion import verification
from fusion.candidate import Refused
from fusion.decoder_verification import is_decoder, verify_decoder
from fusion.engine import apply, count_ops
from fusion.folding import EXPERTS, Folded
from fusion.model_io import Loaded, ModelLike, Weights, load, save, without_collector
from fusion.normalise import tell_casts, unroll_sequences
from fusion.result import FusionResult, Site, VerifyResult
from fusion.rules import all_rules
from fusion.search import Found, Options, find
from fusion.surgery.decoder.convert import Cache, Conversion, convert
from fusion.surgery.decoder.declared import declare_as_written
from fusion.surgery.packing import Pack
from fusion.surgery.prompts import check_least, expand
from fusion.verification import Arrays
from ir_ops.declaration import PRODUCTS
from ir_ops.decode_plan import DecodePlan
from ir_ops.errors import BadModel, BadUsage
from ir_ops.onnx_carry import carry_functions
from ir_ops.ops import DOMAIN, OPS


@without_collector()
def fuse(
    model: ModelLike,
    out: str | os.PathLike[str] | None = None,
    *,
    product: str = "generic",
    only: Sequence[str] = (),
    strict_slots: bool = False,
    functions: bool = True,
    weights: Weights = "share",
    pack: Pack = "auto",
    cache: Cache = "keep",
    block_size: int = 0,
    capacity: int = 0,
    kv_dtype: Literal["float16", "bfloat16"] | None = None,
    kv_quant: Literal["int8"] | None = None,
    calibrate: Arrays | None = None,
    expand_prompts: int = 0,
) -> FusionResult:
    """Replaces spelled-out attention preambles by fused operators, each proven first.

    Args:
        model: a path, ``onnx.ModelProto`` or ``onnx_ir.Model``; it is not changed.
        out: where to write the fused model; complete or not at all.
        product: ``generic`` or an Ascend product whose documented limits fused nodes must respect.
        only: operator names to fuse; all when empty.
        strict_slots: refuse sites whose graph would write for a slot of -1 where the operator skips.
        functions: carry the operators' bodies in standard ONNX operators, so that any runtime can run the model.
        weights: where external weights go when ``out`` is in another folder.
        pack: projections of one value that an operator wants as one: ``always`` as one product by rewritten weights,
            ``never`` (joined by a Concat), or ``auto``, by what packing would rewrite (:mod:`fusion.surgery.packing`).
        cache: what becomes of caches that grow with every token: ``keep``, or a decoder that writes them in place, in
            pages (``paged``, ``auto``) or one page a sequence (``contiguous``); other inputs then (docs/caches.md).
        block_size: tokens of a page of a converted cache; default 128.
        capacity: most tokens of a sequence in converted caches; default: free when paged, else 4096.
        kv_dtype: converted caches keep float32 rows in this type; the arithmetic stays float32. Half the memory, and
            half the time of attention over long contexts.
        kv_quant: ``int8``: converted caches are int8, with a scale for each head and column, measured on ``calibrate``:
            inputs of the original model, name -> array or an npz file (plain, or recorded ``CASE/in/NAME``).
        expand_prompts: first prompts of so many tokens or more attend over keys and values that are projected once,
            where the converted caches are of latents (docs/mla.md); 0: none.

    Returns:
        The fused model (an ``onnx_ir.Model`` for one, else a ``ModelProto``), sites, refusals, timings and counts.

    Raises:
        BadModel: the model cannot be read or is not valid.
            Or its growing caches cannot be converted: the text names the node.
        BadUsage: an unknown product or operator name, or sizes of caches that make no sense.
    """
    options = check_options(product, only, strict_slots, pack)
    started = time.perf_counter()
    loaded = load(model)
    timings = {"load": time.perf_counter() - started}
    before = count_ops(loaded.model)
    conversion = None
    if cache != "keep":
        if (kv_quant is None) != (calibrate is None):
            raise BadUsage("int8 caches are calibrated", wanted="kv_quant and calibrate, or neither")
        if kv_dtype and kv_quant:
            raise BadUsage("two types for one cache", found=f"{kv_dtype} and {kv_quant}", wanted="one of both")
        conversion = _converted(
            loaded, cache, block_size=block_size, capacity=capacity, kv_dtype=kv_dtype, calibrate=calibrate
        )
        if expand_prompts:
            check_least(expand_prompts, conversion.plan)
        timings["convert"] = time.perf_counter() - started - timings["load"]
    elif block_size or capacity or kv_dtype or kv_quant or calibrate is not None or expand_prompts:
        raise BadUsage("sizes or types of caches that are kept", wanted="cache auto, contiguous or paged")
    sites, found = fuse_in_place(loaded.model, options, functions=functions and conversion is None)
    if conversion is not None:
        plan, sites = declare_as_written(loaded.model, conversion.plan, sites)
        sites = [*conversion.sites, *sites]
        if expand_prompts:
            started = time.perf_counter()
            sites = _expanded(loaded, plan, expand_prompts, sites)
            timings["expand"] = time.perf_counter() - started
        if functions:
            carry_functions(loaded.model)
    timings |= found.timings
    found.proven.clear()
    saved = None
    if out is not None:
        started = time.perf_counter()
        saved = save(loaded.model, out, folder=loaded.folder, weights=weights)
        timings["save"] = time.perf_counter() - started
    return FusionResult(
        model=loaded.as_given() if saved is None or loaded.kind == "ir" else saved.proto,
        sites=sites,
        refusals=found.refusals,
        timings=timings,
        ops_before=before,
        ops_after=count_ops(loaded.model),
        notes=(
            *loaded.notes,
            *(conversion.notes if conversion is not None else ()),
            *(saved.notes if saved is not None else ()),
        ),
    )


@without_collector()
def explain(
    model: ModelLike, *, layer: int | None = None, op: str | None = None, product: str = "generic"
) -> FusionResult:
    """What :func:`fuse` would do and why it would leave the rest alone; the model is not changed.

    Args:
        layer: only places of this decoder layer.
        op: only this operator.
    """
    options = check_options(product, (op,) if op else (), False)
    started = time.perf_counter()
    loaded = load(model, fold_experts=True)
    loading = time.perf_counter() - started
    before = count_ops(loaded.model)
    given = model if loaded.proto is None else loaded.proto
    sites, found = _planned(loaded, options)
    if loaded.folded is not None and _touches(found, loaded.folded):
        loaded = load(model)
        before = count_ops(loaded.model)
        sites, found = _planned(loaded, options)
    elif loaded.folded is not None:
        before += loaded.folded.left_out
    return FusionResult(
        model=given,
        sites=[site for site in sites if layer is None or site.layer == layer],
        refusals=[refusal for refusal in found.refusals if layer is None or refusal.layer == layer],
        timings={"load": loading, **found.timings},
        ops_before=before,
        ops_after=before,
        notes=tuple(loaded.notes),
    )


def _planned(loaded: Loaded, options: Options) -> tuple[list[Site], Found]:
    """The sites of a model that is our own: they are put in place, only then is known what else reads a node."""
    _prepare(loaded.model)
    found = find(loaded.model, options, {} if loaded.folded is None else loaded.folded.stands_for)
    return apply(loaded.model, found, report_only=True), found


def _touches(found: Found, folded: Folded) -> bool:
    """Whether something is said of the experts that stand for others, beside that they are experts."""
    values = []
    for candidate, _ in found.proven:
        values += [item for node in candidate.emitter.nodes for item in node.inputs if item is not None]
        values += [item for node in candidate.region for item in node.outputs]
        values += [*candidate.feeds, *(old for old, _ in candidate.replaced)]
    places = tuple(f" {name}" for name in folded.names)
    said = (refusal.place for refusal in found.refusals if refusal.code != EXPERTS)
    return any(item.name in folded.stands_for for item in values) or any(place.endswith(places) for place in said)


def verify(
    original: ModelLike,
    fused: ModelLike,
    *,
    inputs: Arrays | None = None,
    expected: Arrays | None = None,
    seed: int = 0,
    cases: int = 3,
    kernel: bool = True,
    bf16: Literal["widen", "round"] = "widen",
) -> VerifyResult:
    """Compares a fused model with its original: :func:`fusion.verification.verify`.

    A decoder whose caches were converted has other inputs: it decodes random prompts beside its original
    (:func:`fusion.decoder_verification.verify_decoder`).

    Raises:
        BadUsage: inputs or function bodies are asked for with a converted decoder.
    """
    if not is_decoder(load(fused).model) or is_decoder(load(original).model):
        return verification.verify(
            original, fused, inputs=inputs, expected=expected, seed=seed, cases=cases, kernel=kernel, bf16=bf16
        )
    if inputs is not None or expected is not None or not kernel:
        raise BadUsage("a converted decoder is verified on random prompts, with the kernels", wanted="seed and cases")
    return verify_decoder(original, fused, seed=seed, cases=cases)


def _converted(
    loaded: Loaded, cache: Cache, *, block_size: int, capacity: int, kv_dtype: str | None, calibrate: Arrays | None
) -> Conversion:
    """Converts growing caches.

    Raises:
        BadModel: they cannot be converted; the text says what is in the way.
    """
    _prepare(loaded.model)
    try:
        return convert(
            loaded.model, cache, block_size=block_size, capacity=capacity, kv_dtype=kv_dtype, calibrate=calibrate,
            folder=loaded.folder,
        )  # fmt: skip
    except Refused as refused:
        raise _bad_model(loaded, "growing caches cannot be converted", refused, "fuse without --cache leaves them as "
                         "they are") from None  # fmt: skip


def _expanded(loaded: Loaded, plan: DecodePlan, least: int, sites: Sequence[Site]) -> list[Site]:
    """Gives attention on latents a second way for long first prompts.

    Raises:
        BadModel: it cannot be done; the text says what is in the way.
    """
    try:
        return expand(loaded.model, plan, least, sites)
    except Refused as refused:
        raise _bad_model(loaded, "prompts cannot be expanded", refused, "convert without --expand-prompts") from None


def _bad_model(loaded: Loaded, what: str, refused: Refused, otherwise: str) -> BadModel:
    value = refused.value
    node = None if value is None else value.producer()
    where = str(loaded.path or "model") + ("" if node is None else f", node {node.name or node.outputs[0].name}")
    return BadModel(f"{what}: {refused.fact}", where=where, found=refused.found, wanted=refused.wanted,
                    hint=refused.suggestion or otherwise)  # fmt: skip


def fuse_in_place(model: ir.Model, options: Options, *, functions: bool = True) -> tuple[list[Site], Found]:
    """Fuses the model itself: for callers that own it. Nodes must be in topological order."""
    _prepare(model)
    found = find(model, options)
    started = time.perf_counter()
    sites = apply(model, found, options.pack)
    if functions and sites:
        carry_functions(model)
    found.timings["rewrite"] = time.perf_counter() - started
    return sites, found


def check_options(product: str, only: Sequence[str], strict_slots: bool, pack: Pack = "auto") -> Options:
    """Options of the engine.

    Raises:
        BadUsage: an unknown product or way of packing, or an operator that no rule fuses to.
    """
    if product not in PRODUCTS:
        raise BadUsage("unknown product", found=product, wanted=" | ".join(PRODUCTS))
    only = (only,) if isinstance(only, str) else tuple(only)
    fused = sorted(rule.op for rule in all_rules())
    for name in only:
        if name not in fused:
            what = "no rule fuses to this operator" if name in OPS else "unknown operator"
            raise BadUsage(what, found=name, wanted=" | ".join(fused))
    if pack not in get_args(Pack):
        raise BadUsage("unknown way to pack projections", found=repr(pack), wanted=" | ".join(get_args(Pack)))
    return Options(product, only, strict_slots, pack)


def _prepare(model: ir.Model) -> None:
    """Inlines local functions, all but the bodies that our own operators carry, and takes sequences apart."""
    unroll_sequences(model)
    tell_casts(model)
    own = {key: function for key, function in model.functions.items() if key[0] == DOMAIN}
    if len(own) == len(model.functions):
        return
    for key in own:
        del model.functions[key]
    InlinePass()(model)
    model.functions.update(own)

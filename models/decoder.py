"""Building whole decoders and writing them to files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx

from ir_ops.errors import BadUsage
from ir_ops.files import replacing
from models.architecture import Architecture
from models.attention import Step, grouped, latent
from models.blocks import cos_and_sin, mlp, rms_norm
from models.caches import Cache, GrowingCache, PagedCache, StaticCache
from models.graph import Graph, Tensor
from models.moe import mixture
from models.weights import RandomWeights, SparseWeights, Weights

INLINE_LIMIT = 256 * 2**20
"""Bytes of random weights that a model file may hold."""
CACHES = ("static", "growth", "paged")


@dataclass(frozen=True)
class Options:
    """How a decoder is spelled.

    Attributes:
        dtype: float32, float16 or bfloat16.
        cache: static, growth or paged.
        batch, length: of static caches; ``length`` is also what a paged block table spans.
        pages, page: pages of a paged cache and rows of each; 0 pages for as many as two sequences need.
        absorbed: "", einsum or matmul, for latent attention.
        interleaved: DeepSeek-V3's rotation of neighbouring columns.
        expanded: growing caches of latent attention hold keys and values of every head (transformers 4, optimum).
        opset: 18 to 23.
    """

    dtype: str = "float32"
    cache: str = "static"
    batch: int = 2
    length: int = 16
    pages: int = 0
    page: int = 16
    absorbed: str = ""
    interleaved: bool = True
    expanded: bool = False
    opset: int = 18


@dataclass(frozen=True)
class Written:
    """What :func:`write` made: nodes, weight bytes, and the sparse weight file (None: weights are in the model)."""

    nodes: int
    weight_bytes: int
    data: Path | None


def build(model: Architecture, options: Options, weights: Weights) -> onnx.ModelProto:
    """The decoder as ONNX: ``input_ids`` and caches in, ``logits [B, S, vocab]`` and caches out.

    Raises:
        BadUsage: options that do not go together.
    """
    _check(model, options)
    g = Graph(options.opset, weights)
    cache = _cache(g, options)
    heads, widths = _cached(model, options)
    for layer in range(model.layers):
        cache.declare(layer, heads, widths, options.dtype)
    table = g.weight(options.dtype, (model.vocab, model.hidden), "m.model.embed_tokens.weight")
    x = g.op("Gather", [table, cache.ids], (*cache.ids.dims, model.hidden), name="embedding", axis=0)
    g.once("mask", cache.mask)
    cos, sin = cos_and_sin(g, model, cache.positions(), options.dtype)
    step = Step(g, model, cache, cos, sin, options.absorbed, options.interleaved, options.expanded)
    for layer in range(model.layers):
        x = _layer(step, x, layer)
    logits = g.linear(rms_norm(g, x, model.epsilon, "m.model.norm.weight"), model.vocab, name="logits")
    g.output(logits, first=True)
    return g.model


def _cached(model: Architecture, options: Options) -> tuple[int, tuple[int, int]]:
    """Heads of the caches, and columns of keys and values."""
    latent = model.latent
    if latent is None:
        return model.kv_heads, (model.head_dim, model.head_dim)
    if options.expanded:
        return model.heads, (latent.nope + latent.rope, latent.value)
    return 1, (latent.kv_rank, latent.rope)


def _layer(step: Step, x: Tensor, layer: int) -> Tensor:
    g, model, prefix = step.g, step.model, f"m.model.layers.{layer}"
    normed = rms_norm(g, x, model.epsilon, f"{prefix}.input_layernorm.weight")
    x = g.binary("Add", x, (latent if model.latent else grouped)(step, normed, layer))
    normed = rms_norm(g, x, model.epsilon, f"{prefix}.post_attention_layernorm.weight")
    if model.experts is not None and model.has_experts(layer):
        return g.binary("Add", x, mixture(g, normed, model.experts, f"{prefix}.mlp"))
    return g.binary("Add", x, mlp(g, normed, model.intermediate))


def _cache(g: Graph, options: Options) -> Cache:
    if options.cache == "static":
        return StaticCache(g, options.batch, options.length)
    if options.cache == "growth":
        return GrowingCache(g)
    return PagedCache(g, options.length, options.pages or 2 * options.length // options.page, options.page)


def _check(model: Architecture, options: Options) -> None:
    experts = model.experts
    if options.cache not in CACHES:
        raise BadUsage("unknown form of cache", found=options.cache, wanted=" | ".join(CACHES))
    if not 18 <= options.opset <= 23:
        raise BadUsage("the exporter's spelling is known for some opsets", found=str(options.opset), wanted="18 to 23")
    if options.absorbed and model.latent is None:
        raise BadUsage("only latent attention can be absorbed", found=model.family, wanted="a DeepSeek model")
    if options.expanded and (model.latent is None or options.absorbed or options.cache != "growth"):
        raise BadUsage(
            "only growing caches of latent attention that is not absorbed can be expanded",
            found=f"{model.family}, {options.cache} caches{', absorbed' if options.absorbed else ''}",
            wanted="a DeepSeek model with growing caches",
        )
    if options.cache == "paged" and options.length % options.page:
        raise BadUsage("a block table spans whole pages", found=f"{options.length} rows", wanted=f"n * {options.page}")
    if model.kv_heads and model.heads % model.kv_heads:
        raise BadUsage("key heads divide the heads", found=f"{model.heads} heads, {model.kv_heads} of keys")
    if experts is not None and (experts.top_k > experts.count or (experts.groups and experts.count % experts.groups)):
        groups = f" in {experts.groups} groups" if experts.groups else ""
        raise BadUsage("too few experts", found=f"{experts.count}{groups}, {experts.top_k} chosen")


def write(
    model: Architecture, path: str | os.PathLike[str], options: Options, *, weights: str = "auto", seed: int = 0
) -> Written:
    """Builds a decoder and writes it, complete or not at all.

    Args:
        weights: ``random`` (inside the file), ``sparse`` (references into ``PATH.data``, which has the right length
            and takes no space), or ``auto``: random where they fit.

    Raises:
        BadUsage: options that do not go together, or random weights that do not fit into one file.
    """
    target = Path(path)
    data = target.with_name(target.name + ".data")
    sparse = SparseWeights(data.name)
    proto = build(model, options, sparse)
    if weights == "random" and sparse.size > INLINE_LIMIT * 6:
        raise BadUsage(
            "random weights do not fit into one file", found=f"{sparse.size} bytes", wanted="--weights sparse"
        )
    if weights == "random" or (weights == "auto" and sparse.size <= INLINE_LIMIT):
        proto = build(model, options, RandomWeights(seed))
        with replacing(target) as part:
            part.write_bytes(proto.SerializeToString())
        return Written(len(proto.graph.node), sparse.size, None)
    with replacing(target) as part, replacing(data) as holes:
        with holes.open("wb") as file:
            file.truncate(sparse.size)
        part.write_bytes(proto.SerializeToString())
    return Written(len(proto.graph.node), sparse.size, data)

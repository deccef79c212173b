"""The attentions of a decoder with the pairs of caches that they read, each proven, and what is cached for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.attention.attention import Attention, AttentionReader, NoAttention
from fusion.facts.attention.latent import Latent, read_latent
from fusion.facts.caches.growth import Growth, unknown_reader
from fusion.facts.graph import GraphView
from fusion.facts.rotary.turned import Turned, read_turned
from fusion.facts.semantics import Conflict
from fusion.facts.symbols.terms import Unreadable
from fusion.surgery.decoder.calibrate import Measured
from fusion.surgery.decoder.layout import Cached
from fusion.surgery.decoder.proof import Proven, prove, prove_far
from fusion.surgery.decoder.roles import Roles, Trial


@dataclass(frozen=True)
class DecoderSite:
    """An attention with its proof.

    Attributes:
        latent: how its keys and values come from latents, where these are cached.
        cached: keys and values, or latents and rotated rows.
        errors: of int8 caches, relative, by part.
    """

    attention: Attention
    proven: Proven
    latent: Latent | None
    cached: tuple[Cached, Cached]
    errors: Mapping[str, float] = field(default_factory=dict)


def find_sites(
    view: GraphView, growths: Sequence[Growth], roles: Roles, first: Trial, sizes: Sequence[Trial], far: Trial | None
) -> list[DecoderSite]:
    """The attention over each pair of caches.

    Raises:
        Refused: a cache is read by no attention or by two, or one is not proven to be plain causal attention.
    """
    reader = AttentionReader(view, first.probe, list(growths))
    missed: list[NoAttention] = []
    found: list[DecoderSite] = []
    read: set[int] = set()
    for node in view.graph:
        if node.op_type not in ("Softmax", "Attention") or node.domain not in ("", "ai.onnx"):
            continue
        attention = reader.read(node)
        if isinstance(attention, NoAttention):
            missed.append(attention)
            continue
        pair = {id(attention.key.growth), id(attention.value.growth)}
        if pair & read or len(pair) != 2:
            raise Refused("decode-caches", "one attention for each pair of caches", "a cache that is read twice", "one",
                          "", attention.out)  # fmt: skip
        read |= pair
        proven = prove(view, attention, roles, sizes)
        if far is not None:
            prove_far(view, attention, roles, sizes, far)
        found.append(DecoderSite(attention, proven, *_caches(view, first, attention)))
    for growth in growths:
        if id(growth) not in read:
            raise _not_attended(growth, missed)
    return found


def _not_attended(growth: Growth, missed: Sequence[NoAttention]) -> Refused:
    """Why there is no attention over a cache: that of what looks like one, an operator that nobody knows, or none."""
    fact, wanted = f"attention over {growth.joined.name}", "softmax of scaled, masked q k^T, times v"
    if missed:
        why = missed[0]
        return Refused("attention-form", f"{fact}: {why.fact}", why.found, wanted, "", why.node.outputs[0])
    node = unknown_reader(growth)
    if node is None:
        return Refused("attention-form", fact, "no softmax", wanted, "", growth.joined)
    found = f"{node.domain or 'ai.onnx'}.{node.op_type}"
    return Refused("attention-form", fact, found, wanted, "export with standard operators", node.outputs[0])


def _caches(view: GraphView, trial: Trial, attention: Attention) -> tuple[Latent | None, tuple[Cached, Cached]]:
    """What is cached instead of the growing rows: these, or the latents that they are projected from."""
    growths = (attention.key.growth, attention.value.growth)
    latent, rows = attention.latent, (growths[0].new, growths[1].new)
    if latent is None and attention.key.groups == attention.value.groups == 1:
        try:
            read = read_latent(view, trial.probe, *rows, set(), turned=False)
        except (Unreadable, Conflict):
            read = ""
        if isinstance(read, Latent) and read.factor == 1.0:
            latent, rows = read, (read.projection.input, read.rope)
    if latent is None:
        sizes = [(item.heads // item.groups, item.columns) for item in (attention.key, attention.value)]
        parts = ("key", "value")
    else:
        sizes = [(1, latent.projection.weight.hidden), (1, int(latent.rope_columns.size))]
        parts = ("latent", "rope")
    first, second = [
        Cached(growth, new, heads, columns, part)
        for growth, new, (heads, columns), part in zip(growths, rows, sizes, parts, strict=True)
    ]
    if latent is not None:
        second = replace(second, halves=_keeps_pairs(view, trial, second.new))
    return latent, (first, second)


def _keeps_pairs(view: GraphView, trial: Trial, rows: ir.Value) -> bool:
    """Whether rows are rotated in pairs of neighbours that stay neighbours, as DeepSeek-V2's complex numbers do.

    The operators that write latent caches put such pairs into halves. Queries and keys in one other order have the
    same products, and nobody else reads the cache: its columns may be in that order (docs/mla.md).
    """
    turned = read_turned(view, trial.probe, rows)
    return isinstance(turned, Turned) and turned.mode == "interleave"


def quantised(sites: Sequence[DecoderSite], measured: Mapping[str, Measured]) -> list[DecoderSite]:
    """The sites with int8 caches.

    Raises:
        Refused: a site caches latents.
    """
    found = []
    for site in sites:
        if site.latent is not None:
            raise Refused("kv-quant", "int8 caches of keys and values", "caches of latents", "keys and values of heads",
                          "convert without --kv-quant", site.attention.out)  # fmt: skip
        pairs = [replace(item, scale=measured[str(item.growth.past.name)].scale) for item in site.cached]
        errors = {item.part: measured[str(item.growth.past.name)].error for item in site.cached}
        found.append(replace(site, cached=(pairs[0], pairs[1]), errors=errors))
    return found


def narrowed(site: DecoderSite, dtype: str) -> DecoderSite:
    """The site with caches of a narrower float type, ``float16`` or ``bfloat16``.

    Raises:
        Refused: its rows are not float32.
    """
    for item in site.cached:
        if item.own_dtype not in ("float32", dtype):
            raise Refused("kv-dtype", f"float32 {item.part} rows to keep as {dtype}", item.own_dtype, "float32",
                          "convert without --kv-dtype", item.growth.past)  # fmt: skip
    pairs = [replace(item, kept=dtype) for item in site.cached]
    return replace(site, cached=(pairs[0], pairs[1]))

"""MlaPrologV3: hidden states projected to an absorbed query and to the latent rows of two caches, at one set of slots.

What decides is what the values mean: rows of one cache are a norm of columns of a product, rows of the other are
rotated columns of a product of the same hidden states; a third product of them is normed and projected to heads, whose
nope parts are multiplied by a matrix each and whose rope parts are rotated with the key's cos and sin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused, evaluated
from fusion.facts.analysis import Facts
from fusion.facts.caches.rows import Row, RowView
from fusion.facts.graph import GraphView
from fusion.facts.norms.norm import NormFact
from fusion.facts.semantics import Conflict
from fusion.facts.symbols.parameters import single
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.settle import inputs_behind, settle
from fusion.result import Refusal
from fusion.rules import _cache_op as common
from fusion.rules._latent_rows import partner_of
from fusion.rules._mla_frame import Site
from fusion.rules._mla_product import Product, product_of, rounded_product, source_of, views_behind
from fusion.rules._mla_query import Found, Settled, Skeletons, find_query, is_query, plain_query
from fusion.rules._mla_rope import table_sources
from fusion.rules._mla_site import RULE_SIZE, build
from fusion.rules._norm_rows import gamma_columns, through_norm
from ir_ops.ops import OPS

OP = "MlaPrologV3"
MODES = {
    ("BSND", "slot"): "PA_BSND",
    ("BSND", "row"): "PA_BSND",
    ("BNSD", "row"): "PA_BSND",
    ("NZ", "slot"): "PA_NZ",
    ("BSND", "block"): "PA_BLK_BSND",
    ("NZ", "block"): "PA_BLK_NZ",
}
"""Rows of a batch entry's own cache are slots too: the entry is the page."""


class MlaPrologV3Rule:
    """See the module's text."""

    op = OP
    size = RULE_SIZE

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        candidates: list[Candidate] = []
        refusals: list[Refusal] = []
        rows = [row for row in facts.rows if isinstance(row, Row)]
        keys = [row for row in rows if row.rotated and row.norm is None]
        if not keys:
            return [], []
        skeletons = Skeletons(facts)
        values = [_normed_row(facts, row) for row in rows if not row.rotated]
        free = {id(value.row): value for value in values if value is not None}
        made = [product_of(facts.view, source_of(facts.view, key.x)) for key in keys]
        seen = {id(value) for item in made if item is not None for value in views_behind(facts.view, item.x)}
        for key in keys:
            try:
                site = _site(facts, skeletons, key, free, seen)
                if site is not None:
                    candidates.append(build(facts, new_emitter, site, OPS[OP]))
            except Refused as refused:
                refusals.append(refused.refusal(facts.view, OP, key.write.out, facts.layer(key.write)))
        return candidates, refusals


RULE = MlaPrologV3Rule()


@dataclass
class _Normed:
    """Rows of a norm times a number."""

    row: Row
    scale: float


def _normed_row(facts: Facts, row: Row) -> _Normed | None:
    """Rows as those of a norm, seen through a constant factor; None for others."""
    if row.norm is not None:
        return _Normed(row, 1.0)
    norm, view = _norm_behind(facts, row.x), facts.view
    if norm is None or row.peeled is not None:
        return None
    views: list[RowView] = []
    scales: set[float] = set()
    for entry in row.views:
        symbolic = Symbolic(view, entry.view.probe, {id(norm.y)})
        try:
            sym = symbolic.read(row.x, 2).take(entry.x.position)
        except (Unreadable, Conflict):
            return None
        scales |= set(np.unique(sym.coef).tolist())
        sym.coef = np.ones_like(sym.coef)
        part = single(symbolic, sym)
        if part is None or part.value is not norm.y:
            return None
        views.append(replace(entry, symbolic=symbolic, x=part))
    return _Normed(replace(row, norm=norm, views=views), scales.pop()) if len(scales) == 1 else None


def _norm_behind(facts: Facts, value: ir.Value) -> NormFact | None:
    """The norm whose result, moved and multiplied by constants, a value is."""
    for _ in range(8):
        value = source_of(facts.view, value)
        if id(value) in facts.norms:
            return facts.norms[id(value)]
        node = value.producer()
        if node is None or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
            return None
        left, right = node.inputs
        value = left if facts.view.scalar(right) is not None else right  # type: ignore[assignment]
        if value is None or (value is right and node.op_type == "Div"):
            return None
    return None


@evaluated
def _site(facts: Facts, skeletons: Skeletons, key: Row, free: dict[int, _Normed], seen: set[int]) -> Site | None:
    """The joined facts; None where nothing looks like this operator. Raises Refused where a fact misfits."""
    view = facts.view
    try:
        value = partner_of(facts, key, [item.row for item in free.values()])
    except Refused:
        return None
    assert value.norm is not None
    _refuse_rounded(view, key, value)
    key_made = product_of(view, source_of(view, key.x))
    value_made = product_of(view, source_of(view, value.norm.x))
    if key_made is None:
        return None
    found = _query(facts, skeletons, key, value, key_made, seen)
    if found is None or value_made is None:
        return None
    mode = MODES.get((key.write.order, key.write.slots.form))
    if mode is None:
        raise Refused(
            "mla-cache-mode", "the caches are paged, or hold rows by batch entry", common.slots_text(key.write),
            "[block_num, block_size, 1, D]", "", key.write.out,
        )  # fmt: skip
    for row in (key, value):
        common.refuse_aliases(row.write)
        heads = row.views[0].x.position.shape[1]
        if heads != 1:
            raise Refused("mla-heads", "all heads share one key row", f"{heads} heads", "1", "", row.write.cache)
    width = key.views[0].x.position.shape[2]
    rotation = key.views[0].rotation
    assert rotation is not None
    if (rotation.start, rotation.width) != (0, width):
        raise Refused(
            "rope-columns", "the whole row of kr_cache is rotated", f"{rotation.width} of {width} columns",
            "all columns", "", key.start,
        )  # fmt: skip
    tokens = _tokens(facts, _settling(facts, key), found.skeleton.down, value_made, key_made)
    site = Site(
        mode=mode, key=key, value=value, norm=value.norm, kc_scale=free[id(value)].scale,
        key_parts=[entry.x for entry in key.views],
        value_parts=[through_norm(view, entry.view.probe, value.norm, entry.x) for entry in value.views],
        gamma_columns=gamma_columns([entry.x for entry in value.views], value.norm), key_made=key_made,
        value_made=value_made, query=found, tokens=tokens,
    )  # fmt: skip
    _refuse_computed_weights(facts, site)
    del free[id(value)]
    return site


def _query(facts: Facts, skeletons: Skeletons, key: Row, value: Row, key_made: Product, seen: set[int]) -> Found | None:
    """The query that belongs to the key; None where nothing looks like one."""
    view = facts.view
    rotation = key.views[0].rotation
    assert rotation is not None and value.norm is not None
    tables = table_sources(view, [rotation.cos_source.value, rotation.sin_source.value])
    near = skeletons.of(key_made.x, value.norm)
    found = find_query(view, _settling(facts, key), near, rotation.width, tables)
    if found is None:
        value_made = product_of(view, source_of(view, value.norm.x))
        known = {id(made.out) for made in (key_made, value_made) if made is not None}
        plain = plain_query(view, key_made.x, known, tables)
        if plain is not None:
            raise Refused(
                "mla-no-q-lora", "the query is projected down, normed and projected up",
                f"{plain.name} is projected from the hidden states without a norm", "weight_dq, a norm, weight_uq_qr",
                "a norm in between cannot be undone: KvRmsNormRopeCache takes the key side of such models", plain,
            )  # fmt: skip
        other = next((item for item in skeletons.elsewhere(seen) if is_query(view, item, tables)), None)
        if other is not None:
            raise _other_tokens([other.down, key_made])
        if near:
            raise Refused(
                "mla-no-query", "normed rows of the hidden states are projected to heads and rotated",
                f"{near[0].norm.y.name} is not", "weight_uq_qr and the key's rotation", "", near[0].norm.y,
            )  # fmt: skip
    return found


def _refuse_rounded(view: GraphView, key: Row, value: Row) -> None:
    """Refuses latent rows whose products take rounded rows."""
    assert value.norm is not None
    for source in (key.x, value.norm.x):
        rounded = rounded_product(view, source)
        if rounded:
            raise Refused(
                "mla-quant-products", "the projections multiply floats; only their weights may be integers", rounded,
                "a float product, of a weight that DequantizeLinear gives, say",
                "quantise weights only: KvRmsNormRopeCache takes the caches of such models", source,
            )  # fmt: skip


def _settling(facts: Facts, key: Row) -> Settled:
    """Makes trial sizes like those that the key was read under."""
    probe = key.write.probes[0].probe

    def settled(targets: list[ir.Value]) -> Probe:
        return settle(facts.view, probe.seed, probe.numbers, [key.write.out, *targets], probe.sizes)

    return settled


def _tokens(facts: Facts, settled: Settled, *products: Product) -> ir.Value:
    """What all products read: by batch where it comes so, else in the latest form that is common to them."""
    chains = [views_behind(facts.view, made.x) for made in products]
    shared = [value for value in chains[0] if all(any(value is other for other in chain) for chain in chains[1:])]
    if shared:
        probe = settled([*shared, *(made.out for made in products)])
        return next((value for value in shared if len(probe.shape(value) or ()) == 3), shared[0])
    raise _other_tokens(products)


def _other_tokens(products: Sequence[Product]) -> Refused:
    return Refused(
        "mla-other-tokens", "query and key are projected from the same hidden states",
        " and ".join(dict.fromkeys(made.x.name or "?" for made in products)), "one value", "", products[0].out,
    )  # fmt: skip


def _refuse_computed_weights(facts: Facts, site: Site) -> None:
    """Weights must not depend on what changes from call to call."""
    view = facts.view
    changing = [site.tokens, site.key.write.slots.value, *(row.write.cache for row in site.rows)]
    rotation = site.key.views[0].rotation
    assert rotation is not None
    changing += [rotation.cos_source.value, rotation.sin_source.value]
    inputs = frozenset[int]().union(*(inputs_behind(view, value) for value in changing))
    for weight in [site.query.contraction.weight, *(made.weight for made in site.products)]:
        if inputs_behind(view, weight) & inputs:
            raise Refused(
                "mla-weight", "weights do not depend on the tokens", f"{weight.name} does", "a constant", "", weight
            )

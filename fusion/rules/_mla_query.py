"""The query side of MlaPrologV3: from the hidden states through the norm and the up-projection to both parts of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.analysis import Facts
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.norms.norm import NormFact
from fusion.facts.symbols.parameters import single
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from fusion.rules._mla_contraction import (
    Absorbed,
    Contraction,
    NotAbsorbed,
    contractions,
    may_contract,
    read_absorbed,
)
from fusion.rules._mla_int8 import int8_products
from fusion.rules._mla_product import Moved, Product, moved_forward, product_of, readers_of, source_of, views_behind
from fusion.rules._mla_rope import find_rope, reaches_table, rotated_values


@dataclass
class Skeleton:
    """A normed projection of hidden states that is projected up: what a query looks like from the left.

    Attributes:
        norm: of the compressed query.
        down: the product behind the norm.
    """

    norm: NormFact
    down: Product


@dataclass
class Found:
    """The values of a query, not yet read.

    Attributes:
        up: the product that makes all heads; ``up_out`` what it gives.
        absorbed: the contraction of the nope parts, what it takes times ``absorbed_factor``.
        rope: the values of the rotated part.
        normed_factor: what the norm is multiplied by in front of the up-projection.
    """

    skeleton: Skeleton
    up: Product
    contraction: Contraction
    absorbed_factor: float
    heads: int
    rope: tuple[ir.Value, ...]
    normed_factor: float
    moved: list[Moved] = field(default_factory=list)


class Skeletons:
    """All normed projections of a graph by what they project."""

    def __init__(self, facts: Facts) -> None:
        self._by_source: dict[int, list[Skeleton]] = {}
        self.view = facts.view
        for norm in facts.norms.values():
            down = product_of(self.view, source_of(self.view, norm.x))
            if down is not None:
                for value in views_behind(self.view, down.x):
                    self._by_source.setdefault(id(value), []).append(Skeleton(norm, down))

    def elsewhere(self, sources: set[int]) -> list[Skeleton]:
        """Those that project other values than ``sources`` (ids)."""
        found = {
            id(item.norm.y): item for key, items in self._by_source.items() if key not in sources for item in items
        }
        near = {id(item.norm.y) for key in sources for item in self._by_source.get(key, ())}
        return [item for key, item in found.items() if key not in near]

    def of(self, x: ir.Value, without: NormFact) -> list[Skeleton]:
        """Normed projections of the same rows as ``x``, a view of them or not."""
        found: dict[int, Skeleton] = {}
        for value in views_behind(self.view, x):
            for skeleton in self._by_source.get(id(value), ()):
                if skeleton.norm is not without and skeleton.norm.y is not without.y:
                    found.setdefault(id(skeleton.norm.y), skeleton)
        return list(found.values())


Settled = Callable[[list[ir.Value]], Probe]
"""Makes a probe under which values evaluate."""


def find_query(
    view: GraphView, settled: Settled, skeletons: list[Skeleton], rope_width: int, tables: set[int]
) -> Found | None:
    """The query among normed projections of the hidden states; None where nothing looks like one.

    Args:
        settled: makes trial sizes for the values looked at.
        rope_width: Dr.
        tables: ids of the values that cos and sin of the key come from.

    Raises:
        Refused: there is a query, but not one that the operator makes.
    """
    reason: Refused | None = None
    for skeleton in skeletons:
        for up, factor in _ups(view, skeleton.norm):
            moved = moved_forward(view, up.out)
            try:
                found = _complete(view, settled, skeleton, up, moved, rope_width, tables)
            except Refused as refused:
                reason = reason or refused
                continue
            if found is not None:
                found.normed_factor = factor
                return found
    if reason is not None:
        raise reason
    return None


def _ups(view: GraphView, norm: NormFact) -> list[tuple[Product, float]]:
    """Products of the normed rows with a weight."""
    found: dict[int, tuple[Product, float]] = {}
    moved = moved_forward(view, norm.y)
    for node, item in readers_of(view, moved):
        if node.op_type in ("MatMul", "Gemm", "Einsum") and node.inputs[0] is item.value:
            made = product_of(view, node.outputs[0])
            if made is not None:
                found[id(made.out)] = made, item.factor
    found |= {id(made.out): (made, item.factor) for made, item in int8_products(view, moved)}
    return list(found.values())


def _complete(
    view: GraphView,
    settled: Settled,
    skeleton: Skeleton,
    up: Product,
    moved: list[Moved],
    width: int,
    tables: set[int],
) -> Found | None:
    """Finds the absorbed and the rotated part behind one up-projection."""
    rotates = reaches_table(view, moved, tables)
    contracting = [node for node, _ in readers_of(view, moved) if may_contract(view, node)]
    if not contracting:
        if rotates:
            raise _not_absorbed(view, up, moved)
        return None
    targets = [item.value for item in moved] + [node.outputs[0] for node in contracting]
    probe = settled(targets + rotated_values(view, moved))
    reason: Refused | None = None
    for node, item in readers_of(view, moved):
        for made in contractions(view, node, item.value, probe) if may_contract(view, node) else ():
            try:
                absorbed = read_absorbed(view, probe, made, up.out, item.factor)
            except (NotAbsorbed, Unreadable) as error:
                if rotates and reason is None and isinstance(error, NotAbsorbed):
                    reason = Refused("mla-not-absorbed", error.fact, error.found, error.wanted, ABSORB, made.out)
                continue
            for rope in find_rope(view, probe, up.out, absorbed.sizes[0], width, moved, dtype_name(made.weight)):
                return Found(skeleton, up, made, item.factor, absorbed.sizes[0], rope, 1.0, moved)
            if reason is None:
                reason = Refused(
                    "mla-query-rope", "the query has a part rotated as the key is",
                    f"no rotation of {width} columns a head of {up.out.name}", "pairs turned into halves", "", up.out,
                )  # fmt: skip
    if reason is not None:
        raise reason
    if rotates:
        raise _not_absorbed(view, up, moved)
    return None


ABSORB = "absorb the key's up-projection into the query: multiply q_nope by weight_uk, attend to the compressed rows"


def _not_absorbed(view: GraphView, up: Product, moved: list[Moved]) -> Refused:
    biased = next((node for node, _ in readers_of(view, moved) if node.op_type == "Add" and _is_bias(view, node)), None)
    if up.bias is not None or biased is not None:
        return biased_projection(up.out)
    return Refused(
        "mla-not-absorbed", "the query's nope part is multiplied by the key's up-projection (absorbed)",
        f"no product of {up.out.name} with a matrix for each head", "q_nope[n] @ weight_uk[n]", ABSORB, up.out,
    )  # fmt: skip


def _is_bias(view: GraphView, node: ir.Node) -> bool:
    return any(item is not None and view.is_constant(view.root(item)) for item in node.inputs)


def biased_projection(out: ir.Value) -> Refused:
    return Refused(
        "mla-bias", "the projections have no bias", f"{out.name} adds one", "a plain product",
        "the operator has no place for a bias", out,
    )  # fmt: skip


def check_weight(view: GraphView, probe: Probe, made: Product) -> tuple[int, int]:
    """Rows and columns of a product's weight.

    Raises:
        Refused: a bias, or a weight that is no matrix.
    """
    if made.bias is not None:
        raise biased_projection(made.out)
    shape = probe.shape(made.weight)
    if shape is None or len(shape) != 2:
        raise Refused(
            "mla-weight", "a projection multiplies rows by a matrix", f"{made.weight.name} of {shape}", "[K, M]", "",
            made.out,
        )  # fmt: skip
    return (shape[1], shape[0]) if made.turned else (shape[0], shape[1])


def check_rows(view: GraphView, probe: Probe, x: ir.Value, source: ir.Value, factor: float, what: str) -> None:
    """That ``x`` is ``source`` in another shape, times ``factor``.

    Raises:
        Refused: elements are missing, mixed, or in another order.
    """
    symbolic = Symbolic(view, probe, {id(source)})
    try:
        sym = symbolic.read(x, 0 if factor == 1 else 2)
    except Unreadable:
        sym = symbolic.read(source, 0)
        sym.coef = sym.coef * np.nan
    sym.coef = np.where(np.isclose(sym.coef, factor, rtol=1e-12), 1.0, sym.coef)
    part = single(symbolic, sym)
    if part is None or part.value is not source or not np.array_equal(part.position.reshape(-1), _all(probe, source)):
        raise Refused(
            "mla-order", f"{what} is projected as it is", f"{x.name} has other elements, or another order than "
            f"{source.name}", "the same rows", "", x,
        )  # fmt: skip


def _all(probe: Probe, value: ir.Value) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(int(np.prod(probe.shape(value) or (0,))))


def read_query(view: GraphView, probe: Probe, found: Found) -> Absorbed:
    """Reads the contraction under one probe. Raises Refused."""
    try:
        return read_absorbed(view, probe, found.contraction, found.up.out, found.absorbed_factor)
    except (NotAbsorbed, Unreadable) as error:
        fact = error if isinstance(error, NotAbsorbed) else NotAbsorbed("the absorbed query", str(error), "columns")
        raise Refused("mla-not-absorbed", fact.fact, fact.found, fact.wanted, ABSORB, found.contraction.out) from None


def plain_query(view: GraphView, x: ir.Value, without: set[int], tables: set[int]) -> ir.Value | None:
    """A projection of the hidden states, or two in a row, rotated without a norm in between: no q_lora, or no norm."""
    for value in views_behind(view, x):
        for source in _views_of(view, value):
            for first in _products(view, source):
                if id(first) in without:
                    continue
                moved = moved_forward(view, first)
                behind = [second for item in moved for second in _products(view, item.value)]
                if any(
                    reaches_table(view, rows, tables) for rows in (moved, *(moved_forward(view, v) for v in behind))
                ):
                    return first
    return None


def _products(view: GraphView, value: ir.Value) -> list[ir.Value]:
    return [
        node.outputs[0]
        for node, place in view.following(value)
        if place == 0 and node.op_type in ("MatMul", "Gemm", "Einsum")
    ]


def is_query(view: GraphView, skeleton: Skeleton, tables: set[int]) -> bool:
    """Whether a normed projection is projected up and rotated."""
    return any(reaches_table(view, moved_forward(view, up.out), tables) for up, _ in _ups(view, skeleton.norm))


def _views_of(view: GraphView, value: ir.Value) -> list[ir.Value]:
    """The value and its views."""
    found = [value]
    for item in found:
        found += [
            node.outputs[0] for node, place in view.following(item)
            if place == 0 and node.op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
        ]  # fmt: skip
    return found

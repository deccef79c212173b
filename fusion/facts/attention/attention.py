"""Attention over cached keys and values: softmax of scaled scores, some positions masked, times the values.

Read from the softmax outwards. The operands of both products are read as index maps, so that repeated heads, transposes
and joined axes may be spelled in any way; what stands between the products must be scaling, masks and casts. That the
whole computes attention is for a proof to say, not for this reading.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from fusion.facts.attention.latent import Latent, read_latent
from fusion.facts.attention.projection import source_of_rows
from fusion.facts.caches.growth import Growth
from fusion.facts.graph import GraphView, uses
from fusion.facts.semantics import Conflict
from fusion.facts.symbols.outline import outline
from fusion.facts.symbols.symbolic import Symbolic
from fusion.facts.symbols.terms import Unreadable
from fusion.facts.trial.probe import Probe
from ir_ops.dtypes import by_onnx

BUDGET = 2
"""Products by numbers in front of an operand."""
DEPTH = 12
"""Nodes between a product and the softmax."""
_JOINING = ("Mul", "Div", "Add", "Sub", "Max", "Min", "Where")
_PASSED = (*_JOINING, "Cast", "Identity")
"""What may stand between them."""


@dataclass(frozen=True)
class Operand:
    """A product's operand: element ``[b, n, t, d]`` is ``factor`` times the cache's ``[b, n // groups, t, d]``."""

    growth: Growth
    factor: float
    heads: int
    groups: int
    columns: int


@dataclass(frozen=True)
class Attention:
    """One attention.

    Attributes:
        query: left operand of the first product, ``[B, N, S, D]`` or with B and N joined; of one token perhaps
            ``[B, N / G, G, D]``, G heads for each of the keys.
        key, value: what the other operands are; of a latent attention the caches of latents and of rotated rows.
        latent: how keys and values come from these two; None for keys and values that are cached themselves.
        start: the first product's result (None for an Attention node); ``inner`` what the softmax takes.
        masks: what is added to the scores or chooses between them and a constant.
        out: the second product's result, ``[B, N, S, Dv]`` or with B and N joined.
        guard: a Where behind it that gives 0 for rows without a key, and the place of its operand with the results.
        node: the softmax, or the Attention node.
        scale: factor of the scores where the node itself says it (Attention), 1 otherwise.
        causal: whether the node itself masks (Attention).
    """

    query: ir.Value
    key: Operand
    value: Operand
    start: ir.Value | None
    inner: ir.Value | None
    masks: tuple[ir.Value, ...]
    out: ir.Value
    node: ir.Node
    scale: float = 1.0
    causal: bool = False
    guard: tuple[ir.Node, int] | None = None
    latent: Latent | None = None

    @property
    def heads(self) -> int:
        return self.latent.heads if self.latent is not None else self.key.heads

    @property
    def width(self) -> int:
        """Columns of a query."""
        return self.latent.width if self.latent is not None else self.key.columns

    @property
    def value_width(self) -> int:
        return int(self.latent.value_columns.shape[1]) if self.latent is not None else self.value.columns


@dataclass
class NoAttention:
    """Why a softmax is not attention over growing caches."""

    node: ir.Node
    fact: str
    found: str


@dataclass
class _Chain:
    """The way from a product to the softmax."""

    start: ir.Value
    masks: list[ir.Value] = field(default_factory=list)


class AttentionReader:
    """Reads attentions under one probe.

    Args:
        view: the graph.
        probe: sizes under which it evaluates.
        growths: the growing caches.
    """

    def __init__(self, view: GraphView, probe: Probe, growths: list[Growth]) -> None:
        self._view, self._probe = view, probe
        self._growths = {id(view.root(growth.joined)): growth for growth in growths}
        self._operands: dict[Hashable, tuple[Operand, list[ir.Value]]] = {}

    def read(self, node: ir.Node) -> Attention | NoAttention:
        """The attention around a Softmax or Attention node."""
        try:
            return self._spelled(node) if node.op_type == "Softmax" else self._operator(node)
        except (Unreadable, Conflict) as error:
            return NoAttention(node, "its operands can be followed", str(error))

    def _spelled(self, node: ir.Node) -> Attention | NoAttention:
        inner = node.inputs[0]
        assert inner is not None
        shape = self._probe.shape(inner)
        if shape is None:
            return NoAttention(node, "a softmax over the keys", f"{inner.name}, whose shape is not known")
        if int(self._view.attrs(node).get("axis", -1)) not in (-1, len(shape) - 1):
            return NoAttention(node, "a softmax over the keys", "another axis")
        chain = self._up(inner, DEPTH)
        product = None if chain is None else chain.start.producer()
        if chain is None or product is None:
            return NoAttention(node, "scaled and masked products of queries and keys", self._in_the_way(inner))
        query, key_side = product.inputs
        out = self._down(node.outputs[0], DEPTH, chain.masks)
        if out is None:
            return NoAttention(node, "weights that are multiplied by values", "another use")
        assert query is not None and key_side is not None and shape is not None
        second = out.producer()
        assert second is not None and second.inputs[1] is not None
        sides = self._sides(key_side, second.inputs[1], shape[-1], turned=True)
        if isinstance(sides, str):
            return NoAttention(node, "keys and values that are rows of growing caches, or projected from them", sides)
        key, value, latent = sides
        if latent is None:
            key, value = (self._packed(self._broadcast(operand, query), query) for operand in (key, value))
        guard = self._guard(out)
        return Attention(
            query, key, value, chain.start, inner, tuple(chain.masks), out, node, guard=guard, latent=latent
        )

    def _operator(self, node: ir.Node) -> Attention | NoAttention:
        attrs = self._view.attrs(node)
        if any(item is not None for item in node.inputs[4:]) or attrs.get("softcap", 0.0):
            return NoAttention(node, "plain attention", "a past, lengths or a softcap of its own")
        query, key_side, value_side = node.inputs[:3]
        assert query is not None and key_side is not None and value_side is not None
        shapes = [self._probe.shape(item) for item in (query, key_side, value_side)]
        if any(shape is None or len(shape) != 4 for shape in shapes) or len(node.outputs) > 1:
            return NoAttention(node, "[B, N, S, D] operands and one output", "another form")
        heads, tokens, width = shapes[0][1], shapes[1][2], shapes[0][3]  # type: ignore[index]
        sides = self._sides(key_side, value_side, tokens, turned=False, heads=heads)
        if isinstance(sides, str):
            return NoAttention(node, "keys and values that are rows of growing caches, or projected from them", sides)
        key, value, latent = sides
        if latent is None:
            key, value = (self._packed(operand, query) for operand in (key, value))
        scale = float(attrs.get("scale", 1.0 / math.sqrt(width)))
        masks = tuple(item for item in node.inputs[3:4] if item is not None)
        causal = bool(attrs.get("is_causal", 0))
        return Attention(query, key, value, None, None, masks, node.outputs[0], node, scale, causal,
                         self._guard(node.outputs[0]), latent)  # fmt: skip

    def _up(self, value: ir.Value, depth: int) -> _Chain | None:
        """From the softmax's operand to the product, through scaling, masks and casts."""
        node = value.producer()
        if node is None or not depth:
            return None
        if node.op_type == "MatMul":
            return _Chain(value) if self._reads_cache(node.inputs[1]) else None
        first = node.inputs[0]
        if first is None:
            return None
        if node.op_type in ("Cast", "Identity"):
            return self._up(first, depth - 1)
        if node.op_type in _JOINING:
            sides = node.inputs[1:] if node.op_type == "Where" else node.inputs
            for place, side in enumerate(sides):
                chain = None if side is None or self._view.is_constant(side) else self._up(side, depth - 1)
                if chain is not None:
                    others = [item for other, item in enumerate(sides) if other != place]
                    others += node.inputs[:1] if node.op_type == "Where" else []
                    chain.masks += [item for item in others if item is not None and not self._view.is_constant(item)]
                    return chain
        return None

    def _in_the_way(self, value: ir.Value) -> str:
        """What a way up from the softmax ends at."""
        node: ir.Node | None = value.producer()
        for _ in range(DEPTH):
            if node is None or node.op_type not in _PASSED:
                break
            sides = node.inputs[1:] if node.op_type == "Where" else node.inputs
            makers = [side.producer() for side in sides if side is not None and not self._view.is_constant(side)]
            node = next((maker for maker in makers if maker is not None), None)
        found = "no product" if node is None or node.op_type in (*_PASSED, "MatMul") else node.op_type
        return f"{found} in front of it"

    def _reads_cache(self, value: ir.Value | None) -> bool:
        """Whether a value comes from a growing cache within a few nodes."""
        pending, seen = [(value, DEPTH)], set()
        while pending:
            item, depth = pending.pop()
            if item is None or id(item) in seen:
                continue
            seen.add(id(item))
            if id(self._view.root(item)) in self._growths:
                return True
            node = item.producer()
            if node is not None and depth:
                pending += [(operand, depth - 1) for operand in node.inputs]
        return False

    def _down(self, value: ir.Value, depth: int, masks: list[ir.Value]) -> ir.Value | None:
        """From the softmax's result to the second product, through casts and guards against rows without a key."""
        if not depth or value.is_graph_output():
            return None
        readers = [(node, place) for node, place in uses(value) if node.op_type != "IsNaN"]
        if len(readers) != 1 or readers[0][0].graph is not self._view.graph:
            return None
        node, place = readers[0]
        if node.op_type == "MatMul":
            return node.outputs[0] if place == 0 else None
        if node.op_type in ("Cast", "Identity") or (node.op_type == "Dropout" and place == 0):
            return self._down(node.outputs[0], depth - 1, masks)
        if node.op_type == "Where" and place > 0:
            chosen = node.inputs[0]
            maker = None if chosen is None else chosen.producer()
            if chosen is not None and (maker is None or maker.op_type != "IsNaN"):
                masks.append(chosen)
            return self._down(node.outputs[0], depth - 1, masks)
        return None

    def _guard(self, out: ir.Value) -> tuple[ir.Node, int] | None:
        """``Where(rows without a key, 0, result)`` behind the result or a view of it."""
        for _ in range(DEPTH):
            reader = self._view.only_reader(out)
            if reader is None or out.is_graph_output():
                return None
            node, place = reader
            if node.op_type == "Where":
                zero = place > 0 and self._view.scalar(node.inputs[3 - place]) == 0.0
                return (node, place) if zero else None
            if place or node.op_type not in ("Transpose", "Reshape", "Identity", "Cast"):
                return None
            out = node.outputs[0]
        return None

    def _sides(
        self, key_side: ir.Value, value_side: ir.Value, tokens: int, *, turned: bool, heads: int = 0
    ) -> tuple[Operand, Operand, Latent | None] | str:
        """Both operands as rows of caches, or projected from caches of latents; else why not."""
        key = self._operand(key_side, tokens, turned=turned, heads=heads)
        value = self._operand(value_side, tokens, turned=False, heads=heads)
        if isinstance(key, Operand) and isinstance(value, Operand):
            return key, value, None
        latent = read_latent(self._view, self._probe, key_side, value_side, set(self._growths), turned=turned)
        if isinstance(latent, str):
            return latent
        source = source_of_rows(self._view, latent.projection.input, [self._probe])
        found = [self._growths.get(id(item)) for item in (source, self._view.root(latent.rope))]
        if found[0] is None or found[1] is None or found[0] is found[1]:
            return f"columns of {latent.up.name} and {latent.rope.name}"
        operands = [Operand(growth, latent.factor, 1, 1, (self._probe.shape(growth.past) or (0,))[-1])
                    for growth in found if growth is not None]  # fmt: skip
        return operands[0], operands[1], latent

    def _broadcast(self, operand: Operand, query: ir.Value) -> Operand:
        """One head that a product takes for all heads of the queries ``[B, N, S, D]``."""
        shape = self._probe.shape(query)
        if operand.heads != 1 or shape is None or len(shape) != 4:
            return operand
        return replace(operand, heads=shape[1], groups=shape[1])

    def _packed(self, operand: Operand, query: ir.Value) -> Operand:
        """Heads of one token that stand where tokens of queries would, ``[B, N, G, D]``: G for each of the keys."""
        shape, new = self._probe.shape(query), self._probe.shape(operand.growth.new)
        if shape is None or new is None or len(shape) != 4 or new[2] != 1 or operand.groups != 1:
            return operand
        groups = shape[2] if shape[1] == operand.heads else 1
        return replace(operand, heads=operand.heads * groups, groups=groups)

    def _operand(self, value: ir.Value, tokens: int, *, turned: bool, heads: int = 0) -> Operand | str:
        """A product's operand ``[..., T, D]`` (``turned``: ``[..., D, T]``) as rows of a cache, else why not.

        That of a layer with the structure of an earlier one is not read again.
        """
        value, factor = self._unscaled(value)
        found = self._like_before(value, tokens, turned=turned, heads=heads)
        return found if isinstance(found, str) else replace(found, factor=found.factor * factor)

    def _unscaled(self, value: ir.Value) -> tuple[ir.Value, float]:
        """What is behind products with numbers that follow from shapes (the root of a width), and their product."""
        factor = 1.0
        for _ in range(BUDGET):
            node = value.producer()
            if node is None or node.op_type not in ("Mul", "Div") or node.domain not in ("", "ai.onnx"):
                break
            left, right = node.inputs
            number, other = self._number(right), left
            if number is None and node.op_type == "Mul":
                number, other = self._number(left), right
            if number is None or other is None or number == 0.0:
                break
            factor, value = (factor * number if node.op_type == "Mul" else factor / number), other
        return value, factor

    def _number(self, value: ir.Value | None) -> float | None:
        """The one number that a computed value is, whatever the data."""
        if value is None or value.producer() is None:
            return None
        known = self._probe.known(value)
        return (
            None if known.array is None or known.taint or known.array.size != 1 else float(known.array.reshape(-1)[0])
        )

    def _like_before(self, value: ir.Value, tokens: int, *, turned: bool, heads: int) -> Operand | str:
        text, values = outline(self._view, self._probe, value, BUDGET, self._growths)
        key = (text, tokens, turned, heads)
        like, its_values = self._operands.get(key, (None, values))
        if like is not None:
            cached = self._view.root(like.growth.joined)
            own = [mine for its, mine in zip(its_values, values, strict=True) if its is cached]
            growth = self._growths.get(id(own[0])) if own else None
            if growth is not None:
                return replace(like, growth=growth)
        found = self._read_operand(value, tokens, turned=turned, heads=heads)
        if isinstance(found, Operand):
            self._operands[key] = found, values
        return found

    def _read_operand(self, value: ir.Value, tokens: int, *, turned: bool, heads: int) -> Operand | str:
        symbolic = Symbolic(self._view, self._probe, set(self._growths))
        sym = symbolic.read(value, BUDGET)
        if len(sym.coef) != 1 or sym.atom.shape[1] != 1 or not sym.coef.size:
            return "sums or products of elements"
        factor = float(sym.coef.reshape(-1)[0])
        source = symbolic.source_of(int(sym.atom.reshape(-1)[0]))
        growth = self._growths.get(id(source.value))
        if growth is None or (sym.coef != factor).any():
            return f"elements of {source.value.name}"
        position = (sym.atom[0, 0] - source.base).astype(np.int64)
        position = position.swapaxes(-1, -2) if turned else position
        batch, kv_heads, length, columns = source.shape
        if position.shape[-2:] != (length, columns) or length != tokens:
            return f"rows of {list(position.shape[-2:])} in another order"
        rows = position.reshape(-1, length, columns)
        if len(rows) % (batch * kv_heads):
            return f"{len(rows)} heads for {batch} sequences of {kv_heads} heads"
        groups = len(rows) // (batch * kv_heads)
        if heads and heads != kv_heads * groups:  # Attention repeats the heads itself
            groups = heads // kv_heads
            rows = rows.repeat(groups, axis=0)
        wanted = np.arange(math.prod(source.shape)).reshape(batch * kv_heads, length, columns).repeat(groups, axis=0)
        if not np.array_equal(rows, wanted):
            return "heads or columns in another order"
        return Operand(growth, factor, kv_heads * groups, groups, columns)


def scalar_factors(view: GraphView, value: ir.Value) -> tuple[ir.Value, float]:
    """The value behind multiplications by constants, and their product."""
    factor = 1.0
    for _ in range(4):
        node = view.root(value).producer()
        if node is None or node.op_type not in ("Mul", "Div") or not by_onnx(int(value.dtype or 1)).is_float:
            break
        left, right = node.inputs
        number, other = view.scalar(right), left
        if number is None and node.op_type == "Mul":
            number, other = view.scalar(left), right
        if number is None or other is None:
            break
        factor = factor * number if node.op_type == "Mul" else factor / number
        value = other
    return value, factor

"""That both branches give the same: evaluated in float64 on random calls, once for each form of layer.

Weights are drawn, never read, in their own dims but for the hidden sizes, which only count the terms of sums. Pages are
small, so that a few tokens fill several, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fusion.candidate import Refused
from fusion.evaluate import WideNumeric, run_node
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.proof import WIDE_BOUND
from fusion.result import Proof
from fusion.surgery.decoder.layout import Pages
from fusion.surgery.prompts.branches import Condition, Expanded
from fusion.surgery.prompts.sites import LatentAttention, LatentCache, dims_of_weight
from ir_ops.dtypes import Array
from ir_ops.errors import KvfuseError
from ir_ops.ops import OPS

CALLS = ((5, (5, 2, 0)), (4, (4,)), (9, (9, 8)), (1, (1, 1)))
"""Tokens of a row, and of each sequence: of different lengths, one, over several pages, single ones."""
CONDITIONS = ((4, (4, 1), (4, 1)), (3, (3, 3), (3, 3)), (4, (4, 1), (4, 2)), (1, (1,), (9,)), (5, (0, 5), (0, 5)))
"""Tokens of a row, new tokens and all tokens of each sequence; tried with 4 tokens as the least."""
LEAST, PAGE, HIDDEN, RANK = 4, 4, 22, 26
LARGEST = 64
"""Elements of a constant that is read: anything larger is a weight."""


class Prover:
    """Proves branches; layers of one form share a proof."""

    def __init__(self, graph: ir.Graph, opset: int, inputs: Mapping[str, ir.Value]) -> None:
        self._view, self._inputs = GraphView(graph, opset), inputs
        self._done: dict[str, Proof] = {}

    def prove(self, site: LatentAttention, branch: Expanded, rest: Sequence[ir.Node]) -> Proof:
        """Both branches of a layer side by side; ``rest`` are the nodes of the other one.

        Raises:
            Refused: they differ, or one of them cannot be evaluated.
        """
        key = self._form(site, [*branch.emit.nodes, *rest])
        if key not in self._done:
            worst = 0.0
            for number, (tokens, lengths) in enumerate(CALLS):
                worst = max(worst, self._difference(site, branch, tokens, lengths, np.random.default_rng(number)))
            self._done[key] = Proof(len(CALLS), worst, WIDE_BOUND, "float64")
        return self._done[key]

    def prove_condition(self, condition: Condition) -> None:
        """That it is true for first prompts of so many tokens, and for nothing else.

        Raises:
            Refused: it is not.
        """
        for tokens, new, total in CONDITIONS:
            arrays = {"ids": np.zeros((len(new), tokens), np.int64), "query_lengths": np.array(new),
                      "kv_lengths": np.array(total)}  # fmt: skip
            feeds = {id(self._inputs[role]): array for role, array in arrays.items()}
            feeds[id(condition.short)] = np.array(LEAST - 1)
            taken = bool(_Piece(self._view, feeds).value(condition.value))
            if taken != (tokens >= LEAST and new == total):
                found = f"{taken} for {new} new tokens of {total}, {tokens} a row"
                raise Refused("expand-proof", "first prompts that are long enough are expanded", found, "no others")

    def _difference(
        self, site: LatentAttention, branch: Expanded, tokens: int, lengths: tuple[int, ...], rng: np.random.Generator
    ) -> float:
        """The largest difference, relative to the largest value."""
        try:
            feeds = {**self._call(tokens, lengths, rng), **_operands(site, len(lengths), tokens, rng)}
            pages = len(lengths) * -(-tokens // PAGE) + 1
            for cache in (site.latents, site.ropes):
                feeds |= _cache(cache, pages, rng)
            page = {id(branch.page): np.array(PAGE)}
            got = _Piece(self._view, feeds | page).value(branch.out)
            wanted = _Piece(self._view, feeds, {id(site.node): {"block_size": PAGE}}).value(site.out)
        except (Unsupported, OutOfRange, Conflict, KvfuseError, ValueError, LookupError, TypeError) as error:
            raise Refused("expand-proof", "both ways can be evaluated", str(error), "known operators", "",
                          site.out) from None  # fmt: skip
        scale = float(np.abs(wanted).max()) or 1.0
        apart = float(np.abs(got - wanted).max()) / scale if got.shape == wanted.shape else np.inf
        if not apart <= WIDE_BOUND:
            raise Refused("expand-proof", "attention over projected keys and values gives what latents give",
                          f"{apart:.3g} of the largest value apart", f"{WIDE_BOUND:g}", "", site.out)  # fmt: skip
        return apart

    def _call(self, tokens: int, lengths: tuple[int, ...], rng: np.random.Generator) -> dict[int, Array]:
        """The integers of a first prompt, in pages that are dealt out at random; the first page is nobody's."""
        batch, width = len(lengths), -(-tokens // PAGE)
        table = 1 + rng.permutation(batch * width).reshape(batch, width)
        place = np.arange(tokens)
        slots = table[:, place // PAGE] * PAGE + place % PAGE
        slots = np.where(place < np.array(lengths)[:, None], slots, -1)
        arrays = {"ids": np.zeros((batch, tokens), np.int64), "slots": slots.reshape(-1),
                  "block_table": table.astype(np.int32), "query_lengths": np.array(lengths),
                  "kv_lengths": np.array(lengths)}  # fmt: skip
        return {id(self._inputs[role]): array for role, array in arrays.items()}

    def _form(self, site: LatentAttention, nodes: Sequence[ir.Node]) -> str:
        """Equal for layers that share a proof: operators, attributes, operands by role and order, dims of weights."""
        query, prolog = site.query, site.query.prolog
        known = [query.w_uk, site.w_uv, site.latents.value, site.ropes.value, site.rope, *self._inputs.values()]
        known += [query.nope] if query.nope is not None else []
        parts: list[object] = [dims_of_weight(query.w_uk), dims_of_weight(site.w_uv), len(known)]
        if prolog is not None:
            parts.append(sorted((name, str(item)) for name, item in self._view.attrs(prolog).items()))
            known += [*prolog.outputs, *(item for item in prolog.inputs[2:3] if item is not None)]
        numbers = {id(value): number for number, value in enumerate(known)}
        for node in nodes:
            operands = [(numbers.setdefault(id(item), len(numbers)), self._content(item)) for item in node.inputs]
            results = [(numbers.setdefault(id(item), len(numbers)), dtype_name(item)) for item in node.outputs]
            attrs = sorted((name, str(item)) for name, item in self._view.attrs(node).items())
            parts.append((node.domain, node.op_type, attrs, operands, results))
        return repr(parts)

    def _content(self, value: ir.Value | None) -> object:
        tensor = self._view.tensor(value)
        small = tensor is not None and tensor.size <= LARGEST
        return (dtype_name(value), tensor.numpy().tolist() if small and tensor is not None else None)


def _operands(site: LatentAttention, batch: int, tokens: int, rng: np.random.Generator) -> dict[int, Array]:
    """Weights, and the query in both forms."""
    heads, width, rank = dims_of_weight(site.query.w_uk)
    w_uk, w_uv = (rng.standard_normal(dims_of_weight(value)) * rank**-0.5 for value in (site.query.w_uk, site.w_uv))
    feeds: dict[int, Array] = {id(site.query.w_uk): w_uk, id(site.w_uv): w_uv}
    turned, prolog = site.ropes.port.columns, site.query.prolog
    if prolog is None:
        assert site.query.nope is not None
        feeds[id(site.query.nope)] = rng.standard_normal((batch, heads, tokens, width))
        feeds[id(site.rope)] = rng.standard_normal((batch, heads, tokens, turned))
        return feeds
    shapes = {
        "token_x": (batch, tokens, HIDDEN), "weight_dq": (HIDDEN, RANK),
        "weight_uq_qr": (RANK, heads * (width + turned)), "weight_uk": (),
        "weight_dkv_kr": (HIDDEN, rank + turned), "rmsnorm_gamma_cq": (RANK,),
        "rmsnorm_gamma_ckv": (rank,), "rope_sin": (batch, tokens, turned), "rope_cos": (batch, tokens, turned),
        "kv_cache": (1, 1, 1, rank), "kr_cache": (1, 1, 1, turned), "cache_index": (),
    }  # fmt: skip
    given = {name: rng.standard_normal(shape) * RANK**-0.5 for name, shape in shapes.items()}
    given |= {"weight_uk": w_uk, "cache_index": np.full((batch, tokens), -1)}
    results = _run_prolog(prolog, given)
    feeds |= {id(value): results[entry.name] for entry, value in zip(OPS["MlaPrologV3"].outputs, prolog.outputs,
                                                                       strict=False)}  # fmt: skip
    assert prolog.inputs[2] is not None
    return {**feeds, id(prolog.inputs[2]): given["weight_uq_qr"]}


def _run_prolog(prolog: ir.Node, given: Mapping[str, Array]) -> Mapping[str, Array]:
    operator = OPS["MlaPrologV3"]
    operands = zip(operator.inputs, prolog.inputs, strict=False)
    names = {id(given[entry.name]): dtype_name(value) for entry, value in operands if entry.name in given}
    attrs = {name: attr.value for name, attr in prolog.attributes.items()}
    return operator.compute(WideNumeric(names), dict(given), operator.with_defaults(attrs))


def _cache(cache: LatentCache, pages: int, rng: np.random.Generator) -> dict[int, Array]:
    """Random content of a written cache, and the dims that attention reads it with, in small pages."""
    port, small = cache.port, Pages(cache.port.order, PAGE)
    kind = dtype_name(cache.value)
    content = rng.standard_normal((pages, PAGE, 1, port.columns))
    return {id(cache.value): content, id(cache.shape): np.array(small.read_shape(1, port.columns, kind))}


class _Piece:
    """Values in float64, computed from fed ones by the nodes in between."""

    def __init__(
        self, view: GraphView, feeds: Mapping[int, Array], attrs: Mapping[int, Mapping[str, Any]] | None = None
    ) -> None:
        self._view, self._memo, self._attrs = view, dict(feeds), attrs or {}

    def value(self, value: ir.Value) -> Array:
        """The array of a value; raises Unsupported where one is missing in front of it."""
        if id(value) not in self._memo:
            self._compute(value)
        return self._memo[id(value)]

    def _compute(self, value: ir.Value) -> None:
        tensor, node = self._view.tensor(value), value.producer()
        if tensor is not None and tensor.size <= LARGEST:
            array = np.asarray(tensor.numpy())
            self._memo[id(value)] = array.astype(np.float64) if array.dtype.kind in "fV" else array
            return
        if tensor is not None or node is None:
            raise Unsupported(f"no feed for {value.name}")
        operands = [None if item is None else self.value(item) for item in node.inputs]
        attrs = {**self._view.attrs(node), **self._attrs.get(id(node), {})}
        with np.errstate(all="ignore"):
            results = run_node(node, operands, attrs, wide=True)
        for output, result in zip(node.outputs, results, strict=False):
            self._memo.setdefault(id(output), np.asarray(result))

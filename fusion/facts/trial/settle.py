"""Trial sizes under which a graph does not contradict itself, and the probes that evaluate it under them.

Probes are kept: writes of layers that are alike start from the same sizes, meet the same conflicts, and share one
evaluation of whatever they have in common.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import onnx_ir as ir

from fusion.facts.graph import GraphView, dims_of, dtype_name
from fusion.facts.semantics import Conflict
from fusion.facts.trial.large_caches import shrunk_for
from fusion.facts.trial.probe import Numbers, Probe, symbol_name
from fusion.facts.trial.sizes import Sizes


class _Key(NamedTuple):
    """What determines a probe."""

    seed: int
    numbers: Numbers
    sizes: Hashable


def settle(view: GraphView, seed: int, numbers: Numbers, targets: Iterable[ir.Value], sizes: Sizes) -> Probe:
    """A probe under which all ``targets`` evaluate without size conflicts; ``sizes`` stay as they are.

    A conflict ties symbols and starts over. One that nothing explains (a graph that contradicts itself, or an operator
    that is misjudged here) makes the outputs of its node unknown, and no more.
    """
    wanted = list(targets)
    while True:
        key = _Key(seed, numbers, sizes.state())
        probe: Probe | None = view.kept.get(key)
        if probe is None:
            probe = view.kept[key] = Probe(view, seed, sizes, numbers)
        tied = _tied(probe, wanted)
        if tied is None:
            return probe
        sizes = tied


def _tied(probe: Probe, wanted: list[ir.Value]) -> Sizes | None:
    """Evaluates; sizes with one more tie where a conflict asks for it, None when all is evaluated."""
    for value in wanted:
        while True:
            try:
                probe.known(value)
                break
            except Conflict as conflict:
                sizes = probe.sizes.copy()
                if sizes.unify(conflict.left, conflict.right, conflict.divides, conflict.or_one):
                    return sizes
                probe.give_up(conflict.place)
    return None


def start_sizes(view: GraphView, seed: int, out: ir.Value | None = None, run: int = 0, multiple: int = 1) -> Sizes:
    """Sizes for every symbolic dim of the graph's inputs, and for static ones that are too large.

    Dims that only caches have get large sizes, caches of one form the same. The smallest go to the inputs that ``out``
    is computed from, so that its tokens fit; writes from the same inputs (layers of one decoder) share their sizes.
    """
    near = frozenset() if out is None else inputs_behind(view, out) - view.caches
    key = ("sizes", seed, near, run, multiple, len(view.caches))
    known: Sizes | None = view.kept.get(key)
    if known is None:
        known = view.kept[key] = _start_sizes(view, Sizes(seed, run, multiple), near)
        known.shrunk = shrunk_for(view, seed)
    return known


def _start_sizes(view: GraphView, sizes: Sizes, near: frozenset[int]) -> Sizes:
    elsewhere = {
        symbol_name(value, axis, dim)
        for value in view.graph.inputs
        if id(value) not in view.caches
        for axis, dim in enumerate(dims_of(value) or ())
        if not isinstance(dim, int)
    }
    roles: dict[Hashable, str] = {}
    for value in sorted(view.graph.inputs, key=lambda item: (id(item) not in near, -_tokens_dims(view, item))):
        dims = dims_of(value) or ()
        form = (dtype_name(value), tuple(dim if isinstance(dim, int) else None for dim in dims))
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                continue
            symbol = symbol_name(value, axis, dim)
            own = id(value) in view.caches and symbol not in elsewhere
            like = roles.setdefault((form, axis), symbol) if own else symbol
            # of three dims, a first one that alone is open counts rows, not pages
            large = own and (axis > 0 or (len(dims) == 3 and None not in form[1][1:]))
            sizes.add(symbol, large=large, like=like if like != symbol else "")
    return sizes


def _tokens_dims(view: GraphView, value: ir.Value) -> int:
    """Open dims of an input that is no cache. Batch and tokens of rows come before what is their product."""
    return 0 if id(value) in view.caches else sum(not isinstance(dim, int) for dim in dims_of(value) or ())


def inputs_behind(view: GraphView, value: ir.Value) -> frozenset[int]:
    """Ids of the graph inputs that a value is computed from."""
    if _BEHIND not in view.kept:
        view.kept[_BEHIND] = _input_masks(view)
    mask: int = view.kept[_BEHIND].get(id(value), 0)
    return frozenset(id(item) for place, item in enumerate(view.graph.inputs) if mask >> place & 1)


_BEHIND = "inputs behind"


def _input_masks(view: GraphView) -> dict[int, int]:
    """Value id -> a bit for each graph input behind it, for the whole graph in one pass."""
    masks = {id(item): 1 << place for place, item in enumerate(view.graph.inputs)}
    for node in view.graph:
        mask = 0
        for item in node.inputs:
            if item is not None:
                mask |= masks.get(id(item), 0)
        for output in node.outputs:
            masks[id(output)] = mask
    return masks


class Survey:
    """Shapes under one trial size, for questions about ranks; conflicts are settled as they come."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._probe = settle(view, 0, Numbers(64), (), start_sizes(view, 0))

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The shape of a value, None where it cannot be told."""
        self._probe = settle(self._view, 0, self._probe.numbers, [value], self._probe.sizes)
        return self._probe.shape(value)

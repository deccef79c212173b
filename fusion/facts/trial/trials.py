"""Trial sizes for facts that are not about one cache write: of a few values by themselves, or of the whole graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from fusion.facts.graph import GraphView, dims_of
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.trial.probe import Known, Numbers, Probe
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.sizes import Sizes

SEEDS = (0, 1)
FRESH_SEED = 5
"""Sizes that no fact is read under (the third row of the small sizes)."""
_INTEGERS = Numbers(64)


class LocalProbe(Probe):
    """A probe that takes the shapes of some values as given and does not look at what computes them."""

    def __init__(self, view: GraphView, seed: int, given: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__(view, seed, Sizes(seed), _INTEGERS)
        self._given = {key: Known(shape, None, True) for key, shape in given.items()}

    def _ready(self, value: ir.Value) -> Known | None:
        return self._given.get(id(value)) or super()._ready(value)

    def input_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        if any(not isinstance(dim, int) for dim in dims_of(value) or ()):
            raise Unsupported(f"{value.name} is not among the values whose sizes are chosen")
        return super().input_shape(value)


def with_ones(view: GraphView, probe: Probe, targets: Iterable[ir.Value] = ()) -> list[Probe]:
    """Probes under which one of the sizes that only broadcasting made equal is 1; none where names tell all sizes.

    Args:
        targets: values that the graph still has to compute.
    """
    key = ("ones", probe.seed, probe.numbers, probe.sizes.state())
    found: list[Probe] | None = view.kept.get(key)
    if found is None:
        found = view.kept[key] = [probe.resized(sizes) for sizes in probe.sizes.with_ones()]
    return [one for one in found if all(shape_under(one, target) is not None for target in targets)]


def shape_under(probe: Probe, value: ir.Value) -> tuple[int, ...] | None:
    """The shape of a value, None where the graph does not run at the sizes."""
    try:
        return probe.shape(value)
    except (Conflict, OutOfRange, Unsupported):
        return None


class Trials:
    """Probes of the whole graph, the same ones for everybody: what one question evaluates the next finds evaluated.

    Args:
        view: the graph.
        probes: probes that the cache writes were read under; they have evaluated most of the graph already.
    """

    def __init__(self, view: GraphView, probes: Sequence[Probe] = ()) -> None:
        self._view = view
        self._state: dict[int, tuple[Numbers, Sizes]] = {
            probe.seed: (probe.numbers, probe.sizes) for probe in probes if not probe.overrides
        }

    def probe(self, seed: int, targets: Iterable[ir.Value]) -> Probe | None:
        """A probe under which ``targets`` evaluate; None where that cannot be had."""
        numbers, sizes = self._state.get(seed) or (_INTEGERS, start_sizes(self._view, seed))
        try:
            probe = settle(self._view, seed, numbers, targets, sizes)
        except (OutOfRange, Unsupported, Conflict):
            return None
        self._state[seed] = (probe.numbers, probe.sizes)
        return probe

    def probes(self, targets: Sequence[ir.Value]) -> list[Probe]:
        """Two probes under which the shapes of ``targets`` are known; none where they are not."""
        found = [self.probe(seed, targets) for seed in SEEDS]
        known = [
            probe for probe in found if probe is not None and all(probe.shape(item) is not None for item in targets)
        ]
        return known if len(known) == len(SEEDS) else []

    def fresh(self, targets: Sequence[ir.Value]) -> Probe | None:
        """A probe at sizes that no fact was read under."""
        return self.probe(FRESH_SEED, targets)

    def same_shape(self, left: ir.Value, right: ir.Value) -> bool:
        """Whether two values have one shape, also where one could be broadcast to the other."""
        probes = self.probes([left, right])
        tried = [*probes, *(with_ones(self._view, probes[0]) if probes else ())]
        return bool(probes) and all(shape_under(probe, left) == shape_under(probe, right) for probe in tried)

    def shapes(self, value: ir.Value) -> list[tuple[int, ...]]:
        """The shape under each probe; empty where it is not known."""
        return [shape for probe in self.probes([value]) if (shape := probe.shape(value)) is not None]

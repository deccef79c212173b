"""What the frames of the operators that write two caches have in common: trial sizes, and dims told by values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.written import WrittenView
from fusion.facts.graph import GraphView
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.symbols.operand import Table
from fusion.facts.trial.probe import Numbers, Probe
from fusion.facts.trial.settle import settle, start_sizes
from fusion.facts.trial.sizes import Sizes
from fusion.facts.trial.trials import FRESH_SEED, with_ones
from fusion.rules import _cache_op as common
from fusion.rules._dims import dim_like


class CacheFrame(ABC):
    """A site of an operator that writes keys and values.

    Attributes:
        cos, sin: the tables.
        region: nodes between the sources and what is delivered; ``region_ids`` their ids.
    """

    EQUAL: ClassVar[str]
    """What the operator wants of the sizes of both caches, as a refusal says it."""

    view: GraphView
    emit: Emitter
    cos: Table
    sin: Table
    region: list[ir.Node]
    region_ids: set[int]

    @property
    @abstractmethod
    def writes(self) -> tuple[CacheWrite, CacheWrite]:
        """Of keys and of values."""

    @abstractmethod
    def feeds(self) -> list[ir.Value]:
        """The values at which the region begins."""

    @abstractmethod
    def own_probes(self) -> list[Probe]:
        """The trial sizes under which the site was read."""

    @abstractmethod
    def having(self) -> list[ir.Value]:
        """Values that have the operator's dims."""

    @abstractmethod
    def settled(self) -> list[ir.Value]:
        """Values beside the caches whose shapes a trial of the whole site tells."""

    @abstractmethod
    def unequal(self, probe: Probe, written: WrittenView | None) -> tuple[int, int] | None:
        """Two sizes that the operator wants equal and that are not yet; ``written`` where the write was read."""

    def stops(self) -> set[int]:
        """Ids of the values at which the region begins."""
        return {id(value) for value in self.feeds()}

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """A value's shape under the first probe."""
        return self.own_probes()[0].shape(value) or ()

    # dims -----------------------------------------------------------------------------------------------------------

    def sized(self) -> list[ir.Value]:
        """Values of the site of which a dim may be asked for."""
        return [*self.having(), self.cos.value]

    def dim(self, sizes: list[int], part: str) -> int | ir.Value | None:
        """A dim with these sizes under the probes: of a value of the site, else of a graph input."""
        values = [*self.sized(), *self.view.graph.inputs]
        return dim_like(self.emit, self.own_probes(), sizes, values, part, self.ones())

    # trial sizes ----------------------------------------------------------------------------------------------------

    def ones(self) -> list[Probe]:
        """Trial sizes of 1 where only broadcasting makes sizes equal."""
        return with_ones(self.view, self.own_probes()[0], [write.out for write in self.writes])

    def probes(self) -> list[Probe]:
        """Trial sizes under which both caches have the shapes that the operator wants of them."""
        return [
            self._fitted(item.probe.seed, item.probe.numbers, item.probe.sizes, item) for item in self.writes[0].probes
        ]

    def fresh_probe(self) -> Probe | None:
        """A trial size that no fact was read under: a number mistaken for static shows there. None when none fits."""
        write = self.writes[0]
        sizes = start_sizes(self.view, FRESH_SEED, write.out)
        try:
            probe = self._fitted(FRESH_SEED, write.probes[0].probe.numbers, sizes)
        except (Refused, Conflict, OutOfRange, Unsupported):
            return None
        return probe if common.slots_are_distinct(probe, write) else None

    def _fitted(self, seed: int, numbers: Numbers, sizes: Sizes, written: WrittenView | None = None) -> Probe:
        """A probe for both writes and all sources, caches made equal."""
        key, value = self.writes
        targets = [key.out, value.out, key.cache, value.cache, *self.settled()]
        while True:
            probe = settle(self.view, seed, numbers, targets, sizes)
            unequal = self.unequal(probe, written)
            within = common.fitting(numbers, probe, [key, value])
            if unequal is None and within is numbers:
                return probe
            numbers = within
            sizes = probe.sizes.copy()
            if unequal is not None and not sizes.unify(*unequal):
                raise Refused(
                    "kv-sizes-differ", self.EQUAL, f"sizes {unequal[0]} and {unequal[1]}", "equal sizes",
                    "give both caches one shape", value.cache,
                )  # fmt: skip

"""All facts of a graph that the rules join."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fusion.facts.caches.cache_write import CacheWrite
from fusion.facts.caches.rows import Row
from fusion.facts.caches.sharing import SharedRows, read_writes
from fusion.facts.caches.write_map import NotAWrite
from fusion.facts.graph import GraphView
from fusion.facts.norms.norm import NormFact, find_norms
from fusion.facts.rotary.rotations import Rotations
from fusion.facts.spine import find_spines
from fusion.facts.standing import Standing
from fusion.facts.symbols.parameters import Reason
from fusion.facts.trial.large_caches import find_large
from fusion.facts.trial.settle import Survey
from fusion.facts.trial.trials import Trials


@dataclass
class Facts:
    """Norms, cache writes, and what the written rows are.

    Attributes:
        norms: id of a normalised value -> its norm.
        rows: the rows of each write in the order of ``writes``; a Reason where they have no known meaning.
        others: outputs that carry a cache on without an in-place write.
        trials: probes of the whole graph.
        rotations: rotations anywhere, found when asked for.
        standing: what is still computed once the fusions accepted so far are in the graph.
    """

    view: GraphView
    norms: dict[int, NormFact]
    writes: list[CacheWrite]
    rows: list[Row | Reason]
    others: list[NotAWrite]
    trials: Trials
    rotations: Rotations
    standing: Standing = field(default_factory=Standing)

    def left(self) -> Facts:
        """The facts about what accepted fusions leave."""
        stands = self.standing.stands
        written = [
            (write, row)
            for write, row in zip(self.writes, self.rows, strict=True)
            if not self.standing.is_replaced(write.out)
        ]
        return replace(
            self,
            norms={key: norm for key, norm in self.norms.items() if stands(norm.y)},
            writes=[write for write, _ in written],
            rows=[row for _, row in written],
            others=[other for other in self.others if not self.standing.is_replaced(other.out)],
        )

    def layer(self, write: CacheWrite | NotAWrite) -> int | None:
        return self.view.layer_of(write.cache, write.out)


def analyse(view: GraphView) -> Facts:
    """Reads all facts of a graph whose functions are inlined."""
    spines = find_spines(view)
    find_large(view, spines)
    norms = {id(norm.y): norm for norm in find_norms(view, Survey(view))}
    found = read_writes(view, spines)
    writes = [item for item in found if isinstance(item, CacheWrite)]
    others = [item for item in found if isinstance(item, NotAWrite)]
    trials = Trials(view, [item.probe for item in writes[0].probes] if writes else ())
    rows = SharedRows(view, norms)
    read = [rows.read(write) for write in writes]
    return Facts(view, norms, writes, read, others, trials, Rotations(view, trials))

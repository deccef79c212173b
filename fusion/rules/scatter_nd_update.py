"""ScatterNdUpdate: one cache written by page and row, or by batch entry and row.

What is left when no larger operator takes a write: a paged cache without a partner, and caches by batch entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory, Refused
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.facts.caches.cache_write import CacheWrite
from fusion.result import Refusal
from fusion.rules import _cache_op as common
from fusion.rules import _scatter as scatter
from fusion.rules._scatter import Leftover
from fusion.rules._scatter_slots import match_each, page_tuples, row_tuples

OP = "ScatterNdUpdate"
FORMS = ("pages", "rows", "nz", "starts")


class ScatterNdUpdateRule:
    """See the module's text."""

    op = OP
    size = 1

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        inputs = list(facts.view.graph.inputs)

        def operands(emit: Emitter, item: Leftover) -> Sequence[ir.Value | None]:
            return _own(item.write) or [item.write.cache, _tuples(emit, item, inputs), _updates(emit, item)]

        return match_each(facts, new_emitter, OP, self.size, FORMS, operands)


RULE = ScatterNdUpdateRule()


def _own(write: CacheWrite) -> list[ir.Value | None]:
    """The operands of the one ScatterND on the cache itself, whose indices do not count from the end."""
    node = write.spine.nodes[0]
    if len(write.spine.nodes) != 1 or node.op_type != "ScatterND" or node.inputs[1] is None:
        return []
    known = [item.probe.array(node.inputs[1]) for item in write.probes]
    return list(node.inputs) if all(array is not None and (array >= 0).all() for array in known) else []


def _tuples(emit: Emitter, item: Leftover, inputs: list[ir.Value]) -> ir.Value:
    form = scatter.form_of(item.write)
    if form == "rows":
        return row_tuples(emit, item, inputs)
    if form == "pages":
        return page_tuples(emit, item.write)
    found = "rows cut into fractals and no partner" if form == "nz" else "starts of pages"
    raise Refused(
        "write-layout", f"rows of {item.write.cache.name} are whole and numbered one by one",
        f"{found}: {common.slots_text(item.write)}", "a slot for each row of a plain cache",
        "write key and value with one slot mapping" if form == "nz" else "write by slot", item.write.out,
    )  # fmt: skip


def _updates(emit: Emitter, item: Leftover) -> ir.Value:
    """Rows as the tuples name them: without a head axis where the cache has none."""
    rows = scatter.token_rows(emit, item, "updates")
    return rows if item.rank == 4 else emit.reshape(rows, [-1, item.width], "rows_of_cache")

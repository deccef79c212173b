"""ScatterUpdate: rows of a cache without pages, ``[slots, N, D]``, written by slot."""

from __future__ import annotations

import onnx_ir as ir

from fusion.candidate import Candidate, EmitterFactory
from fusion.emit import Emitter
from fusion.facts.analysis import Facts
from fusion.result import Refusal
from fusion.rules import _cache_op as common
from fusion.rules._scatter import Leftover, token_rows
from fusion.rules._scatter_slots import match_each

OP = "ScatterUpdate"


class ScatterUpdateRule:
    """See the module's text."""

    op = OP
    size = 2

    def match(self, facts: Facts, new_emitter: EmitterFactory) -> tuple[list[Candidate], list[Refusal]]:
        return match_each(facts, new_emitter, OP, self.size, ["flat"], _operands)


RULE = ScatterUpdateRule()


def _operands(emit: Emitter, item: Leftover) -> list[ir.Value | None]:
    return [item.write.cache, common.flat_index(emit, item.write), token_rows(emit, item, "updates")]

"""Fusing and taking fused models apart as ``onnx_ir`` passes, to be chained with others.

ir.passes.Sequential(FusionPass(product="A3"), RemoveUnusedOpsetsPass())(model).model
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from fusion.api import check_options, fuse
from fusion.defusing import defuse
from fusion.result import FusionResult
from fusion.surgery.packing import Pack


class FusionPass(ir.passes.FunctionalPass):
    """:func:`fusion.fuse` as a pass: returns a new model and leaves its input as it was.

    Args:
        product, only, strict_slots, functions, pack: as of :func:`fusion.fuse`.

    Attributes:
        result: sites, refusals and timings of the last call; None before the first.

    Raises:
        BadUsage: an unknown product or operator name, when the pass is made.
        BadModel: the model of a call is not valid.
    """

    def __init__(
        self,
        *,
        product: str = "generic",
        only: Sequence[str] = (),
        strict_slots: bool = False,
        functions: bool = True,
        pack: Pack = "auto",
    ) -> None:
        super().__init__()
        check_options(product, only, strict_slots, pack)
        self.pack: Pack = pack
        self.product, self.only, self.strict_slots, self.functions = product, only, strict_slots, functions
        self.result: FusionResult | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.result = fuse(
            model,
            product=self.product,
            only=self.only,
            strict_slots=self.strict_slots,
            functions=self.functions,
            pack=self.pack,
        )
        return ir.passes.PassResult(_ir(self.result), modified=bool(self.result.sites))


class DefusePass(ir.passes.FunctionalPass):
    """:func:`fusion.defuse` as a pass: returns a new model in standard operators and leaves its input as it was.

    Attributes:
        result: operator counts and notes of the last call; None before the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.result: FusionResult | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.result = defuse(model)
        return ir.passes.PassResult(_ir(self.result), modified=self.result.ops_before != self.result.ops_after)


def _ir(result: FusionResult) -> ir.Model:
    """A result has the kind of model that was given."""
    assert isinstance(result.model, ir.Model)
    return result.model

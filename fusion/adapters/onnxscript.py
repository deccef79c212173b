"""kvfuse in onnxscript: fusing as a rewrite rule set, and the fused operators as an opset for onnxscript functions.

    onnxscript.rewriter.rewrite(model, FusionRules())

    @onnxscript.script(ascend)
    def normed(x, gamma):
        y, rstd = ascend.RmsNorm(x, gamma)
        return y

Needs ``pip install kvfuse[onnxscript]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.values import Opset

from fusion.api import check_options, fuse_in_place
from fusion.model_io import check_ir
from fusion.result import Refusal, Site
from ir_ops.errors import BadUsage
from ir_ops.onnx_schema import register_onnx_schemas
from ir_ops.ops import DOMAIN, DOMAIN_VERSION

register_onnx_schemas()

ascend = Opset(DOMAIN, DOMAIN_VERSION)
"""The operators of ``ai.ascend`` for onnxscript functions."""


class FusionRules(RewriteRuleSet):
    """All fusions as one rule set for ``onnxscript.rewriter.rewrite`` and ``RewritePass``; it changes the model itself.

    Args:
        product, only, strict_slots, functions: as of :func:`fusion.fuse`.

    Attributes:
        sites, refusals: of the last model.

    Raises:
        BadUsage: an unknown product or operator name, when the rule set is made.
    """

    def __init__(
        self, *, product: str = "generic", only: Sequence[str] = (), strict_slots: bool = False, functions: bool = True
    ) -> None:
        self.rules: list[Any] = []  # of onnxscript's own there are none
        self.remove_unused_nodes = False
        self._options, self._functions = check_options(product, only, strict_slots), functions
        self.sites: list[Site] = []
        self.refusals: list[Refusal] = []

    def __repr__(self) -> str:
        return f"FusionRules({self._options})"

    def apply_to_model(self, model: ir.Model, *, verbose: int | None = None, tracer: Any = None) -> int:
        """Fuses; returns the number of sites.

        Raises:
            BadModel: the model is not valid.
            BadUsage: a tracer is given; ``refusals`` tell what it would.
        """
        if tracer is not None:
            raise BadUsage("fusions are not traced", found="a tracer", wanted="none; read refusals instead")
        check_ir(model)
        self.sites, found = fuse_in_place(model, self._options, functions=self._functions)
        self.refusals = found.refusals
        if verbose:
            for site in self.sites:
                print(f"{site.op}: {site.place}")
        return len(self.sites)

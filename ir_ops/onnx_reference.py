"""The operators for ``onnx.reference``: ``ReferenceEvaluator(model, new_ops=reference_ops())``."""

from __future__ import annotations

from typing import Any

from onnx.reference.op_run import OpRun

from ir_ops.declaration import Operator
from ir_ops.dtypes import Array
from ir_ops.ops import DOMAIN, OPS


def reference_ops() -> list[type[OpRun]]:
    """One evaluator class for each operator, computing :meth:`ir_ops.declaration.Operator.reference`.

    bfloat16 and float8 tensors are ml_dtypes arrays. A call that breaks the contract raises ``BadInput``.
    """
    return [_evaluator(operator) for operator in OPS.values()]


def _evaluator(op: Operator) -> type[OpRun]:
    def run(self: OpRun, *inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
        given = {entry.name: value for entry, value in zip(op.inputs, inputs, strict=False) if value is not None}
        results = op.reference(given, attrs)
        return tuple(results[entry.name] for entry in op.outputs[: len(self.onnx_node.output)])

    return type(op.name, (OpRun,), {"op_domain": DOMAIN, "_run": run, "__doc__": op.doc, "__module__": __name__})

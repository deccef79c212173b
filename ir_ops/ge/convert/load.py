"""Bringing an ONNX model into the form that is converted: one graph, no functions, constants as initializers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common as passes

from ir_ops.alternatives import settled
from ir_ops.errors import BadModel, BadUsage
from ir_ops.ge.model import Shape
from ir_ops.ge.tensor import as_dims
from ir_ops.ops import DOMAIN, OPS

Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model
OLDEST_OPSET = 11
InputShapes = Mapping[str, Sequence[int]]


def load(source: Source, notes: list[str]) -> ir.Model:
    """A private copy of the model, ready for conversion; weights stay where they are.

    Local functions of the declared operators are dropped (the operators themselves are exported), all others inlined.
    Of branches that mean the same one is taken (:mod:`ir_ops.alternatives`).

    Args:
        notes: gets what the user has to know.

    Raises:
        BadModel: no such file, not an ONNX model, an opset before 11 or newer than the installed onnx, or functions
            that cannot be inlined.
    """
    model = _model(source)
    _check_opset(model)
    for key in [key for key in model.functions if key[0] == DOMAIN and key[1] in OPS]:
        del model.functions[key]
    notes += [f"both branches mean the same, the else_branch is exported: {why}" for why in settled(model.graph)]
    try:
        for step in (
            passes.InlinePass(),
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            passes.IdentityEliminationPass(),
            passes.RemoveUnusedNodesPass(),
            passes.TopologicalSortPass(),
        ):
            model = step(model).model
    except (ir.passes.PassError, ValueError, TypeError) as error:
        raise BadModel(
            "the model cannot be prepared for export", where=model.graph.name or "", found=str(error)
        ) from None
    return model


def _check_opset(model: ir.Model) -> None:
    newest, found = onnx.defs.onnx_opset_version(), opset(model, "")
    if not OLDEST_OPSET <= found <= newest:
        raise BadModel("the model's opset is not known", where=model.graph.name or "", found=str(found),
                       wanted=f"{OLDEST_OPSET} to {newest}")  # fmt: skip


def _model(source: Source) -> ir.Model:
    if isinstance(source, ir.Model):
        return source.clone()
    if isinstance(source, onnx.ModelProto):
        try:
            return ir.from_proto(source)
        except ir.serde.SerdeError as error:
            raise BadModel("not a valid ONNX model", where=source.graph.name, found=_reason(error)) from None
    path = Path(source)
    if not path.is_file():
        raise BadModel("no such file", where=str(source))
    try:
        return ir.load(path)
    except (DecodeError, ir.serde.SerdeError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadModel("not an ONNX model", where=str(source), found=_reason(error)) from None


def _reason(error: BaseException) -> str:
    """What an error began with, in a line: the reader wraps it once for every level of the file."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]


def opset(model: ir.Model, domain: str) -> int:
    """The version under which the model imports a domain, 1 when it does not."""
    return int(model.opset_imports.get(domain, model.opset_imports.get("ai.onnx", 1) if not domain else 1))


def plain_domain(domain: str) -> str:
    """The default domain under its one name."""
    return "" if domain == "ai.onnx" else domain


def attributes(node: ir.Node) -> dict[str, Any]:
    """A node's attributes as Python values."""
    return {name: attr.value for name, attr in node.attributes.items() if attr.value is not None}


def input_shapes(model: ir.Model, fixed: InputShapes | None) -> dict[str, Shape | None]:
    """Dims of every graph input, -1 where they vary. A dim fixed at one input is fixed wherever its name occurs.

    Raises:
        BadUsage: an input that does not exist, another rank, or a contradiction.
    """
    names = [value.name or "" for value in model.graph.inputs]
    for name in fixed or {}:
        if name not in names:
            raise BadUsage("no such graph input", where="input_shapes", found=name, wanted=", ".join(names))
    bound: dict[str, int] = {}
    given = {name: _given(dims, name) for name, dims in (fixed or {}).items()}
    for value in model.graph.inputs:
        wanted = given.get(value.name or "")
        if wanted is not None:
            _bind(value, wanted, bound)
    return {value.name or "": _dims(value, given.get(value.name or ""), bound) for value in model.graph.inputs}


def _given(dims: Sequence[int], name: str) -> Shape:
    where = f"input_shapes {name}"
    found = as_dims(dims, where)
    if any(dim < -1 for dim in found):
        raise BadUsage("a dim that is none", where=where, found=str(list(found)), wanted="1 or more, or -1 (varies)")
    return found


def _bind(value: ir.Value, wanted: Shape, bound: dict[str, int]) -> None:
    where = f"input_shapes {value.name}"
    if value.shape is None:
        return
    if len(value.shape) != len(wanted):
        raise BadUsage("another rank", where=where, found=str(list(wanted)), wanted=str(value.shape))
    for declared, dim in zip(value.shape, wanted, strict=True):
        if isinstance(declared, int):
            if dim not in (declared, -1):
                raise BadUsage("another dim than the model fixes", where=where, found=str(dim), wanted=str(declared))
        elif declared.value is not None and dim >= 0 and bound.setdefault(declared.value, dim) != dim:
            raise BadUsage(
                f"dim {declared.value} has two values", where=where, found=f"{bound[declared.value]} and {dim}"
            )


def _dims(value: ir.Value, fixed: Shape | None, bound: Mapping[str, int]) -> Shape | None:
    if fixed is not None:
        dims = fixed
    elif value.shape is None:
        return None
    else:
        dims = tuple(dim if isinstance(dim, int) else bound.get(dim.value or "", -1) for dim in value.shape)
    if fixed is not None and 0 in dims:
        raise BadUsage(
            "GE takes no empty input", where=value.name or "", found=str(list(dims)), wanted="dims of 1 or more, or -1"
        )
    return dims

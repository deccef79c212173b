"""Running a model in ONNX Runtime for verification: plain, or with the kvfuse kernels, or widened to float32.

`onnxruntime` and `custom_ort` are imported when a model is first opened, never before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir

from fusion.model_io import ModelLike, to_proto
from fusion.widen import has_bfloat16, widened
from ir_ops.dtypes import Array, DType, by_name
from ir_ops.errors import BadInput, BadModel, KvfuseError
from ir_ops.ops import DOMAIN

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_SILENT = 4
_FLOAT32, _INT8 = 1, 4
"""Accuracy levels of MatMulNBits: what it multiplies the weights' numbers with."""
UNROUNDED = "; MatMulNBits takes the activations as they are, without rounding them to 8 bits, in both"
"""Of a comparison of models that :func:`unrounded` changed."""


@dataclass
class Runner:
    """A model in a session.

    Attributes:
        where: what messages call the model.
        session: the `onnxruntime.InferenceSession`.
        kernels: whether the kvfuse kernels are registered in it.
        wide: whether every bfloat16 was widened to float32, because the runtime has no kernels for it.
        rounded: whether nodes without bfloat16 kernels are computed in float32 and their outputs rounded.
        types, shapes: of each input, as the model declares them; sizes that are not int are dynamic.
        outputs: names in graph order.
    """

    where: str
    session: Any
    kernels: bool
    wide: bool = False
    rounded: bool = False
    types: dict[str, DType] = field(init=False)
    shapes: dict[str, list[Any]] = field(init=False)
    outputs: list[str] = field(init=False)

    def __post_init__(self) -> None:
        from custom_ort.sessions import dtype_of

        inputs = self.session.get_inputs()
        self.types = {item.name: by_name(dtype_of(item)) for item in inputs}
        self.shapes = {item.name: item.shape for item in inputs}
        self.outputs = [item.name for item in self.session.get_outputs()]

    def prepare(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Checks feeds against the model's inputs; converts floats where that loses nothing (bfloat16 kept as float32).

        Raises:
            BadInput: an input is missing, unknown, or of another type or shape.
        """
        unknown, absent = sorted(set(feeds) - set(self.types)), sorted(set(self.types) - set(feeds))
        if unknown or absent:
            raise BadInput(
                "the inputs do not fit the model",
                where=self.where,
                found=f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(absent)}",
                wanted=", ".join(self.types),
            )
        return {name: self._fitting(name, np.asarray(feeds[name])) for name in self.types}

    def _fitting(self, name: str, value: Array) -> Array:
        wanted, shape = self.types[name], self.shapes[name]
        if len(shape) != value.ndim or any(
            isinstance(size, int) and size != given for size, given in zip(shape, value.shape, strict=True)
        ):
            raise BadInput("an input has a wrong shape", where=name, found=str(list(value.shape)), wanted=str(shape))
        assert wanted.np is not None
        if value.dtype == wanted.np:
            return value
        if wanted.is_float and (value.dtype.kind == "f" or "float" in value.dtype.name):
            cast = value.astype(wanted.np)
            same = cast.astype(np.float64) == value.astype(np.float64)
            if bool((same | np.isnan(cast.astype(np.float64))).all()) or self.wide:
                return cast
        raise BadInput("an input has a wrong type", where=name, found=str(value.dtype), wanted=wanted.name)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model on feeds as `prepare` gives them.

        Raises:
            BadInput: the runtime or an operator refuses the run.
        """
        import custom_ort

        return custom_ort.run(self.session, feeds)


def open_model(
    model: ModelLike, *, kernels: bool, folder: Path | None = None, bf16: Literal["widen", "round"] = "widen"
) -> Runner:
    """A session for ``model``, also where the runtime lacks bfloat16 kernels for it.

    Args:
        model: path, ModelProto or ir.Model.
        kernels: register the kvfuse kernels (needed for fused models without function bodies).
        folder: where a ModelProto's external weights lie.
        bf16: what then happens: every bfloat16 becomes float32, or every node's output is rounded to bfloat16.

    Raises:
        BadModel: the runtime refuses the model.
    """
    where = str(model) if isinstance(model, (str, os.PathLike)) else "the model"
    try:
        return Runner(where, _session(model, kernels, folder), kernels)
    except KvfuseError:
        raise
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise _refused(where, error) from None
        proto = _whole(model, folder)
        if not has_bfloat16(proto):
            raise _refused(where, error) from None
    try:
        if bf16 == "round":
            from custom_ort.bfloat16 import with_rounding

            return Runner(
                where, _session(with_rounding(proto, kernels=kernels)[0], kernels, None), kernels, rounded=True
            )
        return Runner(where, _session(widened(proto), kernels, None), kernels, wide=True)
    except Exception as error:
        raise _refused(where, error) from None


def _refused(where: str, error: Exception) -> BadModel:
    found = str(error).splitlines()[0]
    bare = "not a registered function/op" in found and f"{DOMAIN}:" in found
    hint = "a fused model without function bodies runs with the kvfuse kernels only" if bare else ""
    return BadModel("ONNX Runtime does not load the model", where=where, found=found, hint=hint)


def unrounded(model: ir.Model) -> bool:
    """Lets MatMulNBits take activations as they are; whether one of them would have rounded them to 8 bits.

    Where two right spellings differ in the last bit, a rounded activation may be another step: that says nothing.
    """
    found = False
    for node in model.graph.all_nodes():
        level = node.attributes.get("accuracy_level") if node.op_type == "MatMulNBits" else None
        if level is not None and level.as_int() == _INT8:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", _FLOAT32)
            found = True
    return found


def options_for(folder: Path | None) -> Any:
    """Quiet ``onnxruntime.SessionOptions`` for a model from memory whose external weights lie in ``folder``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    if folder is not None:
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
    return options


def _session(model: ModelLike, kernels: bool, folder: Path | None) -> Any:
    import onnxruntime

    options = options_for(None if isinstance(model, (str, os.PathLike)) else folder)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if kernels:
        import custom_ort

        custom_ort.register(options)
    if isinstance(model, (str, os.PathLike)):
        return onnxruntime.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
    content = _proto(model).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _proto(model: onnx.ModelProto | ir.Model) -> onnx.ModelProto:
    return to_proto(model) if isinstance(model, ir.Model) else model


def _whole(model: ModelLike, folder: Path | None) -> onnx.ModelProto:
    """The model with its external weights inside."""
    if isinstance(model, (str, os.PathLike)):
        return onnx.load_model(os.fspath(model))
    proto = onnx.ModelProto()
    proto.CopyFrom(_proto(model))
    if folder is not None:
        onnx.external_data_helper.load_external_data_for_model(proto, str(folder))
    return proto

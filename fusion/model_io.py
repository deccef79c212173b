"""Reading and writing ONNX models without touching weights that do not change.

Reading never opens an external weight file: the tensors stay references (`onnx_ir.ExternalTensor`), mapped when
somebody asks for their values. Writing puts the new file beside its target and renames it, and keeps every reference
valid:

* ``weights="share"``: references go on pointing at the files they came from. Runtimes accept only weights inside the
  model's own folder, so this works where the output's folder holds the weights; elsewhere it is refused rather than
  written broken.
* ``weights="copy"``: all external weights are streamed, tensor by tensor, into one file beside the output.

New tensors stay inside the model file while they are small, else they go to that file too: protobuf ends at 2 GiB.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from fusion.external import (
    Slot,
    anchor_weights,
    as_spelled,
    exchanged,
    free_name,
    guard_weights,
    shared,
    slots,
    write_weights,
)
from fusion.folding import Folded, fold
from fusion.model_check import check_proto
from fusion.packed import stored_outside
from ir_ops.errors import BadModel, BadUsage
from ir_ops.files import replacing

ModelLike = str | os.PathLike[str] | onnx.ModelProto | ir.Model
Weights = Literal["share", "copy"]

PROTOBUF_LIMIT = 2**31 - 1
INLINE_LIMIT = 1800 * 2**20
"""Bytes of new tensors that may stay inside the model file."""
INLINE_LIMIT_BESIDE_EXTERNAL = 64 * 2**20
"""The same for a model that keeps its weights outside anyway."""
_SMALL = 4096


@dataclass
class Loaded:
    """A model ready to be worked on.

    Attributes:
        model: an `onnx_ir` model of our own; changing it does not change what was given.
        kind: ``path``, ``proto`` or ``ir``: what was given, and what a result should be.
        path: the file, when a path was given.
        folder: where relative weights lie; None when unknown (a ModelProto names no folder).
        notes: sentences for the user about oddities.
        proto: what the file holds, when a path was given; not to be changed.
        folded: what ``model`` was made of, when experts that are alike are in it once.
    """

    model: ir.Model
    kind: Literal["path", "proto", "ir"]
    path: Path | None = None
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)
    proto: onnx.ModelProto | None = None
    folded: Folded | None = None

    def as_given(self, model: ir.Model | None = None) -> onnx.ModelProto | ir.Model:
        """``model`` (default: the loaded one) in the form the input had: an ir.Model, else a ModelProto."""
        model = self.model if model is None else model
        return model if self.kind == "ir" else to_proto(model)


@dataclass(frozen=True)
class Saved:
    """What `save` wrote: the model's file, the weight file beside it (None: none written), and notes for the user."""

    proto: onnx.ModelProto
    path: Path
    data: Path | None
    notes: tuple[str, ...] = ()


# --- reading ---------------------------------------------------------------------------------------------------------


def load(model: ModelLike, *, folder: str | os.PathLike[str] | None = None, fold_experts: bool = False) -> Loaded:
    """Reads a model from a file, or takes one from memory, and checks that it is whole.

    Args:
        model: path of an ONNX file, a ModelProto, or an ir.Model. Models from memory are copied (tensors of an
            ir.Model are shared), so that the caller's object does not change.
        folder: where a ModelProto's external weights lie.
        fold_experts: leave out experts that are like another one: for finding, not for writing. An ir.Model is read as
            it is.

    Raises:
        BadModel: missing, cut off, not ONNX, or structurally wrong; one line.
        BadUsage: something else than a model was given.
    """
    if isinstance(model, ir.Model):
        return _load_ir(model)
    if isinstance(model, onnx.ModelProto):
        proto, path, base = onnx.ModelProto(), None, None if folder is None else Path(folder)
        proto.CopyFrom(model)
    else:
        path = _path(model)
        proto, base = _read(path), path.parent
    where = str(path) if path is not None else proto.graph.name or "model"
    findings = check_proto(proto, where, base)
    folded = fold(proto, findings.names) if fold_experts and not findings.unsorted else None
    findings.names.clear()
    result = _deserialized(proto if folded is None else folded.model, where)
    loaded = Loaded(result, "proto", None, base, findings.notes, folded=folded)
    if path is not None:
        loaded.kind, loaded.path, loaded.proto = "path", path, proto
    if base is not None:
        loaded.notes += anchor_weights(loaded.model, base, findings.locations if folded is not None else ())
    if findings.unsorted:
        _sort(result, where)
        loaded.notes.append("the graph was not in topological order; it has been sorted")
    return loaded


def _path(model: str | os.PathLike[str]) -> Path:
    try:
        return Path(model)
    except TypeError:
        found, wanted = f"{type(model).__name__} object", "a path, onnx.ModelProto or onnx_ir.Model"
        raise BadUsage("not a model", found=found, wanted=wanted) from None


def _load_ir(model: ir.Model) -> Loaded:
    check_ir(model)
    copy = model.clone()
    _sort(copy, _name(model))
    return Loaded(copy, "ir")


def _name(model: ir.Model) -> str:
    return str(model.graph.name or "model")


def check_ir(model: ir.Model) -> None:
    """Whether there is something to work on.

    Raises:
        BadModel: no nodes, no outputs, or an output that nothing produces.
    """
    if not len(model.graph):
        raise BadModel("the graph is empty", where=_name(model), found="no nodes", wanted="a decoder graph")
    if not model.graph.outputs:
        raise BadModel("the graph has no outputs", where=_name(model))
    for value in model.graph.outputs:
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            raise BadModel("a graph output is produced by nothing", where=_name(model), found=repr(value.name))


def _sort(model: ir.Model, where: str) -> None:
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError:
        raise BadModel("the graph has a cycle", where=where, wanted="a graph without cycles") from None


@contextmanager
def without_collector() -> Iterator[None]:
    """Working on a hundred thousand nodes makes no garbage; looking for it all the while costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _deserialized(proto: onnx.ModelProto, where: str) -> ir.Model:
    try:
        with without_collector():
            return ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        cause = error.__cause__ or error
        raise BadModel("the model is not valid", where=where, found=str(cause).splitlines()[0]) from None


def _read(path: Path) -> onnx.ModelProto:
    """The file's protobuf, external weights left alone."""
    where = str(path)
    try:
        if path.is_dir():
            raise BadModel("a folder, not a file", where=where, wanted="an ONNX file")
        size = path.stat().st_size
        if not size:
            raise BadModel("the file is empty", where=where, wanted="an ONNX model")
        if size > PROTOBUF_LIMIT:
            raise BadModel(
                "the file is larger than protobuf can read",
                where=where,
                found=f"{size} bytes",
                wanted="at most 2 GiB",
                hint="save its weights as external data",
            )
        return onnx.load_model(where, load_external_data=False)
    except FileNotFoundError:
        raise BadModel("no such file", where=where) from None
    except OSError as error:
        raise BadModel("the file cannot be read", where=where, found=error.strerror or str(error)) from None
    except DecodeError:
        raise BadModel(*_why_undecodable(path), where=where, wanted="an ONNX model") from None
    except BadModel:
        raise
    except Exception as error:  # the text formats (.json, .textproto, .onnxtxt) raise parsers' own errors
        raise BadModel(
            "the file cannot be parsed",
            where=where,
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
        ) from None


def _why_undecodable(path: Path) -> tuple[str]:
    """Tells a model that was cut off from a file that never was one, by walking the outermost protobuf fields."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(1) != b"\x08":  # ModelProto.ir_version comes first in every ONNX file
            return ("not an ONNX model",)
        file.seek(0)
        while file.tell() < size:
            key = _varint(file)
            kind = key & 7
            length = _varint(file) if kind in (0, 2) else {1: 8, 5: 4}.get(kind, -1)
            if length < 0 or key >> 3 > 40:
                return ("not an ONNX model",)
            step = 0 if kind == 0 else length
            if file.tell() + step > size:
                return (f"the file is cut off, {file.tell() + step - size} bytes are missing",)
            file.seek(step, os.SEEK_CUR)
    return ("the file is damaged inside",)


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            break
    return value


# --- writing ---------------------------------------------------------------------------------------------------------


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """``model`` as a ModelProto whose weight references are spelled as in the model it came from."""
    with exchanged(model, as_spelled(model)), without_collector():
        return ir.serde.serialize_model(model)


def save(
    model: ir.Model | onnx.ModelProto,
    out: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    weights: Weights = "share",
    inline_limit: int | None = None,
) -> Saved:
    """Writes ``model`` to ``out``, complete or not at all.

    Args:
        model: the model; it is not changed.
        out: file to write or replace. It may be the file the model was read from.
        folder: where the weights of a ModelProto lie (for an ir.Model its tensors know).
        weights: ``share`` keeps references to existing weight files, ``copy`` streams them into ``OUT.data``.
        inline_limit: bytes of new tensors that may stay in the model file; default 1.8 GiB, beside external weights
            64 MiB.

    Raises:
        BadUsage: ``share`` cannot be expressed from ``out``'s folder, or ``out`` is one of the weight files.
        BadModel: the model without its weights is larger than 2 GiB.
    """
    if weights not in ("share", "copy"):
        raise BadUsage("unknown way to treat weights", found=repr(weights), wanted="'share' or 'copy'")
    target = Path(out)
    if isinstance(model, onnx.ModelProto):
        base = None if folder is None else Path(folder)
        loaded = Loaded(ir.serde.deserialize_model(model), "proto", folder=base)
        if base is not None:
            loaded.notes += anchor_weights(loaded.model, base)
        model = loaded.model
    found = list(slots(model))
    external = [slot.tensor for slot in found if isinstance(slot.tensor, ir.ExternalTensor)]
    read = [source for slot in found for source in stored_outside(slot.tensor)]
    guard_weights(target, read)
    to_write: list[ir.TensorProtocol] = list(external) if weights == "copy" else []
    to_write += _too_large(found, inline_limit, beside_external=bool(external))
    replaced, notes = shared(external, target) if weights == "share" else ({}, [])
    data = free_name(target, read) if to_write else None
    with ExitStack() as files:
        part = files.enter_context(replacing(target))
        if data is not None:
            # Entered last, so renamed first: the model file appears when everything it refers to is in place.
            replaced |= write_weights(to_write, files.enter_context(replacing(data)), data.name)
        with exchanged(model, replaced), without_collector():
            proto = ir.serde.serialize_model(model)
        _write_proto(proto, part, target)
    return Saved(proto, target, data, tuple(dict.fromkeys(notes)))


def check_target(out: str | os.PathLike[str]) -> None:
    """Refuses an output that could not be written, before time is spent on making it.

    Raises:
        BadUsage: its folder does not exist or is not writeable, or a folder stands in its place.
    """
    target = Path(out)
    if not target.parent.is_dir():
        raise BadUsage("no such folder to write to", where=str(target), hint=f"create {target.parent} first")
    if target.is_dir():
        raise BadUsage("a folder stands where the file should go", where=str(target))
    if not os.access(target.parent, os.W_OK):
        raise BadUsage("cannot write", where=str(target), found=f"no permission in {target.parent}")


def _write_proto(proto: onnx.ModelProto, part: Path, target: Path) -> None:
    if proto.ByteSize() > PROTOBUF_LIMIT:
        raise BadModel(
            "the model is larger than protobuf can write",
            where=str(target),
            found=f"{proto.ByteSize()} bytes",
            wanted="at most 2 GiB",
        )
    part.write_bytes(proto.SerializeToString())


def _too_large(slots: list[Slot], limit: int | None, *, beside_external: bool) -> list[ir.TensorProtocol]:
    """New tensors that must leave the model file: all but the small ones, once they exceed the limit together.

    What is made of external weights goes outside in any case: it is streamed there.
    """
    if limit is None:
        limit = INLINE_LIMIT_BESIDE_EXTERNAL if beside_external else INLINE_LIMIT
    inside = [
        s.tensor for s in slots if s.initializer and not isinstance(s.tensor, (ir.ExternalTensor, ir.StringTensor))
    ]
    over = sum(tensor.nbytes for tensor in inside) > limit
    return [tensor for tensor in inside if tensor.nbytes >= _SMALL and (over or stored_outside(tensor))]

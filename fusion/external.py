"""References to weight files: finding them in a model, exchanging, spelling them from another folder, copying."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import onnx_ir as ir

from fusion.packed import PackedTensor
from ir_ops.errors import BadModel, BadUsage

_ALIGN_FROM, _ALIGNMENT = 2**20, 4096
_CHUNK = 4 * 2**20
_ORIGIN = "kvfuse.location"


@dataclass(frozen=True)
class Slot:
    """A place in a model that holds a tensor: an initializer or a node's attribute. ``put`` exchanges the tensor."""

    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]
    initializer: bool


def slots(model: ir.Model) -> Iterator[Slot]:
    """All tensors of a model, subgraphs and local functions included."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield Slot(value.const_value, partial(setattr, value, "const_value"), True)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield Slot(attribute.value, partial(_put_attribute, node, attribute.name), False)


def _put_attribute(node: ir.Node, name: str, tensor: ir.TensorProtocol) -> None:
    node.attributes[name] = ir.AttrTensor(name, tensor)


def anchor_weights(model: ir.Model, folder: Path, beside: Iterable[str] = ()) -> list[str]:
    """Ties external tensors to ``folder`` and gives notes about those that runtimes may refuse.

    Args:
        beside: locations of weights that are not in the model.

    `onnx_ir` maps no files outside the model's folder, behind symbolic links out of it, or with several hard links. A
    user's own weights may well lie so (linked model caches, absolute locations of older exporters): such tensors are
    tied to their absolute path instead, and a note says where.
    """
    base = str(folder)

    def accepts(location: str) -> bool:
        return _runtime_accepts(Path(os.path.normpath(folder / location)), folder)

    accepted = {location: accepts(location) for location in beside}
    for slot in list(slots(model)):
        tensor = slot.tensor
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = str(tensor.location)
        if location not in accepted:
            accepted[location] = accepts(location)
        if accepted[location]:
            tensor.base_dir = base
            continue
        moved = external_like(tensor, os.path.abspath(folder / location))
        moved.meta[_ORIGIN] = location
        slot.put(moved)
    return [
        f"weights lie outside the model's folder or behind a link ({location}): ONNX Runtime may refuse them, "
        "--weights copy collects them"
        for location, good in accepted.items()
        if not good
    ]


def _runtime_accepts(path: Path, folder: Path) -> bool:
    """Whether current onnx and ONNX Runtime versions would open ``path`` for a model in ``folder``."""
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        return inside and not path.is_symlink() and path.stat().st_nlink == 1
    except OSError:
        return True  # not there (zero-sized tensors need no file)


def external_like(
    tensor: ir.ExternalTensor, location: str, offset: int | None = None, base: str = ""
) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        tensor.offset if offset is None else offset,
        tensor.length if offset is None else tensor.nbytes,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props) or None,
        base_dir=base,
    )


def origin(tensor: ir.ExternalTensor) -> str:
    """The location as the input model spelled it."""
    return str(tensor.location if tensor.base_dir else tensor.meta.get(_ORIGIN, tensor.location))


def as_spelled(model: ir.Model) -> dict[int, ir.ExternalTensor]:
    """Replacements that spell every location as the input model did; for `exchanged`."""
    external = [slot.tensor for slot in slots(model) if isinstance(slot.tensor, ir.ExternalTensor)]
    return {
        id(tensor): external_like(tensor, origin(tensor)) for tensor in external if origin(tensor) != tensor.location
    }


@contextmanager
def exchanged(model: ir.Model, replaced: dict[int, ir.ExternalTensor]) -> Iterator[None]:
    """Puts other tensors in place of some (by identity) and puts the old ones back afterwards."""
    touched = [slot for slot in list(slots(model)) if id(slot.tensor) in replaced] if replaced else []
    try:
        for slot in touched:
            slot.put(replaced[id(slot.tensor)])
        yield
    finally:
        for slot in touched:
            slot.put(slot.tensor)


def weight_files(external: list[ir.ExternalTensor]) -> set[Path]:
    """The files that hold these tensors."""
    places = {(str(tensor.base_dir), str(tensor.location)) for tensor in external}
    return {Path(os.path.abspath(base + os.sep + location if base else location)) for base, location in places}


def guard_weights(target: Path, external: list[ir.ExternalTensor]) -> None:
    """Raises BadUsage when ``target`` is one of the files that hold the weights."""
    for path in weight_files(external):
        if target.exists() and path.exists() and target.samefile(path):
            raise BadUsage(
                "the output would overwrite the model's weights", where=str(target), hint="choose another name"
            )


def _path(tensor: ir.ExternalTensor) -> Path:
    return Path(os.path.abspath(tensor.path))


def shared(external: list[ir.ExternalTensor], target: Path) -> tuple[dict[int, ir.ExternalTensor], list[str]]:
    """Replacements that refer to the same files from a model at ``target``, and notes for the user.

    Raises:
        BadUsage: a file cannot be referred to from there.
    """
    notes: list[str] = []
    spelling: dict[tuple[str, str, str], str] = {}
    replaced: dict[int, ir.ExternalTensor] = {}
    for tensor in external:
        key = (str(tensor.base_dir), str(tensor.location), origin(tensor))
        if key not in spelling:
            spelling[key] = _shared_location(tensor, target, notes)
        if spelling[key] != tensor.location:
            replaced[id(tensor)] = external_like(tensor, spelling[key])
    return replaced, notes


def _shared_location(tensor: ir.ExternalTensor, target: Path, notes: list[str]) -> str:
    """How a model at ``target`` spells the weight file that ``tensor`` refers to."""
    spelled = origin(tensor)
    if not tensor.base_dir and not os.path.isabs(tensor.location):
        return spelled  # a model from memory: only its owner knows the folder
    path, folder = _path(tensor), target.parent.resolve()
    relative = os.path.relpath(path.parent.resolve() / path.name, folder)
    if not relative.startswith(os.pardir + os.sep):
        return Path(relative).as_posix()
    verbatim = Path(os.path.normpath(folder / spelled))
    if os.path.isabs(spelled) or (verbatim.exists() and path.exists() and verbatim.samefile(path)):
        notes.append(
            f"the result's weights lie outside its folder ({spelled}), as the input's do: ONNX Runtime may refuse it"
        )
        return spelled
    raise BadUsage(
        "weights cannot be shared from there",
        where=str(target),
        found=f"weights in {path}",
        wanted=f"an output in {path.parent} or above: ONNX Runtime opens no weights outside the model's folder",
        hint="write there, or use --weights copy",
    )


def free_name(target: Path, external: list[ir.ExternalTensor]) -> Path:
    """``OUT.data``, or the next numbered name while that is one of the model's own weight files."""
    own = {path.resolve() for path in weight_files(external)}
    number, candidate = 0, target.with_name(target.name + ".data")
    while candidate.resolve() in own:
        number += 1
        candidate = target.with_name(f"{target.name}.{number}.data")
    return candidate


def write_weights(tensors: list[ir.TensorProtocol], part: Path, name: str) -> dict[int, ir.ExternalTensor]:
    """Streams tensors into one file and gives the references to them, by identity of the old tensor."""
    written: dict[Any, int] = {}
    replaced: dict[int, ir.ExternalTensor] = {}
    with part.open("wb") as file:
        for tensor in tensors:
            external = isinstance(tensor, ir.ExternalTensor)
            key = (
                (_path(tensor), tensor.offset or 0, tensor.nbytes)
                if isinstance(tensor, ir.ExternalTensor)
                else id(tensor)
            )
            if key not in written:
                if tensor.nbytes >= _ALIGN_FROM:
                    file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
                written[key] = file.tell()
                _copy_range(tensor, file) if external else _write(tensor, file)  # type: ignore[arg-type]
            replaced[id(tensor)] = external_like(tensor, name, written[key])  # type: ignore[arg-type]
        file.truncate(max(file.tell(), 1))  # an empty file cannot be mapped
    return replaced


def _write(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    """A packed tensor goes block by block."""
    if isinstance(tensor, PackedTensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


def _copy_range(tensor: ir.ExternalTensor, file: BinaryIO) -> None:
    left = tensor.nbytes
    if not left:
        return
    try:
        with _path(tensor).open("rb") as source:
            source.seek(tensor.offset or 0)
            while left:
                chunk = source.read(min(_CHUNK, left))
                if not chunk:
                    raise BadModel(
                        "a weight file is too short",
                        where=str(_path(tensor)),
                        found=f"{left} bytes missing for {tensor.name!r}",
                    )
                file.write(chunk)
                left -= len(chunk)
    except FileNotFoundError:
        raise BadModel(
            "external weights are missing",
            where=str(_path(tensor)),
            found="no such file",
            wanted=f"the data of {tensor.name!r}",
        ) from None

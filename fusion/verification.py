"""Does the fused model compute what the original computes? Both run in ONNX Runtime on the same feeds.

Feeds are given (an npz file, plain or recorded) or made up (`fusion.feeds`). Every output of every feed is compared by
name with the original's, and with recorded values where the file has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from fusion import feeds as feed_making
from fusion.compare import compare, missing
from fusion.external import slots
from fusion.feeds import Feed
from fusion.model_io import ModelLike, load
from fusion.result import ASSUMPTIONS_KEY, Difference, VerifyResult
from fusion.runtime import UNROUNDED, Runner, open_model, unrounded
from ir_ops.dtypes import Array
from ir_ops.errors import BadInput, BadUsage
from ir_ops.npz import load_npz

Arrays = str | os.PathLike[str] | Mapping[str, Array]

_RECORDED = re.compile(r"(?P<case>[^/]+)/(?P<side>in|out)/(?P<name>.+)")


def verify(
    original: ModelLike,
    fused: ModelLike,
    *,
    inputs: Arrays | None = None,
    expected: Arrays | None = None,
    seed: int = 0,
    cases: int = 3,
    kernel: bool = True,
    bf16: Literal["widen", "round"] = "widen",
) -> VerifyResult:
    """Compares ``fused`` with ``original``.

    Args:
        original, fused: path, ModelProto or ir.Model; their inputs must have the same names and types.
        inputs: name -> array, or an npz file of it; or the recorded form with keys ``CASE/in/NAME`` and
            ``CASE/out/NAME``, whose outputs both models are compared with. None: feeds are made up.
        expected: outputs that belong to ``inputs`` in the plain form.
        seed, cases: of made-up feeds.
        kernel: run the fused model with the kvfuse kernels; False runs its function bodies in plain ONNX Runtime.
        bf16: models with bfloat16 arithmetic, which the runtime lacks: ``widen`` compares them in float32, which shows
            differences that rounding would hide; ``round`` rounds every node's output to bfloat16 on both sides.

    Returns:
        One record per feed, output and source of truth (the original, recorded values). Bounds per element type:
        `fusion.compare.compare`.

    Raises:
        BadModel: a model cannot be loaded.
        BadInput: feeds do not fit, none could be made up, or the models have different inputs.
        BadUsage: less than one case, or a negative seed.
    """
    if cases < 1 or seed < 0:
        raise BadUsage("no such made-up inputs", found=f"cases {cases}, seed {seed}", wanted="cases > 0, seed >= 0")
    ours, theirs = load(original).model, load(fused).model
    # recorded results were computed with what the file asks for
    as_they_are = inputs is not None or not (unrounded(ours) | unrounded(theirs))
    first = _open(original if as_they_are else ours, kernels=False, bf16=bf16)
    second = _open(fused if as_they_are else theirs, kernels=kernel, bf16=bf16)
    _same_inputs(first, second)
    notes: list[str] = []
    records: list[Difference] = []
    if inputs is None:
        if expected is not None:
            raise BadInput("expected outputs without inputs", hint="give --inputs too")
        pairs: Iterator[tuple[Feed, dict[str, Array], dict[str, Array]]] = (
            (feed, result, {})
            for feed, result in feed_making.generate(
                ours,
                lambda values: first.run(_cast(first, values)),
                seed=seed,
                cases=cases,
                skip_slots=not _assumes_slots(theirs),
            )
        )
    else:
        pairs = _given(first, inputs, expected)
    for feed, result, recorded in pairs:
        records += _compare_feed(second, feed, result, recorded, first.outputs)
    extra = sorted(set(second.outputs) - set(first.outputs))
    if extra:
        notes.append(f"the fused model has further outputs that were not compared: {', '.join(extra)}")
    return VerifyResult(records, _how(first, second) + ("" if as_they_are else UNROUNDED), tuple(notes))


def _open(model: ModelLike, *, kernels: bool, bf16: Literal["widen", "round"]) -> Runner:
    if isinstance(model, ir.Model):
        bases = [str(slot.tensor.base_dir) for slot in slots(model) if isinstance(slot.tensor, ir.ExternalTensor)]
        folder = Path(bases[0]) if bases and bases[0] else None
        return open_model(model, kernels=kernels, folder=folder, bf16=bf16)
    return open_model(model, kernels=kernels, bf16=bf16)


def _same_inputs(first: Runner, second: Runner) -> None:
    ours = {name: dtype.name for name, dtype in first.types.items()}
    theirs = {name: dtype.name for name, dtype in second.types.items()}
    if (first.wide == second.wide and ours != theirs) or set(ours) != set(theirs):
        odd = sorted(set(ours.items()) ^ set(theirs.items()))
        raise BadInput("the models have different inputs", found=f"{odd[0][0]} ({odd[0][1]}) in one only")


def _cast(runner: Runner, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Made-up feeds in the types of ``runner``: bfloat16 becomes float32 in a widened model."""
    return {name: value.astype(runner.types[name].np) for name, value in feeds.items()}


def _given(
    first: Runner, inputs: Arrays, expected: Arrays | None
) -> Iterator[tuple[Feed, dict[str, Array], dict[str, Array]]]:
    """Feeds from a file or mapping, each with the original's result and the recorded one."""
    for feed, recorded in read_feeds(inputs, expected):
        prepared = first.prepare(feed.inputs)
        try:
            result = first.run(prepared)
        except BadInput as error:
            raise BadInput(
                "the original model does not run on these inputs", where=feed.name, found=error.found
            ) from None
        unknown = sorted(set(recorded) - set(first.outputs))
        if unknown:
            raise BadInput(
                "expected values of an unknown output",
                where=feed.name,
                found=unknown[0],
                wanted=", ".join(first.outputs),
            )
        yield Feed(feed.name, prepared), result, recorded


def read_feeds(inputs: Arrays, expected: Arrays | None = None) -> list[tuple[Feed, dict[str, Array]]]:
    """Reads feeds, each with its recorded outputs (empty when there are none).

    Raises:
        BadInput: the file cannot be read, holds nothing, or mixes the plain and the recorded form.
    """
    where = str(inputs) if isinstance(inputs, (str, os.PathLike)) else "inputs"
    arrays = load_npz(inputs) if isinstance(inputs, (str, os.PathLike)) else dict(inputs)
    if not arrays:
        raise BadInput("no arrays in it", where=where)
    keys = {name: _RECORDED.fullmatch(name) for name in arrays}
    recorded = [name for name, match in keys.items() if match]
    if not recorded:
        wanted = load_npz(expected) if isinstance(expected, (str, os.PathLike)) else dict(expected or {})
        return [(Feed("inputs", arrays), wanted)]
    if expected is not None:
        raise BadInput("expected outputs beside recorded ones", where=where, hint="leave --expected out")
    if len(recorded) != len(arrays):
        odd = next(name for name, match in keys.items() if not match)
        raise BadInput(
            "plain and recorded names are mixed", where=where, found=odd, wanted="CASE/in/NAME or CASE/out/NAME"
        )
    found: dict[str, tuple[dict[str, Array], dict[str, Array]]] = {}
    for name, match in keys.items():
        assert match is not None
        ins, outs = found.setdefault(match["case"], ({}, {}))
        (ins if match["side"] == "in" else outs)[match["name"]] = arrays[name]
    return [(Feed(case, ins), outs) for case, (ins, outs) in found.items()]


def _compare_feed(
    fused: Runner, feed: Feed, result: Mapping[str, Array], recorded: Mapping[str, Array], names: list[str]
) -> list[Difference]:
    try:
        got = fused.run(_cast(fused, feed.inputs))
    except BadInput as error:
        message = f"the fused model does not run: {error.found}"
        return [missing(feed.name, name, "original", message) for name in names]
    records = []
    for name in names:
        if name not in got:
            records.append(missing(feed.name, name, "original", "the fused model has no such output"))
            continue
        records.append(compare(feed.name, name, got[name], result[name], "original"))
        if name in recorded:
            # A widened model was recorded in bfloat16: its own precision is no measure for those values.
            kind = "bfloat16" if fused.wide and got[name].dtype.kind == "f" else None
            records.append(compare(feed.name, name, got[name], recorded[name], "recorded", kind=kind))
    return records


def _how(first: Runner, second: Runner) -> str:
    import onnxruntime

    ours = "with the kvfuse kernels" if second.kernels else "by its function bodies, without the kvfuse kernels"
    text = f"both in ONNX Runtime {onnxruntime.__version__} on the CPU, the fused model {ours}"
    if first.rounded or second.rounded:
        return f"{text}; nodes without bfloat16 kernels computed in float32 and rounded"
    if first.wide and second.wide:
        return f"{text}; every bfloat16 widened to float32 on both sides (no bfloat16 arithmetic there)"
    if first.wide:
        return f"{text} in bfloat16, the original widened to float32 (no bfloat16 arithmetic there)"
    return text


def _assumes_slots(fused: ir.Model) -> bool:
    """Whether some node of the fused model was fused under an assumption about its slots."""
    return any("slots" in node.metadata_props.get(ASSUMPTIONS_KEY, "") for node in fused.graph.all_nodes())

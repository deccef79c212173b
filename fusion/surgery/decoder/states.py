"""What a call leaves behind beside keys and values: states of linear attention, caches of what chooses the tokens.

Such a decoder is refused as a whole, and for this reason: others that would show first (a mask that comes from values,
outputs beside the logits) only follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from fusion.candidate import Refused
from fusion.facts.caches.growth import Growth
from fusion.facts.graph import GraphView, dtype_name, uses
from fusion.facts.spine import Spine
from fusion.facts.trial.settle import inputs_behind
from fusion.surgery.decoder.roles import Trial


def check_states(view: GraphView, spines: Sequence[Spine], growths: Sequence[Growth], trial: Trial) -> None:
    """Raises Refused for a decoder that carries on more than growing keys and values."""
    found = list(_states(view, spines, growths, trial))
    if not found:
        return
    state, out = found[0]
    shape, new = (trial.probe.shape(value) or () for value in (state, out))
    what = "a state that each call replaces"
    if len(shape) == 4 and out in [spine.out for spine in spines]:
        what = "a cache that is not its past with new rows behind: a window, perhaps"
    elif shape != new:
        what = "a cache that grows, but no keys or values of heads"
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    raise Refused(
        "decode-states", "a call leaves nothing behind but keys and values", f"{state.name}, {what}{more}",
        "caches [B, N, P, D] of attention",
        "windows, linear attention, convolutions and sparse attention are not converted", out,
    )  # fmt: skip


def _states(
    view: GraphView, spines: Sequence[Spine], growths: Sequence[Growth], trial: Trial
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Inputs of floats that an output carries on, itself or as another array of its shape."""
    pasts, presents = ({id(value) for value in values} for values in
                       zip(*((growth.past, growth.present) for growth in growths), strict=True))  # fmt: skip
    carried = {id(spine.cache): spine.out for spine in spines if id(spine.out) not in presents}
    outputs = [value for value in view.graph.outputs if id(value) not in presents]
    for value in view.graph.inputs:
        shape = trial.probe.shape(value)
        if id(value) in pasts or view.is_constant(value) or shape is None or not uses(value):
            continue
        if len(shape) < 3 or not dtype_name(value).startswith(("float", "bfloat")):
            continue
        out = carried.get(id(value)) or next((item for item in outputs if _replaces(view, item, value, trial)), None)
        if out is not None:
            yield value, out


def _replaces(view: GraphView, out: ir.Value, state: ir.Value, trial: Trial) -> bool:
    """Whether an output is computed from a state and has its type and shape."""
    same = dtype_name(out) == dtype_name(state) and trial.probe.shape(out) == trial.probe.shape(state)
    return same and id(state) in inputs_behind(view, out)

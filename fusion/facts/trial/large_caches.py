"""Huge static caches, read as if the exporter had left their length dynamic.

A cache of a million rows would make every tag array as large. Where the graph fixes such a size, the probes take a
small one in its place, wherever it stands: in the shapes of caches and in the constants on their way (reshape targets,
ranges, limits, tables of positions). Each trial size takes another, so nothing that is read depends on it; the graph as
given is the one member of that family with the size it fixed.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from fusion.facts.graph import GraphView, by_kind_float, dims_of
from fusion.facts.spine import Spine
from fusion.facts.trial.shrunk import Shrunk

LIMIT = 1 << 19
"""Elements of a cache up to which it is read at its own size."""
SMALLEST = 128
"""Dims up to this size stay: heads, rows of a page."""
PRIMES = ((29, 41, 73, 97), (37, 53, 79, 101))
"""Per seed, the sizes that stand for the large ones."""
ASSUMED = 16
"""A size for symbolic dims when elements are counted."""


def find_large(view: GraphView, spines: list[Spine]) -> None:
    """Tells the view which sizes are to be shrunk, and in which values."""
    shapes = {id(spine.cache): _counted(spine.cache) for spine in spines}
    large = {size for shape in shapes.values() for size in _to_shrink(shape)}
    if not large:
        return
    constants, inputs = _behind_indices(view, spines)
    view.shrunk = set(shapes) | {id(value) for value in (*constants, *inputs, *_naming(view, large))}
    numbers = [int(number) for value in constants for number in _small_content(view, value)]
    view.large = tuple((size, _block(size, numbers, [*shapes.values()])) for size in sorted(large, reverse=True))
    view.largest_cache = max(math.prod(shape) for shape in shapes.values())


def shrunk_for(view: GraphView, seed: int) -> Shrunk:
    """The small sizes of one trial."""
    primes = PRIMES[seed % len(PRIMES)]
    pairs = [(size, primes[place % len(primes)] * block) for place, (size, block) in enumerate(view.large)]
    return Shrunk(tuple((size, small) for size, small in pairs if small < size), view.largest_cache)


def _counted(value: ir.Value) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else ASSUMED for dim in dims_of(value) or ())


def _to_shrink(shape: tuple[int, ...]) -> list[int]:
    """Sizes that make a cache too large, the last axis (columns) excepted."""
    found: list[int] = []
    total = math.prod(shape)
    for size in sorted(set(shape[:-1]), reverse=True):
        if total <= LIMIT or size <= SMALLEST:
            break
        found.append(size)
        total = total // size * PRIMES[0][0]
    return found


def _behind_indices(view: GraphView, spines: list[Spine]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Constants and graph inputs that index operands are computed from; what is behind a Shape is no number."""
    pending = [item for spine in spines for item in spine.index_operands]
    seen = {id(item) for item in pending}
    constants, inputs = [], []
    while pending:
        value = pending.pop()
        node = value.producer()
        if view.is_constant(value):
            constants.append(value)
        elif node is None:
            inputs.append(value)
        elif node.op_type not in ("Shape", "Size"):
            for item in node.inputs:
                if item is not None and id(item) not in seen:
                    seen.add(id(item))
                    pending.append(item)
    return constants, inputs


def _naming(view: GraphView, large: set[int]) -> list[ir.Value]:
    """Integer constants anywhere that name one of the sizes, or have it: masks and positions are made from them.

    Not where a weight has such a dim: the number may then mean either.
    """
    constants = [*view.graph.initializers.values()]
    constants += [node.outputs[0] for node in view.graph if node.op_type == "Constant"]
    tensors = [(value, tensor) for value in constants if (tensor := view.tensor(value)) is not None]
    parameters = [tensor for _, tensor in tensors if tensor.size > 8 and by_kind_float(tensor)]
    meant = large - {int(dim) for tensor in parameters for dim in tensor.shape.numpy()}
    return [
        value
        for value, tensor in tensors
        if meant
        and not by_kind_float(tensor)
        and meant.intersection([*tensor.shape.numpy(), *_small_content(view, value)])
    ]


def _small_content(view: GraphView, value: ir.Value) -> list[int]:
    """The numbers of a short integer constant."""
    array = view.constant(value, 8)
    return [] if array is None or array.dtype.kind not in "iu" else array.reshape(-1).tolist()


def _block(size: int, numbers: list[int], shapes: list[tuple[int, ...]]) -> int:
    """What the small size must be divisible by: numbers near the indices that divide the large one.

    A cache without pages is written by page and row all the same, ``slot // 128`` say. One that has pages would become
    too large by it, and does not need it.
    """
    block = 1
    rest = max(math.prod(shape) // size for shape in shapes if size in shape)
    for number in sorted({number for number in numbers if number > 1 and size % number == 0}):
        joined = math.lcm(block, number)
        small = joined * PRIMES[0][0]
        block = joined if small < size and small * rest <= 8 * LIMIT else block
    return block

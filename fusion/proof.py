"""The numeric proof of a site: its subgraph beside its replacement, in float64 and in the site's own types.

float64 leaves rounding out: both sides compute the same function or they do not, and the bound is far below any real
difference. The graph's own types show what rounding does; there the bound is a few steps of the type. int8 results may
differ by one step where a value lies within rounding distance of a tie.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fusion.candidate import Candidate
from fusion.evaluate import Evaluation, typed
from fusion.facts.graph import GraphView, dtype_name
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.trial.probe import Probe
from fusion.facts.trial.trials import with_ones
from fusion.reduction import Reduction
from fusion.result import Proof
from ir_ops.declaration import TensorSpec
from ir_ops.dtypes import Array, by_numpy
from ir_ops.errors import KvfuseError
from ir_ops.ops import OPS

WIDE_BOUND = 1e-9
OWN_BOUND = {"float32": 2e-5, "float16": 1.2e-2, "bfloat16": 9e-2, "float64": 2e-5}
"""Largest difference accepted in the site's own type, relative to the size of the output's values."""
STEP_SHARE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.4}
"""Share of int8 results that may be one step apart in the site's own type: rounding to it moves values past ties."""
ROUNDED_STEPS = {"float16": 4, "bfloat16": 32}
"""Steps that rounding each intermediate to a narrow type, as the graph does, may move an int8 result: the rotation of
large pairs cancels. In float64 the bound is one step, at ties."""

POOL = 65537
"""Random numbers drawn for one array: a prime, so that repetitions fall into other columns."""


class Disproved(KvfuseError):
    """The replacement does not compute what the subgraph computes."""


class Prover:
    """Proves candidates; sites of one structure share a proof."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._done: dict[str, tuple[Proof, str, dict[str, TensorSpec]]] = {}
        self._shapes: list[tuple[Probe, list[tuple[int, ...] | None]]] = []

    def prove(self, candidate: Candidate) -> tuple[Proof, dict[str, TensorSpec]]:
        """The proof of a candidate, and what the fused node's inputs look like: dims that vary are None.

        Raises:
            Disproved: a difference beyond the bound, or a subgraph that cannot be evaluated.
        """
        key = structure(self.view, candidate)
        if key in self._done:
            proof, site, specs = self._done[key]
            return Proof(proof.cases, proof.max_error, proof.bound, proof.dtype, site, proof.text), specs
        self._shapes = []
        proof = self._run(candidate)
        specs = self._specs(candidate)
        self._done[key] = (proof, candidate.node.name or candidate.place, specs)
        return proof, specs

    def _specs(self, candidate: Candidate) -> dict[str, TensorSpec]:
        """Input specs of the fused node from the evaluated trial sizes."""
        specs: dict[str, TensorSpec] = {}
        for place, (entry, operand) in enumerate(zip(OPS[candidate.op].inputs, candidate.node.inputs, strict=False)):
            shapes = [(probe, shape) for probe, case in self._shapes if (shape := case[place]) is not None]
            if operand is not None and shapes:
                dims = _dims([probe for probe, _ in shapes], [shape for _, shape in shapes])
                specs[entry.name] = TensorSpec(dtype_name(operand) or dtype_name(candidate.node.inputs[0]), dims)
        return specs

    def _run(self, candidate: Candidate) -> Proof:
        worst, own_worst, cases = 0.0, 0.0, 0
        own = _own_type(candidate)
        try:
            for probe, feeds in self._every_case(candidate):
                worst = max(worst, self._compare(candidate, probe, feeds, wide=True))
                # rounding needs no second look where a case takes millions of numbers
                if not cases or not candidate.reduction.sizes:
                    own_worst = max(own_worst, self._compare(candidate, probe, feeds, wide=False))
                cases += 1
            self._try_ones(candidate)
        except Disproved:
            raise
        except (Unsupported, OutOfRange, Conflict, KvfuseError, ValueError, LookupError, TypeError) as error:
            raise Disproved("the match cannot be evaluated", where=candidate.place, found=str(error)) from None
        text = f"in {own} at most {own_worst:.2g} of the largest value apart"
        return Proof(cases, worst, WIDE_BOUND + candidate.slack, "float64", None, text)

    def _every_case(self, candidate: Candidate) -> Iterator[tuple[Probe, dict[int, Array]]]:
        yield from _cases(self.view, candidate)
        fresh = candidate.fresh() if callable(candidate.fresh) else candidate.fresh
        yield from self._other_case(candidate, fresh)

    def _try_ones(self, candidate: Candidate) -> None:
        """Sizes of 1 that the graph broadcasts: an operator that takes the call must give what the graph gives.

        Raises:
            Disproved: it gives something else.
        """
        cases = len(self._shapes)
        for one in with_ones(self.view, candidate.probes[0]) if candidate.probes else ():
            for probe, feeds in self._other_case(candidate, one):
                try:
                    if self._takes(candidate, probe, feeds):
                        self._compare(candidate, probe, feeds, wide=True)
                except Disproved as error:
                    raise Disproved(
                        f"{error.what} where the graph broadcasts a size of 1", where=error.where, found=error.found,
                        wanted=error.wanted, hint="give both dims one name, or a number, if they are always the same",
                    ) from None  # fmt: skip
                except (Unsupported, OutOfRange, Conflict, KvfuseError, ValueError, LookupError, TypeError):
                    continue  # the operator stops with a message
        del self._shapes[cases:]

    def _takes(self, candidate: Candidate, probe: Probe, feeds: dict[int, Array]) -> bool:
        """Whether the operator's contract takes a call: its shapes and its integers."""
        given = {id(value): typed(feeds[id(value)], value, True) for value in candidate.feeds}
        new = Evaluation(self.view, probe, given, True, candidate.reduction)
        call: dict[str, Array | TensorSpec] = {}
        for entry, operand in zip(OPS[candidate.op].inputs, candidate.node.inputs, strict=False):
            if operand is not None:
                array, own = new.value(operand), dtype_name(operand) or dtype_name(candidate.node.inputs[0])
                whole = array.dtype.kind in "iu" and by_numpy(array.dtype).name == own
                call[entry.name] = array if whole else TensorSpec(own, candidate.reduction.restored(array.shape))
        return not any(violation.severity == "error" for violation in OPS[candidate.op].check(call, candidate.attrs))

    def _other_case(self, candidate: Candidate, probe: Probe | None) -> list[tuple[Probe, dict[int, Array]]]:
        """A case at sizes that no fact was read under; none where the graph itself does not run at them."""
        if probe is None:
            return []
        try:
            feeds = _feeds(self.view, candidate, probe, np.random.default_rng(9), "random")
            given = {id(value): typed(feeds[id(value)], value, True) for value in candidate.feeds}
            old = Evaluation(self.view, probe, given, True, candidate.reduction)
            for before, _ in candidate.replaced:
                old.value(before)
        except (Unsupported, OutOfRange, Conflict, ValueError, LookupError):
            return []
        return [(probe, feeds)]

    def _compare(self, candidate: Candidate, probe: Probe, feeds: dict[int, Array], wide: bool) -> float:
        given = {id(value): typed(feeds[id(value)], value, wide) for value in candidate.feeds}
        old = Evaluation(self.view, probe, given, wide, candidate.reduction)
        new = Evaluation(self.view, probe, given, wide, candidate.reduction)
        worst = 0.0
        for before, after in (*candidate.replaced, *candidate.shapes):
            left, right = old.value(before), new.value(after)
            if left.shape != right.shape:
                raise Disproved(
                    "the replacement has another shape",
                    where=f"{candidate.place}, {before.name}",
                    found=str(list(right.shape)),
                    wanted=str(list(left.shape)),
                )
            worst = max(worst, _difference(candidate, before, left, right, wide))
        shapes = [
            None if item is None else candidate.reduction.restored(new.value(item).shape)
            for item in candidate.node.inputs
        ]
        self._shapes.append((probe, shapes))
        return worst


def _dims(probes: list[Probe], shapes: list[tuple[int, ...]]) -> tuple[int | None, ...]:
    """Dims that all trials agree on, and those that are small in place of one large size; None for others."""
    found: list[int | None] = []
    for sizes in zip(*shapes, strict=True):
        large = [size for size, _ in probes[0].sizes.shrunk.sizes if _stands_for(probes, sizes, size)]
        found.append(sizes[0] if len(set(sizes)) == 1 else large[0] if large else None)
    return tuple(found)


def _stands_for(probes: list[Probe], sizes: tuple[int, ...], large: int) -> bool:
    return all(probe.sizes.shrunk.dim(large) == size for probe, size in zip(probes, sizes, strict=True))


def _own_type(candidate: Candidate) -> str:
    """The float type that the site rounds to: the narrowest inside it, else that of its first float operand."""
    inside = {dtype_name(item) for node in candidate.region for item in node.outputs}
    kinds = [dtype_name(item) for item in candidate.node.inputs if item is not None]
    narrow = (kind for kind in ("bfloat16", "float16") if kind in inside)
    return next(narrow, next((kind for kind in kinds if "float" in kind), kinds[0]))


def _difference(candidate: Candidate, value: ir.Value, left: Array, right: Array, wide: bool) -> float:
    """The largest difference relative to the output's magnitude; raises Disproved beyond the bound."""
    if np.array_equal(left, right):
        return 0.0  # most of a cache, and all of most caches
    name, own = dtype_name(value), _own_type(candidate)
    if left.dtype.kind in "iub":
        steps = np.abs(left.astype(np.int64) - right.astype(np.int64))
        limit, share = (0, 0.0) if name not in ("int8", "uint8") else (1, 1e-4 if wide else STEP_SHARE.get(own, 1e-3))
        if not wide and limit:
            limit = ROUNDED_STEPS.get(own, limit)
        if steps.max(initial=0) > limit or (steps > 0).mean() > max(share, 1.5 / steps.size if limit else 0):
            raise Disproved(
                "the replacement computes other integers",
                where=f"{candidate.place}, {value.name}",
                found=f"{int(steps.max())} steps, {100 * (steps > 0).mean():.3g} % of the elements",
                wanted=f"at most {limit}",
            )
        return 0.0
    differs = left != right
    a, b = left[differs].astype(np.float64), right[differs].astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))
    worst = float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)) / (_largest(left) or 1.0)
    bound = WIDE_BOUND + candidate.slack if wide else OWN_BOUND.get(name, OWN_BOUND["float32"])
    if worst > bound:
        raise Disproved(
            "the replacement computes something else",
            where=f"{candidate.place}, {value.name}",
            found=f"{worst:.3g} of the largest value apart",
            wanted=f"at most {bound:g} in {'float64' if wide else name}",
        )
    return worst


def _largest(x: Array) -> float:
    """The largest finite magnitude."""
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)  # numpy is slow with narrow types
    largest = float(max(x.max(initial=0), -x.min(initial=0)))
    return largest if np.isfinite(largest) else float(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0.0))


def _cases(view: GraphView, candidate: Candidate) -> Iterator[tuple[Probe, dict[int, Array]]]:
    """Feeds: every trial size with random values, then edge values and corner slots at the first."""
    for number, probe in enumerate(candidate.probes):
        for style in ("random", "edge") if number == 0 and candidate.zero_rows else ("random",):
            rng = np.random.default_rng([number, len(style)])
            yield probe, _feeds(view, candidate, probe, rng, style)


def _feeds(
    view: GraphView, candidate: Candidate, probe: Probe, rng: np.random.Generator, style: str
) -> dict[int, Array]:
    """One array for each source; sources that are computed alike hold the same numbers."""
    drawn: dict[int, Array] = {}
    for value in candidate.feeds:
        number = view.number(value)
        if number not in drawn:
            kind = candidate.draws.get(id(value))
            drawn[number] = (
                _drawn(value, probe, rng, kind) if kind else _feed(value, probe, rng, style, candidate.reduction)
            )
    return {id(value): drawn[view.number(value)] for value in candidate.feeds}


def _drawn(value: ir.Value, probe: Probe, rng: np.random.Generator, kind: str) -> Array:
    """Scales of the usual size, and sums of products of 8-bit numbers: of all magnitudes, as the scales are."""
    shape = probe.shape(value)
    if shape is None:
        raise Unsupported(f"the shape of {value.name} is not known")
    if kind == "scale":
        return np.asarray(0.05 * np.exp(0.5 * rng.standard_normal(shape)))
    sizes = np.exp(rng.uniform(0, np.log(20000), shape))
    return np.asarray(np.rint(sizes * rng.choice([-1, 1], shape)), np.int32)


def _feed(value: ir.Value, probe: Probe, rng: np.random.Generator, style: str, reduction: Reduction) -> Array:
    """Data for one source: integers as the probe has them, random floats, with zeros and large rows for ``edge``."""
    known = probe.known(value)
    if known.array is not None and known.array.dtype.kind in "iub":
        return known.array
    shape = known.shape
    if shape is None:
        raise Unsupported(f"the shape of {value.name} is not known")
    shape = reduction.shape(id(value), shape)
    if dtype_name(value) in ("int8", "uint8"):
        return rng.integers(-100, 100, shape).astype(np.int8)
    data = _random(rng, shape)
    if style == "edge" and data.ndim > 1 and data.size and id(value) not in reduction.summed:
        flat = data.reshape(-1, data.shape[-1])
        flat[0] = 0.0
        flat[-1] *= 30.0
        flat[:, 0] *= -1.0
    away = np.sign(data)
    away *= 0.1
    data += away
    data *= reduction.scale(id(value), shape)
    return data


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normally distributed numbers; of a large array, the same ones again in another column of each row."""
    return rng.standard_normal(shape) if math.prod(shape) <= POOL else np.resize(rng.standard_normal(POOL), shape)


def structure(view: GraphView, candidate: Candidate) -> str:
    """A text that two sites share when one is the other with other names and other weights."""
    numbers: dict[int, int] = {}
    digest = hashlib.sha256()

    def number(value: ir.Value | None) -> str:
        if value is None:
            return "-"
        if id(value) in numbers:
            return str(numbers[id(value)])
        numbers[id(value)] = len(numbers)
        new = value.const_value if id(value) in built else None
        constant = None if id(value) in feeds else new.numpy() if new is not None else view.structural(value)
        shapes = [probe.shape(value) for probe in candidate.probes] if id(value) in feeds else []
        content = "" if constant is None else f"{constant.dtype}{constant.shape}{constant.tobytes()!r}"
        return f"{numbers[id(value)]}:{dtype_name(value)}{shapes}{content}"

    feeds = {id(value) for value in candidate.feeds}
    built = {id(value) for value in candidate.emitter.constants}
    for node in (*sorted(candidate.region, key=view.order), *candidate.emitter.nodes):
        attrs = sorted((name, str(item)) for name, item in view.attrs(node).items())
        operands = [number(item) for item in node.inputs]
        digest.update(repr((node.domain, node.op_type, attrs, operands, [number(v) for v in node.outputs])).encode())
    digest.update(repr([(number(old), number(new)) for old, new in candidate.replaced]).encode())
    alike: dict[int, int] = {}
    digest.update(repr([alike.setdefault(view.number(value), len(alike)) for value in candidate.feeds]).encode())
    return digest.hexdigest()

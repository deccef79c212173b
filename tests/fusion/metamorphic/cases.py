"""One case: a base, some edits, and what must hold for the result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import fusion
from fusion import FusionResult
from ir_ops.errors import KvfuseError
from tests.fusion.metamorphic.bases import Base, Feeds
from tests.fusion.metamorphic.breaking import BREAKING, feed_of_others
from tests.fusion.metamorphic.draft import Draft
from tests.fusion.metamorphic.keeping import KEEPING
from tests.fusion.zoo.graph import Array
from tests.fusion.zoo.run import run

Steps = tuple[tuple[str, int], ...]
"""Edits by name, each with the seed of its choices."""
LARGE = ("KvRmsNormRopeCache", "QkvRmsNormRopeCache", "DequantRopeQuantKvcache", "MlaPrologV3")
TOLERANCE, STEPS_OF_INT8 = 1e-4, 1
FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Outcome:
    """``kind``: kept, lost (a site is gone), refused, followed (fused and equal), wrong, broken (it runs no more).

    ``text``: what differs, or which refusals there are.
    """

    kind: Literal["kept", "lost", "refused", "followed", "wrong", "broken"]
    text: str = ""


def draw(base: Base, rng: random.Random, breaking: bool) -> Steps:
    """One to six edits that keep the meaning; for breaking, few of them, and one or two that break it."""
    names = rng.choices(sorted(KEEPING), k=rng.choice((0, 0, 1, 2)) if breaking else rng.randint(4, 10))
    if breaking:
        names += rng.choices(sorted(BREAKING), k=rng.choice((1, 1, 1, 2)))
        rng.shuffle(names)
    return tuple((name, rng.randrange(2**32)) for name in names)


def edited(base: Base, steps: Steps) -> tuple[onnx.ModelProto, Counter[str]]:
    """The edited graph, and which edits found a place."""
    model = onnx.ModelProto()
    model.CopyFrom(base.model)
    kinds, applied = dict(base.kinds), Counter[str]()
    for number, (name, seed) in enumerate(steps):
        change = KEEPING.get(name) or BREAKING[name]
        if change(Draft(model, kinds, random.Random(seed), number)):
            applied[name] += 1
    return model, applied


def judge(
    model: onnx.ModelProto, feeds: Sequence[Feeds], wanted: Counter[str] | None, results: Sequence[Feeds] = ()
) -> Outcome:
    """Fuses, and compares what fused with the model itself.

    Args:
        wanted: sites that must be there (the meaning was kept); None: refusing is fine.
        results: what the model computes for the feeds, where that is known.
    """
    try:
        result = fusion.fuse(model, functions=False)
    except KvfuseError as error:
        return Outcome("refused" if wanted is None else "lost", str(error))
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    lost = wanted is not None and bool(missing(wanted, result))
    if not result.sites:
        return Outcome("lost" if lost else "refused", refusals(result) if lost else "")
    ran = False
    for number, given in enumerate(feeds):
        before = results[number] if results else outputs(model, given)
        if before is None:
            continue
        ran = True
        after = outputs(result.model, given)
        assumed = "; ".join(text for site in result.sites for text in site.assumptions)
        if after is None:
            text = "" if refuses_as_stated(result, given) else "the fused model does not run"
        else:
            text = difference(after, before)
        if text and not left_open(model, given) and not is_unsettled(model, given, before):
            return Outcome("wrong", f"{sorted(site.op for site in result.sites)}: {text} [{assumed}]")
    if lost:
        return Outcome("lost", refusals(result))
    return Outcome("kept" if wanted is not None else "followed" if ran else "broken")


def missing(wanted: Counter[str], result: FusionResult) -> Counter[str]:
    """Sites that are gone: of the large operators; of the building blocks where there is no large one."""
    got = Counter(site.op for site in result.sites)
    large = Counter({op: count for op, count in wanted.items() if op in LARGE})
    return (large or wanted) - got


def refusals(result: FusionResult) -> str:
    return "; ".join(f"{item.rule} {item.code}: {item.fact}, found {item.found}" for item in result.refusals)


def outputs(model: onnx.ModelProto, given: Feeds, optimised: bool = False) -> Feeds | None:
    """What the model computes, None where it does not run."""
    try:
        with np.errstate(all="ignore"):
            return run(model, feed_of_others(given, model), optimised=optimised)
    except Exception:  # whatever the runtime says of a broken graph
        return None


def refuses_as_stated(result: FusionResult, given: Feeds) -> bool:
    """Whether the fused model stops with an operator's message at a call that a site is stated not to be made for."""
    try:
        run(result.model, feed_of_others(given, result.model))
    except Exception as error:
        return any(f"{site.op} node" in str(error) and "the operator refuses" in text
                   for site in result.sites for text in site.assumptions)  # fmt: skip
    return False


def is_unsettled(model: onnx.ModelProto, given: Feeds, before: Feeds) -> bool:
    """Whether the runtime gives something else with its optimisations: what it does not check reads any memory."""
    again = outputs(model, given, optimised=True)
    return again is None or bool(difference(again, before)) or contradicts_itself(model, given)


def contradicts_itself(model: onnx.ModelProto, given: Feeds) -> bool:
    """Whether sizes disagree by the standard: the runtime skips a Concat's empty parts, and leaves memory unwritten."""
    try:
        with np.errstate(all="ignore"):
            ReferenceEvaluator(model).run(None, feed_of_others(given, model))
    except ValueError:  # numpy's word for it
        return True
    except Exception:  # an operator that the reference does not have
        return False
    return False


def left_open(model: onnx.ModelProto, given: Feeds) -> bool:
    """Whether an integer is made of a float that has none (NaN, infinite, too large): ONNX leaves the result open."""
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    ranges = {name: limits for node in model.graph.node for name, limits in _made_integer(node)}
    del asked.graph.output[:]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ranges)
    known = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer if item.name in ranges} | given
    values = (outputs(asked, given) if ranges else None) or {}
    for name, (least, most) in ranges.items():
        value = known.get(name, values.get(name))
        if value is not None and value.dtype.kind == "f" and not np.all((value >= least) & (value <= most)):
            return True
    return False


def _made_integer(node: onnx.NodeProto) -> list[tuple[str, tuple[float, float]]]:
    """Values that become integers in a node, each with the range of those that can."""
    if node.op_type == "Cast":
        to = helper.tensor_dtype_to_np_dtype(next(item.i for item in node.attribute if item.name == "to"))
        if np.issubdtype(to, np.integer):
            return [(node.input[0], (float(np.iinfo(to).min), float(np.iinfo(to).max)))]
    if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
        return [(name, (-FLOAT32, FLOAT32)) for name in node.input[:2]]
    return []


def difference(got: Feeds, wanted: Feeds) -> str:
    """Empty when both agree: within a small share of an output's largest value, or one step of an integer."""
    for name, value in wanted.items():
        if got[name].shape != value.shape:
            return f"{name}: shape {got[name].shape}, wanted {value.shape}"
        gap, bound = _gap(got[name], value)
        if gap > bound:
            return f"{name}: differs by {gap:.3g}, bound {bound:.3g}"
    return ""


def _gap(got: Array, wanted: Array) -> tuple[float, float]:
    if wanted.dtype == np.bool_ or not wanted.size:
        return float(np.sum(got != wanted)), 0.0
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.where(same, 0.0, np.abs(np.where(same, 0.0, a) - np.where(same, 0.0, b)))
    largest = float(np.max(np.where(np.isnan(gap), np.inf, gap)))
    if np.issubdtype(wanted.dtype, np.integer):
        return largest, STEPS_OF_INT8
    finite = np.abs(b[np.isfinite(b)])
    return largest, TOLERANCE * max(1.0, float(finite.max(initial=0)))


def check(base: Base, steps: Steps, breaking: bool, compare: bool = True) -> Outcome:
    """Edits and judges. An edit that keeps the meaning keeps the results of the base: they are computed once.

    Args:
        compare: whether results are compared, and not only sites counted, where the meaning was kept.
    """
    return judged(base, edited(base, steps)[0], breaking, compare)


def judged(base: Base, model: onnx.ModelProto, breaking: bool, compare: bool) -> Outcome:
    if breaking:
        return judge(model, base.feeds, None)
    return judge(model, *((base.feeds[:1], base.sites, base.results) if compare else ([], base.sites)))


def fewest(steps: Steps, fails: Callable[[Steps], bool]) -> Steps:
    """Steps that still fail without which none does; later steps keep their seeds."""
    for number in range(len(steps) - 1, -1, -1):
        fewer = steps[:number] + steps[number + 1 :]
        if fewer and fails(fewer):
            return fewest(fewer, fails)
    return steps

"""Constraint rules that several operators share, as small factories.

An operator's table of constraints names them with its own inputs: ``same_type("kv", "gamma", "cos")``. A factory
returns a rule (see :class:`ir_ops.declaration.Constraint`): called with a case it yields (found, wanted) for each
breach. Rules are silent about what other rules guard: an unknown dim or a wrong rank is undecided there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ir_ops.declaration import Attrs, Case, Finding, Rule, Shape, Undecided, shape_differs, shape_text
from ir_ops.dtypes import Array, by_name
from ir_ops.layout import CacheMode, nz_block

FLOATS = ("float32", "float16", "bfloat16")
EIGHT_BIT = ("int8", "hifloat8", "float8_e5m2", "float8_e4m3fn")
ASCEND_2 = ("A2", "A3")
DEVICES = ("950", "A3", "A2", "kirin")

Size = Callable[[Case], int]
Condition = Callable[[Case], bool]
ModeOf = Callable[[Case], CacheMode]


@dataclass(frozen=True)
class QuantCache:
    """A cache that may be quantised: its name, its scale and offset inputs, and the columns of its rows."""

    cache: str
    scale: str
    offset: str
    width: Size

    def quantised(self, case: Case) -> bool:
        return by_name(case.dtype(self.cache)).bits == 8


Caches = tuple[QuantCache, ...]


def any_quantised(case: Case, caches: Caches) -> bool:
    return any(cache.quantised(case) for cache in caches)


def mode_of(modes: Mapping[str, CacheMode], attr: str = "cache_mode") -> ModeOf:
    """The cache mode of a case; undecided when the word is unknown (:func:`known_word` reports that)."""

    def mode(case: Case) -> CacheMode:
        found = modes.get(str(case.attrs[attr]))
        if found is None:
            raise Undecided(attr)
        return found

    return mode


def _nonzero(size: int) -> int:
    """A size to divide by; 0 is undecided here and reported as an empty tensor elsewhere."""
    if size == 0:
        raise Undecided("an empty tensor")
    return size


def when(condition: Condition, rule: Rule) -> Rule:
    """The rule where the condition holds."""

    def checked(case: Case) -> Iterator[Finding]:
        if condition(case):
            yield from rule(case)

    return checked


def rank(name: str, layout: str) -> Rule:
    """The input has as many dims as the layout (``[B, N, S, D]``) names."""

    def rule(case: Case) -> Iterator[Finding]:
        if len(case.shape(name)) != layout.count(",") + 1:
            yield f"{name} {shape_text(case.shape(name))}", layout

    return rule


def not_empty() -> Rule:
    """No input has a dim of 0."""

    def rule(case: Case) -> Iterator[Finding]:
        for name, spec in case.specs.items():
            if spec.shape is not None and 0 in spec.shape:
                yield f"{name} {shape_text(spec.shape)}", "every dim >= 1"

    return rule


def same_type(wanted: str, *names: str) -> Rule:
    """The given ones of ``names`` have the element type of the input ``wanted``."""

    def rule(case: Case) -> Iterator[Finding]:
        for name in names:
            if case.has(name) and case.dtype(name) != case.dtype(wanted):
                yield f"{name} {case.dtype(name)}", f"{case.dtype(wanted)} as {wanted}"

    return rule


def type_in(name: str, *types: str) -> Rule:
    """The input has one of the element types."""

    def rule(case: Case) -> Iterator[Finding]:
        if case.dtype(name) not in types:
            yield f"{name} {case.dtype(name)}", " | ".join(types)

    return rule


def shape_is(wanted: Callable[[Case], Shape], *names: str) -> Rule:
    """The given ones of ``names`` have that shape."""

    def rule(case: Case) -> Iterator[Finding]:
        for name in names:
            if case.has(name) and shape_differs(case.shape(name), wanted(case)):
                yield f"{name} {shape_text(case.shape(name))}", shape_text(wanted(case))

    return rule


def elements_are(wanted: Size, *names: str) -> Rule:
    """The given ones of ``names`` have that many elements, in whatever shape."""

    def rule(case: Case) -> Iterator[Finding]:
        for name in names:
            if not case.has(name):
                continue
            shape, count = case.shape(name), wanted(case)
            if None not in shape and int(np.prod([dim or 0 for dim in shape], dtype=object)) != count:
                yield f"{name} {shape_text(shape)}", f"{count} elements"

    return rule


def int_list(attrs: Attrs, name: str, count: int) -> list[int]:
    """A list attribute; undecided while it has another length or is not known."""
    found = attrs.get(name)
    if not isinstance(found, list) or len(found) != count:
        raise Undecided(name)
    return [int(size) for size in found]


def divisors(*names: str) -> Rule:
    """The given ones of ``names`` can divide: every element is finite and not 0."""

    def rule(case: Case) -> Iterator[Finding]:
        for name in names:
            scale = np.asarray(case.values.get(name, ())).reshape(-1)
            wrong = np.flatnonzero(~np.isfinite(scale) | (scale == 0))
            if wrong.size:
                yield f"{name}[{int(wrong[0])}] = {float(scale[wrong[0]])}", "a finite number other than 0"

    return rule


def even(what: str, size: Size) -> Rule:
    """A size is even."""

    def rule(case: Case) -> Iterator[Finding]:
        if size(case) % 2:
            yield f"{what} {size(case)}", f"an even {what.rpartition(' ')[2]}"

    return rule


def known_word(attr: str, words: Mapping[str, object]) -> Rule:
    """A string attribute has one of the words."""

    def rule(case: Case) -> Iterator[Finding]:
        if case.attrs[attr] not in words:
            yield f"{attr} {case.attrs[attr]!r}", " | ".join(words)

    return rule


def finite(attr: str) -> Rule:
    """A float attribute is neither infinite nor NaN."""

    def rule(case: Case) -> Iterator[Finding]:
        if not np.isfinite(case.attrs[attr]):
            yield f"{attr} {case.attrs[attr]}", "a finite number"

    return rule


def positive(attr: str) -> Rule:
    """A finite float attribute is greater than 0."""

    def rule(case: Case) -> Iterator[Finding]:
        if np.isfinite(case.attrs[attr]) and float(case.attrs[attr]) <= 0:  # type: ignore[arg-type]
            yield f"{attr} {case.attrs[attr]}", f"{attr} > 0"

    return rule


def cos_and_sin(rows: str, layout: str) -> Rule:
    """cos and sin have one shape ``[B, N or 1, S or 1, R]`` for the 4-D input ``rows``; layout spells it."""

    def rule(case: Case) -> Iterator[Finding]:
        x, cos, sin = case.shape(rows), case.shape("cos"), case.shape("sin")
        if shape_differs(sin, cos):
            yield f"sin {shape_text(sin)}", f"the shape of cos {shape_text(cos)}"
        fits = len(cos) == 4 and len(x) == 4 and not shape_differs(cos[:1], x[:1])
        if fits:
            fits = all(cos[axis] in (1, None) or not shape_differs((cos[axis],), (x[axis],)) for axis in (1, 2))
        if not fits:
            yield f"cos {shape_text(cos)}", f"{layout} for {rows} {shape_text(x)}"

    return rule


def same_pages(first: str, second: str) -> Rule:
    """Two paged caches agree in their first two dims."""

    def rule(case: Case) -> Iterator[Finding]:
        one, other = case.shape(first)[:2], case.shape(second)[:2]
        if shape_differs(one, other):
            yield f"{first} {shape_text(one)}, {second} {shape_text(other)}", "equal block_num and block_size"

    return rule


def page_over_one(page: Size) -> Rule:
    """A page holds more than one token."""

    def rule(case: Case) -> Iterator[Finding]:
        if page(case) <= 1:
            yield f"block_size {page(case)}", "block_size > 1"

    return rule


def page_multiple(page: Size, caches: Caches) -> Rule:
    """A page holds a multiple of 16 tokens, of 32 where a cache is 8-bit."""

    def rule(case: Case) -> Iterator[Finding]:
        multiple = 32 if any_quantised(case, caches) else 16
        if page(case) % multiple:
            yield f"block_size {page(case)}", f"a multiple of {multiple}"

    return rule


def enough_blocks(blocks: Size, page: Size, batch: Size, tokens: Size) -> Rule:
    """There are ``floor(S / block_size) * B`` blocks at least."""

    def rule(case: Case) -> Iterator[Finding]:
        floor = tokens(case) // _nonzero(page(case)) * batch(case)
        if blocks(case) < floor:
            yield f"block_num {blocks(case)}", f"at least {floor}"

    return rule


def nz_width(caches: Caches) -> Rule:
    """A cache row divides into fractals of 32 bytes of that cache's type."""

    def rule(case: Case) -> Iterator[Finding]:
        for cache in caches:
            d0 = nz_block(case.dtype(cache.cache))
            if cache.width(case) % d0:
                yield f"{cache.cache} width {cache.width(case)}", f"a multiple of {d0}"

    return rule


def index_shape(mode: ModeOf, batch: Size, tokens: Size, page: Size) -> Rule:
    """index is ``[B, S]`` where it holds rows, else it has ``B*S`` or, by block, ``B*ceil(S/block_size)`` elements."""

    def rule(case: Case) -> Iterator[Finding]:
        found, shape, count = mode(case), case.shape("index"), tokens(case)
        if found.slot == "row":
            wanted: Shape = (batch(case), count)
            wrong = shape_differs(shape, wanted)
        else:
            if found.slot == "block":
                count = -(-count // _nonzero(page(case)))
            wanted = (batch(case) * count,)
            if None in shape:
                raise Undecided("index")
            wrong = int(np.prod([dim for dim in shape if dim is not None], dtype=np.int64)) != wanted[0]
        if wrong:
            yield f"index {shape_text(shape)}", f"{shape_text(wanted)} in mode {found.name}"

    return rule


def repeats(entries: Array) -> Array:
    """Places, along the first axis, of entries that stand at an earlier place too."""
    axis = 0 if entries.ndim > 1 else None
    return np.setdiff1d(np.arange(len(entries)), np.unique(entries, axis=axis, return_index=True)[1])


def index_values(mode: ModeOf, batch: Size, rows: Size, blocks: Size, name: str = "index", *, lowest: int = -1) -> Rule:
    """Each index is -1 or a slot of the cache, and no slot (page, by block) is written twice.

    With ``lowest`` 0 there is no -1.
    ``rows`` are the token rows of a page, or of one batch's own cache; slots of different batches are distinct there.
    """

    def rule(case: Case) -> Iterator[Finding]:
        found, index = mode(case), case.value(name).reshape(-1)
        limit = rows(case) if found.slot == "row" else blocks(case) * rows(case)
        outside = np.flatnonzero((index < lowest) | (index >= limit))
        if outside.size:
            place = int(outside[0])
            skip = "-1 (skip)" if lowest < 0 else "0"
            yield f"{name}[{place}] = {int(index[place])}", f"{skip} to {limit - 1}"
            return
        unit = _nonzero(rows(case)) if found.slot == "block" else 1
        places = np.flatnonzero(index >= 0)
        targets = index[places] // unit
        if found.slot == "row":
            targets = targets + places // _nonzero(index.size // _nonzero(batch(case))) * limit
        again = repeats(targets)
        if again.size:
            place = int(places[again[0]])
            yield f"{name}[{place}] = {int(index[place])} again", "distinct pages" if unit > 1 else "distinct slots"

    return rule


def block_starts(page: Size) -> Rule:
    """An index that names a page is the page's first slot."""

    def rule(case: Case) -> Iterator[Finding]:
        index, size = case.value("index").reshape(-1), _nonzero(page(case))
        inside = np.flatnonzero((index >= 0) & (index % size != 0))
        if inside.size:
            yield f"index[{int(inside[0])}] = {int(index[inside[0]])}", f"a multiple of block_size {size}"

    return rule


def offset_needs_scale(caches: Caches) -> Rule:
    """An offset comes with its scale."""

    def rule(case: Case) -> Iterator[Finding]:
        for cache in caches:
            if case.has(cache.offset) and not case.has(cache.scale):
                yield f"{cache.offset} without {cache.scale}", "both or neither"

    return rule


def kept_as(kind: str) -> tuple[str, ...]:
    """Float types that a cache may keep rows of type ``kind`` in: float32 rows may be kept narrower, rounded once."""
    return FLOATS if kind == "float32" else (kind,)


def scale_and_type(caches: Caches, plain: str) -> Rule:
    """A scale goes with an 8-bit cache; a cache without one keeps the rows of the input ``plain``."""

    def rule(case: Case) -> Iterator[Finding]:
        for cache in caches:
            kind, kept = case.dtype(cache.cache), kept_as(case.dtype(plain))
            if case.has(cache.scale) and not cache.quantised(case):
                yield f"{cache.scale} with a {kind} {cache.cache}", "an 8-bit cache"
            if not case.has(cache.scale) and kind not in kept:
                yield f"{kind} {cache.cache} without {cache.scale}", f"{cache.scale}, or a {' | '.join(kept)} cache"

    return rule


def quant_shapes(caches: Caches, heads: Size) -> Rule:
    """A scale or offset is ``[1]``, ``[D]``, ``[1, D]`` or ``[N, D]``."""

    def rule(case: Case) -> Iterator[Finding]:
        for cache in caches:
            for name in (cache.scale, cache.offset):
                if case.has(name):
                    width, shape = cache.width(case), case.shape(name)
                    accepted: list[Shape] = [(1,), (width,), (1, width), (heads(case), width)]
                    if all(shape_differs(shape, wanted) for wanted in accepted):
                        yield f"{name} {shape_text(shape)}", f"[1], [{width}], [1, {width}] or [{heads(case)}, {width}]"

    return rule


def one_quant_type(first: QuantCache, second: QuantCache) -> Rule:
    """Two 8-bit caches have one element type."""

    def rule(case: Case) -> Iterator[Finding]:
        one, other = case.dtype(first.cache), case.dtype(second.cache)
        if one in EIGHT_BIT and other in EIGHT_BIT and one != other:
            yield f"{first.cache} {one}, {second.cache} {other}", "one 8-bit type"

    return rule


def quant_type_in(caches: Caches, *types: str) -> Rule:
    """An 8-bit cache has one of the element types."""

    def rule(case: Case) -> Iterator[Finding]:
        for cache in caches:
            if cache.quantised(case) and case.dtype(cache.cache) not in types:
                yield f"{cache.cache} {case.dtype(cache.cache)}", " | ".join(types)

    return rule


def no_float8(choice: Mapping[str, str]) -> bool:
    """Whether a choice of types has no 8-bit float: types that ONNX's operators compute with."""
    return not any(by_name(kind).is_8bit_float for kind in choice.values())


def caches_combine(plain: str, *caches: str) -> Callable[[Mapping[str, str]], bool]:
    """Whether a choice of types combines: a cache keeps rows of the plain type (:func:`kept_as`) or is 8-bit, and one
    8-bit type serves all."""

    def combines(choice: Mapping[str, str]) -> bool:
        kinds = [choice[cache] for cache in caches]
        eight = {kind for kind in kinds if kind in EIGHT_BIT}
        return len(eight) <= 1 and all(kind in EIGHT_BIT or kind in kept_as(choice[plain]) for kind in kinds)

    return combines

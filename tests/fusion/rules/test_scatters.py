"""Cache writes that no larger operator takes: ScatterPaKvCache, ScatterUpdate and ScatterNdUpdate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import fusion
from fusion import FusionResult
from ir_ops import ge
from ir_ops.ge.model import inputs_of
from tests.fusion.rules.block_models import codes, counts
from tests.fusion.zoo.graph import NUMPY, Array, Graph
from tests.fusion.zoo.run import run
from tests.fusion.zoo.writes import WRITES, Sizes

PAGES, BLOCK, LENGTH, WIDTH = 5, 4, 13, 32
PAIR, FLAT, TUPLES = "ScatterPaKvCache", "ScatterUpdate", "ScatterNdUpdate"
Change = Callable[[Graph, str], str]


class Plain:
    """One or two caches with rows of inputs ``k`` and ``v``, ``[B, N, S, D]``, written in one of the zoo's spellings.

    Args:
        rows: what happens to the rows first.
        slots: what happens to the slots of each cache, by its name.
        more: what else the graph does, told the written caches.
        sizes: first dim of the caches, by name, where it is not the usual one.
    """

    def __init__(
        self,
        write: str = "flat_scatter_nd",
        *,
        names: str = "kv",
        heads: int = 2,
        dtype: str = "float32",
        kinds: dict[str, str] | None = None,
        rows: Change | None = None,
        slots: dict[str, Change] | None = None,
        more: Callable[[Graph, dict[str, str]], None] | None = None,
        sizes: dict[str, int] | None = None,
        batch: Any = "B",
    ) -> None:
        self.write, self.names = WRITES[write], names
        self.heads = 1 if self.write.one_head else heads
        self.kinds = {name: (kinds or {}).get(name, dtype) for name in names}
        self.first, self.batch = sizes or {}, batch
        g = self.g = Graph(max(18, self.write.since), dtype)
        self.slot_dims = {
            "tokens": ["T"], "rows": [batch, "S"], "shared": ["S"], "start": [batch], "pages": ["G"],
        }[self.write.slots]  # fmt: skip
        for name in names:
            g.input(name, self.kinds[name], [batch, self.heads, "S", WIDTH])
            g.input(f"{name}_cache", self.kinds[name], self.shape(name))
        g.input("slots", "int64", self.slot_dims)
        written: dict[str, str] = {}
        for name in names:
            value = rows(g, name) if rows else name
            where = slots[name](g, "slots") if slots and name in slots else "slots"
            n = Sizes(self.heads, WIDTH, BLOCK, self.fractal(name))
            written[name] = self.write.build(g, f"{name}_cache", value, where, n)
        if more is not None:
            more(g, written)
        for name, value in written.items():
            g.output(value, f"{name}_new", self.kinds[name], self.shape(name))
        self.model = g.model("plain")

    def fractal(self, name: str) -> int:
        return 32 // int(np.dtype(NUMPY[self.kinds[name]]).itemsize)

    def shape(self, name: str) -> list[Any]:
        fractals = WIDTH // self.fractal(name)
        pages = self.first.get(name, PAGES)
        return {
            "page": [pages, BLOCK, self.heads, WIDTH],
            "flat": [pages * BLOCK, self.heads, WIDTH],
            "batch": [self.batch, self.heads, LENGTH, WIDTH],
            "bmd": [self.batch, LENGTH, WIDTH],
            "nz4": [pages, self.heads * fractals, BLOCK, self.fractal(name)],
            "nz5": [pages, self.heads, fractals, BLOCK, self.fractal(name)],
        }[self.write.cache]

    def feeds(self, batch: int = 2, tokens: int = 3, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        sizes = {"B": batch, "S": tokens, "T": batch * tokens}
        for entry in self.model.graph.input:
            dims = [dim.dim_value or sizes.get(dim.dim_param, 1) for dim in entry.type.tensor_type.shape.dim]
            if entry.name.startswith("slots"):
                made[entry.name] = self._slots(rng, batch, tokens)
            else:
                made[entry.name] = rng.integers(-99, 99, dims).astype(NUMPY[self.kinds[entry.name[0]]])
        return made

    def _slots(self, rng: np.random.Generator, batch: int, tokens: int) -> Array:
        if self.write.slots == "tokens":
            found: Array = rng.permutation(PAGES * BLOCK)[: batch * tokens]
            return found
        if self.write.slots == "pages":
            return rng.permutation(PAGES)[: batch * -(-tokens // BLOCK)] * BLOCK
        if self.write.slots == "start":
            return rng.integers(0, LENGTH - tokens + 1, batch)
        lines = np.stack([rng.permutation(LENGTH)[:tokens] for _ in range(batch)])
        return lines[0] if self.write.slots == "shared" else lines


def check(plain: Plain, wanted: dict[str, int], **how: Any) -> FusionResult:
    """Exactly these sites; caches keep every bit, with kernels and in standard operators; once is enough."""
    result = fusion.fuse(plain.model, **how)
    assert counts(result) == wanted, [refusal.to_json() for refusal in result.refusals]
    models = [result.model, fusion.defuse(result.model).model]
    for batch, tokens in ((2, 3), (1, 5), (3, 1)):
        if isinstance(plain.batch, int) and batch != plain.batch:
            continue
        feeds = plain.feeds(batch, tokens, seed=batch)
        original = run(plain.model, feeds)
        for model in models:
            found = run(model, feeds)
            assert all(np.array_equal(found[name], value) for name, value in original.items())
    assert not fusion.fuse(result.model, **how).sites
    return result


def expected(write: str, caches: int) -> dict[str, int]:
    """Sites of a spelling with so many caches."""
    kind, slots = WRITES[write].cache, WRITES[write].slots
    if write == "tensor_scatter" or (kind.startswith("nz") and (slots == "pages" or caches == 1)):
        return {}
    if kind in ("page", "nz4", "nz5") and slots == "tokens" and caches == 2:
        return {PAIR: 1}
    return {FLAT if kind == "flat" else TUPLES: caches}


@pytest.mark.parametrize("names", ["kv", "k"])
@pytest.mark.parametrize("write", WRITES)
def test_every_spelling(write: str, names: str) -> None:
    plain = Plain(write, names=names)
    result = check(plain, expected(write, len(names)))
    for site in result.sites:
        assert "slots are distinct" in site.assumptions
        assert any(text.startswith("slots >= 0") for text in site.assumptions)
        if site.op == PAIR:
            assert site.attrs["cache_mode"] == ("PA_NZ" if WRITES[write].cache.startswith("nz") else "Norm")
    if not result.sites:
        assert codes(result, TUPLES) == {"write-in-operator" if write == "tensor_scatter" else "write-layout"}


@pytest.mark.parametrize("write", ["flat_scatter_nd", "pageless", "index_copy", "static_cache", "nz_permuted"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_other_types(write: str, dtype: str) -> None:
    check(Plain(write, dtype=dtype), expected(write, 2))


@pytest.mark.parametrize("write", ["index_copy", "rows_scatter_elements", "from_start", "static_cache"])
@pytest.mark.parametrize(("batch", "heads"), [(1, 2), ("B", 1), (2, 3)])
def test_batches_and_heads(write: str, batch: Any, heads: int) -> None:
    check(Plain(write, batch=batch, heads=heads), {TUPLES: 2})


def test_rows_that_nothing_else_knows() -> None:
    """What is written may be anything; the write is the same."""
    check(Plain(rows=lambda g, x: g.op("Tanh", x)), {PAIR: 1})
    check(Plain(rows=lambda g, x: g.op("Concat", g.slice(x, 1, 2**62, 2), g.slice(x, 0, 1, 2), axis=2)), {PAIR: 1})


def test_the_larger_operator_comes_first() -> None:
    """Of a preamble with a norm and a rotation nothing is left."""
    from tests.fusion.zoo.spec import Spec
    from tests.fusion.zoo.spellings import Preamble

    model = Preamble(Spec()).model()
    assert not {PAIR, FLAT, TUPLES} & counts(fusion.fuse(model)).keys()
    assert counts(fusion.fuse(model, only=[PAIR, FLAT, TUPLES])) == {PAIR: 1}


# --- two caches that do not belong together ---------------------------------------------------------------------------


def own_slots(g: Graph, slots: str) -> str:
    return g.input("slots_v", "int64", ["T"])


@pytest.mark.parametrize(
    "plain",
    [
        Plain(slots={"v": own_slots}),
        Plain(sizes={"v": 7}),
        Plain(kinds={"v": "float16"}),
    ],
    ids=["slots", "pages", "types"],
)
def test_caches_that_differ_are_written_one_by_one(plain: Plain) -> None:
    check(plain, {TUPLES: 2})


def test_nz_caches_may_differ_in_type() -> None:
    check(Plain("nz_permuted", kinds={"v": "int8"}), {PAIR: 1})


def test_what_a_product_does_not_take_in_pairs_is_written_one_by_one() -> None:
    result = check(Plain(), {TUPLES: 2}, product="A3")
    assert not codes(result, PAIR)
    assert counts(fusion.fuse(Plain(dtype="float16").model, product="A3")) == {PAIR: 1}


# --- traps ------------------------------------------------------------------------------------------------------------


def assert_left(plain: Plain, code: str, **how: Any) -> None:
    """No write is fused, and somebody says why."""
    result = fusion.fuse(plain.model, **how)
    assert not {PAIR, FLAT, TUPLES} & counts(result).keys()
    assert code in {refusal.code for refusal in result.refusals}, [refusal.to_json() for refusal in result.refusals]
    assert all(refusal.place and refusal.fact and refusal.found and refusal.wanted for refusal in result.refusals)


SPELLINGS = ["flat_scatter_nd", "page_row_pairs", "pageless", "index_copy", "static_cache"]


def old_reader(g: Graph, written: dict[str, str]) -> None:
    g.output(g.op("Neg", "k_cache"), "old", "float32", [None] * 4)


def half_written_reader(g: Graph, written: dict[str, str]) -> None:
    """The value between a first and a second write is read."""
    g.output(g.op("Neg", written["k"]), "half", "float32", [None] * 4)
    written["k"] = g.op(
        "ScatterND", written["k"], g.const([[0, 0]], "int64"), g.const(np.ones((1, 2, WIDTH)), "float32")
    )


@pytest.mark.parametrize("write", SPELLINGS)
def test_old_content_that_is_read_stays(write: str) -> None:
    assert_left(Plain(write, names="k", more=old_reader), "alias-second-reader")


def test_a_partner_whose_old_content_is_read_does_not_stop_the_other() -> None:
    result = fusion.fuse(Plain(more=old_reader).model)
    assert counts(result) == {TUPLES: 1}
    assert "alias-second-reader" in codes(result, TUPLES)


def test_a_cache_that_is_read_half_written_stays() -> None:
    """What is written behind the read is no row at a slot: at slot 0 it shows."""
    assert_left(Plain("page_row_pairs", names="k", more=half_written_reader), "write-layout")


def twice(g: Graph, written: dict[str, str]) -> None:
    written["k"] = g.op(
        "ScatterND", written["k"], g.const([[0, 0]], "int64"), g.const(np.ones((1, 2, WIDTH)), "float32")
    )


def test_two_writes_of_one_cache_stay() -> None:
    result = fusion.fuse(Plain("page_row_pairs", names="k", more=twice).model)
    assert not result.sites and result.refusals


class Combining(Graph):
    """Every ScatterND adds."""

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        more = {"reduction": "add"} if kind == "ScatterND" else {}
        return super().op(kind, *inputs, domain=domain, **attributes, **more)


def test_rows_that_are_added_are_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fusion.rules.test_scatters.Graph", Combining)
    assert not fusion.fuse(Plain(names="k").model).sites


@pytest.mark.parametrize("write", SPELLINGS)
def test_strict_slots_refuse(write: str) -> None:
    assert_left(Plain(write), "slots-negative", strict_slots=True)


def test_slots_in_another_order_than_the_rows() -> None:
    """The slots that are given count for the tokens from the last to the first."""
    backwards: dict[str, Change] = {name: lambda g, slots: g.slice(slots, -1, -(2**62), 0, -1) for name in "kv"}
    assert_left(Plain(slots=backwards), "row-order")


def skipping(names: Sequence[str]) -> Plain:
    """A graph that means to skip: the old row is written back where a slot is below zero."""
    g = Graph(18)
    for name in names:
        g.input(name, "float32", ["T", 2, WIDTH])
        g.input(f"{name}_cache", "float32", [PAGES, BLOCK, 2, WIDTH])
    g.input("slots", "int64", ["T"])
    zero = g.const(0, "int64")
    skip = g.unsqueeze(g.op("Less", "slots", zero), 1, 2)
    index = g.unsqueeze(g.op("Max", "slots", zero), 1)
    plain = Plain(names="kv")
    for name in names:
        flat = g.reshape(f"{name}_cache", -1, 2, WIDTH)
        rows = g.op("Where", skip, g.op("GatherND", flat, index), name)
        written = g.reshape(g.op("ScatterND", flat, index, rows), -1, BLOCK, 2, WIDTH)
        g.output(written, f"{name}_new", "float32", [PAGES, BLOCK, 2, WIDTH])
    plain.g, plain.model = g, g.model("skipping")
    return plain


def test_a_graph_that_redirects_slots_below_zero_is_never_changed_unseen() -> None:
    """Either the assumption is stated, or the operator skips as the graph does."""
    result = fusion.fuse(skipping("kv").model)
    for site in result.sites:
        assert any(text.startswith(("slots >= 0", "no slot is -1")) for text in site.assumptions)
    feeds = {f"{name}": np.ones((3, 2, WIDTH), np.float32) for name in "kv"}
    feeds |= {f"{name}_cache": np.zeros((PAGES, BLOCK, 2, WIDTH), np.float32) for name in "kv"}
    feeds["slots"] = np.array([5, 7, 2])
    original, fused = run(skipping("kv").model, feeds), run(result.model, feeds)
    assert all(np.array_equal(fused[name], value) for name, value in original.items())


def test_the_kernel_refuses_what_was_assumed() -> None:
    """A slot twice, or below zero, is an error and not another result."""
    plain = Plain(names="k")
    model = fusion.fuse(plain.model).model
    assert isinstance(model, onnx.ModelProto)
    for slots, rule in (([3, 3, 1, 0, 4, 5], "SN-3"), ([3, -1, 1, 0, 4, 5], "SN-2")):
        with pytest.raises(Exception, match=rule):
            run(model, {**plain.feeds(), "slots": np.array(slots)})


@pytest.mark.parametrize("write", ["index_copy", "static_cache"])
def test_an_exported_cache_is_updated_in_place(write: str) -> None:
    """The exporter's own spelling copies the whole cache: ScatterElements writes no buffer, a Transpose keeps none."""
    plain = Plain(write, batch=1)
    before = ge.export(plain.model, input_shapes={"k": (1, 2, 3, WIDTH), "v": (1, 2, 3, WIDTH), "slots": (3,)})
    after = ge.export(
        fusion.fuse(plain.model).model,
        input_shapes={"k": (1, 2, 3, WIDTH), "v": (1, 2, 3, WIDTH), "slots": (3,)},
    )
    caches = [{entry.name for entry in inputs_of(found.model) if entry.is_ref} for found in (before, after)]
    assert caches == [set(), {"k_cache", "v_cache"}]
    assert (after.ops_after["ScatterNdUpdate"], after.ops_after["TensorMove"]) == (2, 0)

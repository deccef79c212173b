"""Cache writes: layout, slots, and what a slot of -1 does; the spellings as such are the zoo's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fusion.facts.analysis import Facts, analyse
from fusion.facts.graph import GraphView
from fusion.facts.types import fill_types
from ir_ops.layout import address
from tests.fusion.facts.build import view_of
from tests.fusion.zoo.spec import Spec
from tests.fusion.zoo.spellings import Preamble

WRITES = {
    "flat_scatter_nd": ("BSND", "slot", False, False),
    "page_row_by_float": ("BSND", "slot", False, False),
    "nz_pairs": ("NZ", "slot", False, False),
    "static_cache": ("BNSD", "row", True, False),
    "rows_scatter_elements": ("BNSD", "row", False, False),
    "page_starts": ("BSND", "block", False, False),
}
"""Spelling -> order, form, shared, start."""


def facts_of(text_or_spec: str | Spec) -> Facts:
    if isinstance(text_or_spec, Spec):
        model = ir.from_proto(Preamble(text_or_spec).model())
        fill_types(model.graph)
        return analyse(GraphView(model.graph, text_or_spec.opset))
    return analyse(view_of(text_or_spec))


@pytest.mark.parametrize(("write", "wanted"), WRITES.items())
def test_layout_and_slots_are_read(write: str, wanted: tuple[str, str, bool, bool]) -> None:
    facts = facts_of(Spec(write=write, form="v2"))
    assert [item.cache.name for item in facts.writes] == ["k_cache_0", "ckv_cache_0"]
    for item in facts.writes:
        assert (item.order, item.slots.form, item.slots.shared, item.slots.start) == wanted
        assert item.slots.value.name == "slots"
        assert len(item.probes) == 2


@pytest.mark.parametrize("write", WRITES)
def test_the_order_of_inputs_does_not_matter(write: str) -> None:
    """Slots that are declared first do not take the smallest size: they are as many as batch times tokens."""
    model = Preamble(Spec(write=write, form="v2")).model()
    inputs = [*reversed(model.graph.input)]
    assert inputs[0].name != "hidden"
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    graph = ir.from_proto(model)
    fill_types(graph.graph)
    facts = analyse(GraphView(graph.graph, 18))
    assert {item.cache.name: (item.order, item.slots.form) for item in facts.writes} == dict.fromkeys(
        ("k_cache_0", "ckv_cache_0"), WRITES[write][:2]
    )


def test_each_probe_knows_where_every_element_goes() -> None:
    """The map is the layout's: slot t of the slots receives row t."""
    write = facts_of(Spec(write="flat_scatter_nd", form="v2")).writes[0]
    for view in write.probes:
        numbers = view.probe.array(write.slots.value)
        assert numbers is not None
        count, heads, columns = view.source.shape
        assert (view.geometry.heads, view.geometry.columns, count) == (heads, columns, numbers.size)
        place = view.geometry.places(numbers // view.geometry.rows, numbers % view.geometry.rows)
        flat = address(
            "BSND", numbers[:, None, None] // view.geometry.rows, numbers[:, None, None] % view.geometry.rows,
            np.arange(heads)[None, :, None], np.arange(columns), rows=view.geometry.rows, heads=heads,
            columns=columns, d0=1,
        )  # fmt: skip
        np.testing.assert_array_equal(place, flat)
        assert sorted(view.source.reshape(-1)) == list(range(view.source.size))


def test_the_two_probes_differ_in_sizes_and_numbers() -> None:
    write = facts_of(Spec()).writes[0]
    first, second = write.probes
    assert first.source.shape != second.source.shape
    assert not np.array_equal(first.probe.array(write.slots.value), second.probe.array(write.slots.value))


PLAIN = """g (float[P, 4, 1, 8] cache, float[T, 1, 8] rows, int64[T] slots) => (float[P, 4, 1, 8] out)
<int64[4] flat = {-1, 1, 8, 1}, int64[3] wide = {-1, 1, 8}, int64[4] back = {-1, 4, 1, 8}, int64[1] last = {-1},
 int64 zero = {0}, int64 one = {1}> {
    c = Reshape (cache, wide)
    SLOTS
    s = Unsqueeze (used, last)
    w = ScatterND (c, s, WRITTEN)
    out = Reshape (w, back)
}"""


def plain(slots: str = "used = Identity (slots)", written: str = "rows") -> Facts:
    return facts_of(PLAIN.replace("SLOTS", slots).replace("WRITTEN", written))


def test_a_computed_slot_is_the_slot() -> None:
    (write,) = plain("used = Add (slots, one)").writes
    assert write.slots.value.name == "used"


PAIRS = """g (float[P, 16, 1, 8] cache, float[T, 1, 8] rows, int64[T] slots, int64[T] others)
=> (float[P, 16, 1, 8] out)
<int64[1] last = {-1}, int64 size = {16}, int64 wrong = {17}, int64 one = {1}> {
    page = Div (PAGE)
    row = Mod (slots, size)
    ROW
    p = Unsqueeze (page, last)
    l = Unsqueeze (line, last)
    pair = Concat <axis = 1> (p, l)
    out = ScatterND (cache, pair, rows)
}"""


def pairs(page: str = "slots, size", row: str = "line = Identity (row)") -> Facts:
    return facts_of(PAIRS.replace("PAGE", page).replace("ROW", row))


def test_pairs_of_page_and_row_are_slots() -> None:
    (write,) = pairs().writes
    assert (write.slots.value.name, write.slots.form) == ("slots", "slot")


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("slots, size", "line = Add (row, one)"),
        ("slots, size", "line = Sub (row, one)"),
        ("slots, wrong", "line = Identity (row)"),
        ("slots, wrong", "line = Add (row, one)"),
        ("others, size", "line = Identity (row)"),
        ("others, size", "line = Add (row, one)"),
    ],
)
def test_a_row_is_no_slot_where_the_page_comes_from_elsewhere(page: str, row: str) -> None:
    """Numbers that leave the page fail where its last row has no next one: those left lie in the first page."""
    assert not pairs(page, row).writes


def test_a_scatter_wraps_a_negative_slot() -> None:
    assert plain().writes[0].negative == "wraps"


def test_a_guard_that_writes_old_rows_back_skips_only_while_its_row_is_free() -> None:
    """-1 is sent to slot 0 with slot 0's old row: another token may want slot 0."""
    guard = """hit = GreaterOrEqual (slots, zero)
    used = Where (hit, slots, zero)
    h2 = Unsqueeze (hit, last)
    h3 = Unsqueeze (h2, last)
    old = Gather <axis = 0> (c, used)
    kept = Where (h3, rows, old)"""
    (write,) = plain(guard, "kept").writes
    assert write.negative == "wraps"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("out = Concat <axis = 0> (cache, rows)", "cache-grows"),
        ("m = Mul (cache, cache)\n out = Concat <axis = 0> (cache, m)", "cache-grows"),
        ("out = Identity (cache)", "cache-unwritten"),
        ("t = Transpose <perm = [0, 1, 3, 2]> (cache)\n u = Reshape (t, shape)\n"
         "out = ScatterND (u, slot, row)", "cache-moved"),
    ],
)  # fmt: skip
def test_what_is_no_write_in_place_says_why(body: str, reason: str) -> None:
    facts = facts_of(
        "g (float[P, 4, 2, 8] cache, float[T, 4, 2, 8] rows, float[1, 4, 2, 8] row, int64[1, 1] slot)"
        " => (float[Q, 4, 2, 8] out)\n<int64[4] shape = {-1, 4, 2, 8}> {" + body + "}"
    )
    assert facts.writes == []
    assert [other.reason for other in facts.others] == [reason]


def test_outputs_that_carry_no_input_on_are_not_looked_at() -> None:
    facts = facts_of("g (float[B, 4, 8] x) => (float[B, 4, 8] y) { n = Neg (x)\n y = Identity (n) }")
    assert facts.writes == [] and facts.others == []

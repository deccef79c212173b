"""Two caches at the same slots: one value, or the same computation twice."""

from __future__ import annotations

import pytest

from fusion.facts.caches.same_slots import same_slots
from tests.fusion.facts.caches.test_cache_write import facts_of

GRAPH = """g (float[P, 4, 1, 8] k, float[P, 4, 1, 8] v, float[T, 1, 8] rows, float[T, 1, 8] more, int64[T] slots,
 int64[T] others) => (float[P, 4, 1, 8] k_out, float[P, 4, 1, 8] v_out)
<int64[3] flat = {-1, 1, 8}, int64[4] back = {-1, 4, 1, 8}, int64[1] last = {-1}, int64 zero = {0}, int64 one = {1}> {
    FIRST
    SECOND
    a = Unsqueeze (s, last)
    b = Unsqueeze (t, last)
    kf = Reshape (k, flat)
    vf = Reshape (v, flat)
    kw = ScatterND (kf, a, rows)
    vw = ScatterND (vf, b, more)
    k_out = Reshape (kw, back)
    v_out = Reshape (vw, back)
}"""


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("s = Identity (slots)", "t = Identity (slots)", True),
        ("s = Add (slots, one)", "t = Add (one, slots)", True),
        ("n = Shape (rows)\n i = Gather (n, zero)\n r = Range (zero, i, one)\n s = Add (slots, r)",
         "m = Shape (more)\n j = Gather (m, zero)\n q = Range (zero, j, one)\n t = Add (slots, q)", True),
        ("s = Identity (slots)", "t = Identity (others)", False),
        ("s = Add (slots, one)", "t = Identity (slots)", False),
    ],
    ids=["one-value", "commuted", "from-shapes", "two-inputs", "one-more"],
)  # fmt: skip
def test_same_numbers(first: str, second: str, same: bool) -> None:
    facts = facts_of(GRAPH.replace("FIRST", first).replace("SECOND", second))
    k, v = facts.writes
    assert same_slots(facts.view, k, v) == same
    assert same_slots(facts.view, k, k)


def test_a_cache_without_end_is_refused_by_its_size() -> None:
    facts = facts_of("g (float[4, 1, 1, 99999999] k, float[1, 1, 1, 99999999] row, int64[1, 1] slot)"
                     " => (float[4, 1, 1, 99999999] out) { out = ScatterND (k, slot, row) }")  # fmt: skip
    assert facts.writes == []
    assert facts.others[0].reason == "write-unreadable" and "elements" in facts.others[0].detail

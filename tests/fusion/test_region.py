"""What a fusion stands for, and who looks into it."""

from __future__ import annotations

import pytest

from fusion.candidate import Refused
from fusion.region import closure, delivered_outside
from tests.fusion.facts.build import value, view_of

GRAPH = """g (float[B, 4] x, float[4] w) => (float[B, 4] y OUT)
<int64[1] axis = {0}, int64[2] flat = {-1, 2}> {
    a = Mul (x, w)
    b = Reshape (a, flat)
    shape = Shape (x)
    c = Reshape (b, shape)
    y = Exp (c)
    MORE
}"""


def look(more: str = "", out: str = "", delivered: tuple[str, ...] = ()) -> set[str]:
    view = view_of(GRAPH.replace("MORE", more).replace("OUT", out))
    sources = {id(value(view, "x")), id(value(view, "w"))}
    region = closure([value(view, "y")], sources)
    given = [value(view, name) for name in delivered]
    read = delivered_outside(view, region, sources, given, {id(value(view, "y"))})
    return {name for name in delivered if id(value(view, name)) in read}


def test_the_region_ends_at_its_sources_and_at_shapes() -> None:
    view = view_of(GRAPH.replace("MORE", "").replace("OUT", ""))
    nodes = closure([value(view, "y")], {id(value(view, "a"))})
    assert {node.op_type for node in nodes} == {"Exp", "Reshape", "Shape"}


def test_nothing_outside_reads_it() -> None:
    assert look() == set()


@pytest.mark.parametrize(
    ("more", "out"),
    [
        ("z = Neg (c)", ", float[B, 4] z"),
        ("", ", float[B, 2] b"),
        ("i = Identity (a)\n z = Neg (i)", ", float[B, 4] z"),
    ],
    ids=["a-reader", "a-graph-output", "behind-an-identity"],
)
def test_a_reader_of_an_inner_value_refuses(more: str, out: str) -> None:
    with pytest.raises(Refused) as refused:
        look(more, out)
    assert refused.value.code == "inner-value-read"
    assert "only values that the operator delivers" in refused.value.wanted


def test_asking_for_a_shape_is_no_reading() -> None:
    assert look("z = Shape (c)", ", int64[2] z") == set()
    assert look("i = Identity (c)\n z = Shape (i)", ", int64[2] z") == set()


def test_delivered_values_may_be_read_themselves_or_through_views() -> None:
    assert look("z = Neg (a)", ", float[B, 4] z", ("a",)) == {"a"}
    assert look("z = Neg (c)", ", float[B, 4] z", ("a",)) == {"a"}

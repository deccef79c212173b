"""What the rows of a cache are: normalised, rotated or plain columns of which value, quantised how."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.facts.caches.rows import Row, positions_in
from fusion.facts.symbols.operand import columns_of, table_of
from fusion.facts.symbols.parameters import Part, Reason
from fusion.facts.symbols.symbolic import Source
from tests.fusion.facts.caches.test_cache_write import facts_of, plain
from tests.fusion.zoo.spec import Spec


def rows_of(**choices: object) -> dict[str, Row]:
    facts = facts_of(Spec(**choices))  # type: ignore[arg-type]
    return {row.write.cache.name or "": row for row in facts.rows if isinstance(row, Row)}


def test_version_1_has_rotated_and_normalised_columns_of_one_value() -> None:
    rows = rows_of()
    key, value = rows["k_cache_0"], rows["ckv_cache_0"]
    assert key.rotated and key.norm is None and key.peeled is None
    assert not value.rotated and value.norm is not None
    assert key.x is value.norm.x or key.x.name == "kv"


def test_version_2_rotates_what_is_normalised() -> None:
    rows = rows_of(form="v2part")
    key, value = rows["k_cache_0"], rows["ckv_cache_0"]
    assert key.rotated and key.norm is not None and key.x is key.norm.y
    rotation = key.views[0].rotation
    assert rotation is not None and (rotation.start, rotation.width) == (0, 32)
    assert value.norm is None and not value.rotated and value.x.name == "v"


def test_a_bias_belongs_to_the_projected_value() -> None:
    """Shallowest first: x of a rotation is what the products read, not what is behind it."""
    key = rows_of(kv="bias")["k_cache_0"]
    producer = key.x.producer()
    assert producer is not None and producer.op_type == "Add"


@pytest.mark.parametrize(
    ("quant", "divides", "offset"),
    [("multiply", False, False), ("divide", True, False), ("linear_scalar", True, False)],
)
def test_scale_and_its_direction_are_read(quant: str, divides: bool, offset: bool) -> None:
    per_column = quant != "linear_scalar"
    value = rows_of(quant=quant, opset=20, per_column=per_column)["ckv_cache_0"]
    assert value.peeled is not None and value.norm is not None
    scale = value.views[0].scale
    assert scale is not None and (scale.divides or not per_column) == divides
    assert (value.views[0].offset is not None) == offset


def test_an_offset_is_a_term_without_a_token() -> None:
    value = rows_of(quant="offset_inside", opset=20, offset=True)["ckv_cache_0"]
    view = value.views[0]
    assert view.scale is not None and view.offset is not None
    # it is added in front of the scale, so the offset behind it is the product of both
    assert len(view.offset.parts) == 2 and not view.offset.divides


def test_rows_are_found_again_in_values_on_their_way() -> None:
    facts = facts_of(Spec(write="flat_scatter_nd"))
    key = next(row for row in facts.rows if isinstance(row, Row) and row.rotated)
    positions = positions_in(facts.view, key, key.write.updates[0])
    assert positions is not None
    for position, view in zip(positions, key.views, strict=True):
        assert position.shape == view.view.source.shape
    assert positions_in(facts.view, key, facts.view.graph.inputs[1]) is None


def test_a_plain_row_is_a_copy() -> None:
    (row,) = plain().rows
    assert isinstance(row, Row)
    assert row.x.name == "rows" and row.norm is None and not row.rotated


def test_sums_of_many_terms_have_no_meaning() -> None:
    (row,) = plain("used = Identity (slots)\n a = Mul (rows, rows)\n b = Mul (a, rows)\n z = Exp (b)\n"
                   "m = Add (z, a)\n n = Mul (m, z)", "n").rows  # fmt: skip
    # what computes the rows is opaque: they are plain rows of it, never a wrong meaning
    assert isinstance(row, Reason) or (not row.rotated and row.norm is None)


def part(shape: tuple[int, ...], position: np.ndarray) -> Part:  # type: ignore[type-arg]
    return Part(Source(facts_of(Spec()).view.graph.inputs[0], 1, shape), position)


def test_columns_in_token_order_are_read() -> None:
    """``[B, S, N*W]`` with the heads side by side, columns 2 to 4 of each head."""
    token, head, column = np.ogrid[:6, :2, 2:5]
    found = columns_of(part((2, 3, 16), token * 16 + head * 8 + column))
    assert found is not None and not found.by_head
    assert found.columns.tolist() == [[2, 3, 4], [10, 11, 12]]


def test_columns_by_head_are_read() -> None:
    """``[B, N, S, W]``."""
    token, head, column = np.ogrid[:6, :2, :8]
    found = columns_of(part((2, 2, 3, 8), (((token // 3) * 2 + head) * 3 + token % 3) * 8 + column))
    assert found is not None and found.by_head
    assert found.columns.tolist() == [list(range(8))] * 2


def test_rolled_tokens_and_swapped_heads_are_no_columns() -> None:
    token, head, column = np.ogrid[:6, :2, :8]
    assert columns_of(part((6, 16), ((token + 1) % 6) * 16 + head * 8 + column)) is None
    by_head = (((token // 3) * 2 + 1 - head) * 3 + token % 3) * 8 + column
    assert columns_of(part((2, 2, 3, 8), by_head)) is None


@pytest.mark.parametrize(
    ("rows", "shape", "flags"),
    [
        (lambda token: token, (6, 4), (True, True)),
        (lambda token: token % 3, (3, 4), (False, True)),
        (lambda token: token // 3, (2, 1, 4), (True, False)),
        (lambda token: token * 0, (1, 4), (False, False)),
    ],
    ids=["each", "by-position", "by-batch", "one"],
)
def test_tables_tell_what_their_rows_depend_on(rows, shape, flags) -> None:  # type: ignore[no-untyped-def]
    token, _, column = np.ogrid[:6, :2, :4]
    position = np.broadcast_to(rows(token) * 4 + column, (6, 2, 4))
    found = table_of(part(shape, position), 2, 3)
    assert found is not None and (found.per_batch, found.per_token) == flags


@pytest.mark.parametrize("first", [0, 1], ids=["cos", "sin"])
def test_pairs_of_cosine_and_sine_are_columns(first: int) -> None:
    """``[S, D / 2, 2]``: angle j is columns 2j and 2j + 1 of the joined row."""
    token, _, column = np.ogrid[:6, :2, :4]
    position = np.broadcast_to((token % 3 * 2 + column % 2) * 2 + first, (6, 2, 4))
    found = table_of(part((3, 2, 2), position), 2, 3)
    assert found is not None and (found.joined, found.width) == (2, 4)
    assert (found.per_batch, found.per_token) == (False, True)
    assert found.columns.tolist() == [first, 2 + first, first, 2 + first]


def test_tables_out_of_order_are_none() -> None:
    token, _, column = np.ogrid[:6, :1, :4]
    assert table_of(part((6, 4), ((token + 1) % 6) * 4 + column), 2, 3) is None

"""Which input of a decoder is what is told by use, and integers of different tokens do not meet either."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fusion
from ir_ops.decode_plan import read_plan
from tests.fusion.surgery.edits import Builder, Edit
from tests.fusion.surgery.test_decoder_traps import built, decodes_alike, refused

WIDTH, LOGITS, POSITIONS = 128, 64, 96
"""Of the one-layer model, and rows of the table of positions that is added."""


def learned(rows: int = POSITIONS, *, views: bool = True, name: str = "position_ids") -> Builder:
    """A table of positions beside that of the vocabulary, as in GPT-2; ids may come through a view."""

    def edit(e: Edit) -> None:
        table = e.const(np.random.default_rng(0).standard_normal((rows, WIDTH)) * 0.02, np.float32)
        if views:
            e.feed("embedding", 1, e.op("Reshape", "input_ids", e.op("Shape", "input_ids")))
        if name != "position_ids":
            batch_tokens = e.input("input_ids").type
            e.graph.input.append(onnx.ValueInfoProto(name=name, type=batch_tokens))
        e.after("embedding", "Add", e.op("Gather", table, name))

    return edit


def counted(e: Edit, split: bool = False) -> None:
    """The same, its positions counted from the length of the cache, with axes of their own for the angles."""
    learned()(e)
    places = e.op("Unsqueeze", "add_23", e.const([0]))
    angles = e.op("Cast", e.op("Unsqueeze", "add_23", e.const([0, 2])), to=TensorProto.FLOAT)
    angles = e.op("Mul", angles, e.op("Reshape", "m.model.rotary_emb.inv_freq", e.const([1, 1, -1])))
    if split:
        angles = e.op("Squeeze", e.op("Unsqueeze", angles, e.const([1])), e.const([1]))
        halves = ["edit_low", "edit_high"]
        e.graph.node.append(helper.make_node("Split", [angles], halves, axis=-1, num_outputs=2))
        angles = e.op("Gather", e.op("Concat", *halves[::-1], axis=-1), e.const((np.arange(64) + 32) % 64), axis=-1)
    e.feed("val_3", 0, "input_ids")
    e.swap("mul_62", e.op("Expand", angles, e.op("Concat", "val_3", e.const([1, 1]), axis=0)))
    e.swap("position_ids", places)
    e.drop_input("position_ids")


def counted_and_split(e: Edit) -> None:
    """Their angles are taken apart by columns and put together again."""
    counted(e, split=True)


@pytest.mark.parametrize("builder", [learned(), learned(views=False), counted, counted_and_split])
def test_positions_that_pick_rows_of_a_table_are_no_ids(builder: Builder) -> None:
    model = built("", builder)
    converted = fusion.fuse(model, cache="auto", block_size=16).model
    plan = read_plan({item.key: item.value for item in converted.metadata_props}, "model")
    assert (plan.inputs["ids"], plan.inputs["positions"]) == ("input_ids", "position_ids")
    decodes_alike(model, converted, 2e-5)


def test_one_head_that_a_product_takes_for_all_is_repeated() -> None:
    """Multi-query attention as Falcon writes it: keys [B, 1, T, D] beside queries [B, N, S, D]."""

    def edit(e: Edit) -> None:
        for part, rows in (("key", "add_320"), ("value", "transpose_2")):
            e.feed(f"present.0.{part}", 1, e.op("Slice", rows, e.const([0]), e.const([1]), e.const([1])))
            for item in (*e.graph.input, *e.graph.output):
                if item.name in (f"past_key_values.0.{part}", f"present.0.{part}"):
                    item.type.tensor_type.shape.dim[1].dim_value = 1
        e.swap("_unsafe_view", "present.0.key")
        e.swap("_unsafe_view_1", "present.0.value")
        e.spelled()

    model = built("", edit)
    result = fusion.fuse(model, cache="auto", block_size=16)
    (site,) = [site for site in result.sites if site.op == "FusedInferAttentionScore"]
    assert (site.attrs["num_heads"], site.attrs["num_key_value_heads"]) == (4, 1)
    decodes_alike(model, result.model, 2e-5)


def test_tables_that_cannot_be_told_apart_are_refused() -> None:
    assert "one input for ids; found input_ids and position_ids" in refused(built("", learned(LOGITS)))


def test_other_numbers_of_tokens_are_not_taken_for_positions() -> None:
    def edit(e: Edit) -> None:
        counted(e)
        learned(2, name="token_type_ids", views=False)(e)

    message = refused(built("", edit))
    assert "holds positions; found token_type_ids, of which no angles are computed" in message


def largest_position(e: Edit) -> None:
    """Other frequencies from a length on, which the longest sequence of a call decides."""
    long = e.op("Greater", e.op("ReduceMax", "position_ids", keepdims=0), e.const(32, np.int64))
    e.after("mul_62", "Mul", e.op("Where", long, e.const(np.float32(0.5)), e.const(np.float32(1.0))))


def largest_counted_position(e: Edit) -> None:
    """The same, of positions that are counted from the length of the cache and become an input."""
    places = e.op("Expand", e.op("Unsqueeze", "add_23", e.const([0])), e.op("Shape", "input_ids"))
    e.feed("val_3", 0, "input_ids")
    e.swap("position_ids", places)
    e.drop_input("position_ids")
    long = e.op("Greater", e.op("ReduceMax", places, keepdims=0), e.const(32, np.int64))
    e.after("embedding", "Mul", e.op("Where", long, e.const(np.float32(0.5)), e.const(np.float32(1.0))))


def pairs_of_ids(e: Edit) -> None:
    """A second table that is picked from by each id and the one in front of it."""
    before = e.op("Pad", e.op("Slice", "input_ids", e.const([0]), e.const([-1]), e.const([1])), e.const([0, 1, 0, 0]))
    pair = e.op("Mod", e.op("Add", e.op("Mul", before, e.const(7, np.int64)), "input_ids"), e.const(32, np.int64))
    e.after("embedding", "Add", e.op("Gather", e.const(np.ones((32, WIDTH)), np.float32), pair))


def positions_of_the_first_sequence(e: Edit) -> None:
    first = e.op("Slice", "position_ids", e.const([0]), e.const([1]), e.const([0]))
    e.swap("position_ids", e.op("Expand", first, e.op("Shape", "input_ids")), but=(first,))


MET = [largest_position, largest_counted_position, pairs_of_ids, positions_of_the_first_sequence]


@pytest.mark.parametrize("builder", MET)
def test_ids_and_positions_of_different_tokens_do_not_meet(builder: Builder) -> None:
    assert "meet in attention only" in refused(built("", builder))


def test_counts_of_experts_may_meet() -> None:
    """Integers that follow from floats: how many tokens chose an expert says nothing about a result."""

    def edit(e: Edit) -> None:
        chosen = e.op("ArgMax", "embedding", axis=-1, keepdims=0)
        count = e.op("ReduceSum", e.op("Cast", e.op("Equal", chosen, e.const(3, np.int64)), to=TensorProto.INT64))
        some = e.op("Greater", count, e.const(-1, np.int64))
        e.swap("embedding", e.op("Where", some, "embedding", other := e.op("Neg", "embedding")), (chosen, other))

    model = built("", edit)
    assert "ReduceSum" in {node.op_type for node in model.graph.node}
    decodes_alike(model, fusion.fuse(model, cache="auto", block_size=16).model, 2e-5)


def test_how_many_the_data_choose_is_not_told_from_sizes() -> None:
    """Trials give such a number some value, the same at all sizes: no constant takes its place."""

    def edit(e: Edit) -> None:
        places = e.op("NonZero", e.op("Greater", "embedding", e.const(np.float32(0))))
        many = e.op("Greater", e.op("Gather", e.op("Shape", places), e.const(1, np.int64)), e.const(-1, np.int64))
        e.swap("embedding", e.op("Where", many, "embedding", other := e.op("Neg", "embedding")), (places, other))
        e.maker(e.maker(places).input[0]).input[0] = "embedding"

    model = built("", edit)
    converted = fusion.fuse(model, cache="auto", block_size=16).model
    assert "NonZero" in {node.op_type for node in converted.graph.node}
    decodes_alike(model, converted, 2e-5)

"""Positions that are counted once for all sequences become positions of each, whatever is made of them on the way.

Exports without an input of positions count them from the length of the cache, ``[1, S]``. What is told from their
shape on the way may stay; what would mix sequences, or holds for one of them only, is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

import fusion
from tests.fusion.surgery.edits import Builder, Edit
from tests.fusion.surgery.test_decoder_traps import built, decodes_alike, refused

Between = Callable[[Edit, str], str]
ANGLES, HALF = "mul_62", 64
"""Of the one-layer model: ``[1, S, 64]``."""


def counted(between: Between) -> Builder:
    """No input of positions; ``between`` gives what stands for the angles."""

    def edit(e: Edit) -> None:
        places = e.op("Unsqueeze", "add_23", e.const([0]))
        e.feed("val_3", 0, "input_ids")
        e.swap("position_ids", places)
        e.drop_input("position_ids")
        readers = [node for node in e.graph.node if ANGLES in node.input]
        angles = e.op("Expand", between(e, ANGLES), e.op("Concat", "val_3", e.const([1, 1]), axis=0))
        for node in readers:  # RotaryEmbedding wants angles of every sequence
            node.input[list(node.input).index(ANGLES)] = angles

    return edit


def times_ones_of_their_shape(e: Edit, angles: str) -> str:
    """As a complex number of magnitude 1 is made from angles."""
    return e.op("Mul", e.op("Expand", e.const(np.float32(1)), e.op("Shape", angles)), angles)


def cut_at_half_of_their_width(e: Edit, angles: str) -> str:
    width = e.op("Gather", e.op("Shape", angles), e.const([2]))
    half = e.op("Div", width, e.const([2]))
    axis = e.const([2])
    low, high = e.op("Slice", angles, e.const([0]), half, axis), e.op("Slice", angles, half, width, axis)
    return e.op("Concat", low, high, axis=-1)


def viewed_in_their_shape(e: Edit, angles: str) -> str:
    flat = e.op("Reshape", angles, e.const([-1]))
    return e.op("Reshape", flat, e.op("Shape", angles))


def turned_and_back(e: Edit, angles: str) -> str:
    return e.op("Transpose", e.op("Transpose", angles, perm=[0, 2, 1]), perm=[0, 2, 1])


def repeated_in_a_view_of_one_row(e: Edit, angles: str) -> str:
    """As neighbours are repeated: the exporter knows that there is one row and writes so."""
    narrow = e.op("Slice", angles, e.const([0]), e.const([HALF // 2]), e.const([2]))
    pairs = e.op("Expand", e.op("Unsqueeze", narrow, e.const([3])), e.const([1, 1, 1, 2]))
    return e.op("Reshape", pairs, e.const([1, -1, HALF]), allowzero=1)


def viewed_as_one_sequence(e: Edit, angles: str) -> str:
    return e.op("Reshape", e.op("Reshape", angles, e.const([-1])), e.const([1, -1, HALF]))


def times_their_number(e: Edit, angles: str) -> str:
    """The first axis counts: 1 for all sequences, another number with one entry for each."""
    number = e.op("Gather", e.op("Shape", angles), e.const(0, np.int64))
    return e.op("Mul", angles, e.op("Cast", number, to=TensorProto.FLOAT))


def less_the_largest(e: Edit, angles: str) -> str:
    return e.op("Sub", angles, e.op("ReduceMax", angles))


@pytest.mark.parametrize(
    "between",
    [
        times_ones_of_their_shape,
        cut_at_half_of_their_width,
        viewed_in_their_shape,
        turned_and_back,
        repeated_in_a_view_of_one_row,
    ],
)
def test_what_works_for_one_sequence_alone_works_for_each(between: Between) -> None:
    model = built("", counted(between))
    decodes_alike(model, fusion.fuse(model, cache="auto", block_size=16).model, 2e-5)


@pytest.mark.parametrize("between", [viewed_as_one_sequence, times_their_number, less_the_largest])
def test_what_holds_for_one_sequence_only_is_refused(between: Between) -> None:
    assert "only attention, its mask, sizes and positions" in refused(built("", counted(between)))

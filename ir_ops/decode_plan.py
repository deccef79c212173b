"""What a decoder with caches in place tells whoever runs it: which input is which, and how each cache lies in memory.

A model that `fusion` has converted carries the plan as JSON in its metadata (:data:`KEY`); `custom_ort.DecodeSession`
reads it. One call takes B sequences with up to S new tokens each, padded on the right:

===============  =================  =================================================================================
role             shape              contents
===============  =================  =================================================================================
ids              ``[B, S]``         token ids; anything where a sequence has fewer than S new tokens
positions        ``[B, S]``         position of each new token; anything in the padding
slots            ``[B * S]``        ``flat``: page * block_size + row of each new token; -1 in the padding
slots            ``[B, S]``         ``row``: row in the sequence's own cache, which is its batch's; -1
block_table      ``[B, W]``         int32, the pages of each sequence in order; paged caches only
query_lengths    ``[B]``            new tokens of each sequence
kv_lengths       ``[B]``            tokens of each sequence in the caches after this call
===============  =================  =================================================================================

All are int64 unless told. Logits are ``[B, S, V]``. A cache output is its input with rows written: bind both to one
memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ir_ops.errors import BadModel
from ir_ops.layout import ORDERS

KEY = "kvfuse.decode"
"""The metadata property that holds the plan."""
FORMAT = 1
SLOT_FORMS = ("flat", "row")
ROLES = ("ids", "positions", "slots", "block_table", "query_lengths", "kv_lengths")


@dataclass(frozen=True)
class CachePort:
    """One cache: an input and the output that is the same memory.

    Attributes:
        input, output: names in the graph.
        layer: decoder layer.
        part: ``key``, ``value``, ``latent`` or ``rope``.
        order: order of the memory, one of :data:`ir_ops.layout.ORDERS`.
        heads, columns: of a token's row.
        shape: declared dims; -1 for the pages (paged) or batches, and for the rows where they are free.
        halves: columns 2j and 2j + 1 of a row are columns j and columns / 2 + j in memory: pairs that a rotation turns,
            which the model's export kept side by side, stand in a low and a high half.
    """

    input: str
    output: str
    layer: int
    part: str
    order: str
    heads: int
    columns: int
    shape: tuple[int, ...]
    halves: bool = False

    @property
    def column_order(self) -> list[int]:
        """For each column in memory, the column of a token's row that it holds."""
        columns = range(self.columns)
        return [*columns[0::2], *columns[1::2]] if self.halves else list(columns)


@dataclass(frozen=True)
class DecodePlan:
    """The plan of a model.

    Attributes:
        inputs: role -> name of the graph input; roles that the model does not need are absent.
        logits: name of the graph output.
        slot_form: what a slot is, one of :data:`SLOT_FORMS`.
        block_size: rows of a page; 0 where the caches are not paged.
        capacity: most tokens of a sequence that the model can hold; 0 where only memory limits it.
        caches: all caches.
    """

    inputs: Mapping[str, str]
    logits: str
    slot_form: str
    block_size: int
    capacity: int
    caches: tuple[CachePort, ...]

    @property
    def paged(self) -> bool:
        return self.slot_form == "flat"

    def to_json(self) -> str:
        """For the model's metadata; the same plan gives the same text."""
        content = {"format": FORMAT, **asdict(self), "inputs": dict(self.inputs)}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


def read_plan(metadata: Mapping[str, str], where: str) -> DecodePlan:
    """The plan in a model's metadata.

    Raises:
        BadModel: there is none, it is of a newer kvfuse, or it contradicts itself.
    """
    text = metadata.get(KEY)
    if text is None:
        raise BadModel(
            "the model has no decode plan",
            where=where,
            found=f"no metadata {KEY}",
            wanted="a model that kvfuse has converted",
            hint="convert the export with: kvfuse fuse IN.onnx OUT.onnx --cache auto",
        )
    try:
        content = json.loads(text)
        number = content.pop("format")
        ports = tuple(CachePort(**{**port, "shape": tuple(port["shape"])}) for port in content.pop("caches"))
        plan = DecodePlan(**content, caches=ports)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadModel("the decode plan cannot be read", where=where, found=str(error)) from None
    if number != FORMAT:
        raise BadModel("the decode plan has another format", where=where, found=str(number), wanted=str(FORMAT))
    _consistent(plan, where)
    return plan


def _consistent(plan: DecodePlan, where: str) -> None:
    def refuse(found: Any, wanted: str) -> None:
        raise BadModel("the decode plan contradicts itself", where=where, found=str(found), wanted=wanted)

    needed = {"ids", "slots", "kv_lengths"} | ({"block_table"} if plan.paged else set())
    if plan.slot_form not in SLOT_FORMS:
        refuse(plan.slot_form, " | ".join(SLOT_FORMS))
    if not needed <= set(plan.inputs) <= set(ROLES):
        refuse(", ".join(sorted(plan.inputs)), f"{', '.join(sorted(needed))}, and no others than {', '.join(ROLES)}")
    if min(plan.block_size, plan.capacity) < 0:
        refuse(f"block_size {plan.block_size}, capacity {plan.capacity}", "numbers of 0 or more")
    if plan.paged != (plan.block_size > 0):
        refuse(f"block_size {plan.block_size} and slots {plan.slot_form}", "a block size for paged caches only")
    names = [name for port in plan.caches for name in (port.input, port.output)]
    if len(set(names)) != len(names) or not names:
        refuse(", ".join(names), "one input and one output for each cache, none shared")
    for port in plan.caches:
        if port.order not in ORDERS or port.heads < 1 or port.columns < 1:
            refuse(f"{port.input}: {port.order}, {port.heads} x {port.columns}", "a known order and sizes above 0")
        if port.halves and port.columns % 2:
            refuse(f"{port.input}: halves of {port.columns} columns", "an even number of columns")

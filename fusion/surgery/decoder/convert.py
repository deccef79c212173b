"""The conversion of a whole model: reading, proving, and only then rewriting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from fusion.candidate import Refused
from fusion.emit import Emitter
from fusion.facts.caches.growth import Growth, find_growths, kept_inside
from fusion.facts.graph import GraphView, uses
from fusion.facts.integers import SIZES
from fusion.facts.spine import find_spines
from fusion.facts.trial.large_caches import find_large
from fusion.facts.types import fill_types
from fusion.result import Site
from fusion.surgery.decoder.attend import attend
from fusion.surgery.decoder.calibrate import measure
from fusion.surgery.decoder.layout import NewInputs, Pages, cache_input, rows_of, write
from fusion.surgery.decoder.lengths import Retelling, alive
from fusion.surgery.decoder.meaning import find_roles
from fusion.surgery.decoder.mixing import find_mixing
from fusion.surgery.decoder.roles import Roles, Trial, far_trial, first_trial, trials
from fusion.surgery.decoder.sites import DecoderSite, find_sites, narrowed, quantised
from fusion.surgery.decoder.states import check_states
from fusion.surgery.opening import open_steps
from fusion.verification import Arrays
from ir_ops.decode_plan import KEY, CachePort, DecodePlan
from ir_ops.errors import BadUsage
from ir_ops.layout import nz_block
from ir_ops.ops import DOMAIN, DOMAIN_VERSION

BLOCK_SIZE = 128
Cache = Literal["keep", "auto", "contiguous", "paged"]
CAPACITY = 4096


@dataclass(frozen=True)
class Conversion:
    """What was converted.

    Attributes:
        plan: the decode plan that the model carries now.
        sites: the attentions that read the caches.
        notes: for the report.
    """

    plan: DecodePlan
    sites: tuple[Site, ...]
    notes: tuple[str, ...]


def convert(
    model: ir.Model,
    cache: Cache = "auto",
    *,
    block_size: int = 0,
    capacity: int = 0,
    kv_dtype: str | None = None,
    calibrate: Arrays | None = None,
    folder: Path | None = None,
) -> Conversion:
    """Turns a decoder whose caches grow into one that writes them in place.

    Args:
        model: with local functions inlined; it is changed, and may be half changed where it is refused.
        cache: ``paged`` or ``contiguous``, which is one page a sequence; ``auto`` is paged.
        block_size: tokens of a page; default 128.
        capacity: most tokens of a sequence; default: free for paged caches, 4096 for contiguous ones.
        kv_dtype: ``float16`` or ``bfloat16``: caches of this type for float32 rows; None: of the rows' type.
        calibrate: inputs of the model on which the scales of int8 caches are measured; None: caches of floats.
        folder: where the model's external weights lie, for the measurement.

    Raises:
        BadUsage: a size below 1, or a block size for contiguous caches.
        Refused: the model is no such decoder, or does something with its growing length that is not understood.
    """
    contiguous = cache == "contiguous"
    if block_size < 0 or capacity < 0 or (contiguous and block_size):
        found = f"--block-size {block_size}, --capacity {capacity} with {cache} caches"
        raise BadUsage("no such sizes", found=found, wanted="numbers above 0; a block size for paged caches only")
    capacity = capacity or (CAPACITY if contiguous else 0)
    view, growths, first, roles = read_decoder(model)
    sizes = trials(view, growths, roles, first)
    far = far_trial(view, growths, roles, first, sizes[-1].batch if sizes[-1].batch == sizes[0].batch else 1)
    sites = find_sites(view, growths, roles, first, sizes, far)
    if calibrate is not None:
        sites = quantised(sites, measure(model, growths, calibrate, folder))
    if kv_dtype is not None:
        sites = [narrowed(site, kv_dtype) for site in sites]
    logits = _logits(view, growths, sizes)
    return _Rewriting(model, view, growths, roles, sizes if far is None else [*sizes, far], sites).run(
        logits, contiguous, (capacity if contiguous else block_size) or BLOCK_SIZE, capacity
    )


def read_decoder(model: ir.Model) -> tuple[GraphView, list[Growth], Trial, Roles]:
    """The growing caches of a model and the meaning of its inputs.

    Values without a type are given one, and operators that keep caches themselves are opened.

    Raises:
        Refused: there is no growing cache, or the inputs are not those of a decoder.
    """
    fill_types(model.graph)
    opened = open_steps(model)
    view = GraphView(model.graph, model.opset_imports.get("", 0))
    spines = find_spines(view)
    find_large(view, spines)
    growths = find_growths(view, spines)
    if not growths:
        inside = kept_inside(view)
        node = view.root(inside[0]).producer() if inside else None
        raise Refused("decode-caches", "caches that grow: present = Concat(past, new rows)",
                      f"{node.op_type}, which keeps its caches itself" if node is not None else "none",
                      "one for each layer", "export with standard operators" if inside
                      else "a model with static or paged caches needs no conversion")  # fmt: skip
    first = first_trial(view, growths)
    check_states(view, spines, growths, first)
    return view, growths, first, replace(find_roles(view, growths, first), counted=opened > 0)


def _logits(view: GraphView, growths: Sequence[Growth], sizes: Sequence[Trial]) -> ir.Value:
    """The output that is no cache.

    Raises:
        Refused: there are several, or it has not a row for each token.
    """
    caches = {id(growth.present) for growth in growths}
    others = [value for value in view.graph.outputs if id(value) not in caches]
    if len(others) != 1:
        names = ", ".join(str(value.name) for value in others) or "none"
        raise Refused("decode-outputs", "one output beside the caches: logits", names, "one", "drop the others",
                      others[-1] if others else None)  # fmt: skip
    for trial in sizes:
        shape = trial.probe.shape(others[0])
        if shape is not None and shape[:-1] != (trial.batch, trial.tokens):
            raise Refused("decode-outputs", "logits of every token, [B, S, V]",
                          f"{list(shape)} for {trial.batch} sequences of {trial.tokens} tokens", "[B, S, V]",
                          "export the logits of all tokens", others[0])  # fmt: skip
    return others[0]


class _Rewriting:
    """Puts the new nodes in."""

    def __init__(
        self, model: ir.Model, view: GraphView, growths: Sequence[Growth], roles: Roles, sizes: Sequence[Trial],
        sites: Sequence[DecoderSite],
    ) -> None:  # fmt: skip
        self._model, self._view, self._roles, self._trials, self._sites = model, view, roles, sizes, sites
        self._growths = growths
        graph = model.graph
        names = {value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name}
        names |= {output.name for node in graph.all_nodes() for output in node.outputs if output.name}
        self._emit = Emitter("decode", names)
        self._taken = names
        self._done: list[Site] = []

    def run(self, logits: ir.Value, contiguous: bool, block_size: int, capacity: int) -> Conversion:
        graph = self._model.graph
        mixing = find_mixing(self._view, graph, self._trials, self._told())
        new = self._new_inputs()
        pages = self._pages(block_size, contiguous)
        ports: list[CachePort] = []
        replaced: list[tuple[ir.Value, ir.Value]] = []
        caches: dict[int, ir.Value] = {}
        for number, site in enumerate(self._sites):
            pair = self._site(site, number, pages, new, ports, replaced)
            caches.update(pair)
        self._replace(replaced)
        self._open_guards()
        positions = self._roles.positions or self._input("position_ids", ir.DataType.INT64, ["batch", "tokens"])
        retelling = Retelling(self._view, self._trials, self._roles, positions, self._emit)
        gone = [growth.past for growth in self._growths] + ([self._roles.padding] if self._roles.padding else [])
        retelling.retell(gone)
        retelling.tell_shapes()
        needed = alive(graph)
        for number, refused in mixing.items():
            if number in needed:
                raise refused
        self._finish(gone, caches, positions, new)
        inputs = {"ids": self._roles.ids, "positions": positions, "slots": new.slots, "block_table": new.block_table,
                  "query_lengths": new.query_lengths, "kv_lengths": new.kv_lengths}  # fmt: skip
        plan = DecodePlan(
            {role: str(value.name) for role, value in inputs.items() if value in graph.inputs},
            str(logits.name), "flat", block_size, capacity, tuple(ports),
        )  # fmt: skip
        self._model.metadata_props[KEY] = plan.to_json()
        form = "one page a sequence," if contiguous else "NZ pages" if pages.order == "NZ" else "pages"
        return Conversion(plan, tuple(self._done), self._notes(form, plan))

    def _site(
        self, site: DecoderSite, number: int, pages: Pages, new: NewInputs, ports: list[CachePort],
        replaced: list[tuple[ir.Value, ir.Value]],
    ) -> dict[int, ir.Value]:  # fmt: skip
        """One layer: writes, attention, ports. Returns old cache -> new cache."""
        emit, cached = self._emit, site.cached
        layer = cached[0].growth.layer if cached[0].growth.layer is not None else number
        ins = [cache_input(item, pages) for item in cached]
        rows = [rows_of(emit, item) for item in cached]
        names = [str(item.growth.present.name) for item in cached]
        outs = write(emit, pages, new.slots, (rows[0], rows[1]), (ins[0], ins[1]), (names[0], names[1]))
        out = attend(
            emit, self._view, site.attention, site.latent, self._trials[0], site.proven.scale, pages, new, cached, outs,
            self._roles.ids,
        )  # fmt: skip
        replaced.append((site.attention.out, out))
        self._done.append(self._record(site, layer))
        for item, value in zip(cached, outs, strict=True):
            replaced.append((item.growth.present, value))
            ports.append(item.port(str(value.name), layer, pages))
        return {id(item.growth.past): value for item, value in zip(cached, ins, strict=True)}

    def _told(self) -> list[ir.Value]:
        """Where integers come from that are of single tokens: ids, positions, and what positions are counted from."""
        roles = self._roles
        found = [value for value in (roles.ids, roles.positions, roles.padding) if value is not None]
        for growth in self._growths:
            for value in (growth.past, growth.joined, growth.present):
                found += [node.outputs[0] for node, _ in uses(value) if node.op_type in SIZES]
        return found

    def _record(self, site: DecoderSite, layer: int) -> Site:
        """For the report; the attention node is the newest of its operator."""
        node = next(node for node in reversed(self._emit.nodes) if node.op_type == "FusedInferAttentionScore")
        return Site(
            op=node.op_type,
            name=node.name or "",
            place=self._view.place(site.attention.node.outputs[0], layer),
            layer=layer,
            inputs=tuple("" if item is None else item.name or "" for item in node.inputs),
            outputs=tuple(item.name or "" for item in node.outputs),
            attrs={name: attr.value for name, attr in node.attributes.items()},
            proof=site.proven.proof,
            notes=tuple(
                f"int8 {part}s differ by {error:.2%} (root mean square)" for part, error in site.errors.items()
            ),
        )

    def _pages(self, block_size: int, contiguous: bool) -> Pages:
        """NZ where every cache divides into its blocks, else plain pages.

        Contiguous caches are one page a sequence, head by head; of one head, which is the same memory, token by token:
        the order that MlaPrologV3 writes.
        """
        if contiguous:
            single = all(item.heads == 1 for site in self._sites for item in site.cached)
            return Pages("BSND" if single else "BNSD", block_size)
        divides = all(item.columns % nz_block(item.dtype) == 0 for site in self._sites for item in site.cached)
        return Pages("NZ" if divides else "BSND", block_size)

    def _new_inputs(self) -> NewInputs:
        alone = all(dim == 1 for dim in self._roles.ids.shape or (None,))
        return NewInputs(
            self._input("slot_mapping", ir.DataType.INT64, [1 if alone else "batch_tokens"]),
            self._input("block_table", ir.DataType.INT32, ["batch", "blocks"]),
            self._input("query_lengths", ir.DataType.INT64, ["batch"]),
            self._input("kv_lengths", ir.DataType.INT64, ["batch"]),
        )

    def _input(self, name: str, kind: ir.DataType, dims: list[str | int]) -> ir.Value:
        """A new graph input, named after the ids' own dims where it shares them."""
        own = dict(zip(("batch", "tokens"), self._roles.ids.shape or (), strict=False))
        shape = ir.Shape([own.get(dim, dim) if isinstance(dim, str) else dim for dim in dims])
        return ir.Value(name=name if name not in self._taken else self._emit.name(name), shape=shape,
                        type=ir.TensorType(kind))  # fmt: skip

    def _replace(self, replaced: Sequence[tuple[ir.Value, ir.Value]]) -> None:
        graph = self._model.graph
        for old, value in replaced:
            if old.is_graph_output():
                place = next(number for number, output in enumerate(graph.outputs) if output is old)
                old.name = f"{old.name}/grown"
                graph.outputs[place] = value
            else:
                value.shape = value.shape or old.shape
                old.replace_all_uses_with(value)

    def _open_guards(self) -> None:
        """What a guard would let pass takes its place: rows without a key are padding."""
        for site in self._sites:
            if site.attention.guard is not None:
                node, place = site.attention.guard
                operand = node.inputs[place]
                assert operand is not None
                node.outputs[0].replace_all_uses_with(operand)

    def _finish(
        self, gone: Sequence[ir.Value], caches: dict[int, ir.Value], positions: ir.Value, new: NewInputs
    ) -> None:
        """New nodes and inputs into the graph, old ones out."""
        graph = self._model.graph
        used = {id(item) for node in self._emit.nodes for item in node.inputs if item is not None}
        for constant in self._emit.constants:
            if id(constant) in used or constant.uses():
                graph.register_initializer(constant)
        graph.extend(self._emit.nodes)
        inputs = [caches.get(id(value), value) for value in graph.inputs]
        kept = {id(value) for value in (self._roles.ids, self._roles.positions, *caches.values())}
        inputs = [value for value in inputs if value is not self._roles.padding]
        inputs = [value for value in inputs if value.uses() or id(value) in kept or value.is_initializer()]
        extra = [positions] if self._roles.positions is None and positions.uses() else []
        extra += [new.slots, new.block_table, new.query_lengths, new.kv_lengths]
        graph.inputs[:] = [*inputs, *extra]
        self._model.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
        RemoveUnusedNodesPass()(self._model)
        graph.sort()

    def _notes(self, form: str, plan: DecodePlan) -> tuple[str, ...]:
        removed = [str(value.name) for value in (self._roles.padding,) if value is not None]
        notes = [f"{len(plan.caches)} growing caches are written in place now, in {form} of {plan.block_size} tokens"]
        latent = [site for site in self._sites if site.latent is not None]
        narrow = {item.kept for site in self._sites for item in site.cached if item.kept}
        notes += [f"caches keep {kind} of float32 rows; all arithmetic stays float32" for kind in narrow]
        if latent:
            kept = "" if latent[0].attention.latent is not None else "; past rows of the original have no latents"
            notes.append(f"{len(latent)} layers cache latents, with their projection folded into the queries{kept}")
        if removed:
            notes.append(f"input {removed[0]} is gone: sequences have lengths, padding is never cached")
        return tuple(notes)

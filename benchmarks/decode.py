"""Whole decoders, step by step: caches in place against the export, and against onnxruntime's GroupQueryAttention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import decode_cache_size
from benchmarks.decode_graphs import (
    Decoder,
    Running,
    State,
    converted,
    deepseek,
    group_query,
    grown,
    in_place,
    of_heads,
    prompt,
    qwen,
    state,
)  # fmt: skip
from benchmarks.genai_graph import genai_graph
from benchmarks.timing import interleaved, table
from ir_ops.dtypes import Array
from ir_ops.errors import KvfuseError

CONTEXTS, LONG = (128, 1024, 4096), 8192
BATCHES = (1, 4)
PROMPTS = (512, 2048)
EXPORT_TOKENS = 8192
"""Exports are measured up to so many cached tokens of all sequences: they take many seconds a step beyond."""
EXPORTS, EXPORT_ROUNDS = ("export", "export of heads"), 5
EXPORT_BOUNDS = {4096: 4.0, 8192: 4.0}
"""Of grouped-query attention's export over caches in place, by context, batch 1."""
LATENT_BOUNDS, HEADS_BOUNDS = {1024: 15.0, 4096: 60.0, 8192: 100.0}, {4096: 4.0, 8192: 6.0}
"""The same of latent attention: of the export that keeps latents, and of that which keeps heads."""
TOLERANCE = 2e-3
"""Of logits, to the largest of them: other orders of float32 sums in every layer."""
CAPACITY_BOUND = 1.02
NARROW_BOUNDS = {(4096, 1): 0.78, (8192, 1): 0.70, (8192, 4): 0.52}
"""Of float16 caches under float32 arithmetic, by context and batch."""
INT4_BOUNDS = {(1024, 1): 0.85, (4096, 1): 0.60}
"""The same beside weights of int4."""
INT4_TOLERANCE = 0.2
"""Of logits where activations are rounded to 8 bits: the last bit decides between two steps, product by product."""


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds of a variant, and contexts."""

    rounds: int = 25
    contexts: tuple[int, ...] = CONTEXTS
    batches: tuple[int, ...] = BATCHES
    prompts: tuple[int, ...] = PROMPTS[:1]


def effort(argv: Sequence[str]) -> Effort:
    """``--quick`` measures few rounds of short contexts, ``--long`` adds 8k and longer prompts."""
    if "--quick" in argv:
        return Effort(5, CONTEXTS[:1], BATCHES, (100,))
    return Effort(contexts=(*CONTEXTS, LONG), prompts=PROMPTS) if "--long" in argv else Effort()


def run(argv: Sequence[str] = ()) -> Iterator[str]:
    """The tables, each when it has been measured, and that of :mod:`benchmarks.decode_cache_size`.

    Raises:
        KvfuseError: two variants do not compute the same logits.
    """
    work, small = effort(argv), "--small" in argv
    threads = _number(argv, "--threads", 1)
    gqa = Decoder(qwen(_number(argv, "--layers", 8), small), threads)
    mla = Decoder(deepseek(_number(argv, "--layers", 4), small), threads)
    yield grouped(gqa, work)
    yield int4(gqa, work)
    yield latent(mla, work)
    yield capacities((gqa, mla), work)
    yield prompts(gqa, mla, work)
    yield expanded(mla, work)
    yield decode_cache_size.run(argv)


def _number(argv: Sequence[str], option: str, default: int) -> int:
    return int(argv[list(argv).index(option) + 1]) if option in argv else default


def _room(context: int, work: Effort) -> int:
    """Tokens that a session has to hold: every round adds one, in whole pages."""
    return -(-(context + 2 * work.rounds + EXPORT_ROUNDS + 8) // 128) * 128


def measure(variants: dict[str, Running], rounds: int, tolerance: float = TOLERANCE) -> dict[str, float]:
    """Seconds of a step, exports (which take long) in fewer rounds, but in turns with the others too.

    Raises:
        KvfuseError: their logits differ.
    """
    _agree({name: running.logits() for name, running in variants.items()}, tolerance)
    steps = {name: running.step for name, running in variants.items()}
    exports = {name: steps.pop(name) for name in EXPORTS if name in steps}
    times = interleaved(steps, seconds=0, rounds=rounds)
    if exports:
        slow = interleaved(exports | steps, seconds=0, rounds=EXPORT_ROUNDS)
        faster = float(np.mean([times[name] / slow[name] for name in steps]))
        times |= {name: slow[name] * faster for name in exports}
    return times


def _agree(found: dict[str, Array], tolerance: float) -> None:
    (first, wanted), *others = found.items()
    for name, logits in others:
        off = float(np.abs(logits - wanted).max() / np.abs(wanted).max())
        if not off <= tolerance:
            raise KvfuseError("two decoders differ", where=f"{name}, {first}", found=f"logits {off:.1e} apart")


def grouped(decoder: Decoder, work: Effort) -> str:
    """Qwen3: paged and contiguous caches, and the export, over the graph with GroupQueryAttention."""
    export = decoder.open(decoder.export)
    paged, narrow = decoder.converted("auto"), decoder.converted("auto", kv_dtype="float16")
    other = decoder.open(genai_graph(decoder, _room(max(work.contexts), work)))
    rows = []
    for context in work.contexts:
        room = _room(context, work)
        contiguous = decoder.converted("contiguous", room)
        for batch in work.batches:
            now = state(decoder, batch, context)
            gqa = {"gqa": group_query(other, now, room)}
            variants = {
                "paged": in_place(decoder, paged, now, room),
                "contiguous": in_place(decoder, contiguous, now, room),
            }
            times = measure(gqa | variants | _exported(export, now), work.rounds)
            variants.clear()  # caches of all kinds together are gigabytes
            kept = measure(gqa | {"float16": in_place(decoder, narrow, now, room)}, work.rounds)
            bound = 1.0 if context >= 4096 else 1.03
            ratios = [times[name] / times["gqa"] for name in ("paged", "contiguous")]
            ratios.append(kept["float16"] / kept["gqa"])
            narrow_bound = NARROW_BOUNDS.get((context, batch))
            speedup = _speedup(times, ("export", "paged"), EXPORT_BOUNDS.get(context), batch)
            rows.append([
                _label(context, batch), f"{times['gqa'] * 1e3:.1f}", *(f"{ratio:.2f}" for ratio in ratios[:2]),
                f"{bound:.2f}", f"{ratios[2]:.2f}", "-" if narrow_bound is None else f"{narrow_bound:.2f}",
                f"{ratios[0] / ratios[1]:.2f}", "1.05", *speedup,
            ])  # fmt: skip
    head = [f"{_name(decoder)}: step / GroupQueryAttention", "GQA ms", "paged", "contiguous", "limit",
            "paged f16", "limit", "paged/contiguous", "limit", "export/paged", "least"]  # fmt: skip
    return table(head, rows)


def int4(decoder: Decoder, work: Effort) -> str:
    """Qwen3 with weights of int4 as onnxruntime's generator has it: converted, over the graph as it is.

    Raises:
        KvfuseError: their logits differ, compared closely where activations are not rounded.
    """
    length = _room(max(work.contexts), work)
    exact, short = genai_graph(decoder, length, int4=True, rounded=False), work.contexts[0]
    now = state(decoder, 1, short)
    _agree({
        "gqa": group_query(decoder.open(exact), now, _room(short, work)).logits(),
        "int4": in_place(decoder, converted(exact, "auto"), now, _room(short, work)).logits(),
    }, TOLERANCE)  # fmt: skip
    model = genai_graph(decoder, length, int4=True)
    other, caches = decoder.open(model), {"float32": None, "float16": "float16"}
    ours = {name: converted(model, "auto", kv_dtype=kind) for name, kind in caches.items()}
    rows = []
    for context in work.contexts:
        room = _room(context, work)
        for batch in work.batches:
            now = state(decoder, batch, context)
            variants = {name: in_place(decoder, own, now, room) for name, own in ours.items()}
            times = measure({"gqa": group_query(other, now, room)} | variants, work.rounds, INT4_TOLERANCE)
            bound = INT4_BOUNDS.get((context, batch))
            rows.append([
                _label(context, batch), f"{times['gqa'] * 1e3:.1f}", f"{times['float32'] / times['gqa']:.2f}",
                f"{times['float16'] / times['gqa']:.2f}", "-" if bound is None else f"{bound:.2f}",
            ])  # fmt: skip
    head = [f"{_name(decoder)}, int4: step / GroupQueryAttention", "GQA ms", "paged", "paged f16", "limit"]
    return table(head, rows)


def latent(decoder: Decoder, work: Effort) -> str:
    """DeepSeek-V3: attention on latents against the export, which expands them, and that which caches every head."""
    exports = [decoder.open(model) for model in (decoder.export, decoder.expanded)]
    absorbed = decoder.converted("auto")
    rows = []
    for context in work.contexts:
        for batch in work.batches:
            now = state(decoder, batch, context)
            variants = {"absorbed": in_place(decoder, absorbed, now, _room(context, work))}
            if batch * context <= EXPORT_TOKENS:
                states = (now, of_heads(decoder, now))
                variants |= {name: grown(*each) for name, *each in zip(EXPORTS, exports, states, strict=True)}
            times = measure(variants, work.rounds)
            least = (LATENT_BOUNDS.get(context), HEADS_BOUNDS.get(context))
            speedups = [
                _speedup(times, (name, "absorbed"), bound, batch) for name, bound in zip(EXPORTS, least, strict=True)
            ]
            rows.append([_label(context, batch), f"{times['absorbed'] * 1e3:.1f}", *speedups[0], *speedups[1]])
    head = [f"{_name(decoder)}, absorbed", "ms", *(text for name in EXPORTS for text in (f"{name}/absorbed", "least"))]
    return table(head, rows)


def prompts(gqa: Decoder, mla: Decoder, work: Effort) -> str:
    """First prompts, with two threads: over the graph with GroupQueryAttention, over the export for latents."""
    gqa, mla = replace(gqa, threads=2), replace(mla, threads=2)
    rows = []
    for tokens in work.prompts:
        now, room = state(gqa, 1, 0, tokens), -(-tokens // 128) * 128
        variants = {
            "gqa": group_query(gqa.open(genai_graph(gqa, room)), now, room),
            "paged": prompt(gqa, gqa.converted("auto"), now, room),
        }
        times = measure(variants, work.rounds // 2)
        rows.append(
            [f"{_name(gqa)}, {tokens} tokens", "GroupQueryAttention", f"{times['paged'] / times['gqa']:.2f}", "1.00"]
        )
        now = state(mla, 1, 0, tokens)
        variants = {
            "original": grown(mla.open(mla.export), now),
            "absorbed": prompt(mla, mla.converted("auto"), now, room),
        }
        times = measure(variants, work.rounds // 2)
        rows.append([f"{_name(mla)}, {tokens} tokens", "export", f"{times['absorbed'] / times['original']:.2f}",
                     "1.10" if tokens == PROMPTS[0] else "-"])  # fmt: skip
    return table(["prefill, two threads", "over", "ratio", "limit"], rows)


def expanded(decoder: Decoder, work: Effort) -> str:
    """DeepSeek-V3: first prompts projected to keys and values once, over absorbed ones; a step of such a decoder."""
    models = {"absorbed": decoder.converted("auto"), "expanded": decoder.converted("auto", expand_prompts=2)}
    rows = []
    for tokens in work.prompts:
        now, room = state(decoder, 1, 0, tokens), -(-tokens // 128) * 128
        times = measure({name: prompt(decoder, model, now, room) for name, model in models.items()}, work.rounds // 2)
        rows.append([f"first prompt, {tokens} tokens", f"{times['absorbed'] * 1e3:.0f}",
                     f"{times['expanded'] / times['absorbed']:.2f}"])  # fmt: skip
    context = work.contexts[0]
    now, room = state(decoder, 1, context), _room(context, work)
    times = measure({name: in_place(decoder, model, now, room) for name, model in models.items()}, work.rounds)
    rows.append([f"a step, {context} tokens", f"{times['absorbed'] * 1e3:.1f}",
                 f"{times['expanded'] / times['absorbed']:.2f}"])  # fmt: skip
    return table([f"{_name(decoder)}, --expand-prompts", "absorbed ms", "expanded/absorbed"], rows)


def capacities(decoders: Sequence[Decoder], work: Effort) -> str:
    """The same length in caches of eight times the room."""
    rows = []
    for decoder in decoders:
        for cache in ("auto",) if decoder.model.latent else ("auto", "contiguous"):
            context, room = 512 if work.rounds > 5 else 100, 1024
            model = decoder.converted(cache, 8 * room)
            now = state(decoder, 1, context)
            variants = {f"{times}x": in_place(decoder, model, now, room, times) for times in (1, 8)}
            found = measure(variants, 2 * work.rounds)
            ratio = found["8x"] / found["1x"]
            rows.append([f"{_name(decoder)}, {cache}", f"{ratio:.2f}", f"{CAPACITY_BOUND:.2f}"])
    return table(["capacity 8x / 1x, same length", "ratio", "limit"], rows)


def _exported(session: Any, now: State) -> dict[str, Running]:
    return {"export": grown(session, now)} if now.batch * now.context <= EXPORT_TOKENS else {}


def _speedup(times: dict[str, float], names: tuple[str, str], least: float | None, batch: int) -> list[str]:
    """How many times as long the first takes, and the least that is meant to be."""
    slow, own = names
    if slow not in times:
        return ["-", "-"]
    return [f"{times[slow] / times[own]:.1f}x", f"{least:.0f}" if least and batch == 1 else "-"]


def _label(context: int, batch: int) -> str:
    return f"{context} tokens, batch {batch}"


def _name(decoder: Decoder) -> str:
    return f"{decoder.model.family}, {decoder.model.layers} layers"

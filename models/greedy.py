"""Greedy generation by ``transformers``, recorded: what a decoder of the same weights has to give, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir_ops.dtypes import Array

PROMPTS = {"one": (6,), "three": (7, 1, 12)}
"""Lengths of the prompts of each batch."""
NEW = 64
"""Tokens that are generated behind each."""


def record(model: Any, seed: int = 5) -> dict[str, Array]:
    """Random prompts, continued by ``model.generate`` in batches of one and of three, padded on the left.

    Args:
        model: a causal language model of ``transformers``.
        seed: of the prompts.

    Returns:
        For each prompt, ``BATCH/NUMBER`` being its place: ``BATCH/NUMBER/ids [P + 64]`` int64, the prompt and what
        came behind it; ``BATCH/NUMBER/prompt``, P; ``BATCH/NUMBER/logits [64, V]`` float32, of which each id is the
        largest.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for batch, lengths in PROMPTS.items():
        prompts = [rng.integers(1, model.config.vocab_size, length).tolist() for length in lengths]
        for number, (prompt, (ids, logits)) in enumerate(zip(prompts, _generated(model, prompts), strict=True)):
            place = f"{batch}/{number}"
            found[f"{place}/ids"] = np.array([*prompt, *ids], np.int64)
            found[f"{place}/prompt"] = np.array(len(prompt))
            found[f"{place}/logits"] = logits
    return found


def _generated(model: Any, prompts: list[list[int]]) -> list[tuple[list[int], Array]]:
    """New ids and their logits ``[64, V]`` for each prompt."""
    import torch

    never = model.config.vocab_size  # as the end of a text: each id may come
    longest = max(len(prompt) for prompt in prompts)
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    asked = {"max_new_tokens": NEW, "eos_token_id": never, "do_sample": False, "output_logits": True}
    with torch.no_grad():
        made = model.generate(
            input_ids=padded, attention_mask=mask, pad_token_id=0, return_dict_in_generate=True, **asked
        )
    logits = torch.stack(made.logits, dim=1).float().numpy()
    return [(made.sequences[row, longest:].tolist(), logits[row]) for row in range(len(prompts))]

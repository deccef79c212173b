"""First prompts of a decoder on latents: long ones are cheaper when they are projected to keys and values once.

Attention on latents stays the way of steps and of further chunks; each layer gets a second one beside it, proven to
give the same, and an ``If`` chooses (docs/mla.md).
"""

from fusion.surgery.prompts.expand import check_least, expand, least_tokens

__all__ = ["check_least", "expand", "least_tokens"]

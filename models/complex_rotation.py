"""Exports of DeepSeek-V2's rotation of complex numbers, which the exporters of torch 2.13 do not take as it is.

``dynamo`` lacks one operator, ``unsqueeze`` of complex numbers: it is taken apart into real and imaginary part, as the
exporter of ``transformers`` does. ``torchscript`` knows no complex numbers at all: the rotation of the model is written
in real numbers, pairs of a cosine and a sine, in the order of the complex product. Both hold for the time of an export,
and the model's results with them are compared with those without before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from ir_ops.errors import ExportError

NEAR = 1e-6
"""Largest difference of a result, relative to its largest magnitude, in float32."""


def rotates_complex_numbers(model: Any) -> bool:
    """Whether a ``transformers`` model is of the type whose rotation is meant here."""
    return str(model.config.model_type) == "deepseek_v2"


@contextmanager
def exportable(model: Any, exporter: str) -> Iterator[None]:
    """Within it, ``model`` can be exported by ``exporter`` (``dynamo`` or ``torchscript``); others are left alone."""
    if not rotates_complex_numbers(model):
        yield
        return
    with ExitStack() as stack:
        for change in _real_unsqueeze() if exporter == "dynamo" else _real_rotation():
            stack.enter_context(change)
        yield


def check_same(expected: Sequence[Any], found: Sequence[Any]) -> None:
    """Compares results of the model as it is with those within :func:`exportable`.

    Raises:
        ExportError: they differ by more than :data:`NEAR`.
    """
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        bound = NEAR if wanted.dtype.itemsize >= 4 else 1e-2  # of half types: their own rounding
        apart = float((wanted.double() - got.double()).abs().max())
        if not apart <= bound * float(wanted.double().abs().max()):
            raise ExportError("the rotation in real numbers is not the model's", where=f"output {number}",
                              found=f"{apart:.3g} apart", wanted=f"within {bound:g}")  # fmt: skip


def _real_unsqueeze() -> list[Any]:
    """``unsqueeze`` of complex numbers by parts."""
    import torch

    def by_parts(original: Any) -> Any:
        def unsqueeze(tensor: Any, dim: int) -> Any:
            if not torch.is_complex(tensor):
                return original(tensor, dim)
            return torch.complex(original(tensor.real, dim), original(tensor.imag, dim))

        return unsqueeze

    return [patch.object(owner, "unsqueeze", by_parts(owner.unsqueeze)) for owner in (torch, torch.Tensor)]


def _real_rotation() -> list[Any]:
    """The module that computes the angles and the function that rotates, with pairs in place of complex numbers."""
    import torch
    from transformers.modeling_rope_utils import dynamic_rope_update
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as own

    @dynamic_rope_update  # type: ignore[untyped-decorator]
    def forward(self: Any, x: Any, position_ids: Any) -> Any:
        """``[B, S, D / 2, 2]``: cosine and sine of each angle."""
        angles = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        return torch.stack((angles.cos(), angles.sin()), dim=-1) * self.attention_scaling

    def turned(x: Any, pairs: Any) -> Any:
        """``(a + bi) (c + si)`` for each pair of neighbours ``a, b`` of ``x [B, N, S, D]``."""
        real, imaginary = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
        cos, sin = pairs.unsqueeze(1).unbind(-1)
        product = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
        return product.flatten(3).type_as(x)

    def rotate(xq: Any, xk: Any, freqs_cis: Any) -> tuple[Any, Any]:
        return turned(xq, freqs_cis), turned(xk, freqs_cis)

    return [
        patch.object(own.DeepseekV2RotaryEmbedding, "forward", forward),
        patch.object(own, "apply_rotary_emb", rotate),
    ]

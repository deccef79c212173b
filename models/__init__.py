"""Models: a real exported decoder graph for the demo and the tests, and builders of decoders in exporter spelling.

:mod:`models.decoder` writes DeepSeek and Qwen decoders of any size, :mod:`models.architecture` has the published ones.

The shipped graph: one layer of ``DeepseekV3ForCausalLM`` (transformers 5.24.0, interleaved rotation, random weights)
exported by ``torch.onnx.export(dynamo=True)`` of torch 2.13.0: opset 18, float16, static latent caches of 16 tokens.
The sizes around attention are small; head and latent widths (512 + 64) are DeepSeek-V3's own.
"""

from __future__ import annotations

from pathlib import Path

_DATA = Path(__file__).parent / "data"
_DEMO = "dsv3_il_dynamo18_fp16_staticcache"


def demo_graph() -> Path:
    """The demo's ONNX file: inputs ``input_ids [2,S]``, ``cache_position [S]``, ``key_cache.0 [2,1,16,512]`` (latent),
    ``value_cache.0 [2,1,16,64]`` (rotated key part); outputs ``logits [2,S,64]`` and both caches, all float16."""
    return _DATA / f"{_DEMO}.onnx"


def demo_record() -> Path:
    """Inputs and PyTorch's outputs of two runs of the demo graph, keys ``case0/in/NAME`` and ``case0/out/NAME``.

    Case 0: three tokens at positions 5 to 7 of a filled cache. Case 1: one token at position 9.
    """
    return _DATA / f"{_DEMO}.npz"

"""Models that kvfuse ships: a real exported decoder graph for the demo and the tests.

``deepseek-v3 (one layer)``: ``DeepseekV3ForCausalLM`` of transformers 5.24.0 with interleaved rotation, one layer, random weights,
exported by ``torch.onnx.export(dynamo=True)`` of torch 2.13.0 at opset 18 in float16 with a static latent cache of 16 tokens.
The sizes around attention are small, head and latent widths are DeepSeek-V3's own (512 + 64).
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

    Case 0 is a prefill of three tokens into empty caches, case 1 the step of one token that follows it.
    """
    return _DATA / f"{_DEMO}.npz"

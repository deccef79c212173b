"""Exports small random decoders of ``transformers`` to ONNX, with what torch computes beside them.

    python -m models.export_from_transformers deepseek-v3 OUT.onnx --exporter dynamo --cache static

Needs the extra ``kvfuse[export]`` (torch and transformers 5), which is imported when an export is asked for and not
before. Two exporters, ``dynamo`` (torch.export) and ``torchscript``; two forms of cache, ``static`` (tensors of fixed
length, written by index) and ``growth`` (past in, past and new out). ``OUT.npz`` gets one call: ``case0/in/NAME``
and ``case0/out/NAME`` as torch computed them; with ``--greedy`` what the model generates (:mod:`models.greedy`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ir_ops.errors import BadUsage, KvfuseError
from ir_ops.npz import save_npz
from models import greedy
from models.complex_rotation import check_same, exportable

FAMILIES = ("qwen2", "qwen3", "qwen3-moe", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3")
EXPORTERS, CACHES = ("dynamo", "torchscript"), ("static", "growth")
BATCH, TOKENS, PAST, LENGTH = 2, 3, 4, 16

_COMMON = {
    "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 64, "intermediate_size": 64,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
_GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128}
_LATENT = {
    "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 96, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 1, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
_SHARP = {"initializer_range": 0.1}
"""Weights of a size that lets a token prefer some of the others."""
_LITE = {"q_lora_rank": None, "n_group": 1, "topk_method": "greedy"}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {**_GROUPED}),
    "qwen3": ("Qwen3", {**_GROUPED}),
    "qwen3-moe": ("Qwen3Moe", {**_GROUPED, **_MOE}),
    "deepseek-v2": ("DeepseekV2", {**_LATENT, **_SHARP, "topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": ("DeepseekV2", {**_LATENT, **_SHARP, **_LITE}),
    "deepseek-v3": ("DeepseekV3", {**_LATENT}),
}
_SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 48, "head_dim": 32, "moe_intermediate_size": 16, "q_lora_rank": 48,
    "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
}  # fmt: skip
"""Smaller still: where a family has such a size, this one."""


def decoder(family: str, dtype: str = "float32", layers: int = 2, seed: int = 0, *, small: bool = False) -> Any:
    """A ``transformers`` model of tiny size with random weights; ``small``: with heads narrower than real ones too.

    Raises:
        BadUsage: an unknown family, or torch and transformers are not installed.
    """
    if family not in FAMILIES:
        raise BadUsage("unknown family", found=family, wanted=" | ".join(FAMILIES))
    try:
        import torch
        import transformers
    except ImportError as error:
        raise BadUsage(
            "torch and transformers are needed", found=str(error), hint="pip install 'kvfuse[export]'"
        ) from None
    name, sizes = _CONFIGS[family]
    sizes = {**_COMMON, **sizes, "num_hidden_layers": layers}
    if small:
        sizes |= {key: value for key, value in _SMALL.items() if sizes.get(key) is not None}
    config = getattr(transformers, f"{name}Config")(**sizes)
    config._attn_implementation = "sdpa"
    # every expert as a batched product: the form that exporters can take
    config._experts_implementation = "batched_mm"
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(getattr(torch, dtype)).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def widths(config: Any) -> tuple[int, tuple[int, int]]:
    """Heads of the cache, and the columns of its key and value part (latent and rotated key for DeepSeek)."""
    if hasattr(config, "kv_lora_rank"):
        return 1, (config.kv_lora_rank, config.qk_rope_head_dim)
    return config.num_key_value_heads, (config.head_dim if hasattr(config, "head_dim") else 128,) * 2


def export(
    family: str,
    path: str | Path,
    *,
    exporter: str = "dynamo",
    cache: str = "static",
    dtype: str = "float32",
    layers: int = 2,
    opset: int = 18,
    seed: int = 0,
    small: bool = False,
    generation: bool = False,
) -> dict[str, Any]:
    """Exports a decoder to ``path`` and gives one call with torch's results, ``case0/in/NAME`` and ``case0/out/NAME``.

    With ``generation`` it gives what the model generates instead, as :func:`models.greedy.record`.

    Raises:
        BadUsage: unknown words, or no torch.
        ExportError: what makes the model exportable changes its results.
    """
    for word, known in ((exporter, EXPORTERS), (cache, CACHES)):
        if word not in known:
            raise BadUsage("unknown exporter or form of cache", found=word, wanted=" | ".join(known))
    model = decoder(family, dtype, layers, seed, small=small)
    import torch

    # an exporter sets the model back to the mode that its wrapper is in
    wrapped = (_static(model) if cache == "static" else _growing(model)).eval()
    names, call = _call(model.config, cache, getattr(torch, dtype), layers, seed)
    outputs = _output_names(cache, layers)
    with torch.no_grad():
        expected = wrapped(*(item.clone() for item in call))
    with torch.no_grad(), exportable(model, exporter):
        check_same(expected, wrapped(*(item.clone() for item in call)))
        arguments = tuple(item.clone() for item in call)
        how: dict[str, Any] = {"input_names": names, "output_names": outputs, "opset_version": opset}
        if exporter == "dynamo":
            shapes = [dict.fromkeys(_dynamic(cache, name), torch.export.Dim.DYNAMIC) for name in names]
            fixed = len(names) - 2 * layers
            spread: dict[str, Any] = {**dict(zip(names[:fixed], shapes, strict=False)), "caches": tuple(shapes[fixed:])}
            torch.onnx.export(wrapped, arguments, str(path), dynamo=True, dynamic_shapes=spread, external_data=False,
                              **how)  # fmt: skip
            if small:
                _forget_traces(path)
        else:
            axes = {name: _dynamic(cache, name) for name in names if _dynamic(cache, name)}
            torch.onnx.export(wrapped, arguments, str(path), dynamo=False, dynamic_axes=axes, **how)
    if generation:
        return dict(greedy.record(model))
    record = {f"case0/in/{name}": _array(item) for name, item in zip(names, call, strict=True)}
    return record | {f"case0/out/{name}": _array(item) for name, item in zip(outputs, expected, strict=True)}


def _forget_traces(path: str | Path) -> None:
    """Takes the places in Python, which ``dynamo`` writes to each node, out of a file."""
    import onnx

    model = onnx.load_model(str(path))
    for node in model.graph.node:
        del node.metadata_props[:]
    for value in (*model.graph.input, *model.graph.value_info):
        del value.metadata_props[:]
    onnx.save_model(model, str(path))


def _array(tensor: Any) -> Any:
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    return tensor.numpy()


def _output_names(cache: str, layers: int) -> list[str]:
    pattern = "{}_cache_out.{}" if cache == "static" else "present.{1}.{0}"
    return ["logits", *(pattern.format(part, layer) for layer in range(layers) for part in ("key", "value"))]


def _dynamic(cache: str, name: str) -> dict[int, str]:
    """Axis -> name of the dims of an input that may vary."""
    if cache == "static":
        return {"input_ids": {1: "seq"}, "cache_position": {0: "seq"}}.get(name, {})
    known = {"input_ids": {0: "batch", 1: "seq"}, "position_ids": {0: "batch", 1: "seq"},
             "attention_mask": {0: "batch", 1: "total"}}  # fmt: skip
    return known.get(name, {0: "batch", 2: "past"})


def _call(config: Any, cache: str, dtype: Any, layers: int, seed: int) -> tuple[list[str], list[Any]]:
    """Names and tensors of one call: three tokens behind four."""
    import torch

    generator = torch.Generator().manual_seed(seed + 1)
    heads, columns = widths(config)
    ids = torch.randint(0, config.vocab_size, (BATCH, TOKENS), generator=generator)
    if cache == "static":
        names, call, length = ["input_ids", "cache_position"], [ids, torch.arange(PAST, PAST + TOKENS)], LENGTH
    else:
        names, length = ["input_ids", "attention_mask", "position_ids"], PAST
        positions = torch.arange(PAST, PAST + TOKENS).expand(BATCH, TOKENS).contiguous()
        call = [ids, torch.ones(BATCH, PAST + TOKENS, dtype=torch.int64), positions]
    for layer in range(layers):
        for part, width in zip(("key", "value"), columns, strict=True):
            names.append(f"{part}_cache.{layer}" if cache == "static" else f"past_key_values.{layer}.{part}")
            content = torch.randn(BATCH, heads, length, width, generator=generator)
            if cache == "static":
                content[:, :, PAST:] = 0
            call.append(content.to(dtype))
    return names, call


def _static(model: Any) -> Any:
    """``(input_ids, cache_position, key_cache.0, value_cache.0, ...) -> (logits, written caches)``."""
    import torch
    from transformers.cache_utils import Cache, CacheLayerMixin

    class Layer(CacheLayerMixin):  # type: ignore[misc]
        is_compileable, is_sliding = True, False

        def __init__(self, keys: Any, values: Any, position: Any) -> None:
            super().__init__()
            self.keys, self.values, self._position, self.is_initialized = keys, values, position, True

        def update(self, keys: Any, values: Any, *unused: Any, **also_unused: Any) -> tuple[Any, Any]:
            slots = torch.arange(keys.shape[-2]) + self._position[0]
            self.keys = self.keys.index_copy(2, slots, keys)
            self.values = self.values.index_copy(2, slots, values)
            return self.keys, self.values

        def get_seq_length(self) -> Any:
            return self._position[0]

        def get_max_length(self) -> int:
            return int(self.keys.shape[-2])

        def get_mask_sizes(self, *unused: Any) -> tuple[int, int]:
            return int(self.keys.shape[-2]), 0

        def lazy_initialization(self, *unused: Any) -> None:
            return

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.m = model

        def forward(self, input_ids: Any, cache_position: Any, *caches: Any) -> tuple[Any, ...]:
            layers = [Layer(caches[at], caches[at + 1], cache_position) for at in range(0, len(caches), 2)]
            cache = Cache(layers=layers)
            result = self.m(input_ids=input_ids, past_key_values=cache, use_cache=True,
                            position_ids=cache_position.unsqueeze(0))  # fmt: skip
            return (result.logits, *(item for layer in layers for item in (layer.keys, layer.values)))

    return Wrapped()


def _growing(model: Any) -> Any:
    """``(input_ids, attention_mask, position_ids, past.0.key, past.0.value, ...) -> (logits, present ...)``."""
    import torch
    from transformers import DynamicCache

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.m = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *caches: Any) -> tuple[Any, ...]:
            cache = DynamicCache()
            for layer in range(len(caches) // 2):
                cache.update(caches[2 * layer], caches[2 * layer + 1], layer)
            result = self.m(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                            past_key_values=cache, use_cache=True)  # fmt: skip
            return (result.logits, *(item for layer in cache.layers for item in (layer.keys, layer.values)))

    return Wrapped()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.export_from_transformers", description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("output", metavar="OUT.onnx")
    parser.add_argument("--exporter", choices=EXPORTERS, default="dynamo")
    parser.add_argument("--cache", choices=CACHES, default="static")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="narrower heads than real ones, and no stack traces")
    parser.add_argument("--greedy", action="store_true", dest="generation", help="record a generation, not one call")
    args = parser.parse_args(argv)
    options = {key: value for key, value in vars(args).items() if key not in ("family", "output")}
    try:
        record = export(args.family, args.output, **options)
    except KvfuseError as error:
        print(error, file=sys.stderr)
        return 1
    save_npz(Path(args.output).with_suffix(".npz"), record)
    logits = sum(int(np.prod(item.shape)) for name, item in record.items() if name.endswith("/logits"))
    print(f"written: {args.output}, {logits} logits beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())

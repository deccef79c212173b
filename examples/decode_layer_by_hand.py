"""A decoder's attention block by hand: norm, projection, fused preamble, attention, with weights in a file.

Shows dynamic inputs (ConcatD), optional inputs, ``file_constant`` and running the graph without Ascend hardware.

python examples/decode_layer_by_hand.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np

from ir_ops.ge import GraphBuilder, Model, execute, validate, write

HIDDEN, LATENT, ROPE, TOKENS = 128, 512, 64, 4


def weights(folder: Path) -> Path:
    """One file of weights, as an ONNX model's external data would be."""
    path = folder / "weights.bin"
    rng = np.random.default_rng(0)
    path.write_bytes((rng.standard_normal((HIDDEN, LATENT + ROPE)) * 0.1).astype(np.float16).tobytes())
    return path


def layer(file: Path) -> Model:
    """``x`` normalised, projected to a latent row and written to the caches; returns the row's parts joined again."""
    b = GraphBuilder("layer")
    x = b.data("x", "float16", (TOKENS, HIDDEN))
    cos, sin = (b.data(name, "float16", (TOKENS, 1, 1, ROPE)) for name in ("cos", "sin"))
    slots = b.data("slots", "int64", (TOKENS,))
    k_cache = b.ref_data("k_cache", "float16", (2, 16, 1, ROPE))
    ckv_cache = b.ref_data("ckv_cache", "float16", (2, 16, 1, LATENT))

    size = HIDDEN * (LATENT + ROPE) * 2
    weight = b.file_constant(file.resolve(), 0, size, "float16", (HIDDEN, LATENT + ROPE), name="kv_down")
    normed = b.RmsNorm(x, np.ones(HIDDEN, np.float16), epsilon=1e-6).y
    kv = b.Reshape(b.MatMulV2(normed, weight), np.array([TOKENS, 1, 1, LATENT + ROPE]))
    made = b.KvRmsNormRopeCache(
        kv, np.ones(LATENT, np.float16), cos, sin, slots, k_cache, ckv_cache, cache_mode="PA", is_output_kv=True
    )
    b.output(b.ConcatD([made.c_kv, made.k_rope], concat_dim=-1), "row")
    b.output(made.k_cache, "k_cache_out")
    return b.build()


def main(folder: Path) -> None:
    path = write(layer(weights(folder)), folder / "layer.air")
    assert not [finding for finding in validate(path) if finding.severity == "error"]
    rng = np.random.default_rng(1)
    inputs = {
        "x": rng.standard_normal((TOKENS, HIDDEN)).astype(np.float16),
        "cos": np.ones((TOKENS, 1, 1, ROPE), np.float16),
        "sin": np.zeros((TOKENS, 1, 1, ROPE), np.float16),
        "slots": np.array([0, 1, 17, -1]),  # the last token is skipped
        "k_cache": np.zeros((2, 16, 1, ROPE), np.float16),
        "ckv_cache": np.zeros((2, 16, 1, LATENT), np.float16),
    }
    result = execute(path, inputs)
    written = np.flatnonzero(result.caches["ckv_cache"].reshape(32, LATENT).any(axis=1))
    print(f"written: {path}; cache rows {written.tolist()}; row {list(result.outputs['row'].shape)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

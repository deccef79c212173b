"""A graph by hand: one KvRmsNormRopeCache that updates two paged caches in place.

python examples/kv_rms_norm_rope_cache.py [OUT.air]
"""

import sys

import numpy as np

from ir_ops.ge import GraphBuilder, Model, validate, write


def preamble() -> Model:
    """Eight tokens of a DeepSeek layer: normalised latents to ``ckv_cache``, rotated keys to ``k_cache``."""
    b = GraphBuilder("preamble")
    kv, index = b.data("kv", "float16", (8, 1, 1, 576)), b.data("index", "int64", (8,))
    cos, sin = b.data("cos", "float16", (8, 1, 1, 64)), b.data("sin", "float16", (8, 1, 1, 64))
    k_cache = b.ref_data("k_cache", "float16", (4, 16, 1, 64))
    ckv_cache = b.ref_data("ckv_cache", "float16", (4, 16, 1, 512))
    gamma = np.ones(512, np.float16)
    out = b.KvRmsNormRopeCache(kv, gamma, cos, sin, index, k_cache, ckv_cache, cache_mode="PA", is_output_kv=True)
    b.output(out.k_rope, "k_rope")
    b.output(out.c_kv, "c_kv")
    return b.build()


if __name__ == "__main__":
    path = write(preamble(), sys.argv[1] if len(sys.argv) > 1 else "preamble.air")
    for finding in validate(path):
        print(finding)
    print(f"written: {path}")

"""Near misses of the preamble: what was changed, and what the refusal has to talk about."""

from __future__ import annotations

TRAPS: dict[str, tuple[str, str]] = {
    "other_x": ("the query is projected from other hidden states", "mla-other-tokens"),
    "bias": ("the down-projection of the query has a bias", "mla-bias"),
    "no_norm": ("the compressed query is not normed", "mla-no-q-lora"),
    "norm_of_part": ("half of the compressed query is normed", "mla-no-query"),
    "rolled_heads": ("head n of the query is multiplied by the matrix of head n - 1", "mla-not-absorbed"),
    "not_absorbed": ("the nope part goes on as it is", "mla-not-absorbed"),
    "one_matrix": ("all heads are multiplied by one matrix", "mla-not-absorbed"),
    "heads_mixed": ("heads are summed", "mla-not-absorbed"),
    "by_token": ("the absorbed matrix depends on the hidden states", "mla-weight"),
    "part_absorbed": ("two nope columns are left out", "mla-query-columns"),
    "nope_bias": ("a bias before the absorption", "mla-bias"),
    "nope_relu": ("another function before the absorption", "mla-not-absorbed"),
    "nope_scaled": ("only the nope part is scaled", "mla-scale"),
    "rope_scaled": ("only the rope part is scaled", "mla-scale"),
    "other_cos": ("key and query are rotated by different angles", "mla-rope-tables"),
    "swapped_tables": ("cos and sin change places for the query", "mla-rope-tables"),
    "inverse": ("the query is rotated backwards", "mla-query-rope"),
    "rope_plain": ("the query is not rotated", "mla-query-rope"),
    "rope_bias": ("a bias before the rotation", "mla-query-rope"),
    "shifted_tokens": ("the query is rotated by the next token's angles", "rope-tables"),
    "key_bias": ("the key has a bias", "mla-bias"),
    "key_read": ("the rotated key is read besides the cache", "inner-value-read"),
    "row_read": ("the compressed row is read besides the cache", "inner-value-read"),
}
"""Name in ``Spec.trap`` -> what is wrong, code of the refusal."""

LEGAL = ("rope_first", "other_pairs")
"""Unusual, not wrong: the rope columns come first; the query pairs other columns than the key."""

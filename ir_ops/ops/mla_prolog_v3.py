"""MlaPrologV3: everything in front of absorbed multi-head latent attention, from the hidden states to the caches.

``token_x`` is projected down (weight_dq), normalised, projected up to all heads (weight_uq_qr); each head's nope part
is multiplied by its weight_uk and its rope part rotated. That is the query. For the key ``token_x`` is projected to
one compressed row (weight_dkv_kr), whose left part is normalised and whose right part is rotated; both are written to
their caches. Weights, caches and the query may be quantised.

Rotation: interleaved in, halves out. Pair ``(x[2j], x[2j+1])`` gives columns ``j`` and ``Dr/2 + j``. The products add
in fp32 (int8 ones exactly in int32); values are rounded to T where they become an operand or an output of that type.
"""

from __future__ import annotations

from collections.abc import Mapping

from ir_ops import contract as rules
from ir_ops.contract import DEVICES, FLOATS, kept_as
from ir_ops.declaration import (
    Attr,
    Attrs,
    Constraint,
    Input,
    Note,
    Operator,
    Output,
    Rule,
    Shape,
    TensorSpec,
)
from ir_ops.layout import MLA_CACHE_MODES
from ir_ops.ops import _mla_products as products
from ir_ops.ops import _mla_rules as mla
from ir_ops.ops._mla_math import compute

_EIGHT_BIT = ("int8", "float8_e4m3fn", "hifloat8")
_F32_OR_E8M0 = ("float32", "float8_e8m0", "uint8")


def _device(id_: str, text: str, rule: Rule) -> Constraint:
    return Constraint(id_, text, rule, DEVICES)


CONSTRAINTS = (
    Constraint("MLA-01", "token_x must be [T, He] or [B, S, He]", mla.token_rank),
    Constraint("MLA-05", "unknown cache_mode", rules.known_word("cache_mode", MLA_CACHE_MODES)),
    Constraint("MLA-10", "unknown weight_quant_mode", mla.known_number("weight_quant_mode", mla.WEIGHT_MODES)),
    Constraint("MLA-10", "unknown kv_cache_quant_mode", mla.known_number("kv_cache_quant_mode", mla.CACHE_MODES)),
    Constraint("MLA-11", "unknown query_quant_mode", mla.known_number("query_quant_mode", mla.QUERY_MODES)),
    Constraint("MLA-11", "a quantised query needs a cache with one scale", mla.query_follows_cache),
    Constraint("MLA-12", "the repo modes must be 1 for a per-tile cache, else 0", mla.repo_modes),
    Constraint("MLA-13", "this cache_mode has no per-tile rows", mla.tile_modes),
    Constraint("MLA-20", "rmsnorm_epsilon_cq must be finite", rules.finite("rmsnorm_epsilon_cq")),
    Constraint("MLA-20", "rmsnorm_epsilon_ckv must be finite", rules.finite("rmsnorm_epsilon_ckv")),
    Constraint("MLA-06", "BSND goes with [B, S, He] and TND with [T, He]", mla.form_of_mode),
    Constraint("MLA-21", "only token, batch and cache sizes may be 0", mla.empties),
    Constraint("MLA-15", "an element type does not fit the quantisation modes", mla.types_of_modes),
    Constraint("MLA-02", "the rotated width must be even", mla.even_rope),
    Constraint("MLA-03", "the weights must fit token_x, each other and the rotated width", mla.weight_shapes),
    Constraint("MLA-03", "MX weights must divide into blocks of 32 rows", mla.mx_rows),
    Constraint("MLA-04", "gammas, rope_sin and rope_cos must fit", mla.row_shapes),
    Constraint("MLA-18", "tile_size must divide the compressed width", mla.tile_size),
    Constraint("MLA-16", "an optional input is missing, not wanted, or of another shape", mla.optional_inputs),
    Constraint("MLA-16", "a per-tensor scale must be one number", mla.one_scale),
    Constraint("MLA-08", "a cache has another shape", mla.cache_shapes),
    Constraint("MLA-08", "an NZ cache row must divide into 32-byte fractals", mla.nz_width),
    Constraint("MLA-14", "kr_cache must be empty where its rows are packed into kv_cache", mla.packed_leaves_kr_empty),
    Constraint("MLA-17", "actual_seq_len must be running sums that end with T", mla.sequence_lengths),
    Constraint("MLA-07", "cache_index must have one element for each token or page", mla.index_shape),
    Constraint("MLA-19", "an index is out of range or written twice", mla.index_values),
    _device("MLA-02", "the product has fixed sizes", products.sizes),
    _device("MLA-09", "the product has a page size multiple and needs pages for all tokens", products.pages),
    _device("MLA-10", "the product does not take these quantisation modes", products.combinations),
    _device("MLA-11", "query_quant_mode must follow the other modes", products.derived_query_mode),
    _device("MLA-15", "the product ties the 8-bit cache type to the weights", products.cache_of_mode),
    _device("MLA-16", "the product takes MX scales as float8_e8m0", products.scale_type),
    _device("MLA-18", "the product has one tile_size", products.tile_size),
    _device("MLA-21", "the product takes no empty cache in this mode", products.no_empty_cache),
    _device("MLA-22", "the product takes bfloat16 only", products.plain_type),
)


def _shapes(specs: Mapping[str, TensorSpec], attrs: Attrs) -> dict[str, TensorSpec]:
    def shape(name: str, rank: int) -> Shape:
        spec = specs.get(name)
        return spec.shape if spec is not None and spec.shape is not None and len(spec.shape) == rank else (None,) * rank

    plain = specs["weight_uk"].dtype
    x = specs["token_x"].shape
    lead = x[:-1] if x is not None and len(x) in (2, 3) else None
    heads, _, kv_rank = shape("weight_uk", 3)
    q_rank, rope = shape("weight_dq", 2)[1], _last(specs["rope_cos"])
    flat: int | None = None
    if lead is not None and None not in lead:
        flat = 1
        for size in lead:
            flat *= size or 0
    elif lead is not None and len(lead) == 1:
        flat = lead[0]
    weights, normed = attrs["weight_quant_mode"], bool(attrs["query_norm_flag"])
    scale = specs.get("dequant_scale_w_uq_qr") or TensorSpec("float32", None)
    per_row = None if q_rank is None else q_rank // mla.MX_BLOCK

    def rows(dtype: str, *last: int | None) -> TensorSpec:
        return TensorSpec(dtype, None if lead is None else (*lead, *last))

    def by_token(dtype: str, *last: int | None) -> TensorSpec:
        return TensorSpec(dtype, (flat, *last))

    empty = (0,)
    return {
        "query": rows(specs["kv_cache"].dtype if attrs["query_quant_mode"] == 1 else plain, heads, kv_rank),
        "query_rope": rows(plain, heads, rope),
        "kv_cache": specs["kv_cache"],
        "kr_cache": specs["kr_cache"],
        "dequant_scale_q_nope": by_token("float32", heads, 1)
        if attrs["query_quant_mode"] == 1
        else TensorSpec("float32", empty),
        "query_norm": rows(specs["weight_uq_qr"].dtype, q_rank)
        if normed
        else TensorSpec(specs["weight_uq_qr"].dtype, empty),
        "dequant_scale_q_norm": by_token(scale.dtype, per_row if weights == 3 else 1)
        if normed and weights != 0
        else TensorSpec(scale.dtype, empty),
    }


def _last(spec: TensorSpec) -> int | None:
    return spec.shape[-1] if spec.shape else None


def _combines(choice: Mapping[str, str]) -> bool:
    plain, x, w, scale = (choice[name] for name in ("T", "X", "W", "S"))
    kv, kr, query = (choice[name] for name in ("TK", "TR", "Q"))
    weights = (x, w) in {(plain, plain), (plain, "int8"), ("int8", "int8"), ("hifloat8", "hifloat8")}
    mx = (x, w) == ("float8_e4m3fn", "float8_e4m3fn")
    one_plain = query == plain and kv == kr and kv in (*kept_as(plain), "int8")
    eight = kv in _EIGHT_BIT and kr == plain and query in (plain, kv)
    return ((weights and scale == "float32") or mx) and (one_plain or eight)


def _body_attrs(attrs: Attrs) -> str:
    return "ONNX has no operator that packs rows of several types" if attrs["kv_cache_quant_mode"] == 3 else ""


NOTES = (
    Note(
        "Cache modes and layouts",
        (
            ("mode", "kv_cache (kr_cache has Dr columns)", "memory", "cache_index", "an index element is"),
            (
                "PA_BSND",
                "[block_num, block_size, 1, Hckv]",
                "as declared",
                "[T] or [B, S]",
                "flat slot page*block_size + row",
            ),
            (
                "PA_NZ",
                "[block_num, block_size, 1, Hckv]",
                "[block_num, Hckv/d0, block_size, d0]",
                "[T] or [B, S]",
                "flat slot page*block_size + row",
            ),
            (
                "PA_BLK_BSND",
                "[block_num, block_size, 1, Hckv]",
                "as declared",
                "[sum of ceil(S_i/block_size)] or [B, ceil(S/block_size)]",
                "number of the page that takes block_size consecutive tokens of a sequence",
            ),
            (
                "PA_BLK_NZ",
                "[block_num, block_size, 1, Hckv]",
                "[block_num, Hckv/d0, block_size, d0]",
                "as PA_BLK_BSND",
                "as PA_BLK_BSND",
            ),
            ("BSND", "[B, S, 1, Hckv]", "as declared", "absent", "rows in the order of the tokens"),
            ("TND", "[T, 1, Hckv]", "as declared", "absent", "rows in the order of the tokens"),
        ),
        (
            "-1 leaves the slot alone, a skipped page with all its tokens; every byte that is not addressed stays.",
            "d0 is 32 bytes of the cache's own type: 8 columns of float32, 16 of a 16-bit, 32 of an 8-bit type.",
            "PA_BLK_* with [T, He] needs actual_seq_len, the running sums of the sequences' lengths.",
            "A cache of no rows takes nothing: its index is not looked at, query and query_rope are computed.",
        ),
    ),
    Note(
        "Weights (weight_quant_mode)",
        (
            ("mode", "token_x, weight_dq, weight_dkv_kr", "weight_uq_qr", "query_norm", "scales"),
            ("0", "T", "T", "T", "none"),
            ("1", "T", "int8", "int8", "dequant_scale_w_uq_qr"),
            ("2", "int8", "int8", "int8", "dequant_scale_x and all dequant_scale_w_*"),
            ("3 (MX)", "float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn", "as 2, float8_e8m0 by blocks of 32"),
            ("4", "float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn", "as 2"),
            ("5", "hifloat8", "hifloat8", "hifloat8", "as 2; GE only"),
        ),
        (
            "int8 and float8 operands are quantised by token: scale = largest magnitude / 127 (448), value / scale, "
            "rounded half to even. smooth_scales_cq multiplies before that and is not divided out.",
            "MX scales may come as uint8, the bits of float8_e8m0, which ONNX Runtime does not hand to operators; "
            "dequant_scale_q_norm then is uint8 too.",
            "Weights are plain [K, M]. `ir_ops.layout.weight_to_nz` and `weight_from_nz` convert to and from the "
            "FRACTAL_NZ storage [M/w0, K/16, 16, w0] that a device keeps, w0 = 32 bytes / element.",
        ),
    ),
    Note(
        "Caches (kv_cache_quant_mode)",
        (
            ("mode", "kv_cache", "kr_cache", "scales"),
            ("0", "T", "T", "none"),
            ("1 per tensor", "8-bit = value * scale", "T", "quant_scale_ckv [1]"),
            (
                "2 per channel",
                "int8 = value * scale",
                "int8 = value * scale",
                "quant_scale_ckv [1, Hckv], quant_scale_ckr [1, Dr]",
            ),
            ("3 per tile", "packed rows", "empty", "in the rows; k_nope_clip_alpha [1] for int8"),
        ),
        (
            "A packed row is Hckv 8-bit values, Dr rotated values in type T, Hckv/tile_size float32 scales: 656 bytes "
            "for 512, 64 bfloat16 and tiles of 128. A tile's scale is its largest magnitude * k_nope_clip_alpha / 127, "
            "for float8 at least 1e-4 / 448; values are clipped to it.",
            "query_quant_mode 1: the query is quantised by token and head, and query_rope is multiplied by "
            "quant_scale_ckv / dequant_scale_q_nope, so that both parts of a score have one unit.",
        ),
    ),
    Note(
        "Choices where the contract leaves room",
        items=(
            "`generic` takes any sizes, any page size, float32 and float16 as T, every weight_quant_mode with every "
            "kv_cache_quant_mode, float8 caches with any weights, and an unquantised query with a per-tensor cache.",
            "qc_qr_scale and kc_scale multiply the normed rows, before quantisation.",
            "A zero row has scale 0 and zeros; where dequant_scale_q_nope is 0, query_rope is 0. NaN is 0 in 8 bits.",
            "kr_cache is quantised from the float32 value. float8 saturates.",
            "`generic` keeps float32 rows in float16 or bfloat16 caches too (both caches), rounded once.",
            "quant_scale_ckv [1, Hckv] with equal entries stands for [1] in a per-tensor cache.",
            "In PA_BLK_* a matrix [B, ceil(S/block_size)] may come flattened.",
            "Only -1 skips; other negative indices are refused. query and query_rope are computed for skipped tokens.",
            "Outputs that a mode does not have are empty, shape [0].",
            "ONNX Runtime before 1.24 takes the query for a plain one whatever the mode: it refuses models with a "
            "quantised query when they are loaded.",
            "weight_quant_mode 4 follows the newest interface: as 2, with float8_e4m3fn in place of int8.",
        ),
    ),
)

OPERATOR = Operator(
    name="MlaPrologV3",
    doc=__doc__,
    types={
        "X": (*FLOATS, *_EIGHT_BIT),
        "W": (*FLOATS, *_EIGHT_BIT),
        "T": FLOATS,
        "TK": (*FLOATS, *_EIGHT_BIT),
        "TR": (*FLOATS, "int8"),
        "Q": (*FLOATS, *_EIGHT_BIT),
        "I": ("int64",),
        "S": _F32_OR_E8M0,
        "F": ("float32",),
        "L": ("int32",),
    },
    inputs=(
        Input("token_x", "X", "[T, He] or [B, S, He]", "hidden states"),
        Input("weight_dq", "X", "[He, Hcq]", "down-projection of the query", nz=True),
        Input("weight_uq_qr", "W", "[Hcq, N*(D+Dr)]", "up-projection; by head D nope, then Dr rope columns", nz=True),
        Input("weight_uk", "T", "[N, D, Hckv]", "absorbed up-projection of the key"),
        Input("weight_dkv_kr", "X", "[He, Hckv+Dr]", "down-projection of the key: compressed part, rope part", nz=True),
        Input("rmsnorm_gamma_cq", "T", "[Hcq]", "RMSNorm weight of the query"),
        Input("rmsnorm_gamma_ckv", "T", "[Hckv]", "RMSNorm weight of the compressed key"),
        Input("rope_sin", "T", "[T, Dr] or [B, S, Dr]", "full width, in output order"),
        Input("rope_cos", "T", "as rope_sin"),
        Input("kv_cache", "TK", "by cache_mode, see below", "in place", ref="kv_cache"),
        Input("kr_cache", "TR", "as kv_cache with Dr columns; [0] for packed rows", "in place", ref="kr_cache"),
        Input("cache_index", "I", "by cache_mode, see below", "where to write; -1 skips", True),
        Input("dequant_scale_x", "S", "[T, 1]; MX [T, He/32]; T = B*S", "scale of token_x", True),
        Input("dequant_scale_w_dq", "S", "[1, Hcq]; MX [Hcq, He/32]", "scale of weight_dq", True),
        Input("dequant_scale_w_uq_qr", "S", "[1, N*(D+Dr)]; MX [N*(D+Dr), Hcq/32]", "scale of weight_uq_qr", True),
        Input("dequant_scale_w_dkv_kr", "S", "[1, Hckv+Dr]; MX [Hckv+Dr, He/32]", "scale of weight_dkv_kr", True),
        Input("quant_scale_ckv", "F", "[1] per tensor, [1, Hckv] per channel", "multiplier of kv_cache", True),
        Input("quant_scale_ckr", "F", "[1, Dr]", "multiplier of kr_cache", True),
        Input("smooth_scales_cq", "F", "[1, Hcq]", "multiplies the normed query before it is quantised", True),
        Input("actual_seq_len", "L", "[B]", "running sums of the sequences' lengths", True),
        Input("k_nope_clip_alpha", "F", "[1]", "share of a tile's largest magnitude that is kept", True),
    ),
    outputs=(
        Output("query", "Q", "[T, N, Hckv] or [B, S, N, Hckv]", "8-bit with query_quant_mode 1"),
        Output("query_rope", "T", "[T, N, Dr] or [B, S, N, Dr]", "rotated part of the query"),
        Output("kv_cache", "TK", "as the input", "the same buffer", ref=True),
        Output("kr_cache", "TR", "as the input", "the same buffer", ref=True),
        Output("dequant_scale_q_nope", "F", "[T, N, 1]; else [0]", "scale of a quantised query"),
        Output("query_norm", "W", "[T, Hcq] or [B, S, Hcq]; else [0]", "operand of weight_uq_qr, with query_norm_flag"),
        Output("dequant_scale_q_norm", "S", "[T, 1]; MX [T, Hcq/32]; else [0]", "scale of a quantised query_norm"),
    ),
    attrs=(
        Attr("rmsnorm_epsilon_cq", "Float", 1e-5, "added to the query's mean square"),
        Attr("rmsnorm_epsilon_ckv", "Float", 1e-5, "added to the compressed key's mean square"),
        Attr("cache_mode", "String", "PA_BSND", "how the caches are laid out", tuple(MLA_CACHE_MODES)),
        Attr("query_norm_flag", "Bool", False, "deliver query_norm and its scale"),
        Attr("weight_quant_mode", "Int", 0, "0 none, 1 weight_uq_qr int8, 2 int8, 3 MX float8, 4 float8, 5 hifloat8"),
        Attr("kv_cache_quant_mode", "Int", 0, "0 none, 1 per tensor, 2 per channel, 3 per tile"),
        Attr("query_quant_mode", "Int", 0, "0 none, 1 by token and head"),
        Attr("ckvkr_repo_mode", "Int", 0, "0 two caches, 1 rotated key in the rows of kv_cache"),
        Attr("quant_scale_repo_mode", "Int", 0, "0 no scales in the rows, 1 scales in the rows of kv_cache"),
        Attr("tile_size", "Int", 128, "columns of a tile"),
        Attr("qc_qr_scale", "Float", 1.0, "multiplies the normed query"),
        Attr("kc_scale", "Float", 1.0, "multiplies the normed compressed key"),
    ),
    constraints=CONSTRAINTS,
    notes=NOTES,
    shapes=_shapes,
    compute=compute,
    combines=_combines,
    body_types=rules.no_float8,
    body_attrs=_body_attrs,
    needs_rank=("token_x",),
)  # fmt: skip

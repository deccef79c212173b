// Made by `python -m ir_ops.codegen` from ir_ops/ops/qkv_rms_norm_rope_cache.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::qkv_rms_norm_rope_cache {

enum Input : size_t { kInQkv, kInQGamma, kInKGamma, kInCos, kInSin, kInIndex, kInQOut, kInKCache, kInVCache, kInKScale, kInVScale, kInKOffset, kInVOffset };
enum Output : size_t { kOutQOut, kOutKCache, kOutVCache, kOutQOutBeforeQuant, kOutKOutBeforeQuant, kOutVOutBeforeQuant };
enum Attribute : size_t { kAttrQkvSize, kAttrHeadNums, kAttrEpsilon, kAttrCacheMode, kAttrIsOutputQkv };

inline constexpr InputDecl kInputs[] = {
    {"qkv", false, -1},
    {"q_gamma", false, -1},
    {"k_gamma", false, -1},
    {"cos", false, -1},
    {"sin", false, -1},
    {"index", false, -1},
    {"q_out", true, 0},
    {"k_cache", false, 1},
    {"v_cache", false, 2},
    {"k_scale", true, -1},
    {"v_scale", true, -1},
    {"k_offset", true, -1},
    {"v_offset", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"q_out", 6, 0},
    {"k_cache", 7, 7},
    {"v_cache", 8, 8},
    {"q_out_before_quant", -1, 0},
    {"k_out_before_quant", -1, 0},
    {"v_out_before_quant", -1, 0},
};

enum CacheMode : int { kCacheMode_PA_NZ };
inline constexpr const char* kCacheModeValues[] = {"PA_NZ"};
inline constexpr AttrDecl kAttrs[] = {
    {"qkv_size", AttrType::kInts, 0.0, "", {}},
    {"head_nums", AttrType::kInts, 0.0, "", {}},
    {"epsilon", AttrType::kFloat, 1e-06, "", {}},
    {"cache_mode", AttrType::kString, 0.0, "PA_NZ", kCacheModeValues},
    {"is_output_qkv", AttrType::kBool, 0.0, "", {}},
};

inline constexpr int8_t kTypes[][19] = {
    {1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},  // T float32, TK float32, TV float32, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 1, 10, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1},  // T float32, TK float32, TV float16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 1, 16, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1},  // T float32, TK float32, TV bfloat16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 1, 3, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1},  // T float32, TK float32, TV int8, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 10, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1, 1},  // T float32, TK float16, TV float32, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 10, 10, 1, 1, 1, 1, 1, 10, 10, 1, 1, 1},  // T float32, TK float16, TV float16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 10, 16, 1, 1, 1, 1, 1, 10, 16, 1, 1, 1},  // T float32, TK float16, TV bfloat16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 10, 3, 1, 1, 1, 1, 1, 10, 3, 1, 1, 1},  // T float32, TK float16, TV int8, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 16, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1, 1},  // T float32, TK bfloat16, TV float32, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 16, 10, 1, 1, 1, 1, 1, 16, 10, 1, 1, 1},  // T float32, TK bfloat16, TV float16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 16, 16, 1, 1, 1, 1, 1, 16, 16, 1, 1, 1},  // T float32, TK bfloat16, TV bfloat16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 16, 3, 1, 1, 1, 1, 1, 16, 3, 1, 1, 1},  // T float32, TK bfloat16, TV int8, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 3, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1},  // T float32, TK int8, TV float32, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 3, 10, 1, 1, 1, 1, 1, 3, 10, 1, 1, 1},  // T float32, TK int8, TV float16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 3, 16, 1, 1, 1, 1, 1, 3, 16, 1, 1, 1},  // T float32, TK int8, TV bfloat16, I int64, F float32
    {1, 1, 1, 1, 1, 7, 1, 3, 3, 1, 1, 1, 1, 1, 3, 3, 1, 1, 1},  // T float32, TK int8, TV int8, I int64, F float32
    {10, 10, 10, 10, 10, 7, 10, 10, 10, 1, 1, 1, 1, 10, 10, 10, 10, 10, 10},  // T float16, TK float16, TV float16, I int64, F float32
    {10, 10, 10, 10, 10, 7, 10, 10, 3, 1, 1, 1, 1, 10, 10, 3, 10, 10, 10},  // T float16, TK float16, TV int8, I int64, F float32
    {10, 10, 10, 10, 10, 7, 10, 3, 10, 1, 1, 1, 1, 10, 3, 10, 10, 10, 10},  // T float16, TK int8, TV float16, I int64, F float32
    {10, 10, 10, 10, 10, 7, 10, 3, 3, 1, 1, 1, 1, 10, 3, 3, 10, 10, 10},  // T float16, TK int8, TV int8, I int64, F float32
    {16, 16, 16, 16, 16, 7, 16, 16, 16, 1, 1, 1, 1, 16, 16, 16, 16, 16, 16},  // T bfloat16, TK bfloat16, TV bfloat16, I int64, F float32
    {16, 16, 16, 16, 16, 7, 16, 16, 3, 1, 1, 1, 1, 16, 16, 3, 16, 16, 16},  // T bfloat16, TK bfloat16, TV int8, I int64, F float32
    {16, 16, 16, 16, 16, 7, 16, 3, 16, 1, 1, 1, 1, 16, 3, 16, 16, 16, 16},  // T bfloat16, TK int8, TV bfloat16, I int64, F float32
    {16, 16, 16, 16, 16, 7, 16, 3, 3, 1, 1, 1, 1, 16, 3, 3, 16, 16, 16},  // T bfloat16, TK int8, TV int8, I int64, F float32
};

inline constexpr Constraint kQkv20 = {"QKV-20", "no input may be empty"};
inline constexpr Constraint kQkv01 = {"QKV-01", "qkv_size is [B, S, Nqkv, D] and head_nums is [Nq, Nk, Nv], of positive sizes"};
inline constexpr Constraint kQkv02 = {"QKV-02", "qkv must be [B*S, Nqkv*D]"};
inline constexpr Constraint kQkv03 = {"QKV-03", "the heads must add up"};
inline constexpr Constraint kQkv06 = {"QKV-06", "the head width must be even"};
inline constexpr Constraint kQkv07 = {"QKV-07", "q_gamma, k_gamma, cos, sin and q_out must have the element type of qkv"};
inline constexpr Constraint kQkv08 = {"QKV-08", "index must have one element for each token"};
inline constexpr Constraint kQkv09 = {"QKV-09", "a gamma must have one element for each column of a head"};
inline constexpr Constraint kQkv09B = {"QKV-09", "cos and sin must have one full row for each token"};
inline constexpr Constraint kQkv10 = {"QKV-10", "q_out has another shape"};
inline constexpr Constraint kQkv11 = {"QKV-11", "a head must divide into 32-byte fractals of its cache"};
inline constexpr Constraint kQkv11B = {"QKV-11", "a cache has another shape"};
inline constexpr Constraint kQkv11C = {"QKV-11", "the caches must have the same pages"};
inline constexpr Constraint kQkv14 = {"QKV-14", "unknown cache_mode"};
inline constexpr Constraint kQkv15 = {"QKV-15", "a scale goes with an int8 cache and a plain cache with none"};
inline constexpr Constraint kQkv16 = {"QKV-16", "an offset needs its scale"};
inline constexpr Constraint kQkv17 = {"QKV-17", "a quantisation parameter of the keys must be [Nk, D]"};
inline constexpr Constraint kQkv17B = {"QKV-17", "a quantisation parameter of the values must be [Nv, D]"};
inline constexpr Constraint kQkv18 = {"QKV-18", "a scale divides: it must be finite and not 0"};
inline constexpr Constraint kQkv19 = {"QKV-19", "an index is out of range or written twice"};
inline constexpr Constraint kQkv23 = {"QKV-23", "epsilon must be finite"};

inline constexpr Declaration kDeclaration = {
    "QkvRmsNormRopeCache", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::qkv_rms_norm_rope_cache

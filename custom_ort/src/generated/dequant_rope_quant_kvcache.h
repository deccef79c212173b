// Made by `python -m ir_ops.codegen` from ir_ops/ops/dequant_rope_quant_kvcache.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::dequant_rope_quant_kvcache {

enum Input : size_t { kInX, kInCos, kInSin, kInKCache, kInVCache, kInIndices, kInScaleK, kInScaleV, kInOffsetK, kInOffsetV, kInWeightScale, kInActivationScale, kInBias };
enum Output : size_t { kOutQ, kOutK, kOutV, kOutKCache, kOutVCache };
enum Attribute : size_t { kAttrSizeSplits, kAttrQuantMode, kAttrLayout, kAttrKvOutput, kAttrCacheMode };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"cos", false, -1},
    {"sin", false, -1},
    {"k_cache", false, 3},
    {"v_cache", false, 4},
    {"indices", false, -1},
    {"scale_k", false, -1},
    {"scale_v", false, -1},
    {"offset_k", true, -1},
    {"offset_v", true, -1},
    {"weight_scale", true, -1},
    {"activation_scale", true, -1},
    {"bias", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"q", -1, 1},
    {"k", -1, 1},
    {"v", -1, 1},
    {"k_cache", 3, 3},
    {"v_cache", 4, 3},
};

enum QuantMode : int { kQuantMode_static };
inline constexpr const char* kQuantModeValues[] = {"static"};
enum Layout : int { kLayout_BSND };
inline constexpr const char* kLayoutValues[] = {"BSND"};
enum CacheMode : int { kCacheMode_contiguous, kCacheMode_page };
inline constexpr const char* kCacheModeValues[] = {"contiguous", "page"};
inline constexpr AttrDecl kAttrs[] = {
    {"size_splits", AttrType::kInts, 0.0, "", {}},
    {"quant_mode", AttrType::kString, 0.0, "static", kQuantModeValues},
    {"layout", AttrType::kString, 0.0, "BSND", kLayoutValues},
    {"kv_output", AttrType::kBool, 0.0, "", {}},
    {"cache_mode", AttrType::kString, 0.0, "contiguous", kCacheModeValues},
};

inline constexpr int8_t kTypes[][18] = {
    {1, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int32, F float32, TB float32
    {1, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int32, F float32, TB float16
    {1, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int32, F float32, TB bfloat16
    {1, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int32, F float32, TB int32
    {1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int64, F float32, TB float32
    {1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int64, F float32, TB float16
    {1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int64, F float32, TB bfloat16
    {1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3},  // X float32, T float32, C int8, I int64, F float32, TB int32
    {10, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int32, F float32, TB float32
    {10, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int32, F float32, TB float16
    {10, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 16, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int32, F float32, TB bfloat16
    {10, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 6, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int32, F float32, TB int32
    {10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int64, F float32, TB float32
    {10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int64, F float32, TB float16
    {10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 16, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int64, F float32, TB bfloat16
    {10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 6, 10, 10, 10, 3, 3},  // X float16, T float16, C int8, I int64, F float32, TB int32
    {16, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int32, F float32, TB float32
    {16, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 10, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int32, F float32, TB float16
    {16, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 16, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int32, F float32, TB bfloat16
    {16, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 6, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int32, F float32, TB int32
    {16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int64, F float32, TB float32
    {16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 10, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int64, F float32, TB float16
    {16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 16, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int64, F float32, TB bfloat16
    {16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 6, 16, 16, 16, 3, 3},  // X bfloat16, T bfloat16, C int8, I int64, F float32, TB int32
    {6, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int32, F float32, TB float32
    {6, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int32, F float32, TB float16
    {6, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int32, F float32, TB bfloat16
    {6, 1, 1, 3, 3, 6, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int32, F float32, TB int32
    {6, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int64, F float32, TB float32
    {6, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int64, F float32, TB float16
    {6, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int64, F float32, TB bfloat16
    {6, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3},  // X int32, T float32, C int8, I int64, F float32, TB int32
    {6, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int32, F float32, TB float32
    {6, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int32, F float32, TB float16
    {6, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 16, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int32, F float32, TB bfloat16
    {6, 10, 10, 3, 3, 6, 1, 1, 1, 1, 1, 1, 6, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int32, F float32, TB int32
    {6, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int64, F float32, TB float32
    {6, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int64, F float32, TB float16
    {6, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 16, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int64, F float32, TB bfloat16
    {6, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 6, 10, 10, 10, 3, 3},  // X int32, T float16, C int8, I int64, F float32, TB int32
    {6, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int32, F float32, TB float32
    {6, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 10, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int32, F float32, TB float16
    {6, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 16, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int32, F float32, TB bfloat16
    {6, 16, 16, 3, 3, 6, 1, 1, 1, 1, 1, 1, 6, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int32, F float32, TB int32
    {6, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int64, F float32, TB float32
    {6, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 10, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int64, F float32, TB float16
    {6, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 16, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int64, F float32, TB bfloat16
    {6, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 6, 16, 16, 16, 3, 3},  // X int32, T bfloat16, C int8, I int64, F float32, TB int32
};

inline constexpr Constraint kDrq19 = {"DRQ-19", "no input may be empty"};
inline constexpr Constraint kDrq01 = {"DRQ-01", "x must be 2-D or 3-D"};
inline constexpr Constraint kDrq03 = {"DRQ-03", "size_splits must be the sizes of q, k and v in a row of x"};
inline constexpr Constraint kDrq04 = {"DRQ-04", "k and v must have splits of one size"};
inline constexpr Constraint kDrq05 = {"DRQ-05", "the head width must be even"};
inline constexpr Constraint kDrq07 = {"DRQ-07", "k_cache and v_cache must be 4-D and of one shape"};
inline constexpr Constraint kDrq06 = {"DRQ-06", "the splits must be whole heads as the caches have them"};
inline constexpr Constraint kDrq08 = {"DRQ-08", "cos and sin must fit x"};
inline constexpr Constraint kDrq08B = {"DRQ-08", "sin must have the element type of cos"};
inline constexpr Constraint kDrq09 = {"DRQ-09", "x that is not int32 must have the element type of cos"};
inline constexpr Constraint kDrq10 = {"DRQ-10", "int32 x needs weight_scale"};
inline constexpr Constraint kDrq10B = {"DRQ-10", "weight_scale must have one element for each column of x"};
inline constexpr Constraint kDrq11 = {"DRQ-11", "activation_scale must have one element for each token"};
inline constexpr Constraint kDrq11B = {"DRQ-11", "bias must have one element for each column of x"};
inline constexpr Constraint kDrq12 = {"DRQ-12", "a scale or offset must have one element for each column of a cache row"};
inline constexpr Constraint kDrq13 = {"DRQ-13", "unknown quant_mode"};
inline constexpr Constraint kDrq14 = {"DRQ-14", "unknown layout"};
inline constexpr Constraint kDrq16 = {"DRQ-16", "unknown cache_mode"};
inline constexpr Constraint kDrq17 = {"DRQ-17", "a contiguous cache must hold every batch"};
inline constexpr Constraint kDrq17B = {"DRQ-17", "indices must have one element for each batch"};
inline constexpr Constraint kDrq17C = {"DRQ-17", "the rows of a batch must fit its cache"};
inline constexpr Constraint kDrq18 = {"DRQ-18", "indices must have one element for each token"};
inline constexpr Constraint kDrq18B = {"DRQ-18", "an index is out of range or written twice"};
inline constexpr Constraint kDrq20 = {"DRQ-20", "a scale divides: it must be finite and not 0"};

inline constexpr Declaration kDeclaration = {
    "DequantRopeQuantKvcache", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::dequant_rope_quant_kvcache

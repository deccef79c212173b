// Made by `python -m ir_ops.codegen` from ir_ops/ops/scatter_pa_kv_cache.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::scatter_pa_kv_cache {

enum Input : size_t { kInKey, kInKeyCache, kInSlotMapping, kInValue, kInValueCache, kInCompressLens, kInCompressSeqOffset, kInSeqLens };
enum Output : size_t { kOutKeyCache, kOutValueCache };
enum Attribute : size_t { kAttrCacheMode, kAttrScatterMode, kAttrStrides, kAttrOffsets };

inline constexpr InputDecl kInputs[] = {
    {"key", false, -1},
    {"key_cache", false, 0},
    {"slot_mapping", false, -1},
    {"value", false, -1},
    {"value_cache", false, 1},
    {"compress_lens", true, -1},
    {"compress_seq_offset", true, -1},
    {"seq_lens", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"key_cache", 1, 0},
    {"value_cache", 4, 3},
};

enum CacheMode : int { kCacheMode_Norm, kCacheMode_PA_NZ };
inline constexpr const char* kCacheModeValues[] = {"Norm", "PA_NZ"};
enum ScatterMode : int { kScatterMode_None, kScatterMode_NHSD };
inline constexpr const char* kScatterModeValues[] = {"None", "NHSD"};
inline constexpr AttrDecl kAttrs[] = {
    {"cache_mode", AttrType::kString, 0.0, "Norm", kCacheModeValues},
    {"scatter_mode", AttrType::kString, 0.0, "None", kScatterModeValues},
    {"strides", AttrType::kInts, 0.0, "", {}},
    {"offsets", AttrType::kInts, 0.0, "", {}},
};

inline constexpr int8_t kTypes[][10] = {
    {1, 1, 6, 1, 1, 6, 6, 6, 1, 1},  // K float32, I int32, V float32
    {1, 1, 6, 10, 10, 6, 6, 6, 1, 10},  // K float32, I int32, V float16
    {1, 1, 6, 16, 16, 6, 6, 6, 1, 16},  // K float32, I int32, V bfloat16
    {1, 1, 6, 3, 3, 6, 6, 6, 1, 3},  // K float32, I int32, V int8
    {1, 1, 6, 19, 19, 6, 6, 6, 1, 19},  // K float32, I int32, V float8_e5m2
    {1, 1, 6, 17, 17, 6, 6, 6, 1, 17},  // K float32, I int32, V float8_e4m3fn
    {1, 1, 7, 1, 1, 7, 7, 7, 1, 1},  // K float32, I int64, V float32
    {1, 1, 7, 10, 10, 7, 7, 7, 1, 10},  // K float32, I int64, V float16
    {1, 1, 7, 16, 16, 7, 7, 7, 1, 16},  // K float32, I int64, V bfloat16
    {1, 1, 7, 3, 3, 7, 7, 7, 1, 3},  // K float32, I int64, V int8
    {1, 1, 7, 19, 19, 7, 7, 7, 1, 19},  // K float32, I int64, V float8_e5m2
    {1, 1, 7, 17, 17, 7, 7, 7, 1, 17},  // K float32, I int64, V float8_e4m3fn
    {10, 10, 6, 1, 1, 6, 6, 6, 10, 1},  // K float16, I int32, V float32
    {10, 10, 6, 10, 10, 6, 6, 6, 10, 10},  // K float16, I int32, V float16
    {10, 10, 6, 16, 16, 6, 6, 6, 10, 16},  // K float16, I int32, V bfloat16
    {10, 10, 6, 3, 3, 6, 6, 6, 10, 3},  // K float16, I int32, V int8
    {10, 10, 6, 19, 19, 6, 6, 6, 10, 19},  // K float16, I int32, V float8_e5m2
    {10, 10, 6, 17, 17, 6, 6, 6, 10, 17},  // K float16, I int32, V float8_e4m3fn
    {10, 10, 7, 1, 1, 7, 7, 7, 10, 1},  // K float16, I int64, V float32
    {10, 10, 7, 10, 10, 7, 7, 7, 10, 10},  // K float16, I int64, V float16
    {10, 10, 7, 16, 16, 7, 7, 7, 10, 16},  // K float16, I int64, V bfloat16
    {10, 10, 7, 3, 3, 7, 7, 7, 10, 3},  // K float16, I int64, V int8
    {10, 10, 7, 19, 19, 7, 7, 7, 10, 19},  // K float16, I int64, V float8_e5m2
    {10, 10, 7, 17, 17, 7, 7, 7, 10, 17},  // K float16, I int64, V float8_e4m3fn
    {16, 16, 6, 1, 1, 6, 6, 6, 16, 1},  // K bfloat16, I int32, V float32
    {16, 16, 6, 10, 10, 6, 6, 6, 16, 10},  // K bfloat16, I int32, V float16
    {16, 16, 6, 16, 16, 6, 6, 6, 16, 16},  // K bfloat16, I int32, V bfloat16
    {16, 16, 6, 3, 3, 6, 6, 6, 16, 3},  // K bfloat16, I int32, V int8
    {16, 16, 6, 19, 19, 6, 6, 6, 16, 19},  // K bfloat16, I int32, V float8_e5m2
    {16, 16, 6, 17, 17, 6, 6, 6, 16, 17},  // K bfloat16, I int32, V float8_e4m3fn
    {16, 16, 7, 1, 1, 7, 7, 7, 16, 1},  // K bfloat16, I int64, V float32
    {16, 16, 7, 10, 10, 7, 7, 7, 16, 10},  // K bfloat16, I int64, V float16
    {16, 16, 7, 16, 16, 7, 7, 7, 16, 16},  // K bfloat16, I int64, V bfloat16
    {16, 16, 7, 3, 3, 7, 7, 7, 16, 3},  // K bfloat16, I int64, V int8
    {16, 16, 7, 19, 19, 7, 7, 7, 16, 19},  // K bfloat16, I int64, V float8_e5m2
    {16, 16, 7, 17, 17, 7, 7, 7, 16, 17},  // K bfloat16, I int64, V float8_e4m3fn
    {3, 3, 6, 1, 1, 6, 6, 6, 3, 1},  // K int8, I int32, V float32
    {3, 3, 6, 10, 10, 6, 6, 6, 3, 10},  // K int8, I int32, V float16
    {3, 3, 6, 16, 16, 6, 6, 6, 3, 16},  // K int8, I int32, V bfloat16
    {3, 3, 6, 3, 3, 6, 6, 6, 3, 3},  // K int8, I int32, V int8
    {3, 3, 6, 19, 19, 6, 6, 6, 3, 19},  // K int8, I int32, V float8_e5m2
    {3, 3, 6, 17, 17, 6, 6, 6, 3, 17},  // K int8, I int32, V float8_e4m3fn
    {3, 3, 7, 1, 1, 7, 7, 7, 3, 1},  // K int8, I int64, V float32
    {3, 3, 7, 10, 10, 7, 7, 7, 3, 10},  // K int8, I int64, V float16
    {3, 3, 7, 16, 16, 7, 7, 7, 3, 16},  // K int8, I int64, V bfloat16
    {3, 3, 7, 3, 3, 7, 7, 7, 3, 3},  // K int8, I int64, V int8
    {3, 3, 7, 19, 19, 7, 7, 7, 3, 19},  // K int8, I int64, V float8_e5m2
    {3, 3, 7, 17, 17, 7, 7, 7, 3, 17},  // K int8, I int64, V float8_e4m3fn
    {19, 19, 6, 1, 1, 6, 6, 6, 19, 1},  // K float8_e5m2, I int32, V float32
    {19, 19, 6, 10, 10, 6, 6, 6, 19, 10},  // K float8_e5m2, I int32, V float16
    {19, 19, 6, 16, 16, 6, 6, 6, 19, 16},  // K float8_e5m2, I int32, V bfloat16
    {19, 19, 6, 3, 3, 6, 6, 6, 19, 3},  // K float8_e5m2, I int32, V int8
    {19, 19, 6, 19, 19, 6, 6, 6, 19, 19},  // K float8_e5m2, I int32, V float8_e5m2
    {19, 19, 6, 17, 17, 6, 6, 6, 19, 17},  // K float8_e5m2, I int32, V float8_e4m3fn
    {19, 19, 7, 1, 1, 7, 7, 7, 19, 1},  // K float8_e5m2, I int64, V float32
    {19, 19, 7, 10, 10, 7, 7, 7, 19, 10},  // K float8_e5m2, I int64, V float16
    {19, 19, 7, 16, 16, 7, 7, 7, 19, 16},  // K float8_e5m2, I int64, V bfloat16
    {19, 19, 7, 3, 3, 7, 7, 7, 19, 3},  // K float8_e5m2, I int64, V int8
    {19, 19, 7, 19, 19, 7, 7, 7, 19, 19},  // K float8_e5m2, I int64, V float8_e5m2
    {19, 19, 7, 17, 17, 7, 7, 7, 19, 17},  // K float8_e5m2, I int64, V float8_e4m3fn
    {17, 17, 6, 1, 1, 6, 6, 6, 17, 1},  // K float8_e4m3fn, I int32, V float32
    {17, 17, 6, 10, 10, 6, 6, 6, 17, 10},  // K float8_e4m3fn, I int32, V float16
    {17, 17, 6, 16, 16, 6, 6, 6, 17, 16},  // K float8_e4m3fn, I int32, V bfloat16
    {17, 17, 6, 3, 3, 6, 6, 6, 17, 3},  // K float8_e4m3fn, I int32, V int8
    {17, 17, 6, 19, 19, 6, 6, 6, 17, 19},  // K float8_e4m3fn, I int32, V float8_e5m2
    {17, 17, 6, 17, 17, 6, 6, 6, 17, 17},  // K float8_e4m3fn, I int32, V float8_e4m3fn
    {17, 17, 7, 1, 1, 7, 7, 7, 17, 1},  // K float8_e4m3fn, I int64, V float32
    {17, 17, 7, 10, 10, 7, 7, 7, 17, 10},  // K float8_e4m3fn, I int64, V float16
    {17, 17, 7, 16, 16, 7, 7, 7, 17, 16},  // K float8_e4m3fn, I int64, V bfloat16
    {17, 17, 7, 3, 3, 7, 7, 7, 17, 3},  // K float8_e4m3fn, I int64, V int8
    {17, 17, 7, 19, 19, 7, 7, 7, 17, 19},  // K float8_e4m3fn, I int64, V float8_e5m2
    {17, 17, 7, 17, 17, 7, 7, 7, 17, 17},  // K float8_e4m3fn, I int64, V float8_e4m3fn
};

inline constexpr Constraint kSp6 = {"SP-6", "unknown cache_mode or scatter_mode"};
inline constexpr Constraint kSp6B = {"SP-6", "compression inputs belong to other scatter modes"};
inline constexpr Constraint kSp6C = {"SP-6", "strides belong to other scatter modes"};
inline constexpr Constraint kSp6D = {"SP-6", "offsets belong to other scatter modes"};
inline constexpr Constraint kSp1 = {"SP-1", "a cache must have the element type of its rows"};
inline constexpr Constraint kSp1B = {"SP-1", "key and value must have one element type in this mode"};
inline constexpr Constraint kSp7 = {"SP-7", "key and value must be rows of tokens"};
inline constexpr Constraint kSp4 = {"SP-4", "an NZ cache row must divide into 32-byte fractals"};
inline constexpr Constraint kSp7B = {"SP-7", "a cache has another shape"};
inline constexpr Constraint kSp7C = {"SP-7", "the caches must have the same pages"};
inline constexpr Constraint kSp7D = {"SP-7", "slot_mapping must have one element for each token"};
inline constexpr Constraint kSp3 = {"SP-3", "a slot is out of range or written twice"};

inline constexpr Declaration kDeclaration = {
    "ScatterPaKvCache", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::scatter_pa_kv_cache

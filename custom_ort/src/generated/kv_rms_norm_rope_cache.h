// Made by `python -m ir_ops.codegen` from ir_ops/ops/kv_rms_norm_rope_cache.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::kv_rms_norm_rope_cache {

enum Input : size_t { kInKv, kInGamma, kInCos, kInSin, kInIndex, kInKCache, kInCkvCache, kInKRopeScale, kInCKvScale, kInKRopeOffset, kInCKvOffset, kInV };
enum Output : size_t { kOutKCache, kOutCkvCache, kOutKRope, kOutCKv };
enum Attribute : size_t { kAttrEpsilon, kAttrCacheMode, kAttrIsOutputKv, kAttrFloat8Cast };

inline constexpr InputDecl kInputs[] = {
    {"kv", false, -1},
    {"gamma", false, -1},
    {"cos", false, -1},
    {"sin", false, -1},
    {"index", false, -1},
    {"k_cache", false, 0},
    {"ckv_cache", false, 1},
    {"k_rope_scale", true, -1},
    {"c_kv_scale", true, -1},
    {"k_rope_offset", true, -1},
    {"c_kv_offset", true, -1},
    {"v", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"k_cache", 5, 5},
    {"ckv_cache", 6, 6},
    {"k_rope", -1, 0},
    {"c_kv", -1, 0},
};

enum CacheMode : int { kCacheMode_Norm, kCacheMode_PA, kCacheMode_PA_BNSD, kCacheMode_PA_NZ, kCacheMode_PA_BLK_BNSD, kCacheMode_PA_BLK_NZ };
inline constexpr const char* kCacheModeValues[] = {"Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"};
enum Float8Cast : int { kFloat8Cast_saturate, kFloat8Cast_nonsaturate, kFloat8Cast_integer };
inline constexpr const char* kFloat8CastValues[] = {"saturate", "nonsaturate", "integer"};
inline constexpr AttrDecl kAttrs[] = {
    {"epsilon", AttrType::kFloat, 1e-05, "", {}},
    {"cache_mode", AttrType::kString, 0.0, "Norm", kCacheModeValues},
    {"is_output_kv", AttrType::kBool, 0.0, "", {}},
    {"float8_cast", AttrType::kString, 0.0, "saturate", kFloat8CastValues},
};

inline constexpr int8_t kTypes[][16] = {
    {1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},  // T float32, TK float32, TC float32, I int64, F float32
    {1, 1, 1, 1, 7, 1, 10, 1, 1, 1, 1, 1, 1, 10, 1, 1},  // T float32, TK float32, TC float16, I int64, F float32
    {1, 1, 1, 1, 7, 1, 16, 1, 1, 1, 1, 1, 1, 16, 1, 1},  // T float32, TK float32, TC bfloat16, I int64, F float32
    {1, 1, 1, 1, 7, 1, 3, 1, 1, 1, 1, 1, 1, 3, 1, 1},  // T float32, TK float32, TC int8, I int64, F float32
    {1, 1, 1, 1, 7, 1, 19, 1, 1, 1, 1, 1, 1, 19, 1, 1},  // T float32, TK float32, TC float8_e5m2, I int64, F float32
    {1, 1, 1, 1, 7, 1, 17, 1, 1, 1, 1, 1, 1, 17, 1, 1},  // T float32, TK float32, TC float8_e4m3fn, I int64, F float32
    {1, 1, 1, 1, 7, 10, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1},  // T float32, TK float16, TC float32, I int64, F float32
    {1, 1, 1, 1, 7, 10, 10, 1, 1, 1, 1, 1, 10, 10, 1, 1},  // T float32, TK float16, TC float16, I int64, F float32
    {1, 1, 1, 1, 7, 10, 16, 1, 1, 1, 1, 1, 10, 16, 1, 1},  // T float32, TK float16, TC bfloat16, I int64, F float32
    {1, 1, 1, 1, 7, 10, 3, 1, 1, 1, 1, 1, 10, 3, 1, 1},  // T float32, TK float16, TC int8, I int64, F float32
    {1, 1, 1, 1, 7, 10, 19, 1, 1, 1, 1, 1, 10, 19, 1, 1},  // T float32, TK float16, TC float8_e5m2, I int64, F float32
    {1, 1, 1, 1, 7, 10, 17, 1, 1, 1, 1, 1, 10, 17, 1, 1},  // T float32, TK float16, TC float8_e4m3fn, I int64, F float32
    {1, 1, 1, 1, 7, 16, 1, 1, 1, 1, 1, 1, 16, 1, 1, 1},  // T float32, TK bfloat16, TC float32, I int64, F float32
    {1, 1, 1, 1, 7, 16, 10, 1, 1, 1, 1, 1, 16, 10, 1, 1},  // T float32, TK bfloat16, TC float16, I int64, F float32
    {1, 1, 1, 1, 7, 16, 16, 1, 1, 1, 1, 1, 16, 16, 1, 1},  // T float32, TK bfloat16, TC bfloat16, I int64, F float32
    {1, 1, 1, 1, 7, 16, 3, 1, 1, 1, 1, 1, 16, 3, 1, 1},  // T float32, TK bfloat16, TC int8, I int64, F float32
    {1, 1, 1, 1, 7, 16, 19, 1, 1, 1, 1, 1, 16, 19, 1, 1},  // T float32, TK bfloat16, TC float8_e5m2, I int64, F float32
    {1, 1, 1, 1, 7, 16, 17, 1, 1, 1, 1, 1, 16, 17, 1, 1},  // T float32, TK bfloat16, TC float8_e4m3fn, I int64, F float32
    {1, 1, 1, 1, 7, 3, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1},  // T float32, TK int8, TC float32, I int64, F float32
    {1, 1, 1, 1, 7, 3, 10, 1, 1, 1, 1, 1, 3, 10, 1, 1},  // T float32, TK int8, TC float16, I int64, F float32
    {1, 1, 1, 1, 7, 3, 16, 1, 1, 1, 1, 1, 3, 16, 1, 1},  // T float32, TK int8, TC bfloat16, I int64, F float32
    {1, 1, 1, 1, 7, 3, 3, 1, 1, 1, 1, 1, 3, 3, 1, 1},  // T float32, TK int8, TC int8, I int64, F float32
    {1, 1, 1, 1, 7, 19, 1, 1, 1, 1, 1, 1, 19, 1, 1, 1},  // T float32, TK float8_e5m2, TC float32, I int64, F float32
    {1, 1, 1, 1, 7, 19, 10, 1, 1, 1, 1, 1, 19, 10, 1, 1},  // T float32, TK float8_e5m2, TC float16, I int64, F float32
    {1, 1, 1, 1, 7, 19, 16, 1, 1, 1, 1, 1, 19, 16, 1, 1},  // T float32, TK float8_e5m2, TC bfloat16, I int64, F float32
    {1, 1, 1, 1, 7, 19, 19, 1, 1, 1, 1, 1, 19, 19, 1, 1},  // T float32, TK float8_e5m2, TC float8_e5m2, I int64, F float32
    {1, 1, 1, 1, 7, 17, 1, 1, 1, 1, 1, 1, 17, 1, 1, 1},  // T float32, TK float8_e4m3fn, TC float32, I int64, F float32
    {1, 1, 1, 1, 7, 17, 10, 1, 1, 1, 1, 1, 17, 10, 1, 1},  // T float32, TK float8_e4m3fn, TC float16, I int64, F float32
    {1, 1, 1, 1, 7, 17, 16, 1, 1, 1, 1, 1, 17, 16, 1, 1},  // T float32, TK float8_e4m3fn, TC bfloat16, I int64, F float32
    {1, 1, 1, 1, 7, 17, 17, 1, 1, 1, 1, 1, 17, 17, 1, 1},  // T float32, TK float8_e4m3fn, TC float8_e4m3fn, I int64, F float32
    {10, 10, 10, 10, 7, 10, 10, 1, 1, 1, 1, 10, 10, 10, 10, 10},  // T float16, TK float16, TC float16, I int64, F float32
    {10, 10, 10, 10, 7, 10, 3, 1, 1, 1, 1, 10, 10, 3, 10, 10},  // T float16, TK float16, TC int8, I int64, F float32
    {10, 10, 10, 10, 7, 10, 19, 1, 1, 1, 1, 10, 10, 19, 10, 10},  // T float16, TK float16, TC float8_e5m2, I int64, F float32
    {10, 10, 10, 10, 7, 10, 17, 1, 1, 1, 1, 10, 10, 17, 10, 10},  // T float16, TK float16, TC float8_e4m3fn, I int64, F float32
    {10, 10, 10, 10, 7, 3, 10, 1, 1, 1, 1, 10, 3, 10, 10, 10},  // T float16, TK int8, TC float16, I int64, F float32
    {10, 10, 10, 10, 7, 3, 3, 1, 1, 1, 1, 10, 3, 3, 10, 10},  // T float16, TK int8, TC int8, I int64, F float32
    {10, 10, 10, 10, 7, 19, 10, 1, 1, 1, 1, 10, 19, 10, 10, 10},  // T float16, TK float8_e5m2, TC float16, I int64, F float32
    {10, 10, 10, 10, 7, 19, 19, 1, 1, 1, 1, 10, 19, 19, 10, 10},  // T float16, TK float8_e5m2, TC float8_e5m2, I int64, F float32
    {10, 10, 10, 10, 7, 17, 10, 1, 1, 1, 1, 10, 17, 10, 10, 10},  // T float16, TK float8_e4m3fn, TC float16, I int64, F float32
    {10, 10, 10, 10, 7, 17, 17, 1, 1, 1, 1, 10, 17, 17, 10, 10},  // T float16, TK float8_e4m3fn, TC float8_e4m3fn, I int64, F float32
    {16, 16, 16, 16, 7, 16, 16, 1, 1, 1, 1, 16, 16, 16, 16, 16},  // T bfloat16, TK bfloat16, TC bfloat16, I int64, F float32
    {16, 16, 16, 16, 7, 16, 3, 1, 1, 1, 1, 16, 16, 3, 16, 16},  // T bfloat16, TK bfloat16, TC int8, I int64, F float32
    {16, 16, 16, 16, 7, 16, 19, 1, 1, 1, 1, 16, 16, 19, 16, 16},  // T bfloat16, TK bfloat16, TC float8_e5m2, I int64, F float32
    {16, 16, 16, 16, 7, 16, 17, 1, 1, 1, 1, 16, 16, 17, 16, 16},  // T bfloat16, TK bfloat16, TC float8_e4m3fn, I int64, F float32
    {16, 16, 16, 16, 7, 3, 16, 1, 1, 1, 1, 16, 3, 16, 16, 16},  // T bfloat16, TK int8, TC bfloat16, I int64, F float32
    {16, 16, 16, 16, 7, 3, 3, 1, 1, 1, 1, 16, 3, 3, 16, 16},  // T bfloat16, TK int8, TC int8, I int64, F float32
    {16, 16, 16, 16, 7, 19, 16, 1, 1, 1, 1, 16, 19, 16, 16, 16},  // T bfloat16, TK float8_e5m2, TC bfloat16, I int64, F float32
    {16, 16, 16, 16, 7, 19, 19, 1, 1, 1, 1, 16, 19, 19, 16, 16},  // T bfloat16, TK float8_e5m2, TC float8_e5m2, I int64, F float32
    {16, 16, 16, 16, 7, 17, 16, 1, 1, 1, 1, 16, 17, 16, 16, 16},  // T bfloat16, TK float8_e4m3fn, TC bfloat16, I int64, F float32
    {16, 16, 16, 16, 7, 17, 17, 1, 1, 1, 1, 16, 17, 17, 16, 16},  // T bfloat16, TK float8_e4m3fn, TC float8_e4m3fn, I int64, F float32
};

inline constexpr Constraint kKv01 = {"KV-01", "kv must be 4-D"};
inline constexpr Constraint kKv02 = {"KV-02", "no input may be empty"};
inline constexpr Constraint kKv03 = {"KV-03", "gamma, cos, sin and v must have the element type of kv"};
inline constexpr Constraint kKv06 = {"KV-06", "a joined kv (no v) has one head"};
inline constexpr Constraint kKv07 = {"KV-07", "the last dim of kv must be the normalised width plus the rotated width"};
inline constexpr Constraint kKv08 = {"KV-08", "the rotated width must be even"};
inline constexpr Constraint kKv10 = {"KV-10", "v, gamma and cos must fit the separate key"};
inline constexpr Constraint kKv11 = {"KV-11", "cos and sin must fit kv"};
inline constexpr Constraint kKv12 = {"KV-12", "unknown cache_mode"};
inline constexpr Constraint kKv13 = {"KV-13", "a cache has another shape"};
inline constexpr Constraint kKv14 = {"KV-14", "the caches of Norm mode must fit the batch and hold its tokens"};
inline constexpr Constraint kKv15 = {"KV-15", "the paged caches must have the same pages"};
inline constexpr Constraint kKv17 = {"KV-17", "an NZ cache row must divide into 32-byte fractals"};
inline constexpr Constraint kKv18 = {"KV-18", "index must have one element for each token or page"};
inline constexpr Constraint kKv19 = {"KV-19", "an index is out of range or written twice"};
inline constexpr Constraint kKv20 = {"KV-20", "an offset needs its scale"};
inline constexpr Constraint kKv21 = {"KV-21", "a scale goes with an 8-bit cache and a plain cache with none"};
inline constexpr Constraint kKv22 = {"KV-22", "a quantisation parameter has another shape"};
inline constexpr Constraint kKv23 = {"KV-23", "two 8-bit caches must have one element type"};
inline constexpr Constraint kKv29 = {"KV-29", "epsilon must be finite"};

inline constexpr Declaration kDeclaration = {
    "KvRmsNormRopeCache", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::kv_rms_norm_rope_cache

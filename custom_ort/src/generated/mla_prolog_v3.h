// Made by `python -m ir_ops.codegen` from ir_ops/ops/mla_prolog_v3.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::mla_prolog_v3 {

enum Input : size_t { kInTokenX, kInWeightDq, kInWeightUqQr, kInWeightUk, kInWeightDkvKr, kInRmsnormGammaCq, kInRmsnormGammaCkv, kInRopeSin, kInRopeCos, kInKvCache, kInKrCache, kInCacheIndex, kInDequantScaleX, kInDequantScaleWDq, kInDequantScaleWUqQr, kInDequantScaleWDkvKr, kInQuantScaleCkv, kInQuantScaleCkr, kInSmoothScalesCq, kInActualSeqLen, kInKNopeClipAlpha };
enum Output : size_t { kOutQuery, kOutQueryRope, kOutKvCache, kOutKrCache, kOutDequantScaleQNope, kOutQueryNorm, kOutDequantScaleQNorm };
enum Attribute : size_t { kAttrRmsnormEpsilonCq, kAttrRmsnormEpsilonCkv, kAttrCacheMode, kAttrQueryNormFlag, kAttrWeightQuantMode, kAttrKvCacheQuantMode, kAttrQueryQuantMode, kAttrCkvkrRepoMode, kAttrQuantScaleRepoMode, kAttrTileSize, kAttrQcQrScale, kAttrKcScale };

inline constexpr InputDecl kInputs[] = {
    {"token_x", false, -1},
    {"weight_dq", false, -1},
    {"weight_uq_qr", false, -1},
    {"weight_uk", false, -1},
    {"weight_dkv_kr", false, -1},
    {"rmsnorm_gamma_cq", false, -1},
    {"rmsnorm_gamma_ckv", false, -1},
    {"rope_sin", false, -1},
    {"rope_cos", false, -1},
    {"kv_cache", false, 2},
    {"kr_cache", false, 3},
    {"cache_index", true, -1},
    {"dequant_scale_x", true, -1},
    {"dequant_scale_w_dq", true, -1},
    {"dequant_scale_w_uq_qr", true, -1},
    {"dequant_scale_w_dkv_kr", true, -1},
    {"quant_scale_ckv", true, -1},
    {"quant_scale_ckr", true, -1},
    {"smooth_scales_cq", true, -1},
    {"actual_seq_len", true, -1},
    {"k_nope_clip_alpha", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"query", -1, -1},
    {"query_rope", -1, 3},
    {"kv_cache", 9, 9},
    {"kr_cache", 10, 10},
    {"dequant_scale_q_nope", -1, 16},
    {"query_norm", -1, 2},
    {"dequant_scale_q_norm", -1, 12},
};

enum CacheMode : int { kCacheMode_PA_BSND, kCacheMode_PA_NZ, kCacheMode_PA_BLK_BSND, kCacheMode_PA_BLK_NZ, kCacheMode_BSND, kCacheMode_TND };
inline constexpr const char* kCacheModeValues[] = {"PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND"};
inline constexpr AttrDecl kAttrs[] = {
    {"rmsnorm_epsilon_cq", AttrType::kFloat, 1e-05, "", {}},
    {"rmsnorm_epsilon_ckv", AttrType::kFloat, 1e-05, "", {}},
    {"cache_mode", AttrType::kString, 0.0, "PA_BSND", kCacheModeValues},
    {"query_norm_flag", AttrType::kBool, 0.0, "", {}},
    {"weight_quant_mode", AttrType::kInt, 0.0, "", {}},
    {"kv_cache_quant_mode", AttrType::kInt, 0.0, "", {}},
    {"query_quant_mode", AttrType::kInt, 0.0, "", {}},
    {"ckvkr_repo_mode", AttrType::kInt, 0.0, "", {}},
    {"quant_scale_repo_mode", AttrType::kInt, 0.0, "", {}},
    {"tile_size", AttrType::kInt, 128.0, "", {}},
    {"qc_qr_scale", AttrType::kFloat, 1.0, "", {}},
    {"kc_scale", AttrType::kFloat, 1.0, "", {}},
};

inline constexpr int8_t kTypes[][28] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1, 1, 1, 1, 1},  // X float32, W float32, T float32, TK float32, TR float32, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 10, 10, 1, 1, 1},  // X float32, W float32, T float32, TK float16, TR float16, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 16, 16, 1, 1, 1},  // X float32, W float32, T float32, TK bfloat16, TR bfloat16, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 1, 1, 1, 1},  // X float32, W float32, T float32, TK int8, TR float32, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 1, 3, 1, 1, 1, 1},  // X float32, W float32, T float32, TK int8, TR float32, Q int8, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3, 1, 1, 1},  // X float32, W float32, T float32, TK int8, TR int8, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 17, 1, 1, 1, 1},  // X float32, W float32, T float32, TK float8_e4m3fn, TR float32, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 1, 17, 1, 1, 1, 1},  // X float32, W float32, T float32, TK float8_e4m3fn, TR float32, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1, 1, 1, 3, 1},  // X float32, W int8, T float32, TK float32, TR float32, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 10, 10, 1, 3, 1},  // X float32, W int8, T float32, TK float16, TR float16, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 16, 16, 1, 3, 1},  // X float32, W int8, T float32, TK bfloat16, TR bfloat16, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 1, 1, 3, 1},  // X float32, W int8, T float32, TK int8, TR float32, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 1, 3, 1, 1, 3, 1},  // X float32, W int8, T float32, TK int8, TR float32, Q int8, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3, 1, 3, 1},  // X float32, W int8, T float32, TK int8, TR int8, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 17, 1, 1, 3, 1},  // X float32, W int8, T float32, TK float8_e4m3fn, TR float32, Q float32, I int64, S float32, F float32, L int32
    {1, 1, 3, 1, 1, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 1, 17, 1, 1, 3, 1},  // X float32, W int8, T float32, TK float8_e4m3fn, TR float32, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 10, 10, 1, 10, 1},  // X float16, W float16, T float16, TK float16, TR float16, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 10, 1, 10, 1},  // X float16, W float16, T float16, TK int8, TR float16, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 10, 3, 10, 1, 10, 1},  // X float16, W float16, T float16, TK int8, TR float16, Q int8, I int64, S float32, F float32, L int32
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 3, 1, 10, 1},  // X float16, W float16, T float16, TK int8, TR int8, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 17, 10, 1, 10, 1},  // X float16, W float16, T float16, TK float8_e4m3fn, TR float16, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 10, 10, 10, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 10, 17, 10, 1, 10, 1},  // X float16, W float16, T float16, TK float8_e4m3fn, TR float16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {10, 10, 3, 10, 10, 10, 10, 10, 10, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 10, 10, 1, 3, 1},  // X float16, W int8, T float16, TK float16, TR float16, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 3, 10, 10, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 10, 1, 3, 1},  // X float16, W int8, T float16, TK int8, TR float16, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 3, 10, 10, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 10, 3, 10, 1, 3, 1},  // X float16, W int8, T float16, TK int8, TR float16, Q int8, I int64, S float32, F float32, L int32
    {10, 10, 3, 10, 10, 10, 10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 3, 1, 3, 1},  // X float16, W int8, T float16, TK int8, TR int8, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 3, 10, 10, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 17, 10, 1, 3, 1},  // X float16, W int8, T float16, TK float8_e4m3fn, TR float16, Q float16, I int64, S float32, F float32, L int32
    {10, 10, 3, 10, 10, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 10, 17, 10, 1, 3, 1},  // X float16, W int8, T float16, TK float8_e4m3fn, TR float16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 16, 16, 1, 16, 1},  // X bfloat16, W bfloat16, T bfloat16, TK bfloat16, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 16, 1, 16, 1},  // X bfloat16, W bfloat16, T bfloat16, TK int8, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 16, 3, 16, 1, 16, 1},  // X bfloat16, W bfloat16, T bfloat16, TK int8, TR bfloat16, Q int8, I int64, S float32, F float32, L int32
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 3, 1, 16, 1},  // X bfloat16, W bfloat16, T bfloat16, TK int8, TR int8, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 17, 16, 1, 16, 1},  // X bfloat16, W bfloat16, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 16, 17, 16, 1, 16, 1},  // X bfloat16, W bfloat16, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {16, 16, 3, 16, 16, 16, 16, 16, 16, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 16, 16, 1, 3, 1},  // X bfloat16, W int8, T bfloat16, TK bfloat16, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 3, 16, 16, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 16, 1, 3, 1},  // X bfloat16, W int8, T bfloat16, TK int8, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 3, 16, 16, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 16, 3, 16, 1, 3, 1},  // X bfloat16, W int8, T bfloat16, TK int8, TR bfloat16, Q int8, I int64, S float32, F float32, L int32
    {16, 16, 3, 16, 16, 16, 16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 3, 1, 3, 1},  // X bfloat16, W int8, T bfloat16, TK int8, TR int8, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 3, 16, 16, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 17, 16, 1, 3, 1},  // X bfloat16, W int8, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {16, 16, 3, 16, 16, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 16, 17, 16, 1, 3, 1},  // X bfloat16, W int8, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1, 1, 1, 3, 1},  // X int8, W int8, T float32, TK float32, TR float32, Q float32, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 10, 10, 1, 3, 1},  // X int8, W int8, T float32, TK float16, TR float16, Q float32, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 16, 16, 1, 3, 1},  // X int8, W int8, T float32, TK bfloat16, TR bfloat16, Q float32, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 1, 1, 3, 1},  // X int8, W int8, T float32, TK int8, TR float32, Q float32, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 1, 3, 1, 1, 3, 1},  // X int8, W int8, T float32, TK int8, TR float32, Q int8, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3, 1, 3, 1},  // X int8, W int8, T float32, TK int8, TR int8, Q float32, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 17, 1, 1, 3, 1},  // X int8, W int8, T float32, TK float8_e4m3fn, TR float32, Q float32, I int64, S float32, F float32, L int32
    {3, 3, 3, 1, 3, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 1, 17, 1, 1, 3, 1},  // X int8, W int8, T float32, TK float8_e4m3fn, TR float32, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {3, 3, 3, 10, 3, 10, 10, 10, 10, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 10, 10, 1, 3, 1},  // X int8, W int8, T float16, TK float16, TR float16, Q float16, I int64, S float32, F float32, L int32
    {3, 3, 3, 10, 3, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 10, 1, 3, 1},  // X int8, W int8, T float16, TK int8, TR float16, Q float16, I int64, S float32, F float32, L int32
    {3, 3, 3, 10, 3, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 10, 3, 10, 1, 3, 1},  // X int8, W int8, T float16, TK int8, TR float16, Q int8, I int64, S float32, F float32, L int32
    {3, 3, 3, 10, 3, 10, 10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 3, 1, 3, 1},  // X int8, W int8, T float16, TK int8, TR int8, Q float16, I int64, S float32, F float32, L int32
    {3, 3, 3, 10, 3, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 17, 10, 1, 3, 1},  // X int8, W int8, T float16, TK float8_e4m3fn, TR float16, Q float16, I int64, S float32, F float32, L int32
    {3, 3, 3, 10, 3, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 10, 17, 10, 1, 3, 1},  // X int8, W int8, T float16, TK float8_e4m3fn, TR float16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {3, 3, 3, 16, 3, 16, 16, 16, 16, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 16, 16, 1, 3, 1},  // X int8, W int8, T bfloat16, TK bfloat16, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {3, 3, 3, 16, 3, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 16, 1, 3, 1},  // X int8, W int8, T bfloat16, TK int8, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {3, 3, 3, 16, 3, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 16, 3, 16, 1, 3, 1},  // X int8, W int8, T bfloat16, TK int8, TR bfloat16, Q int8, I int64, S float32, F float32, L int32
    {3, 3, 3, 16, 3, 16, 16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 3, 1, 3, 1},  // X int8, W int8, T bfloat16, TK int8, TR int8, Q bfloat16, I int64, S float32, F float32, L int32
    {3, 3, 3, 16, 3, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 17, 16, 1, 3, 1},  // X int8, W int8, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {3, 3, 3, 16, 3, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 16, 17, 16, 1, 3, 1},  // X int8, W int8, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1, 1, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float32, TR float32, Q float32, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 1, 1, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 1, 1, 1, 1, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float32, TR float32, Q float32, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 10, 10, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float16, TR float16, Q float32, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 10, 10, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 1, 1, 10, 10, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float16, TR float16, Q float32, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 16, 16, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK bfloat16, TR bfloat16, Q float32, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 16, 16, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 1, 1, 16, 16, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK bfloat16, TR bfloat16, Q float32, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 1, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK int8, TR float32, Q float32, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 3, 1, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 1, 1, 3, 1, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK int8, TR float32, Q float32, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 1, 3, 1, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK int8, TR float32, Q int8, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 3, 1, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 3, 1, 3, 1, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK int8, TR float32, Q int8, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 3, 3, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK int8, TR int8, Q float32, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 3, 3, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 1, 1, 3, 3, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK int8, TR int8, Q float32, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 17, 1, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float8_e4m3fn, TR float32, Q float32, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 17, 1, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 1, 1, 17, 1, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float8_e4m3fn, TR float32, Q float32, I int64, S uint8, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 17, 1, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 1, 17, 1, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float8_e4m3fn, TR float32, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {17, 17, 17, 1, 17, 1, 1, 1, 1, 17, 1, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 17, 1, 17, 1, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float32, TK float8_e4m3fn, TR float32, Q float8_e4m3fn, I int64, S uint8, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 10, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 10, 10, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK float16, TR float16, Q float16, I int64, S float32, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 10, 10, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 10, 10, 10, 10, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK float16, TR float16, Q float16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 10, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK int8, TR float16, Q float16, I int64, S float32, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 3, 10, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 10, 10, 3, 10, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK int8, TR float16, Q float16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 3, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 10, 3, 10, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK int8, TR float16, Q int8, I int64, S float32, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 3, 10, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 3, 10, 3, 10, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK int8, TR float16, Q int8, I int64, S uint8, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 3, 3, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK int8, TR int8, Q float16, I int64, S float32, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 3, 3, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 10, 10, 3, 3, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK int8, TR int8, Q float16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 10, 10, 17, 10, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK float8_e4m3fn, TR float16, Q float16, I int64, S float32, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 17, 10, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 10, 10, 17, 10, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK float8_e4m3fn, TR float16, Q float16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 17, 10, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 10, 17, 10, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK float8_e4m3fn, TR float16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {17, 17, 17, 10, 17, 10, 10, 10, 10, 17, 10, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 17, 10, 17, 10, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T float16, TK float8_e4m3fn, TR float16, Q float8_e4m3fn, I int64, S uint8, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 16, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 16, 16, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK bfloat16, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 16, 16, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 16, 16, 16, 16, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK bfloat16, TR bfloat16, Q bfloat16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 16, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK int8, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 3, 16, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 16, 16, 3, 16, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK int8, TR bfloat16, Q bfloat16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 3, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3, 16, 3, 16, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK int8, TR bfloat16, Q int8, I int64, S float32, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 3, 16, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 3, 16, 3, 16, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK int8, TR bfloat16, Q int8, I int64, S uint8, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 3, 3, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK int8, TR int8, Q bfloat16, I int64, S float32, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 3, 3, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 16, 16, 3, 3, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK int8, TR int8, Q bfloat16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 16, 16, 17, 16, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q bfloat16, I int64, S float32, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 17, 16, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 16, 16, 17, 16, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q bfloat16, I int64, S uint8, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 17, 16, 7, 1, 1, 1, 1, 1, 1, 1, 6, 1, 17, 16, 17, 16, 1, 17, 1},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q float8_e4m3fn, I int64, S float32, F float32, L int32
    {17, 17, 17, 16, 17, 16, 16, 16, 16, 17, 16, 7, 2, 2, 2, 2, 1, 1, 1, 6, 1, 17, 16, 17, 16, 1, 17, 2},  // X float8_e4m3fn, W float8_e4m3fn, T bfloat16, TK float8_e4m3fn, TR bfloat16, Q float8_e4m3fn, I int64, S uint8, F float32, L int32
};

inline constexpr Constraint kMla01 = {"MLA-01", "token_x must be [T, He] or [B, S, He]"};
inline constexpr Constraint kMla05 = {"MLA-05", "unknown cache_mode"};
inline constexpr Constraint kMla10 = {"MLA-10", "unknown weight_quant_mode"};
inline constexpr Constraint kMla10B = {"MLA-10", "unknown kv_cache_quant_mode"};
inline constexpr Constraint kMla11 = {"MLA-11", "unknown query_quant_mode"};
inline constexpr Constraint kMla11B = {"MLA-11", "a quantised query needs a cache with one scale"};
inline constexpr Constraint kMla12 = {"MLA-12", "the repo modes must be 1 for a per-tile cache, else 0"};
inline constexpr Constraint kMla13 = {"MLA-13", "this cache_mode has no per-tile rows"};
inline constexpr Constraint kMla20 = {"MLA-20", "rmsnorm_epsilon_cq must be finite"};
inline constexpr Constraint kMla20B = {"MLA-20", "rmsnorm_epsilon_ckv must be finite"};
inline constexpr Constraint kMla06 = {"MLA-06", "BSND goes with [B, S, He] and TND with [T, He]"};
inline constexpr Constraint kMla21 = {"MLA-21", "only token, batch and cache sizes may be 0"};
inline constexpr Constraint kMla15 = {"MLA-15", "an element type does not fit the quantisation modes"};
inline constexpr Constraint kMla02 = {"MLA-02", "the rotated width must be even"};
inline constexpr Constraint kMla03 = {"MLA-03", "the weights must fit token_x, each other and the rotated width"};
inline constexpr Constraint kMla03B = {"MLA-03", "MX weights must divide into blocks of 32 rows"};
inline constexpr Constraint kMla04 = {"MLA-04", "gammas, rope_sin and rope_cos must fit"};
inline constexpr Constraint kMla18 = {"MLA-18", "tile_size must divide the compressed width"};
inline constexpr Constraint kMla16 = {"MLA-16", "an optional input is missing, not wanted, or of another shape"};
inline constexpr Constraint kMla16B = {"MLA-16", "a per-tensor scale must be one number"};
inline constexpr Constraint kMla08 = {"MLA-08", "a cache has another shape"};
inline constexpr Constraint kMla08B = {"MLA-08", "an NZ cache row must divide into 32-byte fractals"};
inline constexpr Constraint kMla14 = {"MLA-14", "kr_cache must be empty where its rows are packed into kv_cache"};
inline constexpr Constraint kMla17 = {"MLA-17", "actual_seq_len must be running sums that end with T"};
inline constexpr Constraint kMla07 = {"MLA-07", "cache_index must have one element for each token or page"};
inline constexpr Constraint kMla19 = {"MLA-19", "an index is out of range or written twice"};

inline constexpr Declaration kDeclaration = {
    "MlaPrologV3", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::mla_prolog_v3

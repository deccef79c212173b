// Made by `python -m ir_ops.codegen` from ir_ops/ops/fused_infer_attention_score.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::fused_infer_attention_score {

enum Input : size_t { kInQuery, kInKey, kInValue, kInPseShift, kInAttenMask, kInActualSeqLengths, kInActualSeqLengthsKv, kInDequantScale1, kInQuantScale1, kInDequantScale2, kInQuantScale2, kInQuantOffset2, kInAntiquantScale, kInAntiquantOffset, kInBlockTable, kInQueryPaddingSize, kInKvPaddingSize, kInKeyAntiquantScale, kInKeyAntiquantOffset, kInValueAntiquantScale, kInValueAntiquantOffset, kInKeySharedPrefix, kInValueSharedPrefix, kInActualSharedPrefixLen, kInQueryRope, kInKeyRope, kInKeyRopeAntiquantScale, kInDequantScaleQuery, kInLearnableSink, kInQStartIdx, kInKvStartIdx };
enum Output : size_t { kOutAttentionOut, kOutSoftmaxLse };
enum Attribute : size_t { kAttrNumHeads, kAttrScale, kAttrPreTokens, kAttrNextTokens, kAttrInputLayout, kAttrNumKeyValueHeads, kAttrSparseMode, kAttrInnerPrecise, kAttrBlockSize, kAttrAntiquantMode, kAttrSoftmaxLseFlag, kAttrKeyAntiquantMode, kAttrValueAntiquantMode, kAttrQueryQuantMode, kAttrPseType, kAttrOutDtype };

inline constexpr InputDecl kInputs[] = {
    {"query", false, -1},
    {"key", false, -1},
    {"value", false, -1},
    {"pse_shift", true, -1},
    {"atten_mask", true, -1},
    {"actual_seq_lengths", true, -1},
    {"actual_seq_lengths_kv", true, -1},
    {"dequant_scale1", true, -1},
    {"quant_scale1", true, -1},
    {"dequant_scale2", true, -1},
    {"quant_scale2", true, -1},
    {"quant_offset2", true, -1},
    {"antiquant_scale", true, -1},
    {"antiquant_offset", true, -1},
    {"block_table", true, -1},
    {"query_padding_size", true, -1},
    {"kv_padding_size", true, -1},
    {"key_antiquant_scale", true, -1},
    {"key_antiquant_offset", true, -1},
    {"value_antiquant_scale", true, -1},
    {"value_antiquant_offset", true, -1},
    {"key_shared_prefix", true, -1},
    {"value_shared_prefix", true, -1},
    {"actual_shared_prefix_len", true, -1},
    {"query_rope", true, -1},
    {"key_rope", true, -1},
    {"key_rope_antiquant_scale", true, -1},
    {"dequant_scale_query", true, -1},
    {"learnable_sink", true, -1},
    {"q_start_idx", true, -1},
    {"kv_start_idx", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"attention_out", -1, 3},
    {"softmax_lse", -1, 7},
};

enum InputLayout : int { kInputLayout_BSH, kInputLayout_BSND, kInputLayout_BNSD, kInputLayout_TND, kInputLayout_NTD, kInputLayout_BSH_BNSD, kInputLayout_BSND_BNSD, kInputLayout_BNSD_BSND, kInputLayout_BSH_NBSD, kInputLayout_BSND_NBSD, kInputLayout_BNSD_NBSD, kInputLayout_TND_NTD, kInputLayout_NTD_TND };
inline constexpr const char* kInputLayoutValues[] = {"BSH", "BSND", "BNSD", "TND", "NTD", "BSH_BNSD", "BSND_BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD", "NTD_TND"};
inline constexpr AttrDecl kAttrs[] = {
    {"num_heads", AttrType::kInt, 0.0, "", {}},
    {"scale", AttrType::kFloat, 1.0, "", {}},
    {"pre_tokens", AttrType::kInt, 2147483647.0, "", {}},
    {"next_tokens", AttrType::kInt, 2147483647.0, "", {}},
    {"input_layout", AttrType::kString, 0.0, "BSH", kInputLayoutValues},
    {"num_key_value_heads", AttrType::kInt, 0.0, "", {}},
    {"sparse_mode", AttrType::kInt, 0.0, "", {}},
    {"inner_precise", AttrType::kInt, 0.0, "", {}},
    {"block_size", AttrType::kInt, 0.0, "", {}},
    {"antiquant_mode", AttrType::kInt, 0.0, "", {}},
    {"softmax_lse_flag", AttrType::kBool, 0.0, "", {}},
    {"key_antiquant_mode", AttrType::kInt, 0.0, "", {}},
    {"value_antiquant_mode", AttrType::kInt, 0.0, "", {}},
    {"query_quant_mode", AttrType::kInt, 0.0, "", {}},
    {"pse_type", AttrType::kInt, 0.0, "", {}},
    {"out_dtype", AttrType::kInt, 0.0, "", {}},
};

inline constexpr int8_t kTypes[][33] = {
    {1, 1, 1, 1, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K float32, M bool, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {1, 1, 1, 1, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K float32, M int8, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {1, 1, 1, 1, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K float32, M uint8, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {1, 10, 10, 1, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 10, 10, 7, 1, 10, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K float16, M bool, L int64, I int32, S float32, V float32, R float32, KR float16, F float32, O float32
    {1, 10, 10, 1, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 10, 10, 7, 1, 10, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K float16, M int8, L int64, I int32, S float32, V float32, R float32, KR float16, F float32, O float32
    {1, 10, 10, 1, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 10, 10, 7, 1, 10, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K float16, M uint8, L int64, I int32, S float32, V float32, R float32, KR float16, F float32, O float32
    {1, 16, 16, 1, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 16, 16, 7, 1, 16, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K bfloat16, M bool, L int64, I int32, S float32, V float32, R float32, KR bfloat16, F float32, O float32
    {1, 16, 16, 1, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 16, 16, 7, 1, 16, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K bfloat16, M int8, L int64, I int32, S float32, V float32, R float32, KR bfloat16, F float32, O float32
    {1, 16, 16, 1, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 16, 16, 7, 1, 16, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K bfloat16, M uint8, L int64, I int32, S float32, V float32, R float32, KR bfloat16, F float32, O float32
    {1, 3, 3, 1, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K int8, M bool, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {1, 3, 3, 1, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K int8, M int8, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {1, 3, 3, 1, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q float32, K int8, M uint8, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {10, 10, 10, 10, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 10, 10, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K float16, M bool, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {10, 10, 10, 10, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 10, 10, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K float16, M int8, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {10, 10, 10, 10, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 10, 10, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K float16, M uint8, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M bool, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 10, 10, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M bool, L int64, I int32, S float32, V float16, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 9, 7, 7, 1, 1, 1, 1, 1, 10, 10, 6, 7, 7, 10, 10, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M bool, L int64, I int32, S float16, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 9, 7, 7, 1, 1, 1, 1, 1, 10, 10, 6, 7, 7, 10, 10, 10, 10, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M bool, L int64, I int32, S float16, V float16, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M int8, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 10, 10, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M int8, L int64, I int32, S float32, V float16, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 3, 7, 7, 1, 1, 1, 1, 1, 10, 10, 6, 7, 7, 10, 10, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M int8, L int64, I int32, S float16, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 3, 7, 7, 1, 1, 1, 1, 1, 10, 10, 6, 7, 7, 10, 10, 10, 10, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M int8, L int64, I int32, S float16, V float16, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M uint8, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 10, 10, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M uint8, L int64, I int32, S float32, V float16, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 2, 7, 7, 1, 1, 1, 1, 1, 10, 10, 6, 7, 7, 10, 10, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M uint8, L int64, I int32, S float16, V float32, R float16, KR float16, F float32, O float16
    {10, 3, 3, 10, 2, 7, 7, 1, 1, 1, 1, 1, 10, 10, 6, 7, 7, 10, 10, 10, 10, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q float16, K int8, M uint8, L int64, I int32, S float16, V float16, R float16, KR float16, F float32, O float16
    {16, 16, 16, 16, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 16, 16, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K bfloat16, M bool, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 16, 16, 16, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 16, 16, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K bfloat16, M int8, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 16, 16, 16, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 16, 16, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K bfloat16, M uint8, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M bool, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 16, 16, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M bool, L int64, I int32, S float32, V bfloat16, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 9, 7, 7, 1, 1, 1, 1, 1, 16, 16, 6, 7, 7, 16, 16, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M bool, L int64, I int32, S bfloat16, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 9, 7, 7, 1, 1, 1, 1, 1, 16, 16, 6, 7, 7, 16, 16, 16, 16, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M bool, L int64, I int32, S bfloat16, V bfloat16, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M int8, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 16, 16, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M int8, L int64, I int32, S float32, V bfloat16, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 3, 7, 7, 1, 1, 1, 1, 1, 16, 16, 6, 7, 7, 16, 16, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M int8, L int64, I int32, S bfloat16, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 3, 7, 7, 1, 1, 1, 1, 1, 16, 16, 6, 7, 7, 16, 16, 16, 16, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M int8, L int64, I int32, S bfloat16, V bfloat16, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M uint8, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 16, 16, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M uint8, L int64, I int32, S float32, V bfloat16, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 2, 7, 7, 1, 1, 1, 1, 1, 16, 16, 6, 7, 7, 16, 16, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M uint8, L int64, I int32, S bfloat16, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {16, 3, 3, 16, 2, 7, 7, 1, 1, 1, 1, 1, 16, 16, 6, 7, 7, 16, 16, 16, 16, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q bfloat16, K int8, M uint8, L int64, I int32, S bfloat16, V bfloat16, R bfloat16, KR bfloat16, F float32, O bfloat16
    {3, 3, 3, 1, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q int8, K int8, M bool, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {3, 3, 3, 10, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q int8, K int8, M bool, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {3, 3, 3, 16, 9, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q int8, K int8, M bool, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {3, 3, 3, 1, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q int8, K int8, M int8, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {3, 3, 3, 10, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q int8, K int8, M int8, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {3, 3, 3, 16, 3, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q int8, K int8, M int8, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
    {3, 3, 3, 1, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 1, 1, 1, 1, 1, 7, 7, 1, 1},  // Q int8, K int8, M uint8, L int64, I int32, S float32, V float32, R float32, KR float32, F float32, O float32
    {3, 3, 3, 10, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 10, 10, 1, 1, 10, 7, 7, 10, 1},  // Q int8, K int8, M uint8, L int64, I int32, S float32, V float32, R float16, KR float16, F float32, O float16
    {3, 3, 3, 16, 2, 7, 7, 1, 1, 1, 1, 1, 1, 1, 6, 7, 7, 1, 1, 1, 1, 3, 3, 7, 16, 16, 1, 1, 16, 7, 7, 16, 1},  // Q int8, K int8, M uint8, L int64, I int32, S float32, V float32, R bfloat16, KR bfloat16, F float32, O bfloat16
};

inline constexpr Constraint kFa22 = {"FA-22", "an input belongs to a use that is not taken"};
inline constexpr Constraint kFa22B = {"FA-22", "an attribute belongs to a use that is not taken"};
inline constexpr Constraint kFa01 = {"FA-01", "unknown input_layout"};
inline constexpr Constraint kFa02 = {"FA-02", "query heads must divide evenly over key heads"};
inline constexpr Constraint kFa01B = {"FA-01", "query must have the dims of its layout"};
inline constexpr Constraint kFa03 = {"FA-03", "key and value must have one element type"};
inline constexpr Constraint kFa04 = {"FA-04", "the element type of key does not go with that of query"};
inline constexpr Constraint kFa08 = {"FA-08", "block_table and block_size come together"};
inline constexpr Constraint kFa05 = {"FA-05", "query_rope and key_rope come together"};
inline constexpr Constraint kFa05B = {"FA-05", "a rope part has another element type"};
inline constexpr Constraint kFa11 = {"FA-11", "the lengths are needed"};
inline constexpr Constraint kFa12 = {"FA-12", "lengths have another shape"};
inline constexpr Constraint kFa03B = {"FA-03", "key has another shape"};
inline constexpr Constraint kFa03C = {"FA-03", "value has another shape"};
inline constexpr Constraint kFa05C = {"FA-05", "a rope part has another shape"};
inline constexpr Constraint kFa08B = {"FA-08", "block_table must have a row for each entry of the batch"};
inline constexpr Constraint kFa13 = {"FA-13", "unknown sparse_mode"};
inline constexpr Constraint kFa13B = {"FA-13", "the mask does not go with sparse_mode"};
inline constexpr Constraint kFa14 = {"FA-14", "a TND or NTD layout has no full mask"};
inline constexpr Constraint kFa14B = {"FA-14", "a single query token takes no notice of this sparse_mode"};
inline constexpr Constraint kFa15 = {"FA-15", "pre_tokens and next_tokens leave a wrong band"};
inline constexpr Constraint kFa16 = {"FA-16", "a full mask has another shape"};
inline constexpr Constraint kFa18 = {"FA-18", "antiquant scales go with int8 keys and values"};
inline constexpr Constraint kFa17 = {"FA-17", "the offsets come together, each like its scale"};
inline constexpr Constraint kFa17B = {"FA-17", "an antiquant scale has another element type"};
inline constexpr Constraint kFa17C = {"FA-17", "unknown antiquant modes"};
inline constexpr Constraint kFa17D = {"FA-17", "an antiquant scale has another shape"};
inline constexpr Constraint kFa19 = {"FA-19", "int8 queries and what belongs to them come together"};
inline constexpr Constraint kFa20 = {"FA-20", "learnable_sink must have an element for each query head"};
inline constexpr Constraint kFa25 = {"FA-25", "scale must be finite"};
inline constexpr Constraint kFa11B = {"FA-11", "running sums of lengths must not fall and end inside the tokens"};
inline constexpr Constraint kFa12B = {"FA-12", "a length is out of range"};
inline constexpr Constraint kFa09 = {"FA-09", "a page in use must exist"};

inline constexpr Declaration kDeclaration = {
    "FusedInferAttentionScore", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::fused_infer_attention_score

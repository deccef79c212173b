// Made by `python -m ir_ops.codegen` from ir_ops/ops/dequant_swiglu_quant.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::dequant_swiglu_quant {

enum Input : size_t { kInX, kInWeightScale, kInActivationScale, kInBias, kInQuantScale, kInQuantOffset, kInGroupIndex };
enum Output : size_t { kOutY, kOutScale };
enum Attribute : size_t { kAttrActivateLeft, kAttrQuantMode, kAttrDstType, kAttrRoundMode, kAttrActivateDim, kAttrSwigluMode, kAttrClampLimit, kAttrGluAlpha, kAttrGluBias };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"weight_scale", true, -1},
    {"activation_scale", true, -1},
    {"bias", true, -1},
    {"quant_scale", true, -1},
    {"quant_offset", true, -1},
    {"group_index", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, -1, 3},
    {"scale", -1, 1},
};

enum QuantMode : int { kQuantMode_static, kQuantMode_dynamic };
inline constexpr const char* kQuantModeValues[] = {"static", "dynamic"};
enum RoundMode : int { kRoundMode_rint };
inline constexpr const char* kRoundModeValues[] = {"rint"};
inline constexpr AttrDecl kAttrs[] = {
    {"activate_left", AttrType::kBool, 0.0, "", {}},
    {"quant_mode", AttrType::kString, 0.0, "static", kQuantModeValues},
    {"dst_type", AttrType::kInt, 2.0, "", {}},
    {"round_mode", AttrType::kString, 0.0, "rint", kRoundModeValues},
    {"activate_dim", AttrType::kInt, -1.0, "", {}},
    {"swiglu_mode", AttrType::kInt, 0.0, "", {}},
    {"clamp_limit", AttrType::kFloat, 7.0, "", {}},
    {"glu_alpha", AttrType::kFloat, 1.702, "", {}},
    {"glu_bias", AttrType::kFloat, 1.0, "", {}},
};

inline constexpr int8_t kTypes[][9] = {
    {6, 1, 1, 6, 1, 1, 7, 3, 1},  // X int32, F float32, B int32, I int64, Q int8
    {6, 1, 1, 1, 1, 1, 7, 3, 1},  // X int32, F float32, B float32, I int64, Q int8
    {6, 1, 1, 10, 1, 1, 7, 3, 1},  // X int32, F float32, B float16, I int64, Q int8
    {6, 1, 1, 16, 1, 1, 7, 3, 1},  // X int32, F float32, B bfloat16, I int64, Q int8
    {1, 1, 1, 6, 1, 1, 7, 3, 1},  // X float32, F float32, B int32, I int64, Q int8
    {1, 1, 1, 1, 1, 1, 7, 3, 1},  // X float32, F float32, B float32, I int64, Q int8
    {1, 1, 1, 10, 1, 1, 7, 3, 1},  // X float32, F float32, B float16, I int64, Q int8
    {1, 1, 1, 16, 1, 1, 7, 3, 1},  // X float32, F float32, B bfloat16, I int64, Q int8
    {10, 1, 1, 6, 1, 1, 7, 3, 1},  // X float16, F float32, B int32, I int64, Q int8
    {10, 1, 1, 1, 1, 1, 7, 3, 1},  // X float16, F float32, B float32, I int64, Q int8
    {10, 1, 1, 10, 1, 1, 7, 3, 1},  // X float16, F float32, B float16, I int64, Q int8
    {10, 1, 1, 16, 1, 1, 7, 3, 1},  // X float16, F float32, B bfloat16, I int64, Q int8
    {16, 1, 1, 6, 1, 1, 7, 3, 1},  // X bfloat16, F float32, B int32, I int64, Q int8
    {16, 1, 1, 1, 1, 1, 7, 3, 1},  // X bfloat16, F float32, B float32, I int64, Q int8
    {16, 1, 1, 10, 1, 1, 7, 3, 1},  // X bfloat16, F float32, B float16, I int64, Q int8
    {16, 1, 1, 16, 1, 1, 7, 3, 1},  // X bfloat16, F float32, B bfloat16, I int64, Q int8
};

inline constexpr Constraint kDs6 = {"DS-6", "unknown quant_mode"};
inline constexpr Constraint kDs5 = {"DS-5", "y is int8 here"};
inline constexpr Constraint kDs5B = {"DS-5", "int8 has one round_mode"};
inline constexpr Constraint kDs6B = {"DS-6", "unknown swiglu_mode"};
inline constexpr Constraint kDs6C = {"DS-6", "this swiglu_mode activates the left part"};
inline constexpr Constraint kDs7 = {"DS-7", "clamp_limit has no meaning"};
inline constexpr Constraint kDs1 = {"DS-1", "the element type of x and the dequantisation's inputs do not go together"};
inline constexpr Constraint kDs2 = {"DS-2", "x has 2 to 8 dims"};
inline constexpr Constraint kDs2B = {"DS-2", "a row must not be empty"};
inline constexpr Constraint kDs4 = {"DS-4", "activate_dim must be an axis of x"};
inline constexpr Constraint kDs2C = {"DS-2", "the split dim must be even"};
inline constexpr Constraint kDs4B = {"DS-4", "an axis before the last is quantised by given scales only, without groups"};
inline constexpr Constraint kDs6D = {"DS-6", "neighbouring columns are those of the last dim"};
inline constexpr Constraint kDs8 = {"DS-8", "group_index must be a list"};
inline constexpr Constraint kDs8B = {"DS-8", "weight_scale and bias must have the columns of x"};
inline constexpr Constraint kDs8C = {"DS-8", "activation_scale must have one number for each row"};
inline constexpr Constraint kDs8D = {"DS-8", "this quant_mode takes other parameters"};
inline constexpr Constraint kDs8E = {"DS-8", "quant_scale must fit y"};
inline constexpr Constraint kDs8F = {"DS-8", "quant_offset must have the shape of quant_scale"};
inline constexpr Constraint kDs2D = {"DS-2", "group_index must count rows"};
inline constexpr Constraint kDs9 = {"DS-9", "a scale cannot divide"};

inline constexpr Declaration kDeclaration = {
    "DequantSwigluQuant", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::dequant_swiglu_quant

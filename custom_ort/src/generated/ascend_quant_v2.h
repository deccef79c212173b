// Made by `python -m ir_ops.codegen` from ir_ops/ops/ascend_quant_v2.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::ascend_quant_v2 {

enum Input : size_t { kInX, kInScale, kInOffset };
enum Output : size_t { kOutY };
enum Attribute : size_t { kAttrSqrtMode, kAttrRoundMode, kAttrDstType, kAttrAxis };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"scale", false, -1},
    {"offset", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, -1},
};

enum RoundMode : int { kRoundMode_round, kRoundMode_floor, kRoundMode_ceil, kRoundMode_trunc, kRoundMode_hybrid };
inline constexpr const char* kRoundModeValues[] = {"round", "floor", "ceil", "trunc", "hybrid"};
inline constexpr AttrDecl kAttrs[] = {
    {"sqrt_mode", AttrType::kBool, 0.0, "", {}},
    {"round_mode", AttrType::kString, 0.0, "round", kRoundModeValues},
    {"dst_type", AttrType::kInt, 2.0, "", {}},
    {"axis", AttrType::kInt, -1.0, "", {}},
};

inline constexpr int8_t kTypes[][4] = {
    {1, 1, 1, 3},  // T float32, Q int8
    {1, 1, 1, 22},  // T float32, Q int4
    {1, 1, 1, 19},  // T float32, Q float8_e5m2
    {1, 1, 1, 17},  // T float32, Q float8_e4m3fn
    {10, 10, 10, 3},  // T float16, Q int8
    {10, 10, 10, 22},  // T float16, Q int4
    {10, 10, 10, 19},  // T float16, Q float8_e5m2
    {10, 10, 10, 17},  // T float16, Q float8_e4m3fn
    {16, 16, 16, 3},  // T bfloat16, Q int8
    {16, 16, 16, 22},  // T bfloat16, Q int4
    {16, 16, 16, 19},  // T bfloat16, Q float8_e5m2
    {16, 16, 16, 17},  // T bfloat16, Q float8_e4m3fn
};

inline constexpr Constraint kAq1 = {"AQ-1", "scale and offset must have the element type of x"};
inline constexpr Constraint kAq1B = {"AQ-1", "offset must have the shape of scale"};
inline constexpr Constraint kAq2 = {"AQ-2", "x has 1 to 8 dims"};
inline constexpr Constraint kAq3 = {"AQ-3", "axis must be an axis of x"};
inline constexpr Constraint kAq2B = {"AQ-2", "scale must have one element or those of the axis"};
inline constexpr Constraint kAq4 = {"AQ-4", "unknown dst_type"};
inline constexpr Constraint kAq4B = {"AQ-4", "int4 needs an even last dim"};
inline constexpr Constraint kAq5 = {"AQ-5", "unknown round_mode"};
inline constexpr Constraint kAq4C = {"AQ-4", "this dst_type has another round_mode"};

inline constexpr Declaration kDeclaration = {
    "AscendQuantV2", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::ascend_quant_v2

// Made by `python -m ir_ops.codegen` from ir_ops/ops/ascend_dequant.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::ascend_dequant {

enum Input : size_t { kInX, kInDeqScale };
enum Output : size_t { kOutY };
enum Attribute : size_t { kAttrSqrtMode, kAttrReluFlag, kAttrDtype };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"deq_scale", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, -1},
};

inline constexpr AttrDecl kAttrs[] = {
    {"sqrt_mode", AttrType::kBool, 0.0, "", {}},
    {"relu_flag", AttrType::kBool, 0.0, "", {}},
    {"dtype", AttrType::kInt, 0.0, "", {}},
};

inline constexpr int8_t kTypes[][3] = {
    {6, 13, 10},  // X int32, S uint64, Y float16
    {6, 13, 1},  // X int32, S uint64, Y float32
    {6, 10, 10},  // X int32, S float16, Y float16
    {6, 10, 1},  // X int32, S float16, Y float32
};

inline constexpr Constraint kAd1 = {"AD-1", "unknown dtype"};
inline constexpr Constraint kAd2 = {"AD-2", "x has 1 to 8 dims"};
inline constexpr Constraint kAd2B = {"AD-2", "deq_scale must have one element or those of the last dim"};

inline constexpr Declaration kDeclaration = {
    "AscendDequant", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::ascend_dequant

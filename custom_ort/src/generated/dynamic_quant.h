// Made by `python -m ir_ops.codegen` from ir_ops/ops/dynamic_quant.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::dynamic_quant {

enum Input : size_t { kInX, kInSmoothScales, kInGroupIndex };
enum Output : size_t { kOutY, kOutScale };
enum Attribute : size_t { kAttrDstType };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"smooth_scales", true, -1},
    {"group_index", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, -1},
    {"scale", -1, -1, 1},
};

inline constexpr AttrDecl kAttrs[] = {
    {"dst_type", AttrType::kInt, 2.0, "", {}},
};

inline constexpr int8_t kTypes[][5] = {
    {1, 1, 6, 3, 1},  // T float32, E int32, Q int8, F float32
    {1, 1, 6, 22, 1},  // T float32, E int32, Q int4, F float32
    {1, 1, 6, 19, 1},  // T float32, E int32, Q float8_e5m2, F float32
    {1, 1, 6, 17, 1},  // T float32, E int32, Q float8_e4m3fn, F float32
    {10, 10, 6, 3, 1},  // T float16, E int32, Q int8, F float32
    {10, 10, 6, 22, 1},  // T float16, E int32, Q int4, F float32
    {10, 10, 6, 19, 1},  // T float16, E int32, Q float8_e5m2, F float32
    {10, 10, 6, 17, 1},  // T float16, E int32, Q float8_e4m3fn, F float32
    {16, 16, 6, 3, 1},  // T bfloat16, E int32, Q int8, F float32
    {16, 16, 6, 22, 1},  // T bfloat16, E int32, Q int4, F float32
    {16, 16, 6, 19, 1},  // T bfloat16, E int32, Q float8_e5m2, F float32
    {16, 16, 6, 17, 1},  // T bfloat16, E int32, Q float8_e4m3fn, F float32
};

inline constexpr Constraint kDq1 = {"DQ-1", "x has 2 to 8 dims"};
inline constexpr Constraint kDq1B = {"DQ-1", "a row must not be empty"};
inline constexpr Constraint kDq2 = {"DQ-2", "smooth_scales must have the element type of x"};
inline constexpr Constraint kDq2B = {"DQ-2", "smooth_scales and group_index must fit x"};
inline constexpr Constraint kDq2C = {"DQ-2", "there are too many groups"};
inline constexpr Constraint kDq2D = {"DQ-2", "group_index must hold running row ends"};
inline constexpr Constraint kDq3 = {"DQ-3", "int4 needs an even last dim"};
inline constexpr Constraint kDq4 = {"DQ-4", "unknown dst_type"};

inline constexpr Declaration kDeclaration = {
    "DynamicQuant", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::dynamic_quant

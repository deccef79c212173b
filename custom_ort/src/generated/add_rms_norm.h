// Made by `python -m ir_ops.codegen` from ir_ops/ops/add_rms_norm.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::add_rms_norm {

enum Input : size_t { kInX1, kInX2, kInGamma };
enum Output : size_t { kOutY, kOutRstd, kOutX };
enum Attribute : size_t { kAttrEpsilon };

inline constexpr InputDecl kInputs[] = {
    {"x1", false, -1},
    {"x2", false, -1},
    {"gamma", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, 0},
    {"rstd", -1, -1, 1},
    {"x", -1, 0},
};

inline constexpr AttrDecl kAttrs[] = {
    {"epsilon", AttrType::kFloat, 1e-06, "", {}},
};

inline constexpr int8_t kTypes[][6] = {
    {1, 1, 1, 1, 1, 1},  // T float32, F float32
    {10, 10, 10, 10, 1, 10},  // T float16, F float32
    {16, 16, 16, 16, 1, 16},  // T bfloat16, F float32
};

inline constexpr Constraint kAn1 = {"AN-1", "x1, x2 and gamma must have one element type"};
inline constexpr Constraint kAn1B = {"AN-1", "x1 has 1 to 8 dims"};
inline constexpr Constraint kAn1C = {"AN-1", "x1 and x2 must have one shape"};
inline constexpr Constraint kAn2 = {"AN-2", "gamma must have the last dims of x1"};
inline constexpr Constraint kAn2B = {"AN-2", "gamma must not be empty"};
inline constexpr Constraint kAn3 = {"AN-3", "epsilon must be finite"};
inline constexpr Constraint kAn3B = {"AN-3", "epsilon must not be negative"};

inline constexpr Declaration kDeclaration = {
    "AddRmsNorm", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::add_rms_norm

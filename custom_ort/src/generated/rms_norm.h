// Made by `python -m ir_ops.codegen` from ir_ops/ops/rms_norm.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::rms_norm {

enum Input : size_t { kInX, kInGamma };
enum Output : size_t { kOutY, kOutRstd };
enum Attribute : size_t { kAttrEpsilon };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"gamma", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, 0},
    {"rstd", -1, -1, 1},
};

inline constexpr AttrDecl kAttrs[] = {
    {"epsilon", AttrType::kFloat, 1e-06, "", {}},
};

inline constexpr int8_t kTypes[][4] = {
    {1, 1, 1, 1},  // T float32, TG float32, F float32
    {10, 1, 10, 1},  // T float16, TG float32, F float32
    {10, 10, 10, 1},  // T float16, TG float16, F float32
    {16, 1, 16, 1},  // T bfloat16, TG float32, F float32
    {16, 16, 16, 1},  // T bfloat16, TG bfloat16, F float32
};

inline constexpr Constraint kRn1 = {"RN-1", "x has 1 to 8 dims"};
inline constexpr Constraint kRn1B = {"RN-1", "gamma must have the last dims of x"};
inline constexpr Constraint kRn2 = {"RN-2", "gamma must have the element type of x or be float32"};
inline constexpr Constraint kRn4 = {"RN-4", "gamma must not be empty"};
inline constexpr Constraint kRn5 = {"RN-5", "epsilon must be finite"};

inline constexpr Declaration kDeclaration = {
    "RmsNorm", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::rms_norm

// Made by `python -m ir_ops.codegen` from ir_ops/ops/swi_glu.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::swi_glu {

enum Input : size_t { kInX };
enum Output : size_t { kOutY };
enum Attribute : size_t { kAttrDim };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, 0},
};

inline constexpr AttrDecl kAttrs[] = {
    {"dim", AttrType::kInt, -1.0, "", {}},
};

inline constexpr int8_t kTypes[][2] = {
    {1, 1},  // T float32
    {10, 10},  // T float16
    {16, 16},  // T bfloat16
};

inline constexpr Constraint kSg1 = {"SG-1", "x has 1 to 8 dims"};
inline constexpr Constraint kSg1B = {"SG-1", "dim must be an axis of x"};
inline constexpr Constraint kSg1C = {"SG-1", "the split dim must be even"};

inline constexpr Declaration kDeclaration = {
    "SwiGlu", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::swi_glu

// Made by `python -m ir_ops.codegen` from ir_ops/ops/rotary_position_embedding.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::rotary_position_embedding {

enum Input : size_t { kInX, kInCos, kInSin, kInRotate };
enum Output : size_t { kOutY };
enum Attribute : size_t { kAttrMode };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"cos", false, -1},
    {"sin", false, -1},
    {"rotate", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, 0},
};

inline constexpr AttrDecl kAttrs[] = {
    {"mode", AttrType::kInt, 0.0, "", {}},
};

inline constexpr int8_t kTypes[][5] = {
    {1, 1, 1, 1, 1},  // T float32
    {10, 10, 10, 10, 10},  // T float16
    {16, 16, 16, 16, 16},  // T bfloat16
};

inline constexpr Constraint kRp1 = {"RP-1", "x must have 3 or 4 dims"};
inline constexpr Constraint kRp2 = {"RP-2", "cos, sin and rotate must have the element type of x"};
inline constexpr Constraint kRp2B = {"RP-2", "cos must fit x"};
inline constexpr Constraint kRp2C = {"RP-2", "sin must have the shape of cos"};
inline constexpr Constraint kRp3 = {"RP-3", "the width must be even"};
inline constexpr Constraint kRp3B = {"RP-3", "the width of mode 2 must be a multiple of 4"};
inline constexpr Constraint kRp4 = {"RP-4", "unknown mode"};
inline constexpr Constraint kRp6 = {"RP-6", "rotate must be square and as wide as x"};

inline constexpr Declaration kDeclaration = {
    "RotaryPositionEmbedding", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::rotary_position_embedding

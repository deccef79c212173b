// Made by `python -m ir_ops.codegen` from ir_ops/ops/interleave_rope.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::interleave_rope {

enum Input : size_t { kInX, kInCos, kInSin };
enum Output : size_t { kOutY };
enum Attribute : size_t {  };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"cos", false, -1},
    {"sin", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, 0},
};

inline constexpr View<AttrDecl> kAttrs;

inline constexpr int8_t kTypes[][4] = {
    {1, 1, 1, 1},  // T float32
    {10, 10, 10, 10},  // T float16
    {16, 16, 16, 16},  // T bfloat16
};

inline constexpr Constraint kIr1 = {"IR-1", "x must be 4-D"};
inline constexpr Constraint kIr1B = {"IR-1", "the width must be even"};
inline constexpr Constraint kIr2 = {"IR-2", "cos must fit x"};
inline constexpr Constraint kIr2B = {"IR-2", "sin must have the shape of cos"};
inline constexpr Constraint kIr3 = {"IR-3", "cos and sin must have the element type of x"};

inline constexpr Declaration kDeclaration = {
    "InterleaveRope", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::interleave_rope

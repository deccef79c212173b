// Made by `python -m ir_ops.codegen` from ir_ops/ops/apply_rotary_pos_emb.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::apply_rotary_pos_emb {

enum Input : size_t { kInQuery, kInKey, kInCos, kInSin };
enum Output : size_t { kOutQuery, kOutKey };
enum Attribute : size_t { kAttrLayout, kAttrRotaryMode };

inline constexpr InputDecl kInputs[] = {
    {"query", false, 0},
    {"key", false, 1},
    {"cos", false, -1},
    {"sin", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"query", 0, 0},
    {"key", 1, 0},
};

enum RotaryMode : int { kRotaryMode_half, kRotaryMode_interleave, kRotaryMode_quarter };
inline constexpr const char* kRotaryModeValues[] = {"half", "interleave", "quarter"};
inline constexpr AttrDecl kAttrs[] = {
    {"layout", AttrType::kInt, 1.0, "", {}},
    {"rotary_mode", AttrType::kString, 0.0, "half", kRotaryModeValues},
};

inline constexpr int8_t kTypes[][6] = {
    {1, 1, 1, 1, 1, 1},  // T float32
    {10, 10, 10, 10, 10, 10},  // T float16
    {16, 16, 16, 16, 16, 16},  // T bfloat16
};

inline constexpr Constraint kAr5 = {"AR-5", "unknown layout"};
inline constexpr Constraint kAr6 = {"AR-6", "unknown rotary_mode"};
inline constexpr Constraint kAr1 = {"AR-1", "key, cos and sin must have the element type of query"};
inline constexpr Constraint kAr1B = {"AR-1", "query and key must have the dims of the layout"};
inline constexpr Constraint kAr1C = {"AR-1", "query and key must be equal in all dims but the heads"};
inline constexpr Constraint kAr2 = {"AR-2", "cos must fit query"};
inline constexpr Constraint kAr2B = {"AR-2", "sin must have the shape of cos"};
inline constexpr Constraint kAr2C = {"AR-2", "cos must not be wider than query"};
inline constexpr Constraint kAr2D = {"AR-2", "the width must be even"};
inline constexpr Constraint kAr2E = {"AR-2", "the width of quarters must be a multiple of 4"};

inline constexpr Declaration kDeclaration = {
    "ApplyRotaryPosEmb", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::apply_rotary_pos_emb

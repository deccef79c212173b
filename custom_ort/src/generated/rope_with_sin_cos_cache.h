// Made by `python -m ir_ops.codegen` from ir_ops/ops/rope_with_sin_cos_cache.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::rope_with_sin_cos_cache {

enum Input : size_t { kInPositions, kInQueryIn, kInKeyIn, kInCosSinCache };
enum Output : size_t { kOutQueryOut, kOutKeyOut };
enum Attribute : size_t { kAttrNumQHeads, kAttrNumKHeads, kAttrHeadSize, kAttrMropeSection, kAttrQStride, kAttrKStride, kAttrIsNeoxStyle };

inline constexpr InputDecl kInputs[] = {
    {"positions", false, -1},
    {"queryIn", false, -1},
    {"keyIn", false, -1},
    {"cosSinCache", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"queryOut", -1, 1},
    {"keyOut", -1, 1},
};

inline constexpr AttrDecl kAttrs[] = {
    {"numQHeads", AttrType::kInt, 0.0, "", {}},
    {"numKHeads", AttrType::kInt, 0.0, "", {}},
    {"headSize", AttrType::kInt, 0.0, "", {}},
    {"mropeSection", AttrType::kInts, 0.0, "", {}},
    {"qStride", AttrType::kInt, 0.0, "", {}},
    {"kStride", AttrType::kInt, 0.0, "", {}},
    {"isNeoxStyle", AttrType::kBool, 1.0, "", {}},
};

inline constexpr int8_t kTypes[][6] = {
    {6, 1, 1, 1, 1, 1},  // I int32, T float32
    {6, 10, 10, 10, 10, 10},  // I int32, T float16
    {6, 16, 16, 16, 16, 16},  // I int32, T bfloat16
    {7, 1, 1, 1, 1, 1},  // I int64, T float32
    {7, 10, 10, 10, 10, 10},  // I int64, T float16
    {7, 16, 16, 16, 16, 16},  // I int64, T bfloat16
};

inline constexpr Constraint kRc1 = {"RC-1", "key and table must have the element type of query"};
inline constexpr Constraint kRc5 = {"RC-5", "heads and their size must be positive"};
inline constexpr Constraint kRc5B = {"RC-5", "positions must be a row, or three"};
inline constexpr Constraint kRc1B = {"RC-1", "query and key must be rows of tokens"};
inline constexpr Constraint kRc2 = {"RC-2", "the table has another form"};
inline constexpr Constraint kRc5C = {"RC-5", "a row stride must be the width of the rows"};
inline constexpr Constraint kRc4 = {"RC-4", "mropeSection has three numbers"};
inline constexpr Constraint kRc4B = {"RC-4", "mropeSection must share out half the rotated width"};
inline constexpr Constraint kRc3 = {"RC-3", "a position is not in the table"};

inline constexpr Declaration kDeclaration = {
    "RopeWithSinCosCache", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::rope_with_sin_cos_cache

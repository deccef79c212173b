// Made by `python -m ir_ops.codegen` from ir_ops/ops/scatter_update.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::scatter_update {

enum Input : size_t { kInVar, kInIndices, kInUpdates };
enum Output : size_t { kOutVar };
enum Attribute : size_t { kAttrUseLocking };

inline constexpr InputDecl kInputs[] = {
    {"var", false, 0},
    {"indices", false, -1},
    {"updates", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"var", 0, 0},
};

inline constexpr AttrDecl kAttrs[] = {
    {"use_locking", AttrType::kBool, 0.0, "", {}},
};

inline constexpr int8_t kTypes[][4] = {
    {1, 6, 1, 1},  // T float32, I int32
    {1, 7, 1, 1},  // T float32, I int64
    {10, 6, 10, 10},  // T float16, I int32
    {10, 7, 10, 10},  // T float16, I int64
    {16, 6, 16, 16},  // T bfloat16, I int32
    {16, 7, 16, 16},  // T bfloat16, I int64
    {11, 6, 11, 11},  // T float64, I int32
    {11, 7, 11, 11},  // T float64, I int64
    {3, 6, 3, 3},  // T int8, I int32
    {3, 7, 3, 3},  // T int8, I int64
    {5, 6, 5, 5},  // T int16, I int32
    {5, 7, 5, 5},  // T int16, I int64
    {6, 6, 6, 6},  // T int32, I int32
    {6, 7, 6, 6},  // T int32, I int64
    {7, 6, 7, 7},  // T int64, I int32
    {7, 7, 7, 7},  // T int64, I int64
    {2, 6, 2, 2},  // T uint8, I int32
    {2, 7, 2, 2},  // T uint8, I int64
    {4, 6, 4, 4},  // T uint16, I int32
    {4, 7, 4, 4},  // T uint16, I int64
    {12, 6, 12, 12},  // T uint32, I int32
    {12, 7, 12, 12},  // T uint32, I int64
    {13, 6, 13, 13},  // T uint64, I int32
    {13, 7, 13, 13},  // T uint64, I int64
    {9, 6, 9, 9},  // T bool, I int32
    {9, 7, 9, 9},  // T bool, I int64
    {19, 6, 19, 19},  // T float8_e5m2, I int32
    {19, 7, 19, 19},  // T float8_e5m2, I int64
    {17, 6, 17, 17},  // T float8_e4m3fn, I int32
    {17, 7, 17, 17},  // T float8_e4m3fn, I int64
};

inline constexpr Constraint kSu1 = {"SU-1", "updates must have the element type of var"};
inline constexpr Constraint kSu1B = {"SU-1", "var has 1 to 8 dims"};
inline constexpr Constraint kSu2 = {"SU-2", "updates must have a row of var for each index"};
inline constexpr Constraint kSu3 = {"SU-3", "an index is out of range"};
inline constexpr Constraint kSu4 = {"SU-4", "a row is written twice"};

inline constexpr Declaration kDeclaration = {
    "ScatterUpdate", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::scatter_update

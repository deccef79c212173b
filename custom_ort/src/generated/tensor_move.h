// Made by `python -m ir_ops.codegen` from ir_ops/ops/tensor_move.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::tensor_move {

enum Input : size_t { kInX };
enum Output : size_t { kOutY };
enum Attribute : size_t {  };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, 0},
};

inline constexpr View<AttrDecl> kAttrs;

inline constexpr int8_t kTypes[][2] = {
    {1, 1},  // T float32
    {10, 10},  // T float16
    {16, 16},  // T bfloat16
    {11, 11},  // T float64
    {3, 3},  // T int8
    {5, 5},  // T int16
    {6, 6},  // T int32
    {7, 7},  // T int64
    {2, 2},  // T uint8
    {4, 4},  // T uint16
    {12, 12},  // T uint32
    {13, 13},  // T uint64
    {9, 9},  // T bool
    {19, 19},  // T float8_e5m2
    {17, 17},  // T float8_e4m3fn
};


inline constexpr Declaration kDeclaration = {
    "TensorMove", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::tensor_move

// Made by `python -m ir_ops.codegen` from ir_ops/ops/quantize.py; change that file instead.
// clang-format off
#pragma once

#include "declaration.h"
#include "element.h"

namespace kvfuse::quantize {

enum Input : size_t { kInX, kInScales, kInZeroPoints };
enum Output : size_t { kOutY };
enum Attribute : size_t { kAttrDtype, kAttrAxis };

inline constexpr InputDecl kInputs[] = {
    {"x", false, -1},
    {"scales", false, -1},
    {"zero_points", true, -1},
};
inline constexpr OutputDecl kOutputs[] = {
    {"y", -1, -1},
};

enum Dtype : int { kDtype_torch_qint8, kDtype_torch_quint8, kDtype_torch_qint32 };
inline constexpr const char* kDtypeValues[] = {"torch.qint8", "torch.quint8", "torch.qint32"};
inline constexpr AttrDecl kAttrs[] = {
    {"dtype", AttrType::kString, 0.0, "", kDtypeValues},
    {"axis", AttrType::kInt, 1.0, "", {}},
};

inline constexpr int8_t kTypes[][4] = {
    {1, 1, 3, 3},  // T float32, S float32, Z int8, Q int8
    {1, 1, 3, 2},  // T float32, S float32, Z int8, Q uint8
    {1, 1, 3, 6},  // T float32, S float32, Z int8, Q int32
    {1, 1, 2, 3},  // T float32, S float32, Z uint8, Q int8
    {1, 1, 2, 2},  // T float32, S float32, Z uint8, Q uint8
    {1, 1, 2, 6},  // T float32, S float32, Z uint8, Q int32
    {1, 1, 6, 3},  // T float32, S float32, Z int32, Q int8
    {1, 1, 6, 2},  // T float32, S float32, Z int32, Q uint8
    {1, 1, 6, 6},  // T float32, S float32, Z int32, Q int32
    {1, 1, 1, 3},  // T float32, S float32, Z float32, Q int8
    {1, 1, 1, 2},  // T float32, S float32, Z float32, Q uint8
    {1, 1, 1, 6},  // T float32, S float32, Z float32, Q int32
    {1, 1, 16, 3},  // T float32, S float32, Z bfloat16, Q int8
    {1, 1, 16, 2},  // T float32, S float32, Z bfloat16, Q uint8
    {1, 1, 16, 6},  // T float32, S float32, Z bfloat16, Q int32
    {1, 10, 3, 3},  // T float32, S float16, Z int8, Q int8
    {1, 10, 3, 2},  // T float32, S float16, Z int8, Q uint8
    {1, 10, 3, 6},  // T float32, S float16, Z int8, Q int32
    {1, 10, 2, 3},  // T float32, S float16, Z uint8, Q int8
    {1, 10, 2, 2},  // T float32, S float16, Z uint8, Q uint8
    {1, 10, 2, 6},  // T float32, S float16, Z uint8, Q int32
    {1, 10, 6, 3},  // T float32, S float16, Z int32, Q int8
    {1, 10, 6, 2},  // T float32, S float16, Z int32, Q uint8
    {1, 10, 6, 6},  // T float32, S float16, Z int32, Q int32
    {1, 10, 1, 3},  // T float32, S float16, Z float32, Q int8
    {1, 10, 1, 2},  // T float32, S float16, Z float32, Q uint8
    {1, 10, 1, 6},  // T float32, S float16, Z float32, Q int32
    {1, 10, 16, 3},  // T float32, S float16, Z bfloat16, Q int8
    {1, 10, 16, 2},  // T float32, S float16, Z bfloat16, Q uint8
    {1, 10, 16, 6},  // T float32, S float16, Z bfloat16, Q int32
    {1, 16, 3, 3},  // T float32, S bfloat16, Z int8, Q int8
    {1, 16, 3, 2},  // T float32, S bfloat16, Z int8, Q uint8
    {1, 16, 3, 6},  // T float32, S bfloat16, Z int8, Q int32
    {1, 16, 2, 3},  // T float32, S bfloat16, Z uint8, Q int8
    {1, 16, 2, 2},  // T float32, S bfloat16, Z uint8, Q uint8
    {1, 16, 2, 6},  // T float32, S bfloat16, Z uint8, Q int32
    {1, 16, 6, 3},  // T float32, S bfloat16, Z int32, Q int8
    {1, 16, 6, 2},  // T float32, S bfloat16, Z int32, Q uint8
    {1, 16, 6, 6},  // T float32, S bfloat16, Z int32, Q int32
    {1, 16, 1, 3},  // T float32, S bfloat16, Z float32, Q int8
    {1, 16, 1, 2},  // T float32, S bfloat16, Z float32, Q uint8
    {1, 16, 1, 6},  // T float32, S bfloat16, Z float32, Q int32
    {1, 16, 16, 3},  // T float32, S bfloat16, Z bfloat16, Q int8
    {1, 16, 16, 2},  // T float32, S bfloat16, Z bfloat16, Q uint8
    {1, 16, 16, 6},  // T float32, S bfloat16, Z bfloat16, Q int32
    {10, 1, 3, 3},  // T float16, S float32, Z int8, Q int8
    {10, 1, 3, 2},  // T float16, S float32, Z int8, Q uint8
    {10, 1, 3, 6},  // T float16, S float32, Z int8, Q int32
    {10, 1, 2, 3},  // T float16, S float32, Z uint8, Q int8
    {10, 1, 2, 2},  // T float16, S float32, Z uint8, Q uint8
    {10, 1, 2, 6},  // T float16, S float32, Z uint8, Q int32
    {10, 1, 6, 3},  // T float16, S float32, Z int32, Q int8
    {10, 1, 6, 2},  // T float16, S float32, Z int32, Q uint8
    {10, 1, 6, 6},  // T float16, S float32, Z int32, Q int32
    {10, 1, 1, 3},  // T float16, S float32, Z float32, Q int8
    {10, 1, 1, 2},  // T float16, S float32, Z float32, Q uint8
    {10, 1, 1, 6},  // T float16, S float32, Z float32, Q int32
    {10, 1, 16, 3},  // T float16, S float32, Z bfloat16, Q int8
    {10, 1, 16, 2},  // T float16, S float32, Z bfloat16, Q uint8
    {10, 1, 16, 6},  // T float16, S float32, Z bfloat16, Q int32
    {10, 10, 3, 3},  // T float16, S float16, Z int8, Q int8
    {10, 10, 3, 2},  // T float16, S float16, Z int8, Q uint8
    {10, 10, 3, 6},  // T float16, S float16, Z int8, Q int32
    {10, 10, 2, 3},  // T float16, S float16, Z uint8, Q int8
    {10, 10, 2, 2},  // T float16, S float16, Z uint8, Q uint8
    {10, 10, 2, 6},  // T float16, S float16, Z uint8, Q int32
    {10, 10, 6, 3},  // T float16, S float16, Z int32, Q int8
    {10, 10, 6, 2},  // T float16, S float16, Z int32, Q uint8
    {10, 10, 6, 6},  // T float16, S float16, Z int32, Q int32
    {10, 10, 1, 3},  // T float16, S float16, Z float32, Q int8
    {10, 10, 1, 2},  // T float16, S float16, Z float32, Q uint8
    {10, 10, 1, 6},  // T float16, S float16, Z float32, Q int32
    {10, 10, 16, 3},  // T float16, S float16, Z bfloat16, Q int8
    {10, 10, 16, 2},  // T float16, S float16, Z bfloat16, Q uint8
    {10, 10, 16, 6},  // T float16, S float16, Z bfloat16, Q int32
    {10, 16, 3, 3},  // T float16, S bfloat16, Z int8, Q int8
    {10, 16, 3, 2},  // T float16, S bfloat16, Z int8, Q uint8
    {10, 16, 3, 6},  // T float16, S bfloat16, Z int8, Q int32
    {10, 16, 2, 3},  // T float16, S bfloat16, Z uint8, Q int8
    {10, 16, 2, 2},  // T float16, S bfloat16, Z uint8, Q uint8
    {10, 16, 2, 6},  // T float16, S bfloat16, Z uint8, Q int32
    {10, 16, 6, 3},  // T float16, S bfloat16, Z int32, Q int8
    {10, 16, 6, 2},  // T float16, S bfloat16, Z int32, Q uint8
    {10, 16, 6, 6},  // T float16, S bfloat16, Z int32, Q int32
    {10, 16, 1, 3},  // T float16, S bfloat16, Z float32, Q int8
    {10, 16, 1, 2},  // T float16, S bfloat16, Z float32, Q uint8
    {10, 16, 1, 6},  // T float16, S bfloat16, Z float32, Q int32
    {10, 16, 16, 3},  // T float16, S bfloat16, Z bfloat16, Q int8
    {10, 16, 16, 2},  // T float16, S bfloat16, Z bfloat16, Q uint8
    {10, 16, 16, 6},  // T float16, S bfloat16, Z bfloat16, Q int32
    {16, 1, 3, 3},  // T bfloat16, S float32, Z int8, Q int8
    {16, 1, 3, 2},  // T bfloat16, S float32, Z int8, Q uint8
    {16, 1, 3, 6},  // T bfloat16, S float32, Z int8, Q int32
    {16, 1, 2, 3},  // T bfloat16, S float32, Z uint8, Q int8
    {16, 1, 2, 2},  // T bfloat16, S float32, Z uint8, Q uint8
    {16, 1, 2, 6},  // T bfloat16, S float32, Z uint8, Q int32
    {16, 1, 6, 3},  // T bfloat16, S float32, Z int32, Q int8
    {16, 1, 6, 2},  // T bfloat16, S float32, Z int32, Q uint8
    {16, 1, 6, 6},  // T bfloat16, S float32, Z int32, Q int32
    {16, 1, 1, 3},  // T bfloat16, S float32, Z float32, Q int8
    {16, 1, 1, 2},  // T bfloat16, S float32, Z float32, Q uint8
    {16, 1, 1, 6},  // T bfloat16, S float32, Z float32, Q int32
    {16, 1, 16, 3},  // T bfloat16, S float32, Z bfloat16, Q int8
    {16, 1, 16, 2},  // T bfloat16, S float32, Z bfloat16, Q uint8
    {16, 1, 16, 6},  // T bfloat16, S float32, Z bfloat16, Q int32
    {16, 10, 3, 3},  // T bfloat16, S float16, Z int8, Q int8
    {16, 10, 3, 2},  // T bfloat16, S float16, Z int8, Q uint8
    {16, 10, 3, 6},  // T bfloat16, S float16, Z int8, Q int32
    {16, 10, 2, 3},  // T bfloat16, S float16, Z uint8, Q int8
    {16, 10, 2, 2},  // T bfloat16, S float16, Z uint8, Q uint8
    {16, 10, 2, 6},  // T bfloat16, S float16, Z uint8, Q int32
    {16, 10, 6, 3},  // T bfloat16, S float16, Z int32, Q int8
    {16, 10, 6, 2},  // T bfloat16, S float16, Z int32, Q uint8
    {16, 10, 6, 6},  // T bfloat16, S float16, Z int32, Q int32
    {16, 10, 1, 3},  // T bfloat16, S float16, Z float32, Q int8
    {16, 10, 1, 2},  // T bfloat16, S float16, Z float32, Q uint8
    {16, 10, 1, 6},  // T bfloat16, S float16, Z float32, Q int32
    {16, 10, 16, 3},  // T bfloat16, S float16, Z bfloat16, Q int8
    {16, 10, 16, 2},  // T bfloat16, S float16, Z bfloat16, Q uint8
    {16, 10, 16, 6},  // T bfloat16, S float16, Z bfloat16, Q int32
    {16, 16, 3, 3},  // T bfloat16, S bfloat16, Z int8, Q int8
    {16, 16, 3, 2},  // T bfloat16, S bfloat16, Z int8, Q uint8
    {16, 16, 3, 6},  // T bfloat16, S bfloat16, Z int8, Q int32
    {16, 16, 2, 3},  // T bfloat16, S bfloat16, Z uint8, Q int8
    {16, 16, 2, 2},  // T bfloat16, S bfloat16, Z uint8, Q uint8
    {16, 16, 2, 6},  // T bfloat16, S bfloat16, Z uint8, Q int32
    {16, 16, 6, 3},  // T bfloat16, S bfloat16, Z int32, Q int8
    {16, 16, 6, 2},  // T bfloat16, S bfloat16, Z int32, Q uint8
    {16, 16, 6, 6},  // T bfloat16, S bfloat16, Z int32, Q int32
    {16, 16, 1, 3},  // T bfloat16, S bfloat16, Z float32, Q int8
    {16, 16, 1, 2},  // T bfloat16, S bfloat16, Z float32, Q uint8
    {16, 16, 1, 6},  // T bfloat16, S bfloat16, Z float32, Q int32
    {16, 16, 16, 3},  // T bfloat16, S bfloat16, Z bfloat16, Q int8
    {16, 16, 16, 2},  // T bfloat16, S bfloat16, Z bfloat16, Q uint8
    {16, 16, 16, 6},  // T bfloat16, S bfloat16, Z bfloat16, Q int32
};

inline constexpr Constraint kQu1 = {"QU-1", "unknown dtype"};
inline constexpr Constraint kQu2 = {"QU-2", "x has 1 to 8 dims"};
inline constexpr Constraint kQu2B = {"QU-2", "axis must be an axis of x"};
inline constexpr Constraint kQu3 = {"QU-3", "scales must have one element or those of the axis"};
inline constexpr Constraint kQu3B = {"QU-3", "zero_points must have the shape of scales"};
inline constexpr Constraint kQu4 = {"QU-4", "a scale cannot divide"};

inline constexpr Declaration kDeclaration = {
    "Quantize", kInputs, kOutputs, kAttrs, kTypes[0], sizeof kTypes / sizeof kTypes[0]};

}  // namespace kvfuse::quantize

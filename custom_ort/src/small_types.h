// Rows of fp32 on their way to the small types of the quantisation operators.
#pragma once

#include <cmath>
#include <string>

#include "context.h"
#include "rows.h"

namespace kvfuse {

constexpr size_t kSmallPiece = 1024;  // elements that are converted at a time; even, for int4

// GE's number of a type in an attribute; kUndefined for one that has no ONNX type.
inline int TypeOfAttribute(int64_t number) {
  switch (number) {
    case 2:
      return kInt8;
    case 29:
      return kInt4;
    case 35:
      return kFloat8E5m2;
    case 36:
      return kFloat8E4m3fn;
    default:
      return kUndefined;
  }
}

// Refuses a runtime that took an output for another type than the one that an attribute asks for. The type of an output
// cannot be told to it without its rank: then it takes the first that the operator has, and the kernel must not run.
inline void RequireType(const KernelInfo& info, int type, size_t output, const char* attribute) {
  if (type == kUndefined || type == info.OutputType(output)) return;
  throw Refusal(std::string("the runtime takes y for ") + ElementTypeName(info.OutputType(output)) + ", " + attribute +
                " is " + ElementTypeName(type) +
                "; that takes onnxruntime 1.24 and a known rank of x when the model is loaded: run shape inference");
}

// The element type that a quantising node's `dst_type` asks for; kUndefined if it is none that ONNX has.
inline int TargetOf(const KernelInfo& info, size_t attribute, size_t output) {
  const int type = TypeOfAttribute(info.Int(attribute));
  RequireType(info, type, output, "dst_type");
  return type;
}

// Bytes of `count` elements of a small type; an even count for int4.
inline size_t SmallBytes(int type, size_t count) { return type == kInt4 ? count / 2 : count; }

// Writes values as int8 or int4 (rounded half to even, clamped, NaN is 0) or as float8 (rounded half to even,
// saturating at the largest finite value). `count` is at most kSmallPiece, and even for int4.
void StoreSmall(const RowKernels& kernels, int type, const float* values, size_t count, char* out);

// Divides a row in place by its own scale, what its largest magnitude is of `largest`, and returns the scale; a row of
// zeros stays and has scale 0.
float DivideByScale(float* values, size_t count, float largest);

}  // namespace kvfuse

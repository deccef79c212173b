// Rotations of rows by cosines and sines that are as wide as the rotated part and broadcast against the rows.
#pragma once

#include "blocks.h"
#include "context.h"
#include "rows.h"

namespace kvfuse {

// As RotaryPositionEmbedding's mode numbers them; by a matrix: x @ matrix takes the turned row's place.
enum class Rotary : int { kHalf, kInterleave, kQuarter, kInterleaveHalf, kMatrix };

// Turns pairs of neighbours, n even; cos and sin are as wide as x, and y is not x.
void RotateInterleaved(const float* x, const float* cos, const float* sin, size_t n, float* y);

// y = x * cos + rot(x) * sin, row by row, in fp32 and rounded once.
class Rotation {
 public:
  // cos and sin fit x: every dim but the last is 1 or that of x. `matrix` may be null.
  Rotation(const RowKernels& kernels, Rotary mode, const Tensor& x, const Tensor& cos, const Tensor& sin,
           const float* matrix = nullptr);

  size_t rows() const { return rows_; }
  // Rotates rows begin..end of x into out, which may be x itself. Columns that cos does not have are left as they are.
  void Run(char* out, size_t begin, size_t end) const;

 private:
  void Turn(const float* x, const float* cos, const float* sin, float* y) const;
  size_t ParameterRow(size_t row) const;

  const RowKernels& kernels_;
  Rotary mode_;
  FloatKind kind_;
  const char *x_, *cos_, *sin_;
  const float* matrix_;
  size_t width_, turned_, size_;
  size_t rows_ = 1, axes_;
  size_t dims_[kMaxRank], strides_[kMaxRank];  // of the leading axes; strides of cos in rows, 0 where it has one
};

}  // namespace kvfuse

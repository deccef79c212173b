#include "rotation.h"

#include <cstring>

#include "scratch.h"

namespace kvfuse {
namespace {

void RotateHalf(const float* x, const float* cos, const float* sin, size_t n, float* y) {
  const size_t half = n / 2;
  for (size_t j = 0; j < half; ++j) y[j] = x[j] * cos[j] - x[half + j] * sin[j];
  for (size_t j = half; j < n; ++j) y[j] = x[j] * cos[j] + x[j - half] * sin[j];
}

}  // namespace

void RotateInterleaved(const float* x, const float* cos, const float* sin, size_t n, float* y) {
  for (size_t j = 0; j + 1 < n; j += 2) {
    y[j] = x[j] * cos[j] - x[j + 1] * sin[j];
    y[j + 1] = x[j + 1] * cos[j + 1] + x[j] * sin[j + 1];
  }
}

Rotation::Rotation(const RowKernels& kernels, Rotary mode, const Tensor& x, const Tensor& cos, const Tensor& sin,
                   const float* matrix)
    : kernels_(kernels),
      mode_(mode),
      kind_(KindOf(x.type)),
      x_(x.As<char>()),
      cos_(cos.As<char>()),
      sin_(sin.As<char>()),
      matrix_(matrix),
      width_(static_cast<size_t>(x.Back(0))),
      turned_(static_cast<size_t>(cos.Back(0))),
      size_(ElementSize(x.type)),
      axes_(x.rank - 1) {
  size_t stride = 1;
  for (size_t axis = axes_; axis-- > 0;) {
    dims_[axis] = static_cast<size_t>(x.dims[axis]);
    strides_[axis] = cos.dims[axis] == 1 ? 0 : stride;
    stride *= static_cast<size_t>(cos.dims[axis]);
    rows_ *= dims_[axis];
  }
}

size_t Rotation::ParameterRow(size_t row) const {
  size_t place = 0;
  for (size_t axis = axes_; axis-- > 0; row /= dims_[axis]) place += row % dims_[axis] * strides_[axis];
  return place;
}

void Rotation::Turn(const float* x, const float* cos, const float* sin, float* y) const {
  if (mode_ == Rotary::kInterleaveHalf) return kernels_.rope_interleaved[kKindFloat32](x, cos, sin, turned_, y);
  if (mode_ == Rotary::kInterleave) return RotateInterleaved(x, cos, sin, turned_, y);
  if (mode_ == Rotary::kQuarter) {
    const size_t half = turned_ / 2;
    RotateHalf(x, cos, sin, half, y);
    return RotateHalf(x + half, cos + half, sin + half, half, y + half);
  }
  std::memset(y, 0, turned_ * sizeof(float));
  const float* row = matrix_;
  for (size_t i = 0; i < turned_; ++i, row += turned_) {
    for (size_t j = 0; j < turned_; ++j) y[j] += x[i] * row[j];
  }
  for (size_t j = 0; j < turned_; ++j) y[j] = x[j] * cos[j] + y[j] * sin[j];
}

void Rotation::Run(char* out, size_t begin, size_t end) const {
  Scratch scratch(4 * turned_);
  float *x = scratch.data(), *y = x + turned_, *cos = y + turned_, *sin = cos + turned_;
  size_t loaded = static_cast<size_t>(-1);  // heads that follow each other share a row of cos
  for (size_t row = begin; row < end; ++row) {
    const size_t parameter = ParameterRow(row);
    if (parameter != loaded) {
      kernels_.load[kind_](cos_ + parameter * turned_ * size_, turned_, cos);
      kernels_.load[kind_](sin_ + parameter * turned_ * size_, turned_, sin);
      loaded = parameter;
    }
    const char* source = x_ + row * width_ * size_;
    char* target = out + row * width_ * size_;
    if (mode_ == Rotary::kHalf && target != source) {
      kernels_.rope_halves_row[kind_](source, cos, sin, turned_, target, false);
    } else if (mode_ == Rotary::kHalf) {
      kernels_.load[kind_](source, turned_, x);
      kernels_.rope_halves[kind_](x, cos, sin, turned_, target);
    } else {
      kernels_.load[kind_](source, turned_, x);
      Turn(x, cos, sin, y);
      kernels_.store[kind_](y, turned_, {target, turned_, turned_});
    }
    if (turned_ < width_ && target != source) {
      std::memcpy(target + turned_ * size_, source + turned_ * size_, (width_ - turned_) * size_);
    }
  }
}

}  // namespace kvfuse

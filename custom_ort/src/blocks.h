// What the kernels of the building blocks share: parameters in fp32, shapes, and rows as bytes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "context.h"
#include "rows.h"

namespace kvfuse {

inline bool SameShape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && std::equal(a.dims, a.dims + a.rank, b.dims);
}

// Product of dims[begin..end). Zero or what fits: the tensor exists.
inline size_t Product(const int64_t* dims, size_t begin, size_t end) {
  size_t product = 1;
  for (size_t axis = begin; axis < end; ++axis) product *= static_cast<size_t>(dims[axis]);
  return product;
}

inline std::string Found(const Tensor& tensor) { return tensor.name + (" " + tensor.ShapeText()); }

// The elements of an int32 or int64 tensor.
inline std::vector<int64_t> Integers(const Tensor& tensor) {
  const size_t count = static_cast<size_t>(tensor.elements);
  if (tensor.type == kInt64) return {tensor.As<int64_t>(), tensor.As<int64_t>() + count};
  return {tensor.As<int32_t>(), tensor.As<int32_t>() + count};
}

// A small parameter in fp32; a copy where it has another type.
class Floats {
 public:
  Floats(const Tensor& tensor, const RowKernels& kernels) {
    if (!tensor.given || tensor.type == kFloat32) {
      data_ = tensor.given ? tensor.As<float>() : nullptr;
      return;
    }
    own_.resize(static_cast<size_t>(tensor.elements));
    kernels.load[KindOf(tensor.type)](tensor.data, own_.size(), own_.data());
    data_ = own_.data();
  }
  Floats(const Floats&) = delete;  // data_ may point into own_
  Floats& operator=(const Floats&) = delete;

  const float* data() const { return data_; }

 private:
  std::vector<float> own_;
  const float* data_;
};

// Rows of a tensor that lie one behind the other.
struct Rows {
  char* data;
  size_t bytes;  // of one row

  char* operator[](size_t row) const { return data == nullptr ? nullptr : data + row * bytes; }
};

inline Rows RowsOf(const Tensor& tensor, size_t width) {
  return {static_cast<char*>(tensor.data), width * ElementSize(tensor.type)};
}

}  // namespace kvfuse

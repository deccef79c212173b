// What the parts of AttentionTasks share.
#pragma once

#include <algorithm>
#include <limits>

#include "attention_tasks.h"

namespace kvfuse {

// A number of any float type.
inline float Number(const Tensor& tensor, size_t i) {
  return tensor.type == kFloat32   ? tensor.As<float>()[i]
         : tensor.type == kFloat16 ? ToFloat(tensor.As<Half>()[i])
                                   : ToFloat(tensor.As<Bfloat>()[i]);
}

// What a task keeps for the rows of one head.
struct AttentionTasks::State {
  float *maximum, *sum, *factor, *extra, *query_sum, *query_constant, *y;
  size_t y_stride;

  static size_t Size(size_t rows, size_t y_stride) { return rows * (6 + y_stride); }
  void Begin(float* memory, size_t rows, size_t stride) {
    float** parts[] = {&maximum, &sum, &factor, &extra, &query_sum, &query_constant};
    for (float** part : parts) *part = memory, memory += rows;
    y = memory, y_stride = stride;
    std::fill_n(maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, 0.0f);
    std::fill_n(extra, rows, 0.0f);
    std::fill_n(query_sum, rows, 0.0f);
    std::fill_n(query_constant, rows, 0.0f);
    std::fill_n(y, rows * stride, 0.0f);
  }
};

}  // namespace kvfuse

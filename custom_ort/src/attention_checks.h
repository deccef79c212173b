// Small questions about shapes that the checks of AttentionCall ask.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"

namespace kvfuse {

// Dims of `tensor` for a layout with the sizes that are fixed; a fixed size of -1 is free.
inline bool Fits(const Tensor& tensor, const std::vector<int64_t>& form) {
  if (tensor.rank != form.size()) return false;
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] >= 0 && tensor.dims[i] != form[i]) return false;
  }
  return true;
}

}  // namespace kvfuse

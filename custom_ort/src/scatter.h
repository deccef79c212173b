// Slices of a tensor that are replaced in place: what the scatters share.
#pragma once

#include <string>
#include <vector>

#include "blocks.h"
#include "context.h"

namespace kvfuse {

// A tensor whose first `axes` dims number its slices, and tuples of as many indices that name some of them.
class ScatteredSlices {
 public:
  ScatteredSlices(const Tensor& var, size_t axes, const Tensor& indices);

  // Refuses an index out of range.
  void CheckRange(const Constraint& constraint) const;
  // Refuses a slice that is named twice. Indices must be in range.
  void CheckDistinct(const Constraint& constraint, const char* wanted) const;
  // The tensor with the slices of `updates` in their places; only these are written where output and input are one.
  void Write(KernelContext& context, size_t output, const Tensor& updates) const;

 private:
  std::string Named(size_t tuple) const;
  std::vector<int64_t> Places() const;

  const Tensor& var_;
  size_t axes_;
  std::vector<int64_t> indices_;
};

}  // namespace kvfuse

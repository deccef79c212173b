// Memory for one task's intermediate rows.
#pragma once

#include <cstddef>
#include <memory>

namespace kvfuse {

// Floats, not set to anything: on the stack, on the heap when there are many.
class Scratch {
 public:
  explicit Scratch(size_t count) : heap_(count > kStack ? new float[count] : nullptr) {}
  float* data() { return heap_ == nullptr ? stack_ : heap_.get(); }

 private:
  static constexpr size_t kStack = 3072;
  alignas(64) float stack_[kStack];
  std::unique_ptr<float[]> heap_;
};

}  // namespace kvfuse

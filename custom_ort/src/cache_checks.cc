#include "cache_checks.h"

#include <cmath>
#include <sstream>

#include "refusal.h"

namespace kvfuse {

void CheckOffsetHasScale(const Constraint& constraint, const Tensor& scale, const Tensor& offset) {
  if (offset.given && !scale.given) {
    Refuse(constraint, std::string(offset.name) + " without " + scale.name, "both or neither");
  }
}

bool Keeps(int type, int plain) {
  return type == plain || (plain == kFloat32 && (type == kFloat16 || type == kBfloat16));
}

std::string KeptText(int plain) { return plain == kFloat32 ? "float32 | float16 | bfloat16" : ElementTypeName(plain); }

void CheckScaleFitsCache(const Constraint& constraint, const Tensor& cache, const Tensor& scale, int plain) {
  const std::string cache_type = ElementTypeName(cache.type);
  if (scale.given && ElementSize(cache.type) != 1) {
    Refuse(constraint, scale.name + (" with a " + cache_type + " ") + cache.name, "an 8-bit cache");
  }
  if (!scale.given && !Keeps(cache.type, plain)) {
    Refuse(constraint, cache_type + " " + cache.name + " without " + scale.name,
           scale.name + (", or a " + KeptText(plain)) + " cache");
  }
}

void CheckDivides(const Constraint& constraint, const Tensor& scale) {
  if (!scale.given) return;
  const float* values = scale.As<float>();
  for (int64_t i = 0; i < scale.elements; ++i) {
    if (std::isfinite(values[i]) && values[i] != 0.0f) continue;
    std::ostringstream found;
    found << scale.name << "[" << i << "] = " << values[i];
    Refuse(constraint, found.str(), "a finite number other than 0");
  }
}

void CheckShape(const Constraint& constraint, const Tensor& tensor, std::initializer_list<int64_t> shape) {
  if (!tensor.given || tensor.Is(shape)) return;
  Refuse(constraint, tensor.name + (" " + tensor.ShapeText()), ShapeText(shape.begin(), shape.size()));
}

void CheckNotEmpty(const Constraint& constraint, const Tensor& tensor) {
  if (tensor.given && tensor.elements == 0) {
    Refuse(constraint, tensor.name + (" " + tensor.ShapeText()), "every dim >= 1");
  }
}

}  // namespace kvfuse

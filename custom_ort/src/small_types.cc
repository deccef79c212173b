#include "small_types.h"

#include <algorithm>

namespace kvfuse {
namespace {

struct Ones {
  alignas(64) float values[kSmallPiece];
  Ones() {
    for (float& value : values) value = 1.0f;
  }
};

unsigned Nibble(float x) {
  const float clamped = x < -8.0f ? -8.0f : x > 7.0f ? 7.0f : x;
  return x == x ? static_cast<unsigned>(static_cast<int>(std::nearbyint(clamped))) & 15u : 0u;
}

}  // namespace

void StoreSmall(const RowKernels& kernels, int type, const float* values, size_t count, char* out) {
  static const Ones ones;
  if (type == kInt4) {
    for (size_t i = 0; i + 1 < count; i += 2) {
      out[i / 2] = static_cast<char>(Nibble(values[i]) | Nibble(values[i + 1]) << 4);
    }
    return;
  }
  const QuantKind kind = type == kInt8 ? kQuantInt8 : type == kFloat8E4m3fn ? kQuantE4m3fnSaturate : kQuantE5m2Saturate;
  kernels.quantise[kind](values, ones.values, nullptr, count, {out, count, count});
}

float DivideByScale(float* values, size_t count, float largest) {
  uint32_t most = 0;  // bits of non-negative floats are in the order of the floats, NaN above all
  for (size_t i = 0; i < count; ++i) most = std::max(most, FloatBits(values[i]) & 0x7fffffffu);
  const float scale = BitsFloat(most) / largest;
  const float divisor = scale == 0.0f ? 1.0f : scale;
  for (size_t i = 0; i < count; ++i) values[i] /= divisor;
  return scale;
}

}  // namespace kvfuse

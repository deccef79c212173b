// Activations in fp32, without branches, so that compilers make vectors of loops over them.
#pragma once

#include <cmath>

#include "element.h"

namespace kvfuse {

// e^x for x <= 0, correct to about one unit in the last place; NaN stays NaN.
inline float ExpOfNegative(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded value in the low bits
  const float bounded = x < -104.0f ? -104.0f : x;
  const float shifted = bounded * 1.44269504088896341f + kRounder;
  const float n = shifted - kRounder;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float power = p * (r * r) + r + 1.0f;
  // 2^n in two factors, since it may be below the normal numbers
  const int32_t exponent = static_cast<int32_t>(FloatBits(shifted)) - static_cast<int32_t>(FloatBits(kRounder));
  const int32_t first = exponent / 2, second = exponent - first;
  return power * BitsFloat(static_cast<uint32_t>(first + 127) << 23) *
         BitsFloat(static_cast<uint32_t>(second + 127) << 23);
}

// x * sigmoid(x).
inline float Silu(float x) {
  const float power = ExpOfNegative(-std::fabs(x));
  return x * (x >= 0.0f ? 1.0f : power) / (power + 1.0f);
}

}  // namespace kvfuse

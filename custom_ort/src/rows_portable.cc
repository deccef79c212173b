// Row kernels in plain C++: any CPU, and what the compiler makes of NEON on aarch64.

#include <cmath>
#include <type_traits>

#include "rows.h"

namespace kvfuse {
namespace {
#define KVFUSE_TARGET

struct F {
  float lane[16];
};
struct I {
  int32_t lane[16];
};

template <typename Result, typename Function>
inline Result Map(Function function) {
  Result result;
  for (int i = 0; i < 16; ++i) result.lane[i] = function(i);
  return result;
}

inline F Set(float value) {
  return Map<F>([=](int) { return value; });
}
template <typename T>
inline F Load(const T* x) {
  return Map<F>([=](int i) { return ToFloat(x[i]); });
}
inline void Store(float* y, const F& value) { std::memcpy(y, value.lane, sizeof value.lane); }
inline void Store(Half* y, const F& value) {
  for (int i = 0; i < 16; ++i) y[i] = ToHalf(value.lane[i]);
}
inline void Store(Bfloat* y, const F& value) {
  for (int i = 0; i < 16; ++i) y[i] = ToBfloat(value.lane[i]);
}
template <typename T>
inline void StoreTwo(T* y, const F& first, const F& second) {
  Store(y, first);
  Store(y + 16, second);
}
constexpr bool kMayStream = false;
template <typename T>
inline void StreamTwo(T* y, const F& first, const F& second) {
  StoreTwo(y, first, second);
}
void Finish() {}
inline F Add(const F& a, const F& b) {
  return Map<F>([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F Sub(const F& a, const F& b) {
  return Map<F>([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F Mul(const F& a, const F& b) {
  return Map<F>([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline F Div(const F& a, const F& b) {
  return Map<F>([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline F MulTwice(const F& x, const F& high, const F& low) {
  return Map<F>([&](int i) { return std::fma(x.lane[i], high.lane[i], x.lane[i] * low.lane[i]); });
}
inline float Sum(const F& value) {
  F sum = value;
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sum.lane[i] += sum.lane[i + width];
  }
  return sum.lane[0];
}
inline void Deinterleave(const F& a, const F& b, F* even, F* odd) {
  for (int i = 0; i < 8; ++i) {
    even->lane[i] = a.lane[2 * i];
    odd->lane[i] = a.lane[2 * i + 1];
    even->lane[i + 8] = b.lane[2 * i];
    odd->lane[i + 8] = b.lane[2 * i + 1];
  }
}

// Adding 1.5 * 2^23 leaves the value rounded half to even in the low bits; NaN is kept.
constexpr float kRounder = 12582912.0f;
inline float ClampToInt8(float x) { return x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x; }

// Rounded, a zero keeping its sign, which a float8 shows.
inline F RoundToInt8Range(const F& value) {
  return Map<F>(
      [&](int i) { return std::copysign((ClampToInt8(value.lane[i]) + kRounder) - kRounder, value.lane[i]); });
}
inline void StoreInt8(uint8_t* out, const F& value) {
  for (int i = 0; i < 16; ++i) {
    const float x = value.lane[i];
    out[i] = x == x ? static_cast<uint8_t>(FloatBits(ClampToInt8(x) + kRounder)) : uint8_t{0};
  }
}

inline I Bits(const F& value) {
  return Map<I>([&](int i) { return static_cast<int32_t>(FloatBits(value.lane[i])); });
}
inline F FromBits(const I& value) {
  return Map<F>([&](int i) { return BitsFloat(static_cast<uint32_t>(value.lane[i])); });
}
inline I LoadInt(const int32_t* x) {
  return Map<I>([=](int i) { return x[i]; });
}
inline F FromInt(const I& value) {
  return Map<F>([&](int i) { return static_cast<float>(value.lane[i]); });
}
inline F RoundToHalf(const F& value) {
  return Map<F>([&](int i) { return ToFloat(ToHalf(value.lane[i])); });
}
inline I SetInt(int value) {
  return Map<I>([=](int) { return value; });
}
inline I AddInt(const I& a, const I& b) {  // wraps
  return Map<I>(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) + static_cast<uint32_t>(b.lane[i])); });
}
inline I And(const I& a, const I& b) {
  return Map<I>([&](int i) { return a.lane[i] & b.lane[i]; });
}
inline I Or(const I& a, const I& b) {
  return Map<I>([&](int i) { return a.lane[i] | b.lane[i]; });
}
template <int kBits>
inline I ShiftRight(const I& value) {
  return Map<I>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(value.lane[i]) >> kBits); });
}
inline I Greater(const I& a, const I& b) {
  return Map<I>([&](int i) { return a.lane[i] > b.lane[i] ? -1 : 0; });
}
inline I Select(const I& mask, const I& yes, const I& no) {
  return Map<I>([&](int i) { return mask.lane[i] != 0 ? yes.lane[i] : no.lane[i]; });
}
inline void StoreBytes(uint8_t* out, const I& value) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(value.lane[i]);
}

#include "rows_impl.inc"

#undef KVFUSE_TARGET
}  // namespace

const RowKernels* PortableRowKernels() { return &kKernels; }

}  // namespace kvfuse

// Element types and their scalar conversions. The vector backends give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvfuse {

// Numbered like ONNX TensorProto.DataType, which is also how the runtime numbers them.
enum ElementType : int {
  kUndefined = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBfloat16 = 16,
  kFloat8E4m3fn = 17,
  kFloat8E5m2 = 19,
  kInt4 = 22,  // two to a byte
};

// numpy's name, as the messages of the Python side write it.
const char* ElementTypeName(int type);

constexpr size_t ElementSize(int type) {
  switch (type) {
    case kBool:
    case kUint8:
    case kInt8:
    case kFloat8E4m3fn:
    case kFloat8E5m2:
      return 1;
    case kUint16:
    case kInt16:
    case kFloat16:
    case kBfloat16:
      return 2;
    case kFloat32:
    case kInt32:
    case kUint32:
      return 4;
    default:
      return 8;
  }
}

// Storage types: 16-bit floats are handled by bit pattern, and must not be mixed up.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float BitsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float ToFloat(float value) { return value; }

inline float ToFloat(int8_t value) { return static_cast<float>(value); }

inline float ToFloat(Bfloat value) { return BitsFloat(static_cast<uint32_t>(value.bits) << 16); }

inline float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // inf, or a NaN made quiet as the hardware does
    const uint32_t payload = (magnitude & 0x3ffu) << 13;
    return BitsFloat(sign | 0x7f800000u | payload | (payload != 0 ? 0x400000u : 0u));
  }
  if (magnitude >= 0x400u) return BitsFloat(sign | ((magnitude << 13) + 0x38000000u));
  // A subnormal is magnitude * 2^-24; the integer conversion avoids arithmetic on float subnormals.
  return BitsFloat(sign | FloatBits(static_cast<float>(magnitude) * 5.9604644775390625e-8f));
}

// Round half to even; NaN stays NaN with its upper payload bits, made quiet.
inline Bfloat ToBfloat(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// Round half to even, overflow to inf; NaN as above.
inline Half ToHalf(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude >= 0x38800000u) {  // normal; the carry of the rounding may run into the exponent, up to inf
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
  }
  if (magnitude < 0x33000000u) return {static_cast<uint16_t>(sign)};  // below half of the smallest subnormal
  const uint32_t shift = 126u - (magnitude >> 23);                    // 14..24 bits leave the mantissa
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u;
  return {static_cast<uint16_t>(sign | (kept + up))};
}

template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, Half>) {
    return ToHalf(value);
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return ToBfloat(value);
  } else {
    return value;
  }
}

}  // namespace kvfuse

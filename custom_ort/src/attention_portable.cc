// Attention kernels in plain C++; the loops over lanes are short enough for any compiler to make vectors of.

#include <cmath>

#include "attention.h"

namespace kvfuse {
namespace {
#define KVFUSE_TARGET
#define KVFUSE_OP static inline

constexpr size_t kLanes = 8, kValueVectors = 2, kValueRows = 4;
constexpr int kSums = 8, kScoreKeys = 8;

struct V {
  float x[kLanes];
};

template <typename Of>
KVFUSE_OP V Each(const Of& of) {
  V y;
  for (size_t i = 0; i < kLanes; ++i) y.x[i] = of(i);
  return y;
}

KVFUSE_OP V Set(float x) {
  return Each([=](size_t) { return x; });
}
KVFUSE_OP V Zero() { return Set(0.0f); }
template <typename E>
KVFUSE_OP V Load(const E* x) {
  return Each([=](size_t i) { return ToFloat(x[i]); });
}
KVFUSE_OP void Store(float* y, const V& x) {
  for (size_t i = 0; i < kLanes; ++i) y[i] = x.x[i];
}
KVFUSE_OP V Fma(const V& a, const V& b, const V& c) {
  return Each([&](size_t i) { return a.x[i] * b.x[i] + c.x[i]; });
}
KVFUSE_OP V Add(const V& a, const V& b) {
  return Each([&](size_t i) { return a.x[i] + b.x[i]; });
}
KVFUSE_OP V Sub(const V& a, const V& b) {
  return Each([&](size_t i) { return a.x[i] - b.x[i]; });
}
KVFUSE_OP V Mul(const V& a, const V& b) {
  return Each([&](size_t i) { return a.x[i] * b.x[i]; });
}
KVFUSE_OP V Max(const V& a, const V& b) {
  return Each([&](size_t i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
KVFUSE_OP V Round(const V& x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: what is left behind the point is rounded away
  return Each([&](size_t i) { return (x.x[i] + kShift) - kShift; });
}
KVFUSE_OP V TimesPower(const V& x, const V& n) {
  return Each([&](size_t i) {
    const float power = n.x[i] == n.x[i] ? n.x[i] : 0.0f;
    return x.x[i] * BitsFloat(static_cast<uint32_t>(static_cast<int32_t>(power) + 127) << 23);
  });
}
KVFUSE_OP V ZeroWhereLess(const V& x, const V& bound, const V& y) {
  return Each([&](size_t i) { return x.x[i] < bound.x[i] ? 0.0f : y.x[i]; });
}
KVFUSE_OP float SumOf(const V& v) {
  float sum = 0.0f;
  for (const float x : v.x) sum += x;
  return sum;
}
KVFUSE_OP float MaxOf(const V& v) {
  float most = v.x[0];
  for (const float x : v.x) most = x > most ? x : most;
  return most;
}
// Lane i is the sum of x[i]'s lanes.
KVFUSE_OP V SumsOf(const V* x) {
  return Each([=](size_t i) { return SumOf(x[i]); });
}

// Eight numbers are a vector.
KVFUSE_OP V Repeat8(const float* x) { return Load(x); }
KVFUSE_OP V Spread8(const float* x) { return Set(*x); }
KVFUSE_OP V SumsOf8(const V* x) { return SumsOf(x); }
KVFUSE_OP void AddTo8(float* y, const V& x) { Store(y, Add(Load(y), x)); }

#include "attention_impl.inc"

#undef KVFUSE_OP
#undef KVFUSE_TARGET
}  // namespace

const AttentionKernels* PortableAttentionKernels() { return &kAttentionKernels; }

}  // namespace kvfuse

// Attention kernels for AVX2, FMA and F16C. Without x86 the set does not exist.

#include "attention.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace kvfuse {
namespace {
#define KVFUSE_TARGET __attribute__((target("avx2,fma,f16c")))
#define KVFUSE_OP KVFUSE_TARGET static inline __attribute__((always_inline))

using V = __m256;
constexpr size_t kLanes = 8, kValueVectors = 2, kValueRows = 4;
constexpr int kSums = 8, kScoreKeys = 8;

KVFUSE_OP __m128i Load16(const void* x) { return _mm_loadu_si128(static_cast<const __m128i*>(x)); }
KVFUSE_OP V Zero() { return _mm256_setzero_ps(); }
KVFUSE_OP V Set(float x) { return _mm256_set1_ps(x); }
KVFUSE_OP V Load(const float* x) { return _mm256_loadu_ps(x); }
KVFUSE_OP V Load(const Half* x) { return _mm256_cvtph_ps(Load16(x)); }
KVFUSE_OP V Load(const Bfloat* x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load16(x)), 16));
}
KVFUSE_OP V Load(const int8_t* x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
KVFUSE_OP void Store(float* y, V x) { _mm256_storeu_ps(y, x); }
KVFUSE_OP V Fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
KVFUSE_OP V Add(V a, V b) { return _mm256_add_ps(a, b); }
KVFUSE_OP V Sub(V a, V b) { return _mm256_sub_ps(a, b); }
KVFUSE_OP V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
KVFUSE_OP V Max(V a, V b) { return _mm256_max_ps(a, b); }
KVFUSE_OP V Round(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
KVFUSE_OP V TimesPower(V x, V n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
KVFUSE_OP V ZeroWhereLess(V x, V bound, V y) { return _mm256_andnot_ps(_mm256_cmp_ps(x, bound, _CMP_LT_OQ), y); }
KVFUSE_OP float SumOf(V x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
KVFUSE_OP float MaxOf(V x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

KVFUSE_OP V Pairs(V a, V b) { return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); }
KVFUSE_OP V Fours(V a, V b) {
  const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
// Lane i is the sum of x[i]'s lanes.
KVFUSE_OP V SumsOf(const V* x) {
  const V low = Fours(Pairs(x[0], x[1]), Pairs(x[2], x[3])), high = Fours(Pairs(x[4], x[5]), Pairs(x[6], x[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

// Eight numbers are a vector.
KVFUSE_OP V Repeat8(const float* x) { return Load(x); }
KVFUSE_OP V Spread8(const float* x) { return Set(*x); }
KVFUSE_OP V SumsOf8(const V* x) { return SumsOf(x); }
KVFUSE_OP void AddTo8(float* y, V x) { Store(y, Add(Load(y), x)); }

#include "attention_impl.inc"

#undef KVFUSE_OP
#undef KVFUSE_TARGET
}  // namespace

const AttentionKernels* Avx2AttentionKernels() { return &kAttentionKernels; }

}  // namespace kvfuse
#else
namespace kvfuse {
const AttentionKernels* Avx2AttentionKernels() { return nullptr; }
}  // namespace kvfuse
#endif

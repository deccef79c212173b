// Attention kernels for AVX-512. Without x86 the set does not exist.

#include "attention.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own AVX-512 header starts from undefined registers and warns about itself wherever it is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace kvfuse {
namespace {
#define KVFUSE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define KVFUSE_OP KVFUSE_TARGET static inline __attribute__((always_inline))

using V = __m512;
constexpr size_t kLanes = 16, kValueVectors = 2, kValueRows = 8;
constexpr int kSums = 16, kScoreKeys = 24;

KVFUSE_OP __m256i Load16Of2(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
KVFUSE_OP V Zero() { return _mm512_setzero_ps(); }
KVFUSE_OP V Set(float x) { return _mm512_set1_ps(x); }
KVFUSE_OP V Load(const float* x) { return _mm512_loadu_ps(x); }
KVFUSE_OP V Load(const Half* x) { return _mm512_cvtph_ps(Load16Of2(x)); }
KVFUSE_OP V Load(const Bfloat* x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load16Of2(x)), 16));
}
KVFUSE_OP V Load(const int8_t* x) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
KVFUSE_OP V LoadTwo(const float* a, const float* b) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
template <typename E>
KVFUSE_OP V LoadTwo(const E* a, const E*) {  // their fractals are as wide as a vector
  return Load(a);
}
KVFUSE_OP void Store(float* y, V x) { _mm512_storeu_ps(y, x); }
KVFUSE_OP V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
KVFUSE_OP V Add(V a, V b) { return _mm512_add_ps(a, b); }
KVFUSE_OP V Sub(V a, V b) { return _mm512_sub_ps(a, b); }
KVFUSE_OP V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
KVFUSE_OP V Max(V a, V b) { return _mm512_max_ps(a, b); }
KVFUSE_OP V Round(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
KVFUSE_OP V TimesPower(V x, V n) { return _mm512_scalef_ps(x, n); }
KVFUSE_OP V ZeroWhereLess(V x, V bound, V y) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(~_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ)), y);
}
KVFUSE_OP float MaxOf(V x) { return _mm512_reduce_max_ps(x); }
KVFUSE_OP float SumOf(V x) { return _mm512_reduce_add_ps(x); }

KVFUSE_OP V Pairs(V a, V b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
KVFUSE_OP V Fours(V a, V b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
KVFUSE_OP V Quarters(V a, V b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
// Lane i is the sum of x[i]'s lanes.
KVFUSE_OP V SumsOf(const V* x) {
  V four[4];
  for (int i = 0; i < 4; ++i) four[i] = Fours(Pairs(x[4 * i], x[4 * i + 1]), Pairs(x[4 * i + 2], x[4 * i + 3]));
  return Quarters(Quarters(four[0], four[1]), Quarters(four[2], four[3]));
}
// Eight numbers twice; two numbers, each eight times.
KVFUSE_OP V Repeat8(const float* x) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(x)); }
KVFUSE_OP V Spread8(const float* x) { return _mm512_insertf32x8(Set(x[0]), _mm256_set1_ps(x[1]), 1); }
// Sums of the halves of x[0..7]: lane 2i that of the lower half of x[i], lane 2i + 1 of its upper half.
KVFUSE_OP V SumsOf8(const V* x) {
  const V first = Fours(Pairs(x[0], x[1]), Pairs(x[2], x[3])), second = Fours(Pairs(x[4], x[5]), Pairs(x[6], x[7]));
  const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  return _mm512_permutexvar_ps(order, Quarters(first, second));
}
KVFUSE_OP void AddTo8(float* y, V x) {
  const __m256 both = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), both));
}

#include "attention_impl.inc"

#undef KVFUSE_OP
#undef KVFUSE_TARGET
}  // namespace

const AttentionKernels* Avx512AttentionKernels() { return &kAttentionKernels; }

}  // namespace kvfuse
#else
namespace kvfuse {
const AttentionKernels* Avx512AttentionKernels() { return nullptr; }
}  // namespace kvfuse
#endif

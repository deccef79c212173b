// Products for AVX2, FMA and F16C: half a panel at a time. Without x86 the set does not exist.

#include <cstring>
#include <type_traits>

#include "gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace kvfuse {
namespace {
#define KVFUSE_TARGET __attribute__((target("avx2,fma,f16c")))
#define KVFUSE_OP KVFUSE_TARGET static inline __attribute__((always_inline))

using V = __m256;
using VI = __m256i;
constexpr size_t kTileColumns = 16, kTileVectors = 2;
constexpr int kManyRows = 6, kFewRows = 4;

KVFUSE_OP void Prefetch(const char* x) { _mm_prefetch(x, _MM_HINT_T1); }
KVFUSE_OP V ZeroV() { return _mm256_setzero_ps(); }
KVFUSE_OP V LoadV(const char* x) { return _mm256_loadu_ps(reinterpret_cast<const float*>(x)); }
KVFUSE_OP V LoadHalfV(const char* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }
KVFUSE_OP void StoreV(char* y, V value) { _mm256_storeu_ps(reinterpret_cast<float*>(y), value); }
KVFUSE_OP VI LoadVI(const char* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
KVFUSE_OP void StoreVI(char* y, VI value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), value); }
KVFUSE_OP V BroadcastV(const char* x) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(x)); }
KVFUSE_OP VI BroadcastVI(const char* x) { return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(x)); }
KVFUSE_OP V FmaV(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
KVFUSE_OP VI SetVI(int value) { return _mm256_set1_epi32(value); }
KVFUSE_OP V FloatsOf(VI x) { return _mm256_castsi256_ps(x); }
KVFUSE_OP VI AndVI(VI a, VI b) { return _mm256_and_si256(a, b); }
KVFUSE_OP VI AddVI(VI a, VI b) { return _mm256_add_epi32(a, b); }
template <int kBits>
KVFUSE_OP VI ShiftLeftVI(VI x) {
  return _mm256_slli_epi32(x, kBits);
}
template <int kBits>
KVFUSE_OP VI ShiftLeft16(VI x) {
  return _mm256_slli_epi16(x, kBits);
}
KVFUSE_OP VI HighBytes(VI x) { return _mm256_srai_epi16(x, 8); }
KVFUSE_OP VI MulPairs(VI a, VI b) { return _mm256_madd_epi16(a, b); }

#include "gemm_impl.inc"

#undef KVFUSE_OP
#undef KVFUSE_TARGET
}  // namespace

const GemmKernels* Avx2GemmKernels() { return &kGemmKernels; }

}  // namespace kvfuse
#else
namespace kvfuse {
const GemmKernels* Avx2GemmKernels() { return nullptr; }
}  // namespace kvfuse
#endif

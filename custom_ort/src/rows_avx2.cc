// Row kernels for AVX2 + FMA + F16C. Without x86 the set does not exist.

#include <cmath>
#include <type_traits>

#include "rows.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace kvfuse {
namespace {
#define KVFUSE_TARGET __attribute__((target("avx2,fma,f16c")))
#define KVFUSE_OP KVFUSE_TARGET static inline __attribute__((always_inline))

struct F {
  __m256 low, high;
};
struct I {
  __m256i low, high;
};

KVFUSE_OP __m256i LoadBytes(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
KVFUSE_OP __m128i LoadHalfOf(const void* x, int half) { return _mm_loadu_si128(static_cast<const __m128i*>(x) + half); }
KVFUSE_OP __m256 WidenBfloat(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }

KVFUSE_OP F Set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
KVFUSE_OP F Load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
KVFUSE_OP F Load(const Half* x) { return {_mm256_cvtph_ps(LoadHalfOf(x, 0)), _mm256_cvtph_ps(LoadHalfOf(x, 1))}; }
KVFUSE_OP F Load(const Bfloat* x) { return {WidenBfloat(LoadHalfOf(x, 0)), WidenBfloat(LoadHalfOf(x, 1))}; }
KVFUSE_OP void Store(float* y, F value) {
  _mm256_storeu_ps(y, value.low);
  _mm256_storeu_ps(y + 8, value.high);
}
KVFUSE_OP void Store(Half* y, F value) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(value.low, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y) + 1, _mm256_cvtps_ph(value.high, kNearest));
}
KVFUSE_OP __m256i NarrowBfloat(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), tie), 16);
}
KVFUSE_OP void Store(Bfloat* y, F value) {
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(value.low, value.high, _CMP_UNORD_Q)) != 0, 0)) {
    alignas(32) float lanes[16];  // a NaN somewhere: rounding would run over into inf
    Store(lanes, value);
    for (int i = 0; i < 16; ++i) y[i] = ToBfloat(lanes[i]);
    return;
  }
  const __m256i packed = _mm256_packus_epi32(NarrowBfloat(value.low), NarrowBfloat(value.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_permute4x64_epi64(packed, 0xd8));
}
template <typename T>
KVFUSE_OP void StoreTwo(T* y, F first, F second) {
  Store(y, first);
  Store(y + 16, second);
}
constexpr bool kMayStream = true;
KVFUSE_OP void StreamTwo(float* y, F first, F second) {
  _mm256_stream_ps(y, first.low);
  _mm256_stream_ps(y + 8, first.high);
  _mm256_stream_ps(y + 16, second.low);
  _mm256_stream_ps(y + 24, second.high);
}
template <typename T>
KVFUSE_OP void StreamTwo(T* y, F first, F second) {
  alignas(64) T line[32];
  StoreTwo(line, first, second);
  for (size_t part = 0; part < 32; part += 16) {
    const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(line + part));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(y + part), bytes);
  }
}
KVFUSE_TARGET static void Finish() { _mm_sfence(); }
KVFUSE_OP F Add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
KVFUSE_OP F Sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
KVFUSE_OP F Mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
KVFUSE_OP F Div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
KVFUSE_OP F MulTwice(F x, F high, F low) {
  return {_mm256_fmadd_ps(x.low, high.low, _mm256_mul_ps(x.low, low.low)),
          _mm256_fmadd_ps(x.high, high.high, _mm256_mul_ps(x.high, low.high))};
}
KVFUSE_OP float Sum(F value) {
  const __m256 eight = _mm256_add_ps(value.low, value.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// Of 16 values: the even ones in one half, the odd ones in the other.
KVFUSE_OP void Split(__m256 a, __m256 b, __m256* even, __m256* odd) {
  const __m256 evens = _mm256_shuffle_ps(a, b, 0x88), odds = _mm256_shuffle_ps(a, b, 0xdd);
  *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(evens), 0xd8));
  *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odds), 0xd8));
}
KVFUSE_OP void Deinterleave(F a, F b, F* even, F* odd) {
  Split(a.low, a.high, &even->low, &odd->low);
  Split(b.low, b.high, &even->high, &odd->high);
}

// min and max return their second operand for NaN: NaN is kept.
KVFUSE_OP __m256 Clamp(__m256 x) {
  return _mm256_max_ps(_mm256_set1_ps(-128.0f), _mm256_min_ps(_mm256_set1_ps(127.0f), x));
}
KVFUSE_OP F RoundToInt8Range(F value) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(Clamp(value.low), kNearest), _mm256_round_ps(Clamp(value.high), kNearest)};
}
KVFUSE_OP __m256i ToInt8Range(__m256 x) {
  const __m256i is_number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
  return _mm256_and_si256(_mm256_cvtps_epi32(Clamp(x)), is_number);
}
KVFUSE_OP void StoreInt8(uint8_t* out, F value) {
  const __m256i words = _mm256_packs_epi32(ToInt8Range(value.low), ToInt8Range(value.high));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

KVFUSE_OP I Bits(F value) { return {_mm256_castps_si256(value.low), _mm256_castps_si256(value.high)}; }
KVFUSE_OP F FromBits(I value) { return {_mm256_castsi256_ps(value.low), _mm256_castsi256_ps(value.high)}; }
KVFUSE_OP I LoadInt(const int32_t* x) { return {LoadBytes(x), LoadBytes(x + 8)}; }
KVFUSE_OP F FromInt(I value) { return {_mm256_cvtepi32_ps(value.low), _mm256_cvtepi32_ps(value.high)}; }
KVFUSE_OP __m256 RoundToHalf(__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
KVFUSE_OP F RoundToHalf(F value) { return {RoundToHalf(value.low), RoundToHalf(value.high)}; }
KVFUSE_OP I SetInt(int value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
KVFUSE_OP I AddInt(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
KVFUSE_OP I And(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
KVFUSE_OP I Or(I a, I b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
template <int kBits>
KVFUSE_OP I ShiftRight(I value) {
  return {_mm256_srli_epi32(value.low, kBits), _mm256_srli_epi32(value.high, kBits)};
}
KVFUSE_OP I Greater(I a, I b) { return {_mm256_cmpgt_epi32(a.low, b.low), _mm256_cmpgt_epi32(a.high, b.high)}; }
KVFUSE_OP I Select(I mask, I yes, I no) {
  return {_mm256_blendv_epi8(no.low, yes.low, mask.low), _mm256_blendv_epi8(no.high, yes.high, mask.high)};
}
KVFUSE_OP void StoreBytes(uint8_t* out, I value) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(value.low, value.high), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

#include "rows_impl.inc"

#undef KVFUSE_OP
#undef KVFUSE_TARGET
}  // namespace

const RowKernels* Avx2RowKernels() { return &kKernels; }

}  // namespace kvfuse
#else
namespace kvfuse {
const RowKernels* Avx2RowKernels() { return nullptr; }
}  // namespace kvfuse
#endif

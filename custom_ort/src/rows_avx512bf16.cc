// Row kernels for AVX-512 with bf16 conversion. Without x86 the set does not exist.

#include <cmath>
#include <type_traits>

#include "rows.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own AVX-512 header starts from undefined registers and warns about itself wherever it is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace kvfuse {
namespace {
#define KVFUSE_TARGET __attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define KVFUSE_AVX512_BF16
#include "rows_avx512.inc"
#undef KVFUSE_TARGET
}  // namespace

const RowKernels* Avx512Bf16RowKernels() { return &kKernels; }

}  // namespace kvfuse
#else
namespace kvfuse {
const RowKernels* Avx512Bf16RowKernels() { return nullptr; }
}  // namespace kvfuse
#endif

// Products for AVX-512 with bf16 and VNNI instructions. Without x86 the set does not exist.

#include <cstring>
#include <type_traits>

#include "gemm.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own AVX-512 header starts from undefined registers and warns about itself wherever it is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace kvfuse {
namespace {
#define KVFUSE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")))
#define KVFUSE_GEMM_DOT
#include "gemm_avx512.inc"
#undef KVFUSE_TARGET
}  // namespace

const GemmKernels* Avx512Bf16GemmKernels() { return &kGemmKernels; }

}  // namespace kvfuse
#else
namespace kvfuse {
const GemmKernels* Avx512Bf16GemmKernels() { return nullptr; }
}  // namespace kvfuse
#endif

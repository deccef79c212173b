// Row kernels: what operators do to one row of one token. Chosen at run time for the CPU, same bits on every CPU.
//
// How the bits stay the same: no contraction (-ffp-contract=off), fused multiply-add only where written, and sums in
// one fixed order (64 partial sums by column modulo 64, then a fixed tree).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "element.h"
#include "gemm.h"

namespace kvfuse {

// Where a row goes: `block` elements are contiguous, the next block starts `stride` elements after the start of this
// one. A contiguous row is one block; an NZ row has blocks of d0.
struct RowTarget {
  void* data;
  size_t block;
  size_t stride;
  bool streams = false;  // past the CPU's caches, where the kernel can; RowKernels::finish must follow
};

// From so many bytes on that a call writes, they do not stay in the caches until somebody reads them: what is written
// past them need not be read first.
constexpr size_t kStreamedBytes = size_t{1} << 20;

enum FloatKind : int { kKindFloat32, kKindFloat16, kKindBfloat16, kFloatKinds };

// How an fp32 value becomes an 8-bit one. All round half to even. int8 saturates and takes NaN for 0. The float8 casts
// keep NaN; Saturate takes what is too large (inf too) for the largest finite value, Nonsaturate for NaN (e4m3fn) or
// inf (e5m2); Integer rounds to an integer in -128..127 first.
enum QuantKind : int {
  kQuantInt8,
  kQuantE4m3fnSaturate,
  kQuantE4m3fnNonsaturate,
  kQuantE4m3fnInteger,
  kQuantE5m2Saturate,
  kQuantE5m2Nonsaturate,
  kQuantE5m2Integer,
  kQuantKinds
};

struct RowKernels {
  // y = x, exactly.
  void (*load[kFloatKinds])(const void* x, size_t n, float* y);
  // sqrt(mean(x*x) + epsilon). Leaves x as fp32 in `kept`, unless that is null or x is fp32 already. Apart from
  // Normalise because its result takes long to come: several rows hide each other's delay.
  float (*rms[kFloatKinds])(const void* x, size_t n, float epsilon, float* kept);
  // x / rms * gamma of an fp32 row, rounded half to even. The target may be x itself.
  void (*normalise[kFloatKinds])(const void* x, const float* gamma, float rms, size_t n, const RowTarget& target);
  // The same of a row of the kind.
  void (*normalise_row[kFloatKinds])(const void* x, const float* gamma, float rms, size_t n, const RowTarget& target);
  // Interleaved in, halves out, both fp32; cos and sin of the given kind, n even. y must not overlap x.
  void (*rope_interleaved[kFloatKinds])(const void* x, const void* cos, const void* sin, size_t n, void* y);
  // The same from a row of the kind to one, rounded half to even.
  void (*rope_interleaved_row[kFloatKinds])(const void* x, const void* cos, const void* sin, size_t n, void* y);
  // Rotation by halves of an fp32 row with cos and sin in fp32, n even, rounded half to even to the kind. y must not
  // overlap x.
  void (*rope_halves[kFloatKinds])(const void* x, const float* cos, const float* sin, size_t n, void* y);
  // The same of a row of the kind; past the CPU's caches, where the kernel can, with `streams`.
  void (*rope_halves_row[kFloatKinds])(const void* x, const float* cos, const float* sin, size_t n, void* y,
                                       bool streams);
  // The same in fp16 arithmetic, to fp16: x, cos and sin, each product and each sum are rounded. x is fp32, or fp16.
  void (*rope_halves_float16)(const void* x, const float* cos, const float* sin, size_t n, void* y);
  void (*rope_halves_float16_row)(const void* x, const float* cos, const float* sin, size_t n, void* y);
  // The same as rope_halves of x / rms * gamma, x a row of the kind, to fp32.
  void (*normalise_rope_halves[kFloatKinds])(const void* x, const float* gamma, float rms, const float* cos,
                                             const float* sin, size_t n, void* y);
  // The same to a row of the kind.
  void (*normalise_rope_halves_row[kFloatKinds])(const void* x, const float* gamma, float rms, const float* cos,
                                                 const float* sin, size_t n, void* y);
  // Rounds half to even.
  void (*store[kFloatKinds])(const float* x, size_t n, const RowTarget& target);
  // x * scale + offset as an 8-bit value; a null offset is not added.
  void (*quantise[kQuantKinds])(const float* x, const float* scale, const float* offset, size_t n,
                                const RowTarget& target);
  // (x + int_bias) * weight_scale * activation_scale + bias; one of the biases at most is not null, x + int_bias wraps.
  void (*dequantise)(const int32_t* x, const int32_t* int_bias, const float* weight_scale, float activation_scale,
                     const float* bias, size_t n, float* y);
  // x / scale + offset as an int8.
  void (*quantise_divided)(const float* x, const float* scale, const float* offset, size_t n, const RowTarget& target);
  // The largest magnitude of a row, NaN if there is one.
  float (*abs_max)(const float* x, size_t n);
  // x / divisor as 8-bit values; what is no number (0 / 0 above all) becomes 0.
  void (*quantise_by[kQuantKinds])(const float* x, float divisor, size_t n, void* y);
  // Makes streamed rows visible to other threads.
  void (*finish)();
};

struct AttentionKernels;

// Names a set of kernels and says whether this CPU runs it.
struct Isa {
  const char* name;
  const RowKernels* kernels;  // null when the library was built without it
  const GemmKernels* products;
  const AttentionKernels* attention;
  bool (*supported)();
};

// Slowest first.
const std::vector<Isa>& Isas();

// The fastest set, or the one that the environment variable KVFUSE_ISA names. Throws Refusal for a name that is
// unknown or not supported here.
const RowKernels& SelectRowKernels();

const RowKernels* PortableRowKernels();
const RowKernels* Avx2RowKernels();
const RowKernels* Avx512RowKernels();
const RowKernels* Avx512Bf16RowKernels();

constexpr FloatKind KindOf(int element_type) {
  return element_type == kFloat32 ? kKindFloat32 : element_type == kFloat16 ? kKindFloat16 : kKindBfloat16;
}

}  // namespace kvfuse

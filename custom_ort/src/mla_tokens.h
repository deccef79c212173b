// The computation of MlaPrologV3 for a block of tokens: down-projections, normed rows and cache writes, heads.
#pragma once

#include <memory>

#include "gemm.h"
#include "mla_call.h"
#include "rows.h"

namespace kvfuse::mla {

// The weights of a call, packed when the kernel was made or for this call.
struct Weights {
  std::shared_ptr<const PackedWeight> dq, uq_qr, uk, dkv_kr;
};

// Memory of the outputs; null where the node does not ask for one.
struct Outputs {
  char *query = nullptr, *query_rope = nullptr, *kv = nullptr, *kr = nullptr, *query_norm = nullptr;
  char* scale_q_norm = nullptr;
  float* scale_q_nope = nullptr;
};

// Scratch memory of a thread: it grows and stays, so that a call of few tokens touches no new page.
class Arena {
 public:
  void Reset(size_t bytes);
  template <typename T>
  T* Take(size_t bytes) {
    char* start = next_;
    next_ += Rounded(bytes);
    return reinterpret_cast<T*>(start);
  }
  static size_t Rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  std::unique_ptr<char[]> memory_;
  size_t size_ = 0;
  char* next_ = nullptr;
};

class Tokens {
 public:
  Tokens(const Call& call, const Weights& weights, const Outputs& outputs, const RowKernels& rows,
         const GemmKernels& products);

  // All tokens, in blocks that bound the scratch memory.
  void Run(KernelContext& context) const;

 private:
  struct Block;
  struct Norm;

  void PrepareRow(const Block& block, size_t i, char* scratch) const;
  void Down(const Block& block, size_t task) const;
  void NormRow(const Block& block, size_t i, float* scratch) const;
  void QuantiseNormed(const Block& block, size_t i, float* c, float* scratch) const;
  void MxRow(const float* c, uint8_t* values, uint8_t* codes) const;
  void WriteKey(size_t token, const float* c, const float* k, float* scratch) const;
  void WritePacked(const float* c, const float* k, char* row, float* scratch) const;
  void Head(const Block& block, size_t head, size_t begin, size_t end) const;
  void FinishQuery(size_t row, float* q, float* rope, float* scratch) const;

  void Dequantise(const PackedWeight& weight, float* row, size_t columns, const float* scale, const float* scales,
                  bool rounds) const;
  void Round(float* row, size_t n, void* scratch) const;
  const GemmKind& Kind(const PackedWeight& weight) const { return products_.kinds[weight.kind()]; }

  const Call& call_;
  const Modes& modes_;
  const Weights& weights_;
  const Outputs& outputs_;
  const RowKernels& rows_;
  const GemmKernels& products_;
  FloatKind plain_;
  size_t plain_size_;
  QuantKind cache_kind_ = kQuantInt8;
  float cache_largest_ = 127.0f;
  std::vector<float> gamma_q_, gamma_kv_, quant_kv_;
};

}  // namespace kvfuse::mla

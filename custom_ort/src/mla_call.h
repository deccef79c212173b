// A call of MlaPrologV3: its modes, its tensors, and the rules of the contract in their order.
#pragma once

#include <string>
#include <vector>

#include "context.h"
#include "kv_cache.h"

namespace kvfuse::mla {

// Whether cache_index holds slots, pages, or is absent because the rows follow the tokens.
enum class Index { kSlot, kPage, kNone };

struct Mode {
  const char* name;
  CacheOrder order;
  Index index;
};

// The attributes, checked against each other and against the element types that the kernel was made for.
struct Modes {
  explicit Modes(const KernelInfo& info);

  const Mode* mode;
  int64_t weights, cache, tile;
  bool query, norm;
  float epsilon_q, epsilon_kv, scale_q, scale_kv;
  int plain;  // element type T

  bool mx() const { return weights == 3; }
};

constexpr int64_t kMxBlock = 32;

// The tensors of a call. Nothing is written before all rules hold.
struct Call {
  Call(const KernelContext& context, const Modes& modes);

  const Modes& modes;
  Tensor x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, gamma_q, gamma_kv, sin, cos, kv, kr, index, scale_x,
      scale_dq, scale_uq_qr, scale_dkv_kr, quant_kv, quant_kr, smooth, lengths, clip;

  size_t tokens = 0, hidden = 0, q_rank = 0, heads = 0, nope = 0, rope = 0, kv_rank = 0, kv_width = 0;
  size_t head_width() const { return nope + rope; }
  // For each token its slot page * rows + row, or -1. Empty when no cache row is to be written.
  std::vector<int64_t> slots;
  CacheLayout kv_layout{}, kr_layout{};

 private:
  void CheckSizes();
  void CheckWeights() const;
  void CheckOptional() const;
  void CheckCaches();
  void CheckLengths() const;
  void CheckIndex();
  void ExpectShape(const Constraint& constraint, const Tensor& tensor, std::initializer_list<int64_t> shape) const;
  void ExpectGiven(const Tensor& tensor, bool wanted) const;
  bool flat() const { return x.rank == 2; }
  int64_t Pages() const;
  void FindSlots();
};

}  // namespace kvfuse::mla

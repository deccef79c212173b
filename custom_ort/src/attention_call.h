// A call of FusedInferAttentionScore: its tensors, checked in the order of the contract's rules, and where rows lie.
#pragma once

#include <string>
#include <vector>

#include "attention.h"
#include "context.h"

namespace kvfuse {

// The attributes of a node.
struct AttentionNode {
  int64_t heads = 0, kv_heads = 0;  // kv_heads 0 until checked: as many as heads
  float scale = 1.0f;
  int64_t pre_tokens = 0, next_tokens = 0, sparse_mode = 0, block_size = 0;
  int64_t key_mode = 0, value_mode = 0, query_mode = 0;
  int64_t not_taken[3] = {0, 0, 0};  // antiquant_mode, pse_type, out_dtype
  std::string layout;                // as written
  std::string axes, out_axes;        // of query and output; empty for a layout that is not known
  bool wants_lse = false;
};

// An int8 cache's way back to real numbers: (x + offset) * scale.
struct AntiQuant {
  Tensor scale, offset;
  int64_t mode = 0;

  bool per_token() const { return scale.given && mode == 1; }
};

// key, value or key_rope: where the row of a head and token lies. A place is a page, or an entry of the batch.
struct CacheRows {
  Tensor tensor;
  size_t width = 0;       // columns of a head
  size_t place_step = 0;  // bytes
  size_t head_step = 0, token_step = 0;
  size_t block = 0, block_step = 0;  // columns that are neighbours, and bytes to the next ones
  std::vector<size_t> groups;        // byte offsets of groups of 8 columns; empty where columns do not divide so
  bool split = false;                // neighbouring groups of 8 are not neighbours in memory

  const char* Row(size_t place, size_t row, size_t head) const {
    return static_cast<const char*>(tensor.data) + place * place_step + row * token_step + head * head_step;
  }
};

struct AttentionCall {
  AttentionCall(const KernelContext& context, const AttentionNode& node);

  const AttentionNode& node;
  Tensor query, mask, lengths, kv_lengths, table, query_rope, query_scale, sink;
  CacheRows key, value, key_rope;
  AntiQuant key_quant, value_quant;
  bool packed = false, paged = false;
  size_t batch = 0, tokens = 0, width = 0, value_width = 0, rope_width = 0;
  size_t kv_rows = 0;  // rows of a contiguous key
  size_t room = 0;     // the most keys of an entry

  // By entry: its first token (packed: in T, else 0), its tokens, and the same of keys.
  std::vector<size_t> starts, counts, kv_starts, kv_counts;

  size_t heads() const { return static_cast<size_t>(node.heads); }
  size_t kv_heads() const { return static_cast<size_t>(node.kv_heads == 0 ? node.heads : node.kv_heads); }
  size_t group() const { return heads() / kv_heads(); }
  bool whole_int8() const { return query.type == kInt8; }
  int out_type() const { return whole_int8() ? query_rope.type : query.type; }

 private:
  int64_t Axis(char axis) const;
  bool Has(char axis) const { return node.axes.find(axis) != std::string::npos; }
  void CheckTypes() const;
  void CheckLengths() const;
  void CheckCache(const Constraint& constraint, CacheRows* rows, int64_t width, const char* text) const;
  void CheckSameRows(const Constraint& constraint, const CacheRows& rows) const;
  void CheckRope();
  void CheckMask() const;
  void CheckQuantised() const;
  void CheckScale(const AntiQuant& quant, int64_t columns) const;
  void CheckWhole() const;
  void CheckSink() const;
  void Place(CacheRows* rows) const;
  void ReadLengths();
  void CheckPages() const;
};

}  // namespace kvfuse

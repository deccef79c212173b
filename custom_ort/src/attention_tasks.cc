#include "attention_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_state.h"
#include "scratch.h"

namespace kvfuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kRowTile = 64, kEnoughTasks = 16, kShortestPiece = 256;

size_t RoundUp(size_t n, size_t step) { return (n + step - 1) / step * step; }

}  // namespace

AttentionTasks::AttentionTasks(const AttentionCall& call, const AttentionKernels& kernels, const RowKernels& rows,
                               char* out, float* lse)
    : call_(call),
      kernels_(kernels),
      rows_(rows),
      out_(out),
      lse_(lse),
      width_(call.width),
      rope_(call.rope_width),
      value_width_(call.value_width) {
  const auto spread = [&](const AntiQuant& quant, const Tensor& tensor, size_t columns, std::vector<float>* to) {
    if (!tensor.given || quant.mode == 1) return;
    const size_t count = static_cast<size_t>(tensor.elements);
    to->resize(call.kv_heads() * columns);
    for (size_t i = 0; i < to->size(); ++i) {
      (*to)[i] = Number(tensor, count == 1 ? 0 : count == to->size() ? i : i / columns);
    }
  };
  spread(call.key_quant, call.key_quant.scale, width_, &key_scale_);
  spread(call.key_quant, call.key_quant.offset, width_, &key_offset_);
  spread(call.value_quant, call.value_quant.scale, value_width_, &value_scale_);
  spread(call.value_quant, call.value_quant.offset, value_width_, &value_offset_);
  for (size_t entry = 0; entry < call.batch; ++entry) AddGroups(entry);
  Cut();
}

void AttentionTasks::Bounds(size_t entry, size_t token, size_t* first, size_t* last) const {
  const int64_t keys = static_cast<int64_t>(call_.kv_counts[entry]), i = static_cast<int64_t>(token);
  const int64_t corner = i + keys - static_cast<int64_t>(call_.counts[entry]);
  int64_t from = 0, to = keys;
  if (call_.node.sparse_mode == 2) to = i + 1;
  if (call_.node.sparse_mode == 3) to = corner + 1;
  if (call_.node.sparse_mode == 4) {
    // an unbounded side is larger than any distance, and small enough to be added
    constexpr int64_t kFar = int64_t{1} << 40;
    from = corner - std::clamp(call_.node.pre_tokens, -kFar, kFar);
    to = corner + std::clamp(call_.node.next_tokens, -kFar, kFar) + 1;
  }
  *first = static_cast<size_t>(std::clamp(from, int64_t{0}, keys));
  *last = std::max(*first, static_cast<size_t>(std::clamp(to, int64_t{0}, keys)));
}

void AttentionTasks::AddGroups(size_t entry) {
  const size_t rows = call_.counts[entry] * call_.group(), lanes = kernels_.lanes;
  const bool few = rows <= std::min(kFewRowsMost, lanes / 2) && width_ % lanes == 0 && rope_ % lanes == 0 &&
                   value_width_ % lanes == 0;
  // Where the heads of a token are neighbours, a tile is walked over all heads before the next one.
  const bool all = few && call_.key.head_step < call_.key.token_step;
  const size_t heads = all ? call_.kv_heads() : 1;
  for (size_t head = 0; head < call_.kv_heads(); head += heads) {
    for (size_t row = 0; row < rows; row += kRowTile) {
      Group group{entry, row, std::min(kRowTile, rows - row), head, heads, 0, 0, few};
      size_t first = call_.kv_counts[entry], last = 0, from, to;
      for (size_t r = row; r < row + group.rows; ++r) {
        Bounds(entry, r / call_.group(), &from, &to);
        if (from < to) first = std::min(first, from), last = std::max(last, to);
      }
      group.first_key = std::min(first, last), group.keys = last - group.first_key;
      groups_.push_back(group);
    }
  }
}

// Few groups are cut along their keys, so that there is work for several threads.
void AttentionTasks::Cut() {
  size_t parts = 0;
  const size_t wanted = groups_.empty() ? 1 : (kEnoughTasks + groups_.size() - 1) / groups_.size();
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    size_t length = std::max(RoundUp((group.keys + wanted - 1) / wanted, kTileKeys), kShortestPiece);
    if (group.keys < 2 * kShortestPiece) length = std::max(group.keys, size_t{1});
    group.pieces = std::max((group.keys + length - 1) / length, size_t{1});
    for (size_t piece = 0; piece < group.pieces; ++piece) {
      const size_t from = group.first_key + piece * length;
      tasks_.push_back({g, piece, from, std::min(from + length, group.first_key + group.keys)});
    }
    if (group.pieces == 1) continue;
    group.part = parts;
    parts += group.pieces * group.heads * group.rows * (value_width_ + 2);
    merges_.push_back(g);
  }
  if (parts > 0) parts_.reset(new float[parts]);
}

void AttentionTasks::Run(size_t task) const {
  const Group& group = groups_[tasks_[task].group];
  group.few ? Few(group, tasks_[task]) : Many(group, tasks_[task]);
}

// A query row in fp32 with its rope part behind it, times everything that multiplies its scores.
void AttentionTasks::Query(const Group& group, size_t head, size_t row, float* q, float* sum, float* constant) const {
  const AttentionCall& call = call_;
  const size_t token = (group.first_row + row) / call.group(),
               n = head * call.group() + (group.first_row + row) % call.group();
  const size_t heads = call.heads(), at = call.starts[group.entry] + token;
  const std::string& axes = call.node.axes;
  size_t place = (call.packed ? at : group.entry * call.tokens + token) * heads + n;
  if (axes == "BNSD") place = (group.entry * heads + n) * call.tokens + token;
  if (axes == "NTD") place = n * call.tokens + at;
  float factor = call.node.scale;
  const size_t size = ElementSize(call.query.type);
  const KeyRows source = {call.query.As<char>() + place * width_ * size, 1, 0, nullptr, 0, false, nullptr};
  kernels_.widen[CacheKindOf(call.query.type)](source, width_, q, width_);
  if (rope_ > 0) {
    const size_t rope_size = ElementSize(call.query_rope.type);
    const KeyRows rope = {call.query_rope.As<char>() + place * rope_ * rope_size, 1, 0, nullptr, 0, false, nullptr};
    kernels_.widen[CacheKindOf(call.query_rope.type)](rope, rope_, q + width_, rope_);
  }
  if (call.whole_int8()) {
    factor *= call.query_scale.As<float>()[place] * call.key_quant.scale.As<float>()[0];
  }
  for (size_t d = 0; d < width_ + rope_; ++d) q[d] *= factor;
  if (call.whole_int8() || !call.key_quant.scale.given) return;
  if (call.key_quant.per_token()) {
    for (size_t d = 0; d < width_; ++d) *sum += q[d];
    return;
  }
  const float* scale = key_scale_.data() + head * width_;
  const float* offset = key_offset_.empty() ? nullptr : key_offset_.data() + head * width_;
  for (size_t d = 0; d < width_; ++d) {
    q[d] *= scale[d];
    if (offset != nullptr) *constant += q[d] * offset[d];
  }
}

// Scores of keys that a row does not see become -inf.
void AttentionTasks::HideKeys(const Group& group, size_t first_key, size_t keys, float* s, size_t row_step,
                              size_t key_step) const {
  const AttentionCall& call = call_;
  const bool full = call.mask.given && call.node.sparse_mode < 2;
  const size_t columns = full ? static_cast<size_t>(call.mask.Back(0)) : 0;
  for (size_t r = 0; r < group.rows; ++r) {
    const size_t token = (group.first_row + r) / call.group();
    float* row = s + r * row_step;
    size_t from, to;
    Bounds(group.entry, token, &from, &to);
    for (size_t t = 0; t < keys && first_key + t < from; ++t) row[t * key_step] = -kInfinity;
    for (size_t t = to > first_key ? to - first_key : 0; t < keys; ++t) row[t * key_step] = -kInfinity;
    if (!full) continue;
    size_t line = token;
    if (call.mask.rank == 2) {
      line = call.tokens == 1 ? group.entry : token;
    } else if (call.mask.dims[0] > 1) {
      line += group.entry * static_cast<size_t>(call.mask.Back(1));
    }
    const uint8_t* hidden = call.mask.As<uint8_t>() + line * columns + first_key;
    for (size_t t = 0; t < keys; ++t) {
      if (hidden[t] != 0) row[t * key_step] = -kInfinity;
    }
  }
}

namespace {

// Scales and offsets of int8 keys or values, by logical token.
struct TokenFactors {
  TokenFactors(const AntiQuant& quant, size_t entry, size_t first_key, size_t keys) {
    const size_t at = entry * static_cast<size_t>(quant.scale.Back(0)) + first_key;
    for (size_t t = 0; t < keys; ++t) {
      scale[t] = Number(quant.scale, at + t);
      offset[t] = quant.offset.given ? Number(quant.offset, at + t) : 0.0f;
    }
  }
  float scale[kTileKeys], offset[kTileKeys];
};

}  // namespace

// Products with int8 keys become scores.
void AttentionTasks::KeyFactors(const Group& group, size_t first_key, size_t keys, const State& state, float* s,
                                size_t row_step, size_t key_step) const {
  const AntiQuant& quant = call_.key_quant;
  if (!quant.scale.given || call_.whole_int8()) return;
  if (quant.per_token()) {
    const TokenFactors factors(quant, group.entry, first_key, keys);
    for (size_t r = 0; r < group.rows; ++r) {
      for (size_t t = 0; t < keys; ++t) {
        float& score = s[r * row_step + t * key_step];
        score = (score + factors.offset[t] * state.query_sum[r]) * factors.scale[t];
      }
    }
  } else if (!key_offset_.empty()) {
    for (size_t r = 0; r < group.rows; ++r) {
      for (size_t t = 0; t < keys; ++t) s[r * row_step + t * key_step] += state.query_constant[r];
    }
  }
}

// Weights become factors of int8 values.
void AttentionTasks::ValueFactors(const Group& group, size_t first_key, size_t keys, const State& state, float* s,
                                  size_t row_step, size_t key_step) const {
  if (!call_.value_quant.per_token()) return;
  const TokenFactors factors(call_.value_quant, group.entry, first_key, keys);
  for (size_t r = 0; r < group.rows; ++r) {
    for (size_t t = 0; t < keys; ++t) {
      float& weight = s[r * row_step + t * key_step];
      weight *= factors.scale[t];
      state.extra[r] += weight * factors.offset[t];
    }
  }
}

float* AttentionTasks::Part(const Group& group, size_t piece, size_t head, size_t row) const {
  const size_t place = (piece * group.heads + head - group.first_head) * group.rows + row;
  return parts_.get() + group.part + place * (value_width_ + 2);
}

void AttentionTasks::Finish(const Group& group, const Task& task, size_t head, State* state) const {
  for (size_t r = 0; r < group.rows; ++r) {
    float* y = state->y + r * state->y_stride;
    if (call_.value_quant.per_token()) {
      for (size_t d = 0; d < value_width_; ++d) y[d] += state->extra[r];
    }
    if (group.pieces == 1) {
      Write(group, head, r, y, state->maximum[r], state->sum[r]);
      continue;
    }
    float* part = Part(group, task.piece, head, r);
    std::memcpy(part, y, value_width_ * sizeof(float));
    part[value_width_] = state->maximum[r], part[value_width_ + 1] = state->sum[r];
  }
}

void AttentionTasks::Merge(size_t merge) const {
  const Group& group = groups_[merges_[merge]];
  Scratch memory(value_width_);
  float* y = memory.data();
  for (size_t head = group.first_head; head < group.first_head + group.heads; ++head) {
    for (size_t r = 0; r < group.rows; ++r) {
      float maximum = -kInfinity, sum = 0.0f;
      for (size_t piece = 0; piece < group.pieces; ++piece) {
        maximum = std::max(maximum, Part(group, piece, head, r)[value_width_]);
      }
      std::fill_n(y, value_width_, 0.0f);
      for (size_t piece = 0; piece < group.pieces; ++piece) {
        const float* part = Part(group, piece, head, r);
        if (part[value_width_] == -kInfinity) continue;
        const float factor = std::exp(part[value_width_] - maximum);
        sum += part[value_width_ + 1] * factor;
        for (size_t d = 0; d < value_width_; ++d) y[d] += part[d] * factor;
      }
      Write(group, head, r, y, maximum, sum);
    }
  }
}

// A row's result: y is overwritten.
void AttentionTasks::Write(const Group& group, size_t head, size_t row, float* y, float maximum, float sum) const {
  const AttentionCall& call = call_;
  const size_t heads = call.heads(), n = head * call.group() + (group.first_row + row) % call.group();
  const size_t token = (group.first_row + row) / call.group(), at = call.starts[group.entry] + token;
  const bool dead = sum == 0.0f;
  float factor = dead ? 0.0f : 1.0f / sum, lse = dead ? kInfinity : std::log(sum) + maximum;
  if (call.sink.given && !dead) {
    const float sink = Number(call.sink, n), most = std::max(sink, maximum);
    const float shrunk = std::exp(maximum - most), total = sum * shrunk + std::exp(sink - most);
    factor = shrunk / total, lse = std::log(total) + most;
  }
  if (lse_ != nullptr && call.node.wants_lse) {
    lse_[call.packed ? at * heads + n : (group.entry * heads + n) * call.tokens + token] = lse;
  }
  if (out_ == nullptr) return;
  if (dead) {
    std::fill_n(y, value_width_, 0.0f);
  } else {
    kernels_.scale(y, value_width_ / kernels_.lanes * kernels_.lanes, factor);
    for (size_t d = value_width_ / kernels_.lanes * kernels_.lanes; d < value_width_; ++d) y[d] *= factor;
    if (call.whole_int8()) {
      for (size_t d = 0; d < value_width_; ++d) y[d] *= value_scale_[d];
    } else if (!value_scale_.empty()) {
      const float* scale = value_scale_.data() + head * value_width_;
      const float* offset = value_offset_.empty() ? nullptr : value_offset_.data() + head * value_width_;
      for (size_t d = 0; d < value_width_; ++d) y[d] = (y[d] + (offset != nullptr ? offset[d] : 0.0f)) * scale[d];
    }
  }
  const std::string& axes = call.node.out_axes;
  size_t place = (call.packed ? at : group.entry * call.tokens + token) * heads + n;
  if (axes == "BNSD") place = (group.entry * heads + n) * call.tokens + token;
  if (axes == "NBSD") place = (n * call.batch + group.entry) * call.tokens + token;
  if (axes == "NTD") place = n * call.tokens + at;
  const size_t size = ElementSize(call.out_type());
  rows_.store[KindOf(call.out_type())](y, value_width_, {out_ + place * value_width_ * size, value_width_, 0});
}

}  // namespace kvfuse

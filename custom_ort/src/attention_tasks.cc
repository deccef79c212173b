#include "attention_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "scratch.h"

namespace kvfuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kRowTile = 64, kEnoughTasks = 16, kShortestPiece = 256, kAhead = 16;

size_t RoundUp(size_t n, size_t step) { return (n + step - 1) / step * step; }

void PrefetchLine(const char* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0, 2);  // to the second level: the first is too small for a tile
#else
  (void)address;
#endif
}

// A number of any float type.
float Number(const Tensor& tensor, size_t i) {
  return tensor.type == kFloat32   ? tensor.As<float>()[i]
         : tensor.type == kFloat16 ? ToFloat(tensor.As<Half>()[i])
                                   : ToFloat(tensor.As<Bfloat>()[i]);
}

// Keys of a tile that lie in one page.
struct Stretch {
  size_t place, row, count;
};

// A tile: the stretches of up to kTileKeys keys.
struct Tile {
  Stretch stretches[kTileKeys];
  size_t size = 0, first = 0, keys = 0;

  void Find(const AttentionCall& call, size_t entry, size_t from, size_t to) {
    size = 0, first = from, keys = std::min(to - from, kTileKeys);
    if (!call.paged) {
      stretches[size++] = {call.packed ? 0 : entry, call.kv_starts[entry] + from, keys};
      return;
    }
    const size_t page = static_cast<size_t>(call.node.block_size);
    const int32_t* table = call.table.As<int32_t>() + entry * static_cast<size_t>(call.table.dims[1]);
    for (size_t key = from; key < from + keys;) {
      const size_t count = std::min(page - key % page, from + keys - key);
      stretches[size++] = {static_cast<size_t>(table[key / page]), key % page, count};
      key += count;
    }
  }
};

// Calls use(stretch, its first key in the tile) in small steps, between which the next tile can be asked for.
template <typename Use>
void InSteps(const Tile& tile, const Use& use) {
  size_t at = 0;
  for (size_t i = 0; i < tile.size; ++i) {
    const Stretch& whole = tile.stretches[i];
    for (size_t from = 0; from < whole.count; from += kAhead) {
      const Stretch part = {whole.place, whole.row + from, std::min(kAhead, whole.count - from)};
      use(part, at);
      at += part.count;
    }
  }
}

KeyRows RowsOf(const CacheRows& cache, const Stretch& stretch, size_t head, size_t lanes) {
  return {cache.Row(stretch.place, stretch.row, head),          stretch.count,       cache.token_step,
          cache.groups.empty() ? nullptr : cache.groups.data(), cache.width / lanes, cache.split};
}

// Asks for keys [begin, end) of a tile.
void Prefetch(const CacheRows& cache, const Tile& tile, size_t head, size_t begin, size_t end) {
  const size_t block_bytes = cache.block * ElementSize(cache.tensor.type);
  size_t at = 0;
  for (size_t i = 0; i < tile.size && at < end; at += tile.stretches[i++].count) {
    const Stretch& stretch = tile.stretches[i];
    if (at + stretch.count <= begin) continue;
    const size_t from = begin > at ? begin - at : 0, to = std::min(end - at, stretch.count);
    const char* row = cache.Row(stretch.place, stretch.row + from, head);
    if (cache.block == cache.width && cache.token_step != block_bytes) {
      for (size_t key = from; key < to; ++key, row += cache.token_step) {
        for (size_t byte = 0; byte < block_bytes; byte += 64) PrefetchLine(row + byte);
      }
      continue;
    }
    for (size_t column = 0; column < cache.width; column += cache.block, row += cache.block_step) {
      for (size_t byte = 0; byte < (to - from) * cache.token_step; byte += 64) PrefetchLine(row + byte);
    }
  }
}

}  // namespace

// What a task keeps for the rows of one head.
struct AttentionTasks::State {
  float *maximum, *sum, *factor, *extra, *query_sum, *query_constant, *y;
  size_t y_stride;

  static size_t Size(size_t rows, size_t y_stride) { return rows * (6 + y_stride); }
  void Begin(float* memory, size_t rows, size_t stride) {
    float** parts[] = {&maximum, &sum, &factor, &extra, &query_sum, &query_constant};
    for (float** part : parts) *part = memory, memory += rows;
    y = memory, y_stride = stride;
    std::fill_n(maximum, rows, -kInfinity);
    std::fill_n(sum, rows, 0.0f);
    std::fill_n(extra, rows, 0.0f);
    std::fill_n(query_sum, rows, 0.0f);
    std::fill_n(query_constant, rows, 0.0f);
    std::fill_n(y, rows * stride, 0.0f);
  }
};

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
  const KeyRows source = {call.query.As<char>() + place * width_ * size, 1, 0, nullptr, 0, false};
  kernels_.widen[CacheKindOf(call.query.type)](source, width_, q, width_);
  if (rope_ > 0) {
    const size_t rope_size = ElementSize(call.query_rope.type);
    const KeyRows rope = {call.query_rope.As<char>() + place * rope_ * rope_size, 1, 0, nullptr, 0, false};
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

void AttentionTasks::Few(const Group& group, const Task& task) const {
  const AttentionCall& call = call_;
  const size_t rows = group.rows, wide = width_ + rope_, lanes = kernels_.lanes;
  const size_t one = State::Size(rows, value_width_) + rows * wide;
  Scratch memory(group.heads * one + rows * kTileKeys);
  float* s = memory.data() + group.heads * one;
  State states[1];
  std::vector<State> many;
  State* state = states;
  if (group.heads > 1) many.resize(group.heads), state = many.data();
  for (size_t h = 0; h < group.heads; ++h) {
    float* own = memory.data() + h * one;
    state[h].Begin(own + rows * wide, rows, value_width_);
    for (size_t r = 0; r < rows; ++r) {
      Query(group, group.first_head + h, r, own + r * wide, state[h].query_sum + r, state[h].query_constant + r);
    }
  }
  const FewRowsKernels& keys = kernels_.few[CacheKindOf(call.key.tensor.type)];
  const FewRowsKernels& ropes = kernels_.few[rope_ > 0 ? CacheKindOf(call.key_rope.tensor.type) : 0];
  Tile tile, next;
  next.Find(call, group.entry, task.first_key, task.last_key);
  for (size_t key = task.first_key; key < task.last_key; key += kTileKeys) {
    tile = next;
    const size_t after = key + tile.keys;
    next.keys = 0, next.size = 0;
    if (after < task.last_key) next.Find(call, group.entry, after, task.last_key);
    for (size_t h = 0; h < group.heads; ++h) {
      const size_t head = group.first_head + h;
      const float* q = memory.data() + h * one;
      State& own = state[h];
      InSteps(tile, [&](const Stretch& part, size_t at) {
        Prefetch(call.key, next, head, at, std::min(at + part.count, next.keys));
        keys.scores(q, wide, rows, RowsOf(call.key, part, head, lanes), s + at, kTileKeys, false);
      });
      KeyFactors(group, key, tile.keys, own, s, kTileKeys, 1);
      if (rope_ > 0) {
        InSteps(tile, [&](const Stretch& part, size_t at) {
          Prefetch(call.key_rope, next, head, at, std::min(at + part.count, next.keys));
          ropes.scores(q + width_, wide, rows, RowsOf(call.key_rope, part, head, lanes), s + at, kTileKeys, true);
        });
      }
      HideKeys(group, key, tile.keys, s, kTileKeys, 1);
      for (size_t r = 0; r < rows; ++r) {
        float* row = s + r * kTileKeys;
        kernels_.softmax_row(row, tile.keys, own.maximum + r, own.sum + r, own.factor + r);
        if (own.factor[r] != 1.0f) {
          kernels_.scale(own.y + r * value_width_, value_width_, own.factor[r]);
          own.extra[r] *= own.factor[r];
        }
      }
      ValueFactors(group, key, tile.keys, own, s, kTileKeys, 1);
      InSteps(tile, [&](const Stretch& part, size_t at) {
        Prefetch(call.value, next, head, at, std::min(at + part.count, next.keys));
        keys.values(s + at, kTileKeys, rows, RowsOf(call.value, part, head, lanes), own.y, value_width_);
      });
    }
  }
  for (size_t h = 0; h < group.heads; ++h) Finish(group, task, group.first_head + h, &state[h]);
}

namespace {

// Keys or values of a tile as fp32 rows: where they lie, or widened into `scratch`.
struct WideRows {
  const float* data[kTileKeys];
  size_t counts[kTileKeys], size = 0, stride = 0;

  void Find(const CacheRows& cache, const Tile& tile, size_t head, const AttentionKernels& kernels, size_t padded,
            float* scratch) {
    size = 0;
    if (scratch == nullptr) {
      stride = cache.token_step / sizeof(float);
      for (size_t i = 0; i < tile.size; ++i) {
        const Stretch& part = tile.stretches[i];
        data[size] = reinterpret_cast<const float*>(cache.Row(part.place, part.row, head));
        counts[size++] = part.count;
      }
      return;
    }
    stride = padded;
    data[0] = scratch, counts[0] = tile.keys, size = 1;
    for (size_t i = 0; i < tile.size; ++i) {
      const KeyRows rows = RowsOf(cache, tile.stretches[i], head, kernels.lanes);
      kernels.widen[CacheKindOf(cache.tensor.type)](rows, cache.width, scratch, padded);
      scratch += tile.stretches[i].count * padded;
    }
  }
};

bool InPlace(const CacheRows& cache, size_t multiple) {
  return cache.tensor.type == kFloat32 && cache.block == cache.width && cache.width % multiple == 0;
}

}  // namespace

void AttentionTasks::Many(const Group& group, const Task& task) const {
  const AttentionCall& call = call_;
  const size_t rows = group.rows, lanes = kernels_.lanes, padded = RoundUp(rows, lanes), wide = width_ + rope_;
  const size_t head = group.first_head, y_stride = RoundUp(value_width_, lanes);
  const size_t key_stride = RoundUp(width_, lanes), rope_stride = RoundUp(rope_, lanes);
  const bool key_here = InPlace(call.key, 1), rope_here = rope_ == 0 || InPlace(call.key_rope, 1);
  const bool same = call.value.tensor.data == call.key.tensor.data && value_width_ == width_ && !key_here &&
                    call.value.block == call.key.block;
  const bool value_here = InPlace(call.value, lanes);
  const size_t state_size = State::Size(padded, y_stride);
  Scratch memory(state_size + wide * padded + kTileKeys * padded + wide +
                 kTileKeys * (key_stride + rope_stride + y_stride));
  State state;
  state.Begin(memory.data(), padded, y_stride);
  float *q = memory.data() + state_size, *s = q + wide * padded, *row = s + kTileKeys * padded;
  float *key_rows = row + wide, *rope_rows = key_rows + kTileKeys * key_stride;
  float* value_rows = rope_rows + kTileKeys * rope_stride;
  std::fill_n(q, wide * padded, 0.0f);
  for (size_t r = 0; r < rows; ++r) {
    Query(group, head, r, row, state.query_sum + r, state.query_constant + r);
    for (size_t d = 0; d < wide; ++d) q[d * padded + r] = row[d];
  }
  Tile tile, next;
  WideRows keys, ropes, values;
  next.Find(call, group.entry, task.first_key, task.last_key);
  for (size_t key = task.first_key; key < task.last_key; key += kTileKeys) {
    tile = next;
    next.keys = 0, next.size = 0;
    if (key + tile.keys < task.last_key) next.Find(call, group.entry, key + tile.keys, task.last_key);
    Prefetch(call.key, next, head, 0, next.keys);
    keys.Find(call.key, tile, head, kernels_, key_stride, key_here ? nullptr : key_rows);
    for (size_t i = 0, at = 0; i < keys.size; at += keys.counts[i++]) {
      kernels_.scores(q, padded, width_, keys.data[i], keys.stride, keys.counts[i], s + at * padded, false);
    }
    KeyFactors(group, key, tile.keys, state, s, 1, padded);
    if (rope_ > 0) {
      Prefetch(call.key_rope, next, head, 0, next.keys);
      ropes.Find(call.key_rope, tile, head, kernels_, rope_stride, rope_here ? nullptr : rope_rows);
      for (size_t i = 0, at = 0; i < ropes.size; at += ropes.counts[i++]) {
        kernels_.scores(q + width_ * padded, padded, rope_, ropes.data[i], ropes.stride, ropes.counts[i],
                        s + at * padded, true);
      }
    }
    HideKeys(group, key, tile.keys, s, 1, padded);
    kernels_.softmax_rows(s, padded, tile.keys, {state.maximum, state.sum, state.factor});
    for (size_t r = 0; r < rows; ++r) {
      if (state.factor[r] == 1.0f) continue;
      kernels_.scale(state.y + r * y_stride, y_stride, state.factor[r]);
      state.extra[r] *= state.factor[r];
    }
    ValueFactors(group, key, tile.keys, state, s, 1, padded);
    if (same) {
      values = keys;
    } else {
      Prefetch(call.value, next, head, 0, next.keys);
      values.Find(call.value, tile, head, kernels_, y_stride, value_here ? nullptr : value_rows);
    }
    for (size_t i = 0, at = 0; i < values.size; at += values.counts[i++]) {
      kernels_.values(s + at * padded, padded, rows, values.data[i], values.stride, y_stride, values.counts[i], state.y,
                      y_stride);
    }
  }
  Finish(group, task, head, &state);
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

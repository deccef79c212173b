// A task's walk over its keys, tile by tile, for few and for many rows.

#include <algorithm>

#include "attention_state.h"
#include "gemm.h"
#include "scratch.h"

namespace kvfuse {
namespace {

// Of one head: whole tiles, one ahead. Of all heads: 8 keys of all of them, which are neighbours in
// memory, 16 ahead. Walking a head's keys first would open as many pages of memory for half a kilobyte each.
constexpr size_t kStepOfOne = kTileKeys, kStepOfAll = 8, kAheadOfAll = 16;

size_t RoundUp(size_t n, size_t step) { return (n + step - 1) / step * step; }

void PrefetchLine(const char* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0, 2);  // to the second level: the first is too small for a tile
#else
  (void)address;
#endif
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

// Calls use(stretch, its first key in the tile) in steps of a few keys.
template <typename Use>
void InSteps(const Tile& tile, size_t step, const Use& use) {
  size_t at = 0;
  for (size_t i = 0; i < tile.size; ++i) {
    const Stretch& whole = tile.stretches[i];
    for (size_t from = 0; from < whole.count; from += step) {
      const Stretch part = {whole.place, whole.row + from, std::min(step, whole.count - from)};
      use(part, at);
      at += part.count;
    }
  }
}

KeyRows RowsOf(const CacheRows& cache, const Stretch& stretch, size_t head, size_t lanes) {
  return {cache.Row(stretch.place, stretch.row, head),
          stretch.count,
          cache.token_step,
          cache.groups.empty() ? nullptr : cache.groups.data(),
          cache.width / lanes,
          cache.split,
          nullptr};
}

// Where keys [at, at + count) of a tile begin, or null where they are not of one page.
const char* Ahead(const CacheRows& cache, const Tile& tile, size_t head, size_t at, size_t count) {
  size_t first = 0;
  for (size_t i = 0; i < tile.size; first += tile.stretches[i++].count) {
    const Stretch& stretch = tile.stretches[i];
    if (at < first || at + count > first + stretch.count) continue;
    return cache.Row(stretch.place, stretch.row + at - first, head);
  }
  return nullptr;
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

void AttentionTasks::Few(const Group& group, const Task& task) const {
  const AttentionCall& call = call_;
  const size_t rows = group.rows, wide = width_ + rope_, lanes = kernels_.lanes;
  const size_t one = State::Size(rows, value_width_) + rows * wide;
  Scratch memory(group.heads * (one + rows * kTileKeys));
  float* const all_scores = memory.data() + group.heads * one;
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
  const size_t step = group.heads > 1 ? kStepOfAll : kStepOfOne, far = group.heads > 1 ? kAheadOfAll : kTileKeys;
  Tile tile, next;
  next.Find(call, group.entry, task.first_key, task.last_key);
  for (size_t key = task.first_key; key < task.last_key; key += kTileKeys) {
    tile = next;
    next.keys = 0, next.size = 0;
    if (key + tile.keys < task.last_key) next.Find(call, group.entry, key + tile.keys, task.last_key);
    // Calls use(rows of the cache, q, scores, state) for each step and head.
    const auto walk = [&](const CacheRows& cache, const auto& use) {
      InSteps(tile, step, [&](const Stretch& part, size_t at) {
        const Tile& later = at + far < tile.keys ? tile : next;
        const size_t later_at = at + far < tile.keys ? at + far : at + far - std::min(at + far, tile.keys);
        for (size_t h = 0; h < group.heads; ++h) {
          KeyRows found = RowsOf(cache, part, group.first_head + h, lanes);
          found.ahead = Ahead(cache, later, group.first_head + h, later_at, part.count);
          use(found, memory.data() + h * one, all_scores + h * rows * kTileKeys + at, &state[h]);
        }
      });
    };
    walk(call.key, [&](const KeyRows& found, const float* q, float* s, State*) {
      keys.scores(q, wide, rows, found, s, kTileKeys, false);
    });
    for (size_t h = 0; h < group.heads; ++h) {
      KeyFactors(group, key, tile.keys, state[h], all_scores + h * rows * kTileKeys, kTileKeys, 1);
    }
    if (rope_ > 0) {
      walk(call.key_rope, [&](const KeyRows& found, const float* q, float* s, State*) {
        ropes.scores(q + width_, wide, rows, found, s, kTileKeys, true);
      });
    }
    for (size_t h = 0; h < group.heads; ++h) {
      float* s = all_scores + h * rows * kTileKeys;
      State& own = state[h];
      HideKeys(group, key, tile.keys, s, kTileKeys, 1);
      for (size_t r = 0; r < rows; ++r) {
        kernels_.softmax_row(s + r * kTileKeys, tile.keys, own.maximum + r, own.sum + r, own.factor + r);
        if (own.factor[r] == 1.0f) continue;
        kernels_.scale(own.y + r * value_width_, value_width_, own.factor[r]);
        own.extra[r] *= own.factor[r];
      }
      ValueFactors(group, key, tile.keys, own, s, kTileKeys, 1);
    }
    walk(call.value, [&](const KeyRows& found, const float*, float* s, State* own) {
      keys.values(s, kTileKeys, rows, found, own->y, value_width_);
    });
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

// Rows at distances of a high power of two fall into few sets of the first cache, and are read many times: they are
// copied, and copies are an odd number of cache lines apart.
constexpr size_t kFewSets = 2048;

bool InPlace(const CacheRows& cache, size_t multiple) {
  return cache.tensor.type == kFloat32 && cache.token_step == cache.width * sizeof(float) &&
         cache.token_step % kFewSets != 0 && cache.width % multiple == 0;
}

size_t Apart(size_t columns) { return columns == 0 ? 0 : OddLines(columns * sizeof(float)) / sizeof(float); }

}  // namespace

void AttentionTasks::Many(const Group& group, const Task& task) const {
  const AttentionCall& call = call_;
  const size_t rows = group.rows, lanes = kernels_.lanes, padded = RoundUp(rows, lanes), wide = width_ + rope_;
  const size_t head = group.first_head, y_stride = RoundUp(value_width_, lanes);
  const size_t key_stride = Apart(width_), rope_stride = Apart(rope_), value_stride = Apart(y_stride);
  const bool key_here = InPlace(call.key, 1), rope_here = rope_ == 0 || InPlace(call.key_rope, 1);
  const bool same = call.value.tensor.data == call.key.tensor.data && value_width_ == width_ && !key_here &&
                    call.value.block == call.key.block;
  const bool value_here = InPlace(call.value, lanes);
  const size_t state_size = State::Size(padded, y_stride);
  Scratch memory(state_size + wide * padded + kTileKeys * padded + wide +
                 kTileKeys * (key_stride + rope_stride + value_stride));
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
      values.Find(call.value, tile, head, kernels_, value_stride, value_here ? nullptr : value_rows);
    }
    for (size_t i = 0, at = 0; i < values.size; at += values.counts[i++]) {
      kernels_.values(s + at * padded, padded, rows, values.data[i], values.stride, y_stride, values.counts[i], state.y,
                      y_stride);
    }
  }
  Finish(group, task, head, &state);
}

}  // namespace kvfuse

// ScatterPaKvCache on the CPU: rows of key and value into paged caches by slot, bit for bit.

#include "generated/scatter_pa_kv_cache.h"

#include <cstring>

#include "blocks.h"
#include "framework.h"
#include "kv_cache.h"

namespace kvfuse {
namespace scatter_pa_kv_cache {
namespace {

// By cache_mode and scatter_mode.
constexpr ::kvfuse::CacheMode kNorm = {"Norm", CacheOrder::kBsnd, SlotMeaning::kSlot};
constexpr ::kvfuse::CacheMode kNhsd = {"NHSD", CacheOrder::kBnsd, SlotMeaning::kSlot};
constexpr ::kvfuse::CacheMode kNz = {"PA_NZ", CacheOrder::kNz, SlotMeaning::kSlot};

// Rows and the cache that they go to.
struct Pair {
  Tensor rows, cache;
  Output output;
  CacheLayout layout{};

  int64_t Pages() const { return cache.dims[0]; }
  int64_t Block(CacheOrder order) const {
    return order == CacheOrder::kBsnd ? cache.dims[1] : order == CacheOrder::kBnsd ? cache.dims[2] : cache.Back(1);
  }
};

class ScatterPaKvCache final : public Kernel {
 public:
  explicit ScatterPaKvCache(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext&) {}  // both outputs share an input's buffer

 private:
  void CheckPairs(const std::vector<Pair>& pairs) const;
  bool CacheFits(const Pair& pair) const;
  std::string CacheForm(const Pair& pair) const;

  const ::kvfuse::CacheMode* mode_ = nullptr;
};

void CheckPlain(const KernelInfo& info, size_t attribute, const char* name, const Constraint& constraint,
                const std::vector<int64_t>& wanted) {
  const std::vector<int64_t> found = info.Ints(attribute, &wanted);
  if (found == wanted) return;
  Refuse(constraint, name + (" " + ShapeText(found.data(), found.size())), ShapeText(wanted.data(), wanted.size()));
}

ScatterPaKvCache::ScatterPaKvCache(const KernelInfo& info) {
  std::string cache_mode, scatter_mode;
  const int cache = info.Choice(kAttrCacheMode, &cache_mode), scatter = info.Choice(kAttrScatterMode, &scatter_mode);
  if (cache == kCacheMode_Norm && scatter == kScatterMode_None) mode_ = &kNorm;
  if (cache == kCacheMode_Norm && scatter == kScatterMode_NHSD) mode_ = &kNhsd;
  if (cache == kCacheMode_PA_NZ && scatter == kScatterMode_None) mode_ = &kNz;
  if (mode_ == nullptr) {
    Refuse(kSp6, "'" + cache_mode + "' with '" + scatter_mode + "'",
           "Norm with None | Norm with NHSD | PA_NZ with None");
  }
  CheckPlain(info, kAttrStrides, "strides", kSp6C, {1, 1});
  CheckPlain(info, kAttrOffsets, "offsets", kSp6D, {0, 0});
  const int key = info.InputType(kInKey), value = info.InputType(kInValue);
  if (mode_ != &kNz && key != value) {
    Refuse(kSp1B, std::string("key ") + ElementTypeName(key) + ", value " + ElementTypeName(value), "one element type");
  }
}

bool ScatterPaKvCache::CacheFits(const Pair& pair) const {
  const Tensor& cache = pair.cache;
  const int64_t heads = pair.rows.dims[1], width = pair.rows.dims[2];
  const int64_t d0 = static_cast<int64_t>(NzBlock(cache.type)), *dims = cache.dims;
  if (mode_ == &kNorm) return cache.rank == 4 && dims[2] == heads && dims[3] == width;
  if (mode_ == &kNhsd) return cache.rank == 4 && dims[1] == heads && dims[3] == width;
  if (cache.rank == 4) return dims[1] == heads * (width / d0) && dims[3] == d0;
  return cache.rank == 5 && dims[1] == heads && dims[2] == width / d0 && dims[4] == d0;
}

std::string ScatterPaKvCache::CacheForm(const Pair& pair) const {
  const std::string heads = Text(pair.rows.dims[1]), width = Text(pair.rows.dims[2]);
  if (mode_ == &kNorm) return "[?, ?, " + heads + ", " + width + "]";
  if (mode_ == &kNhsd) return "[?, " + heads + ", ?, " + width + "]";
  const int64_t d0 = static_cast<int64_t>(NzBlock(pair.cache.type)), fractals = pair.rows.dims[2] / d0;
  return "[?, " + Text(pair.rows.dims[1] * fractals) + ", ?, " + Text(d0) + "] or [?, " + heads + ", " +
         Text(fractals) + ", ?, " + Text(d0) + "]";
}

void ScatterPaKvCache::CheckPairs(const std::vector<Pair>& pairs) const {
  const Tensor& key = pairs[0].rows;
  for (const Pair& pair : pairs) {
    const Tensor& rows = pair.rows;
    if (rows.rank != 3) Refuse(kSp7, Found(rows), "[T, N, D]");
    if (rows.dims[0] != key.dims[0] || rows.dims[1] != key.dims[1]) {
      Refuse(kSp7, Found(rows), "T and N of key " + key.ShapeText());
    }
  }
  for (const Pair& pair : pairs) {
    const int64_t d0 = static_cast<int64_t>(NzBlock(pair.cache.type));
    if (mode_ == &kNz && pair.rows.dims[2] % d0 != 0) {
      Refuse(kSp4, pair.rows.name + (" width " + Text(pair.rows.dims[2])), "a multiple of " + Text(d0));
    }
  }
  for (const Pair& pair : pairs) {
    if (!CacheFits(pair)) Refuse(kSp7B, Found(pair.cache), CacheForm(pair));
  }
  const Pair& last = pairs.back();
  const CacheOrder order = mode_->order;
  if (last.Pages() != pairs[0].Pages() || last.Block(order) != pairs[0].Block(order)) {
    Refuse(kSp7C, Found(pairs[0].cache) + ", " + Found(last.cache), "equal block_num and block_size");
  }
}

void ScatterPaKvCache::Run(KernelContext& context) const {
  for (const size_t input : {kInCompressLens, kInCompressSeqOffset, kInSeqLens}) {
    const Tensor given = context.Input(input);
    if (given.given)
      Refuse(kSp6B, given.name + std::string(" given"), "none of compress_lens, compress_seq_offset, seq_lens");
  }
  std::vector<Pair> pairs = {{context.Input(kInKey), context.Input(kInKeyCache), kOutKeyCache},
                             {context.Input(kInValue), context.Input(kInValueCache), kOutValueCache}};
  const Tensor empty = pairs[1].cache, slot_mapping = context.Input(kInSlotMapping);
  const bool key_only = pairs[1].rows.Is({0}) && empty.Is({0});
  if (key_only) pairs.pop_back();
  CheckPairs(pairs);
  const Tensor& key = pairs[0].rows;
  if (!slot_mapping.Is({key.dims[0]})) Refuse(kSp7D, Found(slot_mapping), "[" + Text(key.dims[0]) + "]");
  const std::vector<int64_t> wide = Integers(slot_mapping);
  const size_t tokens = wide.size(), heads = static_cast<size_t>(key.dims[1]);
  const size_t block = static_cast<size_t>(pairs[0].Block(mode_->order));
  const Slots slots(*mode_, wide.data(), tokens, 1, static_cast<size_t>(pairs[0].Pages()), block);
  slots.Check(kSp3, "slot_mapping");

  // Nothing is refused from here on.
  if (key_only) context.Output(kOutValueCache, empty.dims, empty.rank);
  for (Pair& pair : pairs) {
    const Tensor& cache = pair.cache;
    const size_t size = ElementSize(cache.type), width = static_cast<size_t>(pair.rows.dims[2]);
    const CacheLayout layout = {mode_->order, block, heads, width, NzBlock(cache.type)};
    char* out = static_cast<char*>(context.Output(pair.output, cache.dims, cache.rank));
    context.Copy(out, cache.data, static_cast<size_t>(cache.elements) * size);
    const Rows in = RowsOf(pair.rows, width);
    context.ForRows(tokens * heads, [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        size_t page = 0, place = 0;
        if (!slots.Find(row / heads, 0, &page, &place)) continue;
        char* target = out + layout.Offset(page, place, row % heads) * size;
        for (size_t start = 0; start < width; start += layout.Block(), target += layout.Stride() * size) {
          std::memcpy(target, in[row] + start * size, layout.Block() * size);
        }
      }
    });
  }
}

const Registered<kDeclaration, ScatterPaKvCache> kRegistered;

}  // namespace
}  // namespace scatter_pa_kv_cache
}  // namespace kvfuse

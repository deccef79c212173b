#include "gemm.h"

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <tuple>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvfuse {
namespace {

constexpr size_t kAlignment = 64, kHugePage = size_t{2} << 20;

size_t Step(WeightKind kind) { return kind == kWeightInt8 ? 4 : kind == kWeightBfloat16 ? 2 : 1; }
size_t Size(WeightKind kind) { return kind == kWeightInt8 ? 1 : kind == kWeightFloat32 ? 4 : 2; }

size_t Alignment(size_t bytes) { return bytes >= 2 * kHugePage ? kHugePage : kAlignment; }

char* Allocate(size_t bytes) {
  void* memory = ::operator new(bytes, std::align_val_t{Alignment(bytes)});
#if defined(__linux__)
  // Only a wish: a weight is read from end to end for every token.
  if (Alignment(bytes) == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<char*>(memory);
}

// Rows of a group's 32 columns, those beyond the last and rows beyond the depth as zeros.
template <typename T, typename Read>
void Fill(const WeightSource& source, size_t group, size_t panel, size_t step, T* out, const Read& read) {
  const size_t first = panel * kPanelColumns;
  const size_t width = source.columns - first < kPanelColumns ? source.columns - first : kPanelColumns;
  const size_t steps = (source.depth + step - 1) / step;
  std::memset(static_cast<void*>(out), 0, steps * step * kPanelColumns * sizeof(T));
  for (size_t k = 0; k < source.depth; ++k) {
    T* row = out + k / step * step * kPanelColumns + k % step;
    const size_t at = group * source.group_stride + k * source.row_stride + first;
    for (size_t c = 0; c < width; ++c) row[c * step] = read(at + c, k, first + c);
  }
}

void FillPanel(const WeightSource& source, WeightKind kind, size_t group, size_t panel, char* out) {
  const size_t step = Step(kind);
  const auto copy = [&](auto* target) {
    using T = std::remove_pointer_t<decltype(target)>;
    const T* data = static_cast<const T*>(source.data);
    Fill(source, group, panel, step, target, [=](size_t at, size_t, size_t) { return data[at]; });
  };
  if (source.type == kFloat8E4m3fn) {
    const uint8_t* data = static_cast<const uint8_t*>(source.data);
    const uint8_t* scales = source.mx_scales;
    const size_t blocks = source.depth / 32;
    Fill(source, group, panel, step, reinterpret_cast<Bfloat*>(out), [&](size_t at, size_t k, size_t column) {
      const float value = ToFloatE4m3fn(data[at]);
      if (scales == nullptr) return ToBfloat(value);
      return ToBfloat(value * MxScale(scales[(group * source.columns + column) * blocks + k / 32]));
    });
  } else if (kind == kWeightFloat32) {
    copy(reinterpret_cast<float*>(out));
  } else if (kind == kWeightInt8) {
    int8_t* values = reinterpret_cast<int8_t*>(out);
    copy(values);
    const size_t padded = (source.depth + 3) / 4 * 4;
    int32_t sums[kPanelColumns] = {};
    for (size_t i = 0; i < padded * kPanelColumns; ++i) sums[i / 4 % kPanelColumns] += values[i];
    std::memcpy(values + padded * kPanelColumns, sums, sizeof sums);
  } else {
    copy(reinterpret_cast<uint16_t*>(out));
  }
}

// Some of a tensor's bytes. The memory of a tensor that is gone may hold another one later.
uint64_t Sample(const WeightSource& source) {
  const size_t rows = source.depth * source.groups;
  const size_t bytes = source.columns * ElementSize(source.type);
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < 64; ++i) {
    const size_t row = rows * i / 64;
    const size_t at = row / source.depth * source.group_stride + row % source.depth * source.row_stride;
    const char* data = static_cast<const char*>(source.data) + at * ElementSize(source.type);
    for (size_t b = 0; b < bytes && b < 64; ++b) hash = (hash ^ static_cast<uint8_t>(data[b])) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

void PackedWeight::Free::operator()(char* memory) const {
  ::operator delete(memory, std::align_val_t{Alignment(bytes)});
}

PackedWeight::PackedWeight(const WeightSource& source)
    : kind_(WeightKindOf(source.type)), depth_(source.depth), columns_(source.columns) {
  const size_t step = Step(kind_), steps = (depth_ + step - 1) / step;
  panel_bytes_ = steps * step * kPanelColumns * Size(kind_);
  if (kind_ == kWeightInt8) panel_bytes_ += kPanelColumns * sizeof(int32_t);
  panel_bytes_ = (panel_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  const size_t bytes = source.groups * panels() * panel_bytes_;
  data_ = {Allocate(bytes), Free{bytes}};
  for (size_t group = 0; group < source.groups; ++group) {
    for (size_t panel = 0; panel < panels(); ++panel) {
      FillPanel(source, kind_, group, panel, data_.get() + (group * panels() + panel) * panel_bytes_);
    }
  }
}

std::shared_ptr<const PackedWeight> PackConstant(const WeightSource& source) {
  using Key = std::tuple<const void*, const void*, int, size_t, size_t, size_t, size_t, uint64_t>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<const PackedWeight>> packed;
  const Key key(source.data, source.mx_scales, source.type, source.depth, source.columns, source.groups,
                source.row_stride, Sample(source));
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto entry = packed.begin(); entry != packed.end();) {
    entry = entry->second.expired() ? packed.erase(entry) : std::next(entry);
  }
  if (const auto found = packed.find(key); found != packed.end()) {
    if (auto shared = found->second.lock()) return shared;
  }
  auto made = std::make_shared<const PackedWeight>(source);
  packed[key] = made;
  return made;
}

}  // namespace kvfuse

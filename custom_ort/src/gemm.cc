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
#include <unistd.h>
#endif

namespace kvfuse {
namespace {

constexpr size_t kPackedBytes = size_t{4} << 20, kPackedRows = 128;  // a multiple of every step
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

// Rows first to last of the depth of a weight's 32 columns.
struct Part {
  size_t group, panel, first, last;
};

// The rows of a part, those beyond the last column and the depth as zeros.
template <typename T, typename Read>
void Fill(const WeightSource& source, const Part& part, size_t step, T* out, const Read& read) {
  const size_t start = part.panel * kPanelColumns;
  const size_t width = source.columns - start < kPanelColumns ? source.columns - start : kPanelColumns;
  const size_t steps = (part.last + step - 1) / step - part.first / step;
  T* begin = out + part.first / step * step * kPanelColumns;
  std::memset(static_cast<void*>(begin), 0, steps * step * kPanelColumns * sizeof(T));
  for (size_t k = part.first; k < part.last; ++k) {
    T* row = out + k / step * step * kPanelColumns + k % step;
    const size_t at = part.group * source.group_stride + k * source.row_stride + start;
    for (size_t c = 0; c < width; ++c) row[c * step] = read(at + c, k, start + c);
  }
}

void FillPanel(const WeightSource& source, WeightKind kind, const Part& part, char* out) {
  const size_t step = Step(kind);
  const auto copy = [&](auto* target) {
    using T = std::remove_pointer_t<decltype(target)>;
    const T* data = static_cast<const T*>(source.data);
    Fill(source, part, step, target, [=](size_t at, size_t, size_t) { return data[at]; });
  };
  if (source.type == kFloat8E4m3fn) {
    const uint8_t* data = static_cast<const uint8_t*>(source.data);
    const uint8_t* scales = source.mx_scales;
    const size_t blocks = source.depth / 32;
    Fill(source, part, step, reinterpret_cast<Bfloat*>(out), [&](size_t at, size_t k, size_t column) {
      const float value = ToFloatE4m3fn(data[at]);
      if (scales == nullptr) return ToBfloat(value);
      return ToBfloat(value * MxScale(scales[(part.group * source.columns + column) * blocks + k / 32]));
    });
  } else if (kind == kWeightFloat32) {
    copy(reinterpret_cast<float*>(out));
  } else if (kind == kWeightInt8) {
    copy(reinterpret_cast<int8_t*>(out));
  } else {
    copy(reinterpret_cast<uint16_t*>(out));
  }
}

// Behind an int8 panel: the sums of its columns.
void SumColumns(size_t depth, char* panel) {
  int8_t* values = reinterpret_cast<int8_t*>(panel);
  const size_t padded = (depth + 3) / 4 * 4;
  int32_t sums[kPanelColumns] = {};
  for (size_t i = 0; i < padded * kPanelColumns; ++i) sums[i / 4 % kPanelColumns] += values[i];
  std::memcpy(values + padded * kPanelColumns, sums, sizeof sums);
}

// Says that elements first to last of a packed constant will hardly be read again. Where the runtime maps the weight
// from a file, their pages need no memory from here on; whoever reads them gets them from the file again. Other memory
// stays as it is.
void HandBack(const WeightSource& source, size_t first, size_t last) {
#if defined(__linux__) && defined(MADV_PAGEOUT)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), data = reinterpret_cast<uintptr_t>(source.data);
  const uintptr_t begin = (data + first * ElementSize(source.type) + page - 1) / page * page;
  const uintptr_t end = (data + last * ElementSize(source.type)) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_PAGEOUT);
#else
  static_cast<void>(source), static_cast<void>(first), static_cast<void>(last);
#endif
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

PackedWeight::PackedWeight(const WeightSource& source, bool hand_back)
    : kind_(WeightKindOf(source.type)), depth_(source.depth), columns_(source.columns) {
  const size_t step = Step(kind_), steps = (depth_ + step - 1) / step;
  panel_bytes_ = steps * step * kPanelColumns * Size(kind_);
  if (kind_ == kWeightInt8) panel_bytes_ += kPanelColumns * sizeof(int32_t);
  panel_bytes_ = (panel_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  const size_t bytes = source.groups * panels() * panel_bytes_;
  data_ = {Allocate(bytes), Free{bytes}};
  const auto panel = [&](size_t group, size_t number) {
    return data_.get() + (group * panels() + number) * panel_bytes_;
  };
  // Rows that lie side by side in the source are packed together: it is there twice for a few of them only.
  const bool side_by_side = source.groups * source.columns <= source.row_stride;
  const size_t row_bytes = source.row_stride * ElementSize(source.type) + 1;
  const size_t rows = kPackedRows * (kPackedBytes / kPackedRows / row_bytes + 1);
  const size_t outer = side_by_side ? 1 : source.groups, inner = side_by_side ? source.groups : 1;
  for (size_t first_group = 0; first_group < outer; ++first_group) {
    for (size_t first = 0; first < depth_; first += rows) {
      const size_t last = depth_ - first < rows ? depth_ : first + rows;
      for (size_t group = first_group; group < first_group + inner; ++group) {
        for (size_t number = 0; number < panels(); ++number) {
          FillPanel(source, kind_, {group, number, first, last}, panel(group, number));
        }
      }
      // From the start: the system reads ahead, and around.
      const size_t end = first_group * source.group_stride + last * source.row_stride;
      if (hand_back) HandBack(source, 0, end);
    }
  }
  for (size_t group = 0; kind_ == kWeightInt8 && group < source.groups; ++group) {
    for (size_t number = 0; number < panels(); ++number) SumColumns(depth_, panel(group, number));
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
  auto made = std::make_shared<const PackedWeight>(source, true);
  packed[key] = made;
  return made;
}

}  // namespace kvfuse

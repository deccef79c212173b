// Rows on their way into a cache: quantisation parameters, and the writes themselves.
#pragma once

#include <cstring>
#include <vector>

#include "context.h"
#include "kv_cache.h"
#include "rows.h"
#include "scratch.h"

namespace kvfuse {

// A scale or offset as rows of the cache's width, one for all heads or one for each.
class QuantRows {
 public:
  QuantRows(const Tensor& tensor, size_t width)
      : filled_(tensor.given && tensor.elements == 1 ? width : 0, tensor.given ? *tensor.As<float>() : 0.0f),
        rows_(!tensor.given     ? nullptr
              : filled_.empty() ? tensor.As<float>()
                                : filled_.data()),
        stride_(tensor.rank == 2 && tensor.dims[0] > 1 ? width : 0) {}

  QuantRows(const QuantRows&) = delete;  // rows_ may point into filled_
  QuantRows& operator=(const QuantRows&) = delete;

  const float* row(size_t head) const { return rows_ == nullptr ? nullptr : rows_ + head * stride_; }

 private:
  std::vector<float> filled_;
  const float* rows_;
  size_t stride_;
};

// Which row: its slot, if it has one, its head, and its number among the rows of kv.
struct Place {
  bool has_slot;
  size_t page, row;
  size_t head;
  size_t number;
};

// How a scale is applied.
enum class Scaling { kMultiplies, kDivides };

// Writes rows to one cache and its unquantised output.
class CacheWriter {
 public:
  // `raw_type` is the type of the unquantised row, `float8_cast` the position of that attribute's value. A scale that
  // divides makes int8. A float32 row may be kept in 16 bits.
  CacheWriter(const CacheLayout& layout, int type, const Tensor& scale, const Tensor& offset, int raw_type,
              int float8_cast, const RowKernels& kernels, Scaling scaling = Scaling::kMultiplies)
      : layout_(layout),
        size_(ElementSize(type)),
        raw_size_(ElementSize(raw_type)),
        scale_(scale, layout.columns),
        offset_(offset, layout.columns),
        keeps_type_(type == raw_type),
        store_(size_ == 1 ? nullptr : kernels.store[KindOf(type)]),
        store_raw_(kernels.store[KindOf(raw_type)]),
        normalise_(kernels.normalise[kKindFloat32]),
        normalise_row_(kernels.normalise_row[KindOf(raw_type)]),
        rotate_row_(kernels.rope_interleaved_row[KindOf(raw_type)]),
        quantise_(size_ != 1                     ? nullptr
                  : scaling == Scaling::kDivides ? kernels.quantise_divided
                                                 : kernels.quantise[QuantKindOf(type, float8_cast)]) {}

  // Both memories may be null: the node does not ask for them, or (raw) they are zeros.
  // `bytes` is what the call writes to the cache; a writer of many must be followed by RowKernels::finish.
  void SetMemory(void* cache, void* raw, size_t bytes = 0) {
    data_ = static_cast<char*>(cache), raw_ = static_cast<char*>(raw), streams_ = bytes >= kStreamedBytes;
  }
  bool Wants(const Place& place) const { return (place.has_slot && data_ != nullptr) || raw_ != nullptr; }

  // Whether rows only go to a cache of their own type: they are rounded as they are computed, and need no fp32 copy.
  bool Direct() const { return keeps_type_ && raw_ == nullptr; }
  // Whether rows go to the cache bit for bit.
  bool KeepsType() const { return keeps_type_; }
  // For a direct writer, x a row of the cache's type: x / rms * gamma, and x rotated (to one block of columns).
  void WriteNormalised(const void* x, const float* gamma, float rms, const Place& place) const {
    normalise_row_(x, gamma, rms, layout_.columns, Target(place));
  }
  bool RotatesDirectly() const { return Direct() && layout_.Block() == layout_.columns; }
  void WriteRotated(const void* x, const void* cos, const void* sin, const Place& place) const {
    rotate_row_(x, cos, sin, layout_.columns, Target(place).data);
  }

  // The row x / rms * gamma of any writer; y has room for one.
  void WriteNormalised(const float* x, const float* gamma, float rms, float* y, const Place& place) const {
    normalise_(x, gamma, rms, layout_.columns, {y, layout_.columns, layout_.columns});
    Write(y, place);
  }

  void Write(const float* x, const Place& place) const {
    if (place.has_slot && data_ != nullptr) {
      const RowTarget target = Target(place);
      if (quantise_ != nullptr) {
        quantise_(x, scale_.row(place.head), offset_.row(place.head), layout_.columns, target);
      } else {
        store_(x, layout_.columns, target);
      }
    }
    if (raw_ != nullptr) store_raw_(x, layout_.columns, {Raw(place), layout_.columns, layout_.columns});
  }

  // A row of the cache's own type, bit for bit.
  void WriteBits(const char* x, const Place& place) const {
    if (place.has_slot && data_ != nullptr) {
      const RowTarget target = Target(place);
      char* out = static_cast<char*>(target.data);
      for (size_t start = 0; start < layout_.columns; start += target.block, out += target.stride * size_) {
        std::memcpy(out, x + start * size_, target.block * size_);
      }
    }
    if (raw_ != nullptr) std::memcpy(Raw(place), x, layout_.columns * raw_size_);
  }

 private:
  static QuantKind QuantKindOf(int type, int float8_cast) {
    if (type == kFloat8E4m3fn) return static_cast<QuantKind>(kQuantE4m3fnSaturate + float8_cast);
    if (type == kFloat8E5m2) return static_cast<QuantKind>(kQuantE5m2Saturate + float8_cast);
    return kQuantInt8;
  }

  char* Raw(const Place& place) const { return raw_ + place.number * layout_.columns * raw_size_; }
  RowTarget Target(const Place& place) const {
    return {data_ + layout_.Offset(place.page, place.row, place.head) * size_, layout_.Block(), layout_.Stride(),
            streams_};
  }

  CacheLayout layout_;
  size_t size_, raw_size_;
  QuantRows scale_, offset_;
  bool keeps_type_;
  void (*store_)(const float*, size_t, const RowTarget&);
  void (*store_raw_)(const float*, size_t, const RowTarget&);
  void (*normalise_)(const void*, const float*, float, size_t, const RowTarget&);
  void (*normalise_row_)(const void*, const float*, float, size_t, const RowTarget&);
  void (*rotate_row_)(const void*, const void*, const void*, size_t, void*);
  void (*quantise_)(const float*, const float*, const float*, size_t, const RowTarget&);
  char *data_ = nullptr, *raw_ = nullptr;
  bool streams_ = false;
};

}  // namespace kvfuse

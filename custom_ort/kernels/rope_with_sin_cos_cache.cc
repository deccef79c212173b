// RopeWithSinCosCache on the CPU: heads turned by rows of a table that
// positions look up, in fp32, rounded once.

#include "generated/rope_with_sin_cos_cache.h"

#include <cstring>

#include "blocks.h"
#include "framework.h"
#include "rotation.h"
#include "scratch.h"

namespace kvfuse {
namespace rope_with_sin_cos_cache {
namespace {

// Query or key: rows of heads, and where the turned ones go.
struct Part {
  Tensor rows;
  Output output;
  int64_t heads, stride;
  const char* stride_name;
  char* out = nullptr;
};

class RopeWithSinCosCache final : public Kernel {
 public:
  explicit RopeWithSinCosCache(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  void Check(const Tensor& positions, const Tensor& table, const std::vector<Part>& parts) const;
  void Angles(const Tensor& table, const int64_t* places, size_t tokens, float* cos, float* sin) const;
  void Turn(const Part& part, size_t token, size_t width, const float* cos, const float* sin, float* spare) const;

  const RowKernels& kernels_;
  int64_t query_heads_, key_heads_, size_, query_stride_, key_stride_;
  std::vector<int64_t> sections_;
  bool neox_;
};

RopeWithSinCosCache::RopeWithSinCosCache(const KernelInfo& info)
    : kernels_(SelectRowKernels()),
      query_heads_(info.RequiredInt(kAttrNumQHeads)),
      key_heads_(info.RequiredInt(kAttrNumKHeads)),
      size_(info.RequiredInt(kAttrHeadSize)),
      query_stride_(info.Int(kAttrQStride)),
      key_stride_(info.Int(kAttrKStride)),
      neox_(info.Bool(kAttrIsNeoxStyle)) {
  const std::vector<int64_t> none = {0, 0, 0};
  sections_ = info.Ints(kAttrMropeSection, &none);
  if (query_heads_ < 1) Refuse(kRc5, "numQHeads " + Text(query_heads_), "at least 1");
  if (key_heads_ < 1) Refuse(kRc5, "numKHeads " + Text(key_heads_), "at least 1");
  if (size_ < 1) Refuse(kRc5, "headSize " + Text(size_), "at least 1");
  if (sections_.size() != 3) {
    Refuse(kRc4, "mropeSection " + ShapeText(sections_.data(), sections_.size()), "three numbers");
  }
}

void RopeWithSinCosCache::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> rows;
  if (context.Dims(kInQueryIn, &rows)) context.SetOutput(kOutQueryOut, rows);
  if (context.Dims(kInKeyIn, &rows)) context.SetOutput(kOutKeyOut, rows);
}

void RopeWithSinCosCache::Check(const Tensor& positions, const Tensor& table, const std::vector<Part>& parts) const {
  const bool three = positions.rank == 2;
  if (positions.rank < 1 || positions.rank > 2 || (three && positions.dims[0] != 3)) {
    Refuse(kRc5B, Found(positions), "[T] or [3, T]");
  }
  for (const Part& part : parts) {
    const Tensor& rows = part.rows;
    // a width that does not fit is none that a tensor has
    const bool fits = rows.rank == 2 && rows.dims[0] == positions.Back(0) && rows.dims[1] % size_ == 0 &&
                      rows.dims[1] / size_ == part.heads;
    if (!fits) {
      Refuse(kRc1B, Found(rows), "[" + Text(positions.Back(0)) + ", " + Text(part.heads) + " * " + Text(size_) + "]");
    }
  }
  const int64_t width = table.rank == 2 ? table.dims[1] : 0;
  if (width % 2 != 0 || width < 2 || width > size_) {
    Refuse(kRc2, Found(table), "[maxLen, r] with r even, from 2 to headSize " + Text(size_));
  }
  for (const Part& part : parts) {
    if (part.stride == 0 || part.stride == part.rows.dims[1]) continue;
    Refuse(kRc5C, part.stride_name + (" " + Text(part.stride)),
           "0 or " + Text(part.rows.dims[1]) + ", the width of " + part.rows.name);
  }
  const std::string found = "mropeSection " + ShapeText(sections_.data(), sections_.size());
  bool shared = !three;
  int64_t left = three ? width / 2 : 0;
  for (const int64_t section : sections_) {
    if (!three && section != 0) Refuse(kRc4B, found + " with positions [T]", "[0, 0, 0]");
    shared = section >= 0 && section <= left;
    if (!shared) break;
    left -= section;
  }
  if (!shared || left != 0) {
    Refuse(kRc4B, found, "three numbers that are not negative, their sum " + Text(width / 2));
  }
}

// Full width, in the order of the columns that they turn.
void RopeWithSinCosCache::Angles(const Tensor& table, const int64_t* places, size_t tokens, float* cos,
                                 float* sin) const {
  const size_t width = static_cast<size_t>(table.dims[1]), half = width / 2, bytes = ElementSize(table.type);
  const FloatKind kind = KindOf(table.type);
  size_t start = 0;
  for (size_t i = 0; i < sections_.size() && start < half; ++i) {
    const size_t count = sections_[0] + sections_[1] + sections_[2] == 0 ? half : static_cast<size_t>(sections_[i]);
    const char* row = table.As<char>() + static_cast<size_t>(places[i * tokens]) * width * bytes;
    kernels_.load[kind](row + start * bytes, count, cos + start);
    kernels_.load[kind](row + (half + start) * bytes, count, sin + start);
    start += count;
  }
  if (neox_) {
    std::memcpy(cos + half, cos, half * sizeof(float));
    std::memcpy(sin + half, sin, half * sizeof(float));
    return;
  }
  for (size_t j = half; j-- > 0;) {
    cos[2 * j + 1] = cos[2 * j] = cos[j];
    sin[2 * j + 1] = sin[2 * j] = sin[j];
  }
}

void RopeWithSinCosCache::Turn(const Part& part, size_t token, size_t width, const float* cos, const float* sin,
                               float* spare) const {
  const FloatKind kind = KindOf(part.rows.type);
  const size_t heads = static_cast<size_t>(part.heads), size = static_cast<size_t>(size_);
  const size_t bytes = ElementSize(part.rows.type);
  for (size_t head = token * heads; head < (token + 1) * heads; ++head) {
    const char* source = part.rows.As<char>() + head * size * bytes;
    char* target = part.out + head * size * bytes;
    if (neox_) {
      kernels_.rope_halves_row[kind](source, cos, sin, width, target, false);
    } else {
      float *x = spare, *y = spare + width;
      kernels_.load[kind](source, width, x);
      RotateInterleaved(x, cos, sin, width, y);
      kernels_.store[kind](y, width, {target, width, width});
    }
    std::memcpy(target + width * bytes, source + width * bytes, (size - width) * bytes);
  }
}

void RopeWithSinCosCache::Run(KernelContext& context) const {
  const Tensor positions = context.Input(kInPositions), table = context.Input(kInCosSinCache);
  std::vector<Part> parts = {{context.Input(kInQueryIn), kOutQueryOut, query_heads_, query_stride_, "qStride"},
                             {context.Input(kInKeyIn), kOutKeyOut, key_heads_, key_stride_, "kStride"}};
  Check(positions, table, parts);
  const std::vector<int64_t> places = Integers(positions);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= 0 && places[i] < table.dims[0]) continue;
    Refuse(kRc3, "positions[" + Text(static_cast<int64_t>(i)) + "] = " + Text(places[i]),
           "0 to " + Text(table.dims[0] - 1));
  }
  for (Part& part : parts) {
    part.out = static_cast<char*>(context.Output(part.output, part.rows.dims, part.rows.rank));
  }
  const size_t tokens = static_cast<size_t>(positions.Back(0)), width = static_cast<size_t>(table.dims[1]);
  const auto turn = [&](size_t begin, size_t end) {
    Scratch scratch(4 * width);
    float *cos = scratch.data(), *sin = cos + width, *spare = sin + width;
    for (size_t token = begin; token < end; ++token) {
      Angles(table, places.data() + token, tokens, cos, sin);
      for (const Part& part : parts) {
        if (part.out != nullptr) Turn(part, token, width, cos, sin, spare);
      }
    }
  };
  context.ForRows(tokens, turn, static_cast<size_t>(query_heads_) + static_cast<size_t>(key_heads_));
}

const Registered<kDeclaration, RopeWithSinCosCache> kRegistered;

}  // namespace
}  // namespace rope_with_sin_cos_cache
}  // namespace kvfuse

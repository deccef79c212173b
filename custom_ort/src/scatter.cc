#include "scatter.h"

#include <algorithm>
#include <cstring>

#include "kv_cache.h"

namespace kvfuse {

ScatteredSlices::ScatteredSlices(const Tensor& var, size_t axes, const Tensor& indices)
    : var_(var), axes_(axes), indices_(Integers(indices)) {}

std::string ScatteredSlices::Named(size_t tuple) const {
  const int64_t* first = indices_.data() + tuple * axes_;
  return "index " + Text(static_cast<int64_t>(tuple)) + " = " + (axes_ == 1 ? Text(*first) : ShapeText(first, axes_));
}

void ScatteredSlices::CheckRange(const Constraint& constraint) const {
  for (size_t i = 0; i < indices_.size(); ++i) {
    if (indices_[i] < 0 || indices_[i] >= var_.dims[i % axes_]) {
      Refuse(constraint, Named(i / axes_), "0 or more, and less than " + ShapeText(var_.dims, axes_));
    }
  }
}

std::vector<int64_t> ScatteredSlices::Places() const {
  if (axes_ == 1) return indices_;
  std::vector<int64_t> places(indices_.size() / axes_);
  for (size_t i = 0; i < places.size(); ++i) {
    uint64_t place = 0;  // an empty tensor may have dims whose product does not fit
    for (size_t axis = 0; axis < axes_; ++axis) {
      place = place * static_cast<uint64_t>(var_.dims[axis]) + static_cast<uint64_t>(indices_[i * axes_ + axis]);
    }
    places[i] = static_cast<int64_t>(place);
  }
  return places;
}

void ScatteredSlices::CheckDistinct(const Constraint& constraint, const char* wanted) const {
  const std::vector<int64_t> places = Places();
  const size_t repeat = FirstRepeat(places.data(), places.size(), 1);
  if (repeat != kNone) Refuse(constraint, Named(repeat) + " again", wanted);
}

void ScatteredSlices::Write(KernelContext& context, size_t output, const Tensor& updates) const {
  constexpr size_t kPiece = 4096;  // bytes whose copying costs about what a row of a cache does
  char* out = static_cast<char*>(context.Output(output, var_.dims, var_.rank));
  if (out == nullptr || var_.elements == 0) return;
  const size_t size = ElementSize(var_.type), bytes = Product(var_.dims, axes_, var_.rank) * size;
  context.Copy(out, var_.data, static_cast<size_t>(var_.elements) * size);
  const std::vector<int64_t> places = Places();
  const char* rows = updates.As<char>();
  const size_t together = std::max(kPiece / bytes, size_t{1});
  const auto write = [&](size_t begin, size_t end) {
    for (size_t i = begin * together; i < std::min(end * together, places.size()); ++i) {
      std::memcpy(out + static_cast<size_t>(places[i]) * bytes, rows + i * bytes, bytes);
    }
  };
  context.ForRows((places.size() + together - 1) / together, write, std::max(bytes / kPiece, size_t{1}));
}

}  // namespace kvfuse

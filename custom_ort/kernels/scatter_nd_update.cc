// ScatterNdUpdate on the CPU: slices into the places that index tuples name, bit for bit.

#include "generated/scatter_nd_update.h"

#include "blocks.h"
#include "framework.h"
#include "scatter.h"

namespace kvfuse {
namespace scatter_nd_update {
namespace {

constexpr int64_t kLongest = 7;  // numbers in an index tuple

class ScatterNdUpdate final : public Kernel {
 public:
  explicit ScatterNdUpdate(const KernelInfo& info) { info.Bool(kAttrUseLocking); }
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext&) {}  // the output shares an input's buffer
};

// Returns the numbers in an index tuple.
size_t Check(const Tensor& var, const Tensor& indices, const Tensor& updates) {
  if (var.rank < 1) Refuse(kSn1, Found(var), "1 to 8 dims");
  const int64_t most = std::min(kLongest, static_cast<int64_t>(var.rank));
  if (indices.rank < 2 || indices.Back(0) < 1 || indices.Back(0) > most) {
    Refuse(kSn1B, Found(indices), "[.., r] with r from 1 to " + Text(most));
  }
  const size_t length = static_cast<size_t>(indices.Back(0));
  std::vector<int64_t> wanted(indices.dims, indices.dims + indices.rank - 1);
  wanted.insert(wanted.end(), var.dims + length, var.dims + var.rank);
  if (!std::equal(wanted.begin(), wanted.end(), updates.dims, updates.dims + updates.rank)) {
    Refuse(kSn1C, Found(updates), ShapeText(wanted.data(), wanted.size()));
  }
  return length;
}

void ScatterNdUpdate::Run(KernelContext& context) const {
  const Tensor var = context.Input(kInVar), indices = context.Input(kInIndices), updates = context.Input(kInUpdates);
  const ScatteredSlices slices(var, Check(var, indices, updates), indices);
  slices.CheckRange(kSn2);
  slices.CheckDistinct(kSn3, "distinct index tuples");
  slices.Write(context, kOutVar, updates);
}

const Registered<kDeclaration, ScatterNdUpdate> kRegistered;

}  // namespace
}  // namespace scatter_nd_update
}  // namespace kvfuse

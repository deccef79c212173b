// ScatterUpdate on the CPU: rows into the places along the first axis that indices name, bit for bit.

#include "generated/scatter_update.h"

#include "blocks.h"
#include "framework.h"
#include "scatter.h"

namespace kvfuse {
namespace scatter_update {
namespace {

class ScatterUpdate final : public Kernel {
 public:
  explicit ScatterUpdate(const KernelInfo& info) { info.Bool(kAttrUseLocking); }
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext&) {}  // the output shares an input's buffer
};

void Check(const Tensor& var, const Tensor& indices, const Tensor& updates) {
  if (var.rank < 1) Refuse(kSu1B, Found(var), "1 to 8 dims");
  std::vector<int64_t> wanted(indices.dims, indices.dims + indices.rank);
  wanted.insert(wanted.end(), var.dims + 1, var.dims + var.rank);
  if (!std::equal(wanted.begin(), wanted.end(), updates.dims, updates.dims + updates.rank)) {
    Refuse(kSu2, Found(updates), ShapeText(wanted.data(), wanted.size()));
  }
}

void ScatterUpdate::Run(KernelContext& context) const {
  const Tensor var = context.Input(kInVar), indices = context.Input(kInIndices), updates = context.Input(kInUpdates);
  Check(var, indices, updates);
  const ScatteredSlices slices(var, 1, indices);
  slices.CheckRange(kSu3);
  slices.CheckDistinct(kSu4, "distinct rows");
  slices.Write(context, kOutVar, updates);
}

const Registered<kDeclaration, ScatterUpdate> kRegistered;

}  // namespace
}  // namespace scatter_update
}  // namespace kvfuse

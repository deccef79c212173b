// RmsNorm on the CPU: x / sqrt(mean(x^2) + epsilon) * gamma over the axes of gamma, in fp32, rounded once.

#include "generated/rms_norm.h"

#include <cmath>

#include "blocks.h"
#include "framework.h"
#include "scratch.h"

namespace kvfuse {
namespace rms_norm {
namespace {

class RmsNorm final : public Kernel {
 public:
  explicit RmsNorm(const KernelInfo& info) : kernels_(SelectRowKernels()), epsilon_(info.Float(kAttrEpsilon)) {
    if (!std::isfinite(epsilon_)) Refuse(kRn5, "epsilon " + std::to_string(epsilon_), "a finite number");
  }
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const RowKernels& kernels_;
  float epsilon_;
};

void Check(const Tensor& x, const Tensor& gamma) {
  if (x.rank < 1) Refuse(kRn1, Found(x), "1 to 8 dims");
  if (gamma.rank < 1 || gamma.rank > x.rank ||
      !std::equal(gamma.dims, gamma.dims + gamma.rank, x.dims + x.rank - gamma.rank)) {
    Refuse(kRn1B, Found(gamma), "the last dims of x " + x.ShapeText());
  }
  if (gamma.elements == 0) Refuse(kRn4, Found(gamma), "every dim >= 1");
}

void RmsNorm::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), gamma = context.Input(kInGamma);
  Check(x, gamma);
  const size_t width = static_cast<size_t>(gamma.elements), rows = static_cast<size_t>(x.elements) / width;
  const Floats weight(gamma, kernels_);
  int64_t rstd_dims[kMaxRank];
  std::copy(x.dims, x.dims + x.rank, rstd_dims);
  std::fill(rstd_dims + x.rank - gamma.rank, rstd_dims + x.rank, int64_t{1});

  const Rows in = RowsOf(x, width), out = {static_cast<char*>(context.Output(kOutY, x.dims, x.rank)), in.bytes};
  float* rstd = static_cast<float*>(context.Output(kOutRstd, rstd_dims, x.rank));
  const FloatKind kind = KindOf(x.type);
  context.ForRows(rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const float rms = kernels_.rms[kind](in[row], width, epsilon_, nullptr);
      if (out.data != nullptr) {
        kernels_.normalise_row[kind](in[row], weight.data(), rms, width, {out[row], width, width});
      }
      if (rstd != nullptr) rstd[row] = 1.0f / rms;
    }
  });
}

void RmsNorm::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x, gamma;
  if (!context.Dims(kInX, &x)) return;
  context.SetOutput(kOutY, x);
  if (!context.Dims(kInGamma, &gamma) || gamma.size() > x.size()) return;
  for (size_t axis = x.size() - gamma.size(); axis < x.size(); ++axis) x[axis] = {1, ""};
  context.SetOutput(kOutRstd, x);
}

const Registered<kDeclaration, RmsNorm> kRegistered;

}  // namespace
}  // namespace rms_norm
}  // namespace kvfuse

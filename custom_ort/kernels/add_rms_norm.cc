// AddRmsNorm on the CPU: the sum of x1 and x2, and its RMSNorm, which reads the unrounded fp32 sum.

#include "generated/add_rms_norm.h"

#include <cmath>

#include "blocks.h"
#include "framework.h"
#include "scratch.h"

namespace kvfuse {
namespace add_rms_norm {
namespace {

class AddRmsNorm final : public Kernel {
 public:
  explicit AddRmsNorm(const KernelInfo& info) : kernels_(SelectRowKernels()), epsilon_(info.Float(kAttrEpsilon)) {
    const std::string found = "epsilon " + std::to_string(epsilon_);
    if (!std::isfinite(epsilon_)) Refuse(kAn3, found, "a finite number");
    if (epsilon_ < 0) Refuse(kAn3B, found, "at least 0");
  }
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const RowKernels& kernels_;
  float epsilon_;
};

void Check(const Tensor& x1, const Tensor& x2, const Tensor& gamma) {
  if (x1.rank < 1) Refuse(kAn1B, Found(x1), "1 to 8 dims");
  if (!SameShape(x1, x2)) Refuse(kAn1C, Found(x2), "the shape of x1 " + x1.ShapeText());
  const size_t kept = x1.rank - std::min(gamma.rank, x1.rank);
  if (gamma.rank < 1 || gamma.rank > x1.rank || !std::equal(gamma.dims, gamma.dims + gamma.rank, x1.dims + kept)) {
    Refuse(kAn2, Found(gamma), "the last dims of x1 " + x1.ShapeText());
  }
  if (gamma.elements == 0) Refuse(kAn2B, Found(gamma), "every dim >= 1");
}

void AddRmsNorm::Run(KernelContext& context) const {
  const Tensor x1 = context.Input(kInX1), x2 = context.Input(kInX2), gamma = context.Input(kInGamma);
  Check(x1, x2, gamma);
  const size_t width = static_cast<size_t>(gamma.elements), rows = static_cast<size_t>(x1.elements) / width;
  const Floats weight(gamma, kernels_);
  int64_t rstd_dims[kMaxRank];
  std::copy(x1.dims, x1.dims + x1.rank, rstd_dims);
  std::fill(rstd_dims + x1.rank - gamma.rank, rstd_dims + x1.rank, int64_t{1});

  const Rows first = RowsOf(x1, width), second = RowsOf(x2, width);
  const Rows y = {static_cast<char*>(context.Output(kOutY, x1.dims, x1.rank)), first.bytes};
  const Rows sum = {static_cast<char*>(context.Output(kOutX, x1.dims, x1.rank)), first.bytes};
  float* rstd = static_cast<float*>(context.Output(kOutRstd, rstd_dims, x1.rank));
  const FloatKind kind = KindOf(x1.type);
  context.ForRows(rows, [&](size_t begin, size_t end) {
    Scratch scratch(2 * width);
    float *total = scratch.data(), *other = total + width;
    for (size_t row = begin; row < end; ++row) {
      kernels_.load[kind](first[row], width, total);
      kernels_.load[kind](second[row], width, other);
      for (size_t i = 0; i < width; ++i) total[i] += other[i];
      const float rms = kernels_.rms[kKindFloat32](total, width, epsilon_, nullptr);
      if (sum.data != nullptr) kernels_.store[kind](total, width, {sum[row], width, width});
      if (y.data != nullptr) kernels_.normalise[kind](total, weight.data(), rms, width, {y[row], width, width});
      if (rstd != nullptr) rstd[row] = 1.0f / rms;
    }
  });
}

void AddRmsNorm::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x, gamma;
  if (!context.Dims(kInX1, &x) && !context.Dims(kInX2, &x)) return;
  context.SetOutput(kOutY, x);
  context.SetOutput(kOutX, x);
  if (!context.Dims(kInGamma, &gamma) || gamma.size() > x.size()) return;
  for (size_t axis = x.size() - gamma.size(); axis < x.size(); ++axis) x[axis] = {1, ""};
  context.SetOutput(kOutRstd, x);
}

const Registered<kDeclaration, AddRmsNorm> kRegistered;

}  // namespace
}  // namespace add_rms_norm
}  // namespace kvfuse

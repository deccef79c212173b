// RotaryPositionEmbedding on the CPU: x * cos + rot(x) * sin over the last axis, in fp32, rounded once.

#include "generated/rotary_position_embedding.h"

#include "blocks.h"
#include "framework.h"
#include "rotation.h"

namespace kvfuse {
namespace rotary_position_embedding {
namespace {

class RotaryPositionEmbedding final : public Kernel {
 public:
  explicit RotaryPositionEmbedding(const KernelInfo& info)
      : kernels_(SelectRowKernels()), mode_(static_cast<Rotary>(info.Int(kAttrMode))) {
    const int64_t mode = info.Int(kAttrMode);
    if (mode < 0 || mode > 3) Refuse(kRp4, "mode " + Text(mode), "0 | 1 | 2 | 3");
  }
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context) {
    std::vector<InferredDim> x;
    if (context.Dims(kInX, &x)) context.SetOutput(kOutY, x);
  }

 private:
  void Check(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& rotate) const;

  const RowKernels& kernels_;
  Rotary mode_;
};

void RotaryPositionEmbedding::Check(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& rotate) const {
  if (x.rank != 3 && x.rank != 4) Refuse(kRp1, Found(x), "3 to 4 dims");
  bool fits = cos.rank == x.rank && cos.Back(0) == x.Back(0);
  for (size_t axis = 0; fits && axis < x.rank - 1; ++axis) {
    fits = cos.dims[axis] == 1 || cos.dims[axis] == x.dims[axis];
  }
  if (!fits) Refuse(kRp2B, Found(cos), "every dim 1 or that of x " + x.ShapeText() + ", the last that of x");
  if (!SameShape(sin, cos)) Refuse(kRp2C, Found(sin), "the shape of cos " + cos.ShapeText());
  const int64_t width = x.Back(0);
  if (!rotate.given && width % 2 != 0) Refuse(kRp3, "width " + Text(width), "a multiple of 2");
  if (!rotate.given && mode_ == Rotary::kQuarter && width % 4 != 0) {
    Refuse(kRp3B, "width " + Text(width), "a multiple of 4");
  }
  if (rotate.given && !rotate.Is({width, width})) {
    Refuse(kRp6, Found(rotate), "[" + Text(width) + ", " + Text(width) + "]");
  }
}

void RotaryPositionEmbedding::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), cos = context.Input(kInCos), sin = context.Input(kInSin);
  const Tensor rotate = context.Input(kInRotate);
  Check(x, cos, sin, rotate);
  const Floats matrix(rotate, kernels_);
  const Rotation rotation(kernels_, rotate.given ? Rotary::kMatrix : mode_, x, cos, sin, matrix.data());
  char* out = static_cast<char*>(context.Output(kOutY, x.dims, x.rank));
  if (out == nullptr) return;
  context.ForRows(rotation.rows(), [&](size_t begin, size_t end) { rotation.Run(out, begin, end); });
}

const Registered<kDeclaration, RotaryPositionEmbedding> kRegistered;

}  // namespace
}  // namespace rotary_position_embedding
}  // namespace kvfuse

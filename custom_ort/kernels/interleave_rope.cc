// InterleaveRope on the CPU: even and odd columns are put apart, then halves are turned, in fp32, rounded once.

#include "generated/interleave_rope.h"

#include "blocks.h"
#include "framework.h"
#include "rotation.h"

namespace kvfuse {
namespace interleave_rope {
namespace {

class InterleaveRope final : public Kernel {
 public:
  explicit InterleaveRope(const KernelInfo&) : kernels_(SelectRowKernels()) {}
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context) {
    std::vector<InferredDim> x;
    if (context.Dims(kInX, &x)) context.SetOutput(kOutY, x);
  }

 private:
  const RowKernels& kernels_;
};

void Check(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  if (x.rank != 4) Refuse(kIr1, Found(x), "[B, N, S, D]");
  if (x.dims[3] % 2 != 0) Refuse(kIr1B, "width " + Text(x.dims[3]), "a multiple of 2");
  const int64_t tokens = cos.rank == 4 && cos.dims[2] == 1 ? 1 : x.dims[2];
  if (!cos.Is({x.dims[0], 1, tokens, x.dims[3]})) {
    Refuse(kIr2, Found(cos), "[B, 1, S or 1, D] for x " + x.ShapeText());
  }
  if (!SameShape(sin, cos)) Refuse(kIr2B, Found(sin), "the shape of cos " + cos.ShapeText());
}

void InterleaveRope::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), cos = context.Input(kInCos), sin = context.Input(kInSin);
  Check(x, cos, sin);
  const Rotation rotation(kernels_, Rotary::kInterleaveHalf, x, cos, sin);
  char* out = static_cast<char*>(context.Output(kOutY, x.dims, x.rank));
  if (out == nullptr) return;
  context.ForRows(rotation.rows(), [&](size_t begin, size_t end) { rotation.Run(out, begin, end); });
}

const Registered<kDeclaration, InterleaveRope> kRegistered;

}  // namespace
}  // namespace interleave_rope
}  // namespace kvfuse

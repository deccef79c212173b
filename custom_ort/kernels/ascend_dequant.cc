// AscendDequant on the CPU: int32 sums times a scale of the tensor or of each
// column, in fp32, rounded once.

#include "generated/ascend_dequant.h"

#include "blocks.h"
#include "framework.h"
#include "small_types.h"

namespace kvfuse {
namespace ascend_dequant {
namespace {

class AscendDequant final : public Kernel {
 public:
  explicit AscendDequant(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  std::vector<float> Scales(const Tensor& scale) const;
  void Row(const int32_t* x, const float* scales, size_t count, float* y) const;

  const RowKernels& kernels_;
  bool sqrt_mode_, relu_;
  int type_;
};

// GE's number of a type in the attribute `dtype`.
int TypeOf(int64_t number) { return number == 0 ? kFloat32 : number == 1 ? kFloat16 : kUndefined; }

AscendDequant::AscendDequant(const KernelInfo& info)
    : kernels_(SelectRowKernels()), sqrt_mode_(info.Bool(kAttrSqrtMode)), relu_(info.Bool(kAttrReluFlag)) {
  const int64_t number = info.RequiredInt(kAttrDtype);
  type_ = TypeOf(number);
  if (type_ == kUndefined) Refuse(kAd1, "dtype " + Text(number), "0 (float32) | 1 (float16)");
  RequireType(info, type_, kOutY, "dtype");
}

void AscendDequant::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x;
  const int type = TypeOf(context.Int(kAttrDtype));
  if (type != kUndefined && context.Dims(kInX, &x)) context.SetOutput(kOutY, x, type);
}

std::vector<float> AscendDequant::Scales(const Tensor& scale) const {
  std::vector<float> scales(static_cast<size_t>(scale.elements));
  if (scale.type == kFloat16) kernels_.load[kKindFloat16](scale.data, scales.size(), scales.data());
  for (size_t i = 0; scale.type == kUint64 && i < scales.size(); ++i) {
    scales[i] = BitsFloat(static_cast<uint32_t>(scale.As<uint64_t>()[i]));
  }
  return scales;
}

// `scales` holds one number a column.
void AscendDequant::Row(const int32_t* x, const float* scales, size_t count, float* y) const {
  for (size_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i]) * scales[i];
  for (size_t i = 0; sqrt_mode_ && i < count; ++i) y[i] *= scales[i];
  for (size_t i = 0; relu_ && i < count; ++i) y[i] = y[i] > 0.0f ? y[i] : 0.0f;
}

void AscendDequant::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), scale = context.Input(kInDeqScale);
  if (x.rank < 1) Refuse(kAd2, Found(x), "1 to 8 dims");
  if (!scale.Is({1}) && !scale.Is({x.Back(0)})) {
    Refuse(kAd2B, Found(scale), "[1] or [" + Text(x.Back(0)) + "]");
  }
  char* out = static_cast<char*>(context.Output(kOutY, x.dims, x.rank));
  if (out == nullptr || x.elements == 0) return;

  std::vector<float> scales = Scales(scale);
  const size_t width = static_cast<size_t>(x.Back(0)), size = ElementSize(type_);
  scales.resize(width, scales[0]);
  const size_t pieces = (width + kSmallPiece - 1) / kSmallPiece;
  context.ForRows(static_cast<size_t>(x.elements) / width * pieces, [&](size_t begin, size_t end) {
    alignas(64) float y[kSmallPiece];
    for (size_t i = begin; i < end; ++i) {
      const size_t start = i % pieces * kSmallPiece, place = i / pieces * width + start;
      const size_t count = std::min(kSmallPiece, width - start);
      Row(x.As<int32_t>() + place, scales.data() + start, count, y);
      kernels_.store[KindOf(type_)](y, count, {out + place * size, count, count});
    }
  });
}

const Registered<kDeclaration, AscendDequant> kRegistered;

}  // namespace
}  // namespace ascend_dequant
}  // namespace kvfuse

// DynamicQuant on the CPU: each row divided by its own scale, max|x * smooth| / 127, and rounded.

#include "generated/dynamic_quant.h"

#include <cmath>

#include "blocks.h"
#include "framework.h"
#include "scratch.h"
#include "small_types.h"

namespace kvfuse {
namespace dynamic_quant {
namespace {

// What the largest value of a row becomes.
float Largest(int type) {
  return type == kInt8 ? 127.0f : type == kInt4 ? 7.0f : type == kFloat8E4m3fn ? 448.0f : 57344.0f;
}

class DynamicQuant final : public Kernel {
 public:
  explicit DynamicQuant(const KernelInfo& info) : kernels_(SelectRowKernels()) {
    type_ = TargetOf(info, kAttrDstType, kOutY);
    if (type_ == kUndefined) {
      Refuse(kDq4, "dst_type " + Text(info.Int(kAttrDstType)),
             "2 (int8) | 29 (int4) | 35 (float8_e5m2) | 36 (float8_e4m3fn)");
    }
  }
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  void Check(const Tensor& x, const Tensor& smooth, const Tensor& groups) const;
  float Row(const void* x, FloatKind kind, const float* smooth, size_t width, float* values) const;

  const RowKernels& kernels_;
  int type_;
};

void CheckRowEnds(const Tensor& groups, int64_t rows) {
  const int32_t* ends = groups.As<int32_t>();
  int64_t last = 0;
  for (int64_t i = 0; i < groups.elements; ++i) {
    if (ends[i] < last) Refuse(kDq2D, "group_index[" + Text(i) + "] = " + Text(ends[i]), "at least " + Text(last));
    last = ends[i];
  }
  if (last != rows) Refuse(kDq2D, "last end " + Text(last), "the number of rows " + Text(rows));
}

void DynamicQuant::Check(const Tensor& x, const Tensor& smooth, const Tensor& groups) const {
  if (x.rank < 2) Refuse(kDq1, Found(x), "2 to 8 dims");
  const int64_t width = x.Back(0);
  if (width == 0) Refuse(kDq1B, Found(x), "H >= 1");
  if (groups.given && groups.rank != 1) Refuse(kDq2B, Found(groups), "[E]");
  if (smooth.given && groups.given && !smooth.Is({groups.dims[0], width})) {
    Refuse(kDq2B, Found(smooth), "[" + Text(groups.dims[0]) + ", " + Text(width) + "]");
  }
  if (smooth.given && !groups.given && !smooth.Is({width})) Refuse(kDq2B, Found(smooth), "[" + Text(width) + "]");
  if (groups.given && groups.elements > 1024) Refuse(kDq2C, "E = " + Text(groups.elements), "at most 1024");
  if (groups.given) CheckRowEnds(groups, x.elements / width);
  if (type_ == kInt4 && width % 2 != 0) Refuse(kDq3, "H = " + Text(width), "an even H");
}

// Leaves the scaled row in `values` and returns the scale.
float DynamicQuant::Row(const void* x, FloatKind kind, const float* smooth, size_t width, float* values) const {
  kernels_.load[kind](x, width, values);
  if (smooth != nullptr) {
    for (size_t i = 0; i < width; ++i) values[i] *= smooth[i];
  }
  return DivideByScale(values, width, Largest(type_));
}

void DynamicQuant::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), smooth = context.Input(kInSmoothScales), groups = context.Input(kInGroupIndex);
  Check(x, smooth, groups);
  const Floats factors(smooth, kernels_);
  const size_t width = static_cast<size_t>(x.Back(0)), rows = static_cast<size_t>(x.elements) / width;
  char* out = static_cast<char*>(context.Output(kOutY, x.dims, x.rank));
  float* scales = static_cast<float*>(context.Output(kOutScale, x.dims, x.rank - 1));
  const Rows in = RowsOf(x, width);
  const int32_t* ends = groups.given && smooth.given ? groups.As<int32_t>() : nullptr;
  const int32_t* last = ends != nullptr ? ends + groups.elements : nullptr;
  context.ForRows(rows, [&](size_t begin, size_t end) {
    Scratch scratch(width);
    for (size_t row = begin; row < end; ++row) {
      const float* smoothed = factors.data();
      if (ends != nullptr)
        smoothed += static_cast<size_t>(std::upper_bound(ends, last, static_cast<int64_t>(row)) - ends) * width;
      const float scale = Row(in[row], KindOf(x.type), smoothed, width, scratch.data());
      if (scales != nullptr) scales[row] = scale;
      for (size_t start = 0; out != nullptr && start < width; start += kSmallPiece) {
        const size_t count = std::min(kSmallPiece, width - start);
        StoreSmall(kernels_, type_, scratch.data() + start, count, out + SmallBytes(type_, row * width + start));
      }
    }
  });
}

void DynamicQuant::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x;
  if (!context.Dims(kInX, &x)) return;
  context.SetOutput(kOutY, x, TypeOfAttribute(context.Int(kAttrDstType)));
  x.pop_back();
  context.SetOutput(kOutScale, x);
}

const Registered<kDeclaration, DynamicQuant> kRegistered;

}  // namespace
}  // namespace dynamic_quant
}  // namespace kvfuse

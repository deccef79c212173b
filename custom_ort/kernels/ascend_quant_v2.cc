// AscendQuantV2 on the CPU: round(x * scale + offset) as int8, int4 or float8, the parameters along one axis.

#include "generated/ascend_quant_v2.h"

#include <cmath>

#include "blocks.h"
#include "framework.h"
#include "small_types.h"

namespace kvfuse {
namespace ascend_quant_v2 {
namespace {

class AscendQuantV2 final : public Kernel {
 public:
  explicit AscendQuantV2(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context) {
    std::vector<InferredDim> x;
    if (context.Dims(kInX, &x)) context.SetOutput(kOutY, x, TypeOfAttribute(context.Int(kAttrDstType)));
  }

 private:
  size_t Check(const Tensor& x, const Tensor& scale, const Tensor& offset) const;

  const RowKernels& kernels_;
  bool sqrt_mode_;
  int round_mode_, type_;
  int64_t dst_type_, axis_;
};

AscendQuantV2::AscendQuantV2(const KernelInfo& info)
    : kernels_(SelectRowKernels()),
      sqrt_mode_(info.Bool(kAttrSqrtMode)),
      dst_type_(info.Int(kAttrDstType)),
      axis_(info.Int(kAttrAxis)) {
  type_ = TargetOf(info, kAttrDstType, kOutY);
  if (type_ == kUndefined) {
    Refuse(kAq4, "dst_type " + Text(dst_type_), "2 (int8) | 29 (int4) | 35 (float8_e5m2) | 36 (float8_e4m3fn)");
  }
  std::string found;
  round_mode_ = info.Choice(kAttrRoundMode, &found);
  if (round_mode_ < 0) Refuse(kAq5, "round_mode '" + found + "'", "round | floor | ceil | trunc | hybrid");
  const bool integer = type_ == kInt8 || type_ == kInt4;
  if (round_mode_ == kRoundMode_hybrid || (!integer && round_mode_ != kRoundMode_round)) {
    Refuse(kAq4C, "round_mode '" + found + "' with dst_type " + Text(dst_type_),
           integer ? "round | floor | ceil | trunc" : "round");
  }
}

// Returns the axis counted from the front.
size_t AscendQuantV2::Check(const Tensor& x, const Tensor& scale, const Tensor& offset) const {
  const int64_t rank = static_cast<int64_t>(x.rank);
  if (offset.given && !SameShape(offset, scale))
    Refuse(kAq1B, Found(offset), "the shape of scale " + scale.ShapeText());
  if (rank < 1) Refuse(kAq2, Found(x), "1 to 8 dims");
  if (axis_ < -rank || axis_ >= rank) Refuse(kAq3, "axis " + Text(axis_), "an axis of x " + x.ShapeText());
  const size_t axis = static_cast<size_t>(axis_ < 0 ? axis_ + rank : axis_);
  bool full = scale.rank == x.rank;
  for (size_t i = 0; full && i < x.rank; ++i) full = scale.dims[i] == (i == axis ? x.dims[i] : 1);
  if (!full && !scale.Is({1}) && !scale.Is({x.dims[axis]})) {
    Refuse(kAq2B, Found(scale), "[1], [" + Text(x.dims[axis]) + "], or these along axis " + Text(axis_));
  }
  if (type_ == kInt4 && x.Back(0) % 2 != 0) Refuse(kAq4B, "last dim " + Text(x.Back(0)), "an even size");
  return axis;
}

// Rows that share their parameters, or whose columns have a parameter each.
struct Job {
  const RowKernels& kernels;
  int type, round_mode;
  bool sqrt_mode, by_column;
  const float *scale, *offset;
  size_t parameters;  // of the axis

  // `row` chooses the parameter unless columns do; `start` is the first column.
  void Piece(const void* x, FloatKind kind, size_t row, size_t start, size_t count, char* out) const;
  void Round(float* values, size_t count) const;
};

void Job::Piece(const void* x, FloatKind kind, size_t row, size_t start, size_t count, char* out) const {
  alignas(64) float values[kSmallPiece];
  kernels.load[kind](x, count, values);
  const size_t place = row % parameters;
  for (int times = 0; times < (sqrt_mode ? 2 : 1); ++times) {
    if (by_column) {
      for (size_t i = 0; i < count; ++i) values[i] *= scale[start + i];
    } else {
      for (size_t i = 0; i < count; ++i) values[i] *= scale[place];
    }
  }
  if (offset != nullptr && by_column) {
    for (size_t i = 0; i < count; ++i) values[i] += offset[start + i];
  } else if (offset != nullptr) {
    for (size_t i = 0; i < count; ++i) values[i] += offset[place];
  }
  Round(values, count);
  StoreSmall(kernels, type, values, count, out);
}

void Job::Round(float* values, size_t count) const {
  if (round_mode == kRoundMode_round) return;  // StoreSmall does
  for (size_t i = 0; i < count; ++i) {
    values[i] = round_mode == kRoundMode_floor  ? std::floor(values[i])
                : round_mode == kRoundMode_ceil ? std::ceil(values[i])
                                                : std::trunc(values[i]);
  }
}

void AscendQuantV2::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), scale = context.Input(kInScale), offset = context.Input(kInOffset);
  const size_t axis = Check(x, scale, offset);
  const Floats factors(scale, kernels_), addends(offset, kernels_);
  char* out = static_cast<char*>(context.Output(kOutY, x.dims, x.rank));
  if (out == nullptr || x.elements == 0) return;

  const size_t inner = Product(x.dims, axis + 1, x.rank), parameters = static_cast<size_t>(scale.elements);
  const bool by_column = parameters > 1 && inner == 1;
  const size_t total = static_cast<size_t>(x.elements);
  const size_t width = parameters == 1 ? total : by_column ? parameters : inner;
  const Job job = {kernels_, type_, round_mode_, sqrt_mode_, by_column, factors.data(), addends.data(), parameters};
  const size_t pieces = (width + kSmallPiece - 1) / kSmallPiece, size = ElementSize(x.type);
  context.ForRows(total / width * pieces, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t row = i / pieces, start = i % pieces * kSmallPiece, place = row * width + start;
      const size_t count = std::min(kSmallPiece, width - start);
      job.Piece(x.As<char>() + place * size, KindOf(x.type), row, start, count, out + SmallBytes(type_, place));
    }
  });
}

const Registered<kDeclaration, AscendQuantV2> kRegistered;

}  // namespace
}  // namespace ascend_quant_v2
}  // namespace kvfuse

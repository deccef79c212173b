// Quantize on the CPU: round(x / scales + zero_points) as int8, uint8 or int32,
// the parameters along one axis.

#include "generated/quantize.h"

#include <cmath>

#include "blocks.h"
#include "framework.h"
#include "small_types.h"

namespace kvfuse {
namespace quantize {
namespace {

// By the place of `dtype` among its words.
constexpr int kTargets[] = {kInt8, kUint8, kInt32};

class Quantize final : public Kernel {
 public:
  explicit Quantize(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  size_t Check(const Tensor& x, const Tensor& scales, const Tensor& zeros) const;

  const RowKernels& kernels_;
  int64_t axis_;
  int type_;
};

Quantize::Quantize(const KernelInfo& info) : kernels_(SelectRowKernels()), axis_(info.Int(kAttrAxis)) {
  std::string found;
  const int choice = info.RequiredChoice(kAttrDtype, &found);
  if (choice < 0) Refuse(kQu1, "dtype '" + found + "'", Join(kDtypeValues));
  type_ = kTargets[choice];
  RequireType(info, type_, kOutY, "dtype");
}

void Quantize::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x;
  if (!context.Dims(kInX, &x)) return;
  const std::string word = context.String(kAttrDtype);
  for (size_t i = 0; i < kAttrs[kAttrDtype].allowed.size; ++i) {
    if (word == kAttrs[kAttrDtype].allowed[i]) context.SetOutput(kOutY, x, kTargets[i]);
  }
}

// Returns the axis counted from the front.
size_t Quantize::Check(const Tensor& x, const Tensor& scales, const Tensor& zeros) const {
  const int64_t rank = static_cast<int64_t>(x.rank);
  if (rank < 1) Refuse(kQu2, Found(x), "1 to 8 dims");
  if (zeros.given && !SameShape(zeros, scales)) {
    Refuse(kQu3B, Found(zeros), "the shape of scales " + scales.ShapeText());
  }
  size_t axis = x.rank - 1;
  if (!scales.Is({1})) {
    if (axis_ < -rank || axis_ >= rank) Refuse(kQu2B, "axis " + Text(axis_), "an axis of x " + x.ShapeText());
    axis = static_cast<size_t>(axis_ < 0 ? axis_ + rank : axis_);
    if (!scales.Is({x.dims[axis]})) Refuse(kQu3, Found(scales), "[1] or [" + Text(x.dims[axis]) + "]");
  }
  return axis;
}

// Zero points in fp32.
std::vector<float> Numbers(const Tensor& tensor, const RowKernels& kernels) {
  std::vector<float> values(tensor.given ? static_cast<size_t>(tensor.elements) : 0);
  for (size_t i = 0; i < values.size(); ++i) {
    switch (tensor.type) {
      case kInt8:
        values[i] = tensor.As<int8_t>()[i];
        break;
      case kUint8:
        values[i] = tensor.As<uint8_t>()[i];
        break;
      case kInt32:
        values[i] = static_cast<float>(tensor.As<int32_t>()[i]);
        break;
      default:
        kernels.load[KindOf(tensor.type)](tensor.As<char>() + i * ElementSize(tensor.type), 1, &values[i]);
    }
  }
  return values;
}

// Half to even, without a call or a branch, so that compilers make vectors of loops over it.
uint8_t Byte(float x) {
  constexpr float kRounder = 12582912.0f;      // 1.5 * 2^23: adding it leaves the rounded value in the low bits
  const float positive = x > 0.0f ? x : 0.0f;  // NaN is 0
  return static_cast<uint8_t>(FloatBits((positive < 255.0f ? positive : 255.0f) + kRounder));
}

int32_t Word(float x) {
  constexpr float kWhole = 8388608.0f;                              // 2^23: from here on numbers are whole
  constexpr float kLowest = -2147483648.0f, kMost = 2147483520.0f;  // of int32, among the fp32 numbers
  const float size = std::fabs(x);
  const float rounded = std::copysign(size < kWhole ? (size + kWhole) - kWhole : size, x);
  const float inside = rounded > kLowest ? (rounded < kMost ? rounded : kMost) : kLowest;
  const int32_t word = static_cast<int32_t>(x == x ? inside : 0.0f);
  return x > kMost ? INT32_MAX : word;
}

// Apart from its caller: bytes may be anything's, and only __restrict says that these are not the numbers.
void Bytes(const float* __restrict x, size_t count, uint8_t* __restrict y) {
  for (size_t i = 0; i < count; ++i) y[i] = Byte(x[i]);
}

// Rows that share their parameters, or whose columns have a parameter each.
struct Job {
  const RowKernels& kernels;
  int type;
  bool by_column;
  const float *scales, *zeros;  // zeros may be null

  // `first` is the parameter of the first element.
  void Piece(const void* x, FloatKind kind, size_t first, size_t count, char* out) const {
    alignas(64) float values[kSmallPiece];
    kernels.load[kind](x, count, values);
    const float* scale = scales + first;
    const float* zero = zeros == nullptr ? nullptr : zeros + first;
    if (by_column) {
      for (size_t i = 0; i < count; ++i) values[i] /= scale[i];
      for (size_t i = 0; zero != nullptr && i < count; ++i) values[i] += zero[i];
    } else {
      for (size_t i = 0; i < count; ++i) values[i] /= *scale;
      for (size_t i = 0; zero != nullptr && i < count; ++i) values[i] += *zero;
    }
    if (type == kInt8) return StoreSmall(kernels, type, values, count, out);
    if (type == kUint8) return Bytes(values, count, reinterpret_cast<uint8_t*>(out));
    for (size_t i = 0; i < count; ++i) reinterpret_cast<int32_t*>(out)[i] = Word(values[i]);
  }
};

void CheckDivisors(const Tensor& scales, const float* values) {
  for (size_t i = 0; i < static_cast<size_t>(scales.elements); ++i) {
    if (std::isfinite(values[i]) && values[i] != 0.0f) continue;
    Refuse(kQu4, "scales[" + Text(static_cast<int64_t>(i)) + "] = " + std::to_string(values[i]),
           "a finite number other than 0");
  }
}

void Quantize::Run(KernelContext& context) const {
  const Tensor x = context.Input(kInX), scales = context.Input(kInScales), zeros = context.Input(kInZeroPoints);
  const size_t axis = Check(x, scales, zeros);
  const Floats divisors(scales, kernels_);
  CheckDivisors(scales, divisors.data());
  const std::vector<float> addends = Numbers(zeros, kernels_);
  char* out = static_cast<char*>(context.Output(kOutY, x.dims, x.rank));
  if (out == nullptr || x.elements == 0) return;

  const size_t inner = Product(x.dims, axis + 1, x.rank), parameters = static_cast<size_t>(scales.elements);
  const size_t total = static_cast<size_t>(x.elements);
  const bool by_column = parameters > 1 && inner == 1;
  const size_t width = parameters == 1 ? total : by_column ? parameters : inner;
  const Job job = {kernels_, type_, by_column, divisors.data(), zeros.given ? addends.data() : nullptr};
  const size_t pieces = (width + kSmallPiece - 1) / kSmallPiece, size = ElementSize(x.type);
  context.ForRows(total / width * pieces, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t row = i / pieces, start = i % pieces * kSmallPiece, place = row * width + start;
      const size_t count = std::min(kSmallPiece, width - start);
      job.Piece(x.As<char>() + place * size, KindOf(x.type), by_column ? start : row % parameters, count,
                out + place * ElementSize(type_));
    }
  });
}

const Registered<kDeclaration, Quantize> kRegistered;

}  // namespace
}  // namespace quantize
}  // namespace kvfuse

// DequantSwigluQuant on the CPU: int32 sums or rows, gated and quantised to int8 row by row, in fp32.

#include "generated/dequant_swiglu_quant.h"

#include <cmath>

#include "activation.h"
#include "blocks.h"
#include "framework.h"
#include "scratch.h"
#include "small_types.h"

namespace kvfuse {
namespace dequant_swiglu_quant {
namespace {

// The inputs of a call, and what its shapes say.
struct Call {
  Tensor x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index;
  size_t axis = 0;
  size_t width = 0, columns = 0;  // of x and of y
  size_t groups = 1;
  bool last = true;  // the halves lie in the last dim
};

class DequantSwigluQuant final : public Kernel {
 public:
  explicit DequantSwigluQuant(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  void CheckAxis(Call& call) const;
  void CheckShapes(Call& call) const;
  void CheckQuantisation(const Call& call) const;
  void Activate(const float* a, const float* b, size_t step, size_t count, float* s) const;
  float Quantise(const Call& call, size_t group, float* s) const;

  const RowKernels& kernels_;
  bool left_, static_;
  int64_t axis_, mode_;
  float limit_, alpha_, glu_bias_;
};

DequantSwigluQuant::DequantSwigluQuant(const KernelInfo& info)
    : kernels_(SelectRowKernels()),
      left_(info.Bool(kAttrActivateLeft)),
      axis_(info.Int(kAttrActivateDim)),
      mode_(info.Int(kAttrSwigluMode)),
      limit_(info.Float(kAttrClampLimit)),
      alpha_(info.Float(kAttrGluAlpha)),
      glu_bias_(info.Float(kAttrGluBias)) {
  std::string found;
  const int quant_mode = info.Choice(kAttrQuantMode, &found);
  if (quant_mode < 0) Refuse(kDs6, "quant_mode '" + found + "'", "static | dynamic");
  static_ = quant_mode == kQuantMode_static;
  const int64_t type = info.Int(kAttrDstType);
  if (type != 2) Refuse(kDs5, "dst_type " + Text(type), "2 (int8)");
  if (info.Choice(kAttrRoundMode, &found) < 0) Refuse(kDs5B, "round_mode '" + found + "'", "rint");
  if (mode_ < 0 || mode_ > 3) Refuse(kDs6B, "swiglu_mode " + Text(mode_), "0 | 1 | 2 | 3");
  if (mode_ == 0) return;
  if (!left_) Refuse(kDs6C, "swiglu_mode " + Text(mode_) + " with activate_left false", "activate_left true");
  if (!(std::isfinite(limit_) && limit_ > 0.0f)) {
    Refuse(kDs7, "clamp_limit " + std::to_string(limit_), "a finite number above 0");
  }
}

void DequantSwigluQuant::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> x;
  if (!context.Dims(kInX, &x)) return;
  const int64_t rank = static_cast<int64_t>(x.size()), axis = context.Int(kAttrActivateDim);
  if (axis < -rank || axis >= rank) return;
  InferredDim& split = x[static_cast<size_t>(axis < 0 ? axis + rank : axis)];
  split = {split.size < 0 ? -1 : split.size / 2, ""};
  context.SetOutput(kOutY, x);
  x.pop_back();
  context.SetOutput(kOutScale, x);
}

void DequantSwigluQuant::CheckAxis(Call& call) const {
  const Tensor& x = call.x;
  const int64_t rank = static_cast<int64_t>(x.rank);
  if (x.type == kInt32 && !call.weight_scale.given) Refuse(kDs1, "int32 x without weight_scale", "weight_scale");
  for (const Tensor* given : {&call.weight_scale, &call.activation_scale, &call.bias}) {
    if (x.type == kInt32 || !given->given) continue;
    Refuse(kDs1, given->name + (std::string(" with ") + ElementTypeName(x.type) + " x"),
           "int32 x, or none of weight_scale, activation_scale, bias");
  }
  if (rank < 2) Refuse(kDs2, Found(x), "2 to 8 dims");
  if (x.Back(0) == 0) Refuse(kDs2B, Found(x), "a last dim of 1 or more");
  const std::string found = "activate_dim " + Text(axis_);
  if (axis_ < -rank || axis_ >= rank) Refuse(kDs4, found, "an axis of x " + x.ShapeText());
  call.axis = static_cast<size_t>(axis_ < 0 ? axis_ + rank : axis_);
  const int64_t size = x.dims[call.axis];
  if (size % 2 != 0) Refuse(kDs2C, found + " of size " + Text(size), "an even size");
  call.last = call.axis + 1 == x.rank;
  if (!call.last && (!static_ || call.group_index.given)) {
    Refuse(kDs4B, found, "the last dim, or static without group_index");
  }
  if (!call.last && mode_ == 1) Refuse(kDs6D, found, "the last dim");
  call.width = static_cast<size_t>(x.Back(0));
  call.columns = call.last ? call.width / 2 : call.width;
}

// Whether a parameter has that many columns, for each group or for all rows.
bool HasColumns(const Call& call, const Tensor& parameter, size_t columns) {
  const int64_t groups = static_cast<int64_t>(call.groups), wanted = static_cast<int64_t>(columns);
  return parameter.Is({groups, wanted}) || (!call.group_index.given && parameter.Is({wanted}));
}

void DequantSwigluQuant::CheckShapes(Call& call) const {
  const Tensor& index = call.group_index;
  if (index.given && index.rank != 1) Refuse(kDs8, Found(index), "[G]");
  if (index.given && index.elements == 0) Refuse(kDs8, Found(index), "a group");
  if (index.given) call.groups = static_cast<size_t>(index.elements);
  const std::string groups = Text(static_cast<int64_t>(call.groups));
  for (const Tensor* parameter : {&call.weight_scale, &call.bias}) {
    if (!parameter->given || HasColumns(call, *parameter, call.width)) continue;
    Refuse(kDs8B, Found(*parameter), "[" + groups + ", " + Text(call.x.Back(0)) + "]");
  }
  const int64_t rows = static_cast<int64_t>(Product(call.x.dims, 0, call.x.rank - 1));
  if (call.activation_scale.given && call.activation_scale.elements != rows) {
    Refuse(kDs8C, Found(call.activation_scale), Text(rows) + " elements");
  }
}

void DequantSwigluQuant::CheckQuantisation(const Call& call) const {
  const Tensor &scale = call.quant_scale, &offset = call.quant_offset;
  if (static_ && !(scale.given && offset.given)) {
    const std::string given = scale.given ? "quant_scale" : offset.given ? "quant_offset" : "neither";
    Refuse(kDs8D, "static with " + given, "quant_scale and quant_offset");
  }
  if (!static_ && offset.given) Refuse(kDs8D, "dynamic with quant_offset", "no quant_offset");
  const bool fits = !scale.given || HasColumns(call, scale, call.columns) || (static_ && scale.Is({1})) ||
                    (static_ && call.group_index.given && scale.Is({static_cast<int64_t>(call.groups)}));
  if (!fits) {
    Refuse(kDs8E, Found(scale),
           "[" + Text(static_cast<int64_t>(call.groups)) + ", " + Text(static_cast<int64_t>(call.columns)) + "]");
  }
  if (scale.given && offset.given && !SameShape(offset, scale)) {
    Refuse(kDs8F, Found(offset), "the shape of quant_scale " + scale.ShapeText());
  }
  for (int64_t i = 0; static_ && i < scale.elements; ++i) {
    const float value = scale.As<float>()[i];
    if (std::isfinite(value) && value != 0.0f) continue;
    Refuse(kDs9, "quant_scale[" + Text(i) + "] = " + std::to_string(value), "a finite number other than 0");
  }
}

// The rows at which groups end.
std::vector<size_t> RowEnds(const Tensor& counts, size_t rows) {
  std::vector<size_t> ends;
  size_t end = 0;
  for (int64_t i = 0; counts.given && i < counts.elements; ++i) {
    const int64_t count = counts.As<int64_t>()[i];
    if (count < 0) Refuse(kDs2D, "group_index[" + Text(i) + "] = " + Text(count), "0 or more");
    if (static_cast<uint64_t>(count) > rows - end) {
      Refuse(kDs2D, "more rows in groups than x has", "at most " + Text(static_cast<int64_t>(rows)));
    }
    end += static_cast<size_t>(count);
    ends.push_back(end);
  }
  return ends;
}

float Clamped(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// a and b are `step` apart from one column to the next.
void DequantSwigluQuant::Activate(const float* a, const float* b, size_t step, size_t count, float* s) const {
  if (mode_ == 0) {
    for (size_t i = 0; i < count; ++i) s[i] = Silu(a[i]) * b[i];
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const float up = Clamped(b[i * step], limit_);
    if (mode_ == 3) {
      const float gate = Silu(a[i * step]);
      s[i] = (gate > limit_ ? limit_ : gate) * up;
      continue;
    }
    const float gate = a[i * step] > limit_ ? limit_ : a[i * step];
    const float z = gate * alpha_;
    const float power = ExpOfNegative(-std::fabs(z));
    s[i] = gate * (z >= 0.0f ? 1.0f : power) / (power + 1.0f) * (up + glu_bias_);
  }
}

// A parameter's numbers for a row of a group: one for all columns, or one for each.
struct RowParameter {
  const float* data = nullptr;
  size_t step = 0;

  RowParameter(const Tensor& tensor, size_t groups, size_t group, size_t columns) {
    if (!tensor.given) return;
    const bool wide = tensor.rank == 2 || (groups == 1 && static_cast<size_t>(tensor.elements) == columns);
    step = wide ? 1 : 0;
    data = tensor.As<float>() + (wide ? group * columns : tensor.elements == 1 ? 0 : group);
  }
  float operator[](size_t column) const { return data[column * step]; }
};

// Leaves what is to be rounded in s and returns the scale of the row.
float DequantSwigluQuant::Quantise(const Call& call, size_t group, float* s) const {
  const RowParameter scale(call.quant_scale, call.groups, group, call.columns);
  if (static_) {
    const RowParameter offset(call.quant_offset, call.groups, group, call.columns);
    for (size_t i = 0; i < call.columns; ++i) s[i] = s[i] / scale[i] + offset[i];
    return 0.0f;
  }
  for (size_t i = 0; scale.data != nullptr && i < call.columns; ++i) s[i] *= scale[i];
  return DivideByScale(s, call.columns, 127.0f);
}

// Rows of x in fp32.
class Dequantised {
 public:
  Dequantised(const RowKernels& kernels, const Call& call)
      : kernels_(kernels),
        call_(call),
        bias_(call.bias.type == kInt32 ? Tensor{} : call.bias, kernels),
        rows_(RowsOf(call.x, call.width)) {}

  void Row(size_t row, size_t group, float* t) const {
    const size_t first = group * call_.width;
    if (call_.x.type != kInt32) return kernels_.load[KindOf(call_.x.type)](rows_[row], call_.width, t);
    const float activation = call_.activation_scale.given ? call_.activation_scale.As<float>()[row] : 1.0f;
    const bool before = call_.bias.given && call_.bias.type == kInt32;
    kernels_.dequantise(reinterpret_cast<const int32_t*>(rows_[row]),
                        before ? call_.bias.As<int32_t>() + first : nullptr, call_.weight_scale.As<float>() + first,
                        activation, bias_.data() == nullptr ? nullptr : bias_.data() + first, call_.width, t);
  }

 private:
  const RowKernels& kernels_;
  const Call& call_;
  Floats bias_;
  Rows rows_;
};

void DequantSwigluQuant::Run(KernelContext& context) const {
  Call call;
  call.x = context.Input(kInX);
  call.weight_scale = context.Input(kInWeightScale);
  call.activation_scale = context.Input(kInActivationScale);
  call.bias = context.Input(kInBias);
  call.quant_scale = context.Input(kInQuantScale);
  call.quant_offset = context.Input(kInQuantOffset);
  call.group_index = context.Input(kInGroupIndex);
  CheckAxis(call);
  CheckShapes(call);
  CheckQuantisation(call);
  const Tensor& x = call.x;
  const std::vector<size_t> ends = RowEnds(call.group_index, Product(x.dims, 0, x.rank - 1));

  int64_t dims[kMaxRank];
  std::copy(x.dims, x.dims + x.rank, dims);
  dims[call.axis] /= 2;
  char* out = static_cast<char*>(context.Output(kOutY, dims, x.rank));
  float* scales = static_cast<float*>(context.Output(kOutScale, dims, x.rank - 1));
  const Dequantised rows(kernels_, call);
  // Rows of y for every index before the axis; the other half of x lies as many rows further.
  const size_t run = call.last ? 1 : Product(dims, call.axis, x.rank - 1);
  const size_t columns = call.columns, total = Product(dims, 0, x.rank - 1);
  context.ForRows(total, [&](size_t begin, size_t end) {
    Scratch scratch(2 * call.width + columns);
    float *first = scratch.data(), *second = first + call.width, *s = second + call.width;
    for (size_t row = begin; row < end; ++row) {
      const size_t group =
          ends.empty() ? 0 : static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), row) - ends.begin());
      char* target = out == nullptr ? nullptr : out + row * columns;
      if (group == call.groups) {  // behind the last group
        if (target != nullptr) std::fill(target, target + columns, char{0});
        if (scales != nullptr) scales[row] = 0.0f;
        continue;
      }
      const size_t source = call.last ? row : row / run * 2 * run + row % run;
      rows.Row(source, group, first);
      if (!call.last) rows.Row(source + run, group, second);
      const float* left = first;
      const float* right = !call.last ? second : first + (mode_ == 1 ? 1 : columns);
      Activate(left_ ? left : right, left_ ? right : left, mode_ == 1 ? 2 : 1, columns, s);
      const float scale = Quantise(call, group, s);
      if (scales != nullptr) scales[row] = scale;
      for (size_t start = 0; target != nullptr && start < columns; start += kSmallPiece) {
        StoreSmall(kernels_, kInt8, s + start, std::min(kSmallPiece, columns - start), target + start);
      }
    }
  });
}

const Registered<kDeclaration, DequantSwigluQuant> kRegistered;

}  // namespace
}  // namespace dequant_swiglu_quant
}  // namespace kvfuse

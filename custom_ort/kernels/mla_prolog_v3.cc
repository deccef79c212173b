// MlaPrologV3 on the CPU: projections, norms, rotation, quantisation and cache writes in front of absorbed attention.
//
// Constant weights are packed when the kernel is made and shared by kernels that name the same tensor; others are
// packed in each call. The policy is `generic`: refused is what has no meaning, not what some product cannot do.

#include "generated/mla_prolog_v3.h"

#include "framework.h"
#include "mla_call.h"
#include "mla_tokens.h"

namespace kvfuse {
namespace mla_prolog_v3 {
namespace {

using mla::Call;
using mla::Modes;
using mla::Outputs;
using mla::Weights;

// A weight [K, M], or `heads` of them side by side in one tensor.
WeightSource Matrix(const Tensor& weight, const Tensor& mx_scales, size_t heads = 1) {
  WeightSource source;
  source.data = weight.data;
  source.type = weight.type;
  source.depth = static_cast<size_t>(weight.dims[0]);
  source.row_stride = static_cast<size_t>(weight.dims[1]);
  source.groups = heads;
  source.columns = source.group_stride = source.row_stride / heads;
  source.mx_scales = mx_scales.given ? mx_scales.As<uint8_t>() : nullptr;
  return source;
}

// weight_uk [N, D, Hckv].
WeightSource Absorbed(const Tensor& weight) {
  WeightSource source;
  source.data = weight.data;
  source.type = weight.type;
  source.groups = static_cast<size_t>(weight.dims[0]);
  source.depth = static_cast<size_t>(weight.dims[1]);
  source.columns = source.row_stride = static_cast<size_t>(weight.dims[2]);
  source.group_stride = source.depth * source.columns;
  return source;
}

class MlaPrologV3 final : public Kernel {
 public:
  explicit MlaPrologV3(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  Weights PackMissing(const Call& call) const;

  const RowKernels& rows_;
  const GemmKernels& products_;
  const Modes modes_;
  Weights packed_;  // of constant weights
};

// Whether a constant may be packed now: a wrong shape is refused when the call is checked.
bool Packable(const Tensor& weight, size_t rank) { return weight.given && weight.rank == rank && weight.elements > 0; }

MlaPrologV3::MlaPrologV3(const KernelInfo& info)
    : rows_(SelectRowKernels()), products_(SelectGemmKernels()), modes_(info) {
  const auto pack = [&](size_t weight_input, size_t scale_input, size_t heads) -> std::shared_ptr<const PackedWeight> {
    const Tensor weight = info.ConstantInput(weight_input), scales = info.ConstantInput(scale_input);
    if (!Packable(weight, 2) || heads == 0 || weight.dims[1] % static_cast<int64_t>(heads) != 0) return nullptr;
    if (!modes_.mx()) return PackConstant(Matrix(weight, Tensor(), heads));
    const bool fits =
        weight.dims[0] % mla::kMxBlock == 0 && scales.Is({weight.dims[1], weight.dims[0] / mla::kMxBlock});
    return fits ? PackConstant(Matrix(weight, scales, heads)) : nullptr;
  };
  const Tensor uk = info.ConstantInput(kInWeightUk);
  const bool has_uk = Packable(uk, 3);
  // The largest first: while a weight is packed it is there twice.
  packed_.uq_qr = pack(kInWeightUqQr, kInDequantScaleWUqQr, has_uk ? static_cast<size_t>(uk.dims[0]) : 0);
  packed_.dq = pack(kInWeightDq, kInDequantScaleWDq, 1);
  if (has_uk) packed_.uk = PackConstant(Absorbed(uk));
  packed_.dkv_kr = pack(kInWeightDkvKr, kInDequantScaleWDkvKr, 1);
}

Weights MlaPrologV3::PackMissing(const Call& call) const {
  Weights weights = packed_;
  const auto pack = [&](std::shared_ptr<const PackedWeight>& weight, const WeightSource& source) {
    if (weight == nullptr) weight = std::make_shared<const PackedWeight>(source);
  };
  const auto scales = [&](const Tensor& tensor) { return modes_.mx() ? tensor : Tensor(); };
  pack(weights.dq, Matrix(call.weight_dq, scales(call.scale_dq)));
  pack(weights.uq_qr, Matrix(call.weight_uq_qr, scales(call.scale_uq_qr), call.heads));
  pack(weights.uk, Absorbed(call.weight_uk));
  pack(weights.dkv_kr, Matrix(call.weight_dkv_kr, scales(call.scale_dkv_kr)));
  return weights;
}

void MlaPrologV3::Run(KernelContext& context) const {
  const Call call(context, modes_);
  Weights weights;
  if (call.tokens > 0) weights = PackMissing(call);

  // Nothing is refused from here on. Rows of tokens have token_x's leading dims, their scales one for all tokens.
  Outputs outputs;
  const size_t lead = call.x.rank - 1;
  const int64_t tokens = static_cast<int64_t>(call.tokens), hcq = call.weight_dq.dims[1];
  const int64_t heads = call.weight_uk.dims[0], none[] = {0};
  const auto rows = [&](Output output, std::initializer_list<int64_t> last) {
    std::vector<int64_t> dims(call.x.dims, call.x.dims + lead);
    dims.insert(dims.end(), last);
    return static_cast<char*>(context.Output(output, dims.data(), dims.size()));
  };
  outputs.query = rows(kOutQuery, {heads, call.weight_uk.dims[2]});
  outputs.query_rope = rows(kOutQueryRope, {heads, call.cos.Back(0)});
  const int64_t by_head[] = {tokens, heads, 1};
  void* scale =
      modes_.query ? context.Output(kOutDequantScaleQNope, by_head, 3) : context.Output(kOutDequantScaleQNope, none, 1);
  if (modes_.query) outputs.scale_q_nope = static_cast<float*>(scale);
  if (modes_.norm) {
    outputs.query_norm = rows(kOutQueryNorm, {hcq});
  } else {
    context.Output(kOutQueryNorm, none, 1);
  }
  if (modes_.norm && modes_.weights != 0) {
    const int64_t by_token[] = {tokens, modes_.mx() ? hcq / mla::kMxBlock : 1};
    outputs.scale_q_norm = static_cast<char*>(context.Output(kOutDequantScaleQNorm, by_token, 2));
  } else {
    context.Output(kOutDequantScaleQNorm, none, 1);
  }
  for (const auto& [output, input, data] :
       {std::tuple{kOutKvCache, &call.kv, &outputs.kv}, std::tuple{kOutKrCache, &call.kr, &outputs.kr}}) {
    *data = static_cast<char*>(context.Output(output, input->dims, input->rank));
    if (*data != nullptr && input->elements > 0) {
      context.Copy(*data, input->data, static_cast<size_t>(input->elements) * ElementSize(input->type));
    }
  }
  if (call.tokens > 0) mla::Tokens(call, weights, outputs, rows_, products_).Run(context);
}

void MlaPrologV3::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> rows, uk, cos, dq;
  // The type of query is in no input: it must be said even where the rank of token_x is not known, which here is taken
  // for 3. A wrong rank costs a warning, a wrong type the model.
  const bool flat = context.Dims(kInTokenX, 2, &rows);
  if (!flat && !context.Dims(kInTokenX, 3, &rows)) rows.resize(3);
  rows.pop_back();
  const InferredDim unknown, one{1, ""}, zero{0, ""};
  const bool has_uk = context.Dims(kInWeightUk, 3, &uk), has_dq = context.Dims(kInWeightDq, 2, &dq);
  const bool has_cos = context.Dims(kInRopeCos, rows.size() + 1, &cos);
  const InferredDim heads = has_uk ? uk[0] : unknown, hcq = has_dq ? dq[1] : unknown;
  InferredDim tokens = rows[0];
  if (!flat) tokens = rows[0].size >= 0 && rows[1].size >= 0 ? InferredDim{rows[0].size * rows[1].size, ""} : unknown;
  const auto with = [&](std::initializer_list<InferredDim> last) {
    std::vector<InferredDim> dims = rows;
    dims.insert(dims.end(), last);
    return dims;
  };
  const bool query = context.Int(kAttrQueryQuantMode) == 1, norm = context.Int(kAttrQueryNormFlag) == 1;
  const int64_t weights = context.Int(kAttrWeightQuantMode);
  context.SetOutput(kOutQuery, with({heads, has_uk ? uk[2] : unknown}),
                    context.InputType(query ? kInKvCache : kInWeightUk));
  context.SetOutput(kOutQueryRope, with({heads, has_cos ? cos.back() : unknown}));
  using Dims = std::vector<InferredDim>;
  context.SetOutput(kOutDequantScaleQNope, query ? Dims{tokens, heads, one} : Dims{zero}, kFloat32);
  context.SetOutput(kOutQueryNorm, norm ? with({hcq}) : Dims{zero});
  const InferredDim blocks = hcq.size >= 0 ? InferredDim{hcq.size / mla::kMxBlock, ""} : unknown;
  context.SetOutput(kOutDequantScaleQNorm,
                    norm && weights != 0 ? Dims{tokens, weights == 3 ? blocks : one} : Dims{zero},
                    weights == 3 ? kUint8 : kFloat32);
}

const Registered<kDeclaration, MlaPrologV3> kRegistered;

}  // namespace
}  // namespace mla_prolog_v3
}  // namespace kvfuse

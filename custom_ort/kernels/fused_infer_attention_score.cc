// FusedInferAttentionScore on the CPU: flash attention over contiguous or paged caches, read where they lie.
//
// What a call costs depends on the keys that its rows see, never on the capacity of a cache. The policy is `generic`.

#include "generated/fused_infer_attention_score.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_call.h"
#include "attention_tasks.h"
#include "framework.h"

namespace kvfuse {
namespace fused_infer_attention_score {
namespace {

class FusedInferAttentionScore final : public Kernel {
 public:
  explicit FusedInferAttentionScore(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const AttentionKernels& kernels_;
  const RowKernels& rows_;
  AttentionNode node_;
};

FusedInferAttentionScore::FusedInferAttentionScore(const KernelInfo& info)
    : kernels_(SelectAttentionKernels()), rows_(SelectRowKernels()) {
  node_.heads = info.RequiredInt(kAttrNumHeads), node_.kv_heads = info.Int(kAttrNumKeyValueHeads);
  node_.scale = info.Float(kAttrScale), node_.sparse_mode = info.Int(kAttrSparseMode);
  node_.pre_tokens = info.Int(kAttrPreTokens), node_.next_tokens = info.Int(kAttrNextTokens);
  node_.block_size = info.Int(kAttrBlockSize), node_.wants_lse = info.Bool(kAttrSoftmaxLseFlag);
  node_.key_mode = info.Int(kAttrKeyAntiquantMode), node_.value_mode = info.Int(kAttrValueAntiquantMode);
  node_.query_mode = info.Int(kAttrQueryQuantMode);
  info.Int(kAttrInnerPrecise);  // without effect, but an Int
  for (const size_t attribute : {kAttrAntiquantMode, kAttrPseType, kAttrOutDtype}) {
    const int64_t value = info.Int(attribute);
    if (value != 0) Refuse(kFa22B, kAttrs[attribute].name + (" " + Text(value)), "0");
  }
  std::string layout;
  if (info.Choice(kAttrInputLayout, &layout) < 0) {
    Refuse(kFa01, "input_layout '" + layout + "'", Join(kInputLayoutValues));
  }
  node_.axes = layout.substr(0, layout.find('_'));
  node_.out_axes = layout.substr(layout.find('_') + 1);  // the whole word where there is no _
  const int64_t heads = node_.heads, kv_heads = node_.kv_heads;
  if (heads < 1 || kv_heads < 0 || (kv_heads > 0 && heads % kv_heads != 0)) {
    Refuse(kFa02, "num_heads " + Text(heads) + ", num_key_value_heads " + Text(kv_heads),
           "num_heads >= 1, num_key_value_heads 0 or a divisor of it");
  }
  const int64_t mode = node_.sparse_mode, before = node_.pre_tokens, after = node_.next_tokens;
  if (mode < 0 || mode > 4) Refuse(kFa13, "sparse_mode " + Text(mode), "0 | 1 | 2 | 3 | 4");
  // The sum could overflow; the negative of what is not below zero cannot.
  const bool no_band = before < 0 ? after < 0 || before < -after : after < -before;
  if (mode == 4 && no_band) {
    Refuse(kFa15, "pre_tokens " + Text(before) + ", next_tokens " + Text(after), "a sum of 0 or more");
  }
  if (!std::isfinite(node_.scale)) Refuse(kFa25, "scale " + std::to_string(node_.scale), "a finite number");
}

void FusedInferAttentionScore::Run(KernelContext& context) const {
  const AttentionCall call(context, node_);
  // Nothing is refused from here on.
  const auto size = [&](char axis) -> size_t {
    switch (axis) {
      case 'B':
        return call.batch;
      case 'N':
        return call.heads();
      case 'D':
        return call.value_width;
      case 'H':
        return call.heads() * call.value_width;
      default:
        return call.tokens;
    }
  };
  const auto output = [&](Output port, const std::string& axes, bool column) {
    int64_t dims[4];
    size_t rank = 0;
    for (const char axis : axes) dims[rank++] = static_cast<int64_t>(size(axis));
    if (column) dims[rank++] = 1;
    return context.Output(port, dims, rank);
  };
  char* out = static_cast<char*>(output(kOutAttentionOut, node_.out_axes, false));
  float* lse = static_cast<float*>(output(kOutSoftmaxLse, call.packed ? "TN" : "BNS", true));
  const size_t rows = (call.packed ? call.tokens : call.batch * call.tokens) * call.heads();
  size_t covered = 0;
  for (const size_t count : call.counts) covered += count;
  if (covered * call.heads() < rows) {  // rows that belong to no entry
    if (out != nullptr) std::memset(out, 0, rows * call.value_width * ElementSize(call.out_type()));
    if (lse != nullptr) std::fill_n(lse, rows, std::numeric_limits<float>::infinity());
  }
  if (lse != nullptr && !node_.wants_lse) std::fill_n(lse, rows, 0.0f);
  const AttentionTasks work(call, kernels_, rows_, out, lse);
  context.ForTasks(work.tasks(), [&](size_t begin, size_t end) {
    for (size_t task = begin; task < end; ++task) work.Run(task);
  });
  context.ForTasks(work.merges(), [&](size_t begin, size_t end) {
    for (size_t merge = begin; merge < end; ++merge) work.Merge(merge);
  });
}

void FusedInferAttentionScore::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> query, value;
  const std::string layout = context.String(kAttrInputLayout);
  const int64_t heads = context.Int(kAttrNumHeads), given = context.Int(kAttrNumKeyValueHeads);
  const int64_t kv_heads = given > 0 ? given : heads;
  const std::string axes = layout.substr(0, layout.find('_')), out = layout.substr(layout.find('_') + 1);
  if (heads < 1 || !context.Dims(kInQuery, axes.size(), &query)) return;
  InferredDim width;
  if (context.Dims(kInValue, &value)) {
    const bool paged = context.Given(kInBlockTable);
    const int64_t last = value.back().size;
    if (paged && value.size() == 5) {
      width.size = last > 0 && value[2].size > 0 ? last * value[2].size : -1;
    } else if (value.size() == 3 && (paged || axes == "BSH")) {
      width.size = last > 0 ? last / kv_heads : -1;
    } else {
      width = value.back();
    }
  }
  const auto dim = [&](char axis) -> InferredDim {
    if (axis == 'N') return {heads, ""};
    if (axis == 'D') return width;
    if (axis == 'H') return {width.size > 0 ? heads * width.size : -1, ""};
    const size_t place = axes.find(axis);
    return place < query.size() ? query[place] : InferredDim{};
  };
  std::vector<InferredDim> dims, lse;
  for (const char axis : out) dims.push_back(dim(axis));
  const int query_type = context.InputType(kInQuery);
  context.SetOutput(kOutAttentionOut, dims, query_type == kInt8 ? context.InputType(kInQueryRope) : query_type);
  for (const char axis : std::string(axes.find('T') != std::string::npos ? "TN" : "BNS")) lse.push_back(dim(axis));
  lse.push_back({1, ""});
  context.SetOutput(kOutSoftmaxLse, lse, kFloat32);
}

const Registered<kDeclaration, FusedInferAttentionScore> kRegistered;

}  // namespace
}  // namespace fused_infer_attention_score
}  // namespace kvfuse

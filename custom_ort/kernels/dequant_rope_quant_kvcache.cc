// DequantRopeQuantKvcache on the CPU: optional dequantisation of an int32 row, rotation of queries and keys, int8
// quantisation and cache write of keys and values.
//
// A row of x is a token: Nq query heads, Nkv key heads and Nkv value heads of D columns. It becomes fp32 once, and so
// do cos and sin. The policy is `generic`: refused is what has no meaning, not what some product cannot do.

#include "generated/dequant_rope_quant_kvcache.h"

#include <algorithm>
#include <limits>

#include "cache_checks.h"
#include "cache_writer.h"
#include "framework.h"
#include "kv_cache.h"
#include "rows.h"

namespace kvfuse {
namespace dequant_rope_quant_kvcache {
namespace {

constexpr ::kvfuse::CacheMode kModes[] = {
    {"contiguous", CacheOrder::kBsnd, SlotMeaning::kStart},
    {"page", CacheOrder::kBsnd, SlotMeaning::kSlot},
};
static_assert(sizeof kModes / sizeof kModes[0] == sizeof kCacheModeValues / sizeof kCacheModeValues[0]);

std::string List(const std::vector<int64_t>& values) { return ShapeText(values.data(), values.size()); }

void CheckElements(const Constraint& constraint, const Tensor& tensor, int64_t count) {
  if (tensor.given && tensor.elements != count) {
    Refuse(constraint, tensor.name + (" " + tensor.ShapeText()), Text(count) + " elements");
  }
}

// The tensors of a call, checked in the order of the contract's rules.
struct Call {
  Call(const KernelContext& context, const std::vector<int64_t>& splits_, const ::kvfuse::CacheMode& mode_);

  void CheckSizes();
  void CheckRope() const;
  void CheckDequantisation() const;
  void CheckIndices();

  const std::vector<int64_t>& splits;
  const ::kvfuse::CacheMode& mode;
  Tensor x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, offset_k, offset_v;
  Tensor weight_scale, activation_scale, bias;
  int64_t batch = 0, length = 0, hidden = 0;
  int64_t q_heads = 0, heads = 0, width = 0;
  std::vector<int64_t> widened;  // int32 indices
  CacheLayout layout{};

  bool quantised() const { return x.type == kInt32; }
  size_t tokens() const { return static_cast<size_t>(batch * length); }
  Slots slots() const {
    const int64_t* index = indices.type == kInt32 ? widened.data() : indices.As<int64_t>();
    return Slots(mode, index, static_cast<size_t>(batch), static_cast<size_t>(length),
                 static_cast<size_t>(k_cache.dims[0]), layout.rows);
  }
};

Call::Call(const KernelContext& context, const std::vector<int64_t>& splits_, const ::kvfuse::CacheMode& mode_)
    : splits(splits_),
      mode(mode_),
      x(context.Input(kInX)),
      cos(context.Input(kInCos)),
      sin(context.Input(kInSin)),
      k_cache(context.Input(kInKCache)),
      v_cache(context.Input(kInVCache)),
      indices(context.Input(kInIndices)),
      scale_k(context.Input(kInScaleK)),
      scale_v(context.Input(kInScaleV)),
      offset_k(context.Input(kInOffsetK)),
      offset_v(context.Input(kInOffsetV)),
      weight_scale(context.Input(kInWeightScale)),
      activation_scale(context.Input(kInActivationScale)),
      bias(context.Input(kInBias)) {
  for (const Tensor* tensor : {&x, &cos, &sin, &k_cache, &v_cache, &indices, &scale_k, &scale_v, &offset_k, &offset_v,
                               &weight_scale, &activation_scale, &bias}) {
    CheckNotEmpty(kDrq19, *tensor);
  }
  CheckSizes();
  CheckRope();
  if (quantised()) CheckDequantisation();
  for (const Tensor* tensor : {&scale_k, &scale_v, &offset_k, &offset_v}) {
    CheckElements(kDrq12, *tensor, heads * width);
  }
  CheckIndices();
  for (const Tensor* tensor : {&scale_k, &scale_v}) CheckDivides(kDrq20, *tensor);
}

void Call::CheckSizes() {
  if (x.rank != 2 && x.rank != 3) Refuse(kDrq01, "x " + x.ShapeText(), "[B, S, H] or [B, H]");
  batch = x.dims[0], length = x.rank == 3 ? x.dims[1] : 1, hidden = x.Back(0);
  int64_t rest = hidden;  // counted down, so that nothing overflows
  for (const int64_t size : splits) rest = size > rest ? -1 : rest - size;
  if (rest != 0) Refuse(kDrq03, "size_splits " + List(splits), "a sum of H = " + Text(hidden));
  if (splits[1] != splits[2]) Refuse(kDrq04, "size_splits " + List(splits), "equal sizes of k and v");
  const bool shaped = k_cache.rank == 4;
  if (shaped && k_cache.dims[3] % 2 != 0) Refuse(kDrq05, "D " + Text(k_cache.dims[3]), "an even D");
  if (!shaped || v_cache.rank != 4 || !std::equal(k_cache.dims, k_cache.dims + 4, v_cache.dims)) {
    Refuse(kDrq07, "k_cache " + k_cache.ShapeText() + ", v_cache " + v_cache.ShapeText(), "two equal [C1, C2, Nkv, D]");
  }
  heads = k_cache.dims[2], width = k_cache.dims[3];
  if (splits[1] != heads * width) {
    Refuse(kDrq06, "size_splits[1] = " + Text(splits[1]), "Nkv * D = " + Text(heads) + " * " + Text(width));
  }
  if (splits[0] % width != 0) {
    Refuse(kDrq06, "size_splits[0] = " + Text(splits[0]), "a multiple of D = " + Text(width));
  }
  q_heads = splits[0] / width;
  const size_t columns = static_cast<size_t>(width);
  layout = {mode.order, static_cast<size_t>(k_cache.dims[1]), static_cast<size_t>(heads), columns, columns};
}

void Call::CheckRope() const {
  for (const Tensor* table : {&cos, &sin}) {
    if (x.rank == 2) {
      CheckShape(kDrq08, *table, {batch, width});
    } else {
      CheckShape(kDrq08, *table, {batch, length, 1, width});
    }
  }
}

void Call::CheckDequantisation() const {
  if (!weight_scale.given) {
    Refuse(kDrq10, "no weight_scale", "weight_scale of " + Text(hidden) + " elements");
  }
  CheckElements(kDrq10B, weight_scale, hidden);
  CheckElements(kDrq11, activation_scale, batch * length);
  CheckElements(kDrq11B, bias, hidden);
}

void Call::CheckIndices() {
  if (!mode.paged() && k_cache.dims[0] < batch) {
    Refuse(kDrq17, "C1 = " + Text(k_cache.dims[0]), "at least B = " + Text(batch));
  }
  CheckShape(mode.paged() ? kDrq18 : kDrq17B, indices, {mode.paged() ? batch * length : batch});
  if (indices.type == kInt32) widened.assign(indices.As<int32_t>(), indices.As<int32_t>() + indices.elements);
  slots().Check(mode.paged() ? kDrq18B : kDrq17C, "indices", 0);
}

class DequantRopeQuantKvcache final : public Kernel {
 public:
  explicit DequantRopeQuantKvcache(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const RowKernels& kernels_;
  std::vector<int64_t> splits_;
  const ::kvfuse::CacheMode* mode_ = nullptr;
  bool kv_output_;
};

DequantRopeQuantKvcache::DequantRopeQuantKvcache(const KernelInfo& info)
    : kernels_(SelectRowKernels()), splits_(info.Ints(kAttrSizeSplits)), kv_output_(info.Bool(kAttrKvOutput)) {
  if (splits_.size() != 3 || *std::min_element(splits_.begin(), splits_.end()) < 0) {
    Refuse(kDrq03, "size_splits " + List(splits_), "3 sizes >= 0");
  }
  std::string found;
  if (info.Choice(kAttrQuantMode, &found) < 0) Refuse(kDrq13, "quant_mode '" + found + "'", Join(kQuantModeValues));
  if (info.Choice(kAttrLayout, &found) < 0) Refuse(kDrq14, "layout '" + found + "'", Join(kLayoutValues));
  const int mode = info.Choice(kAttrCacheMode, &found);
  if (mode < 0) Refuse(kDrq16, "cache_mode '" + found + "'", Join(kCacheModeValues));
  mode_ = &kModes[mode];
}

// What a chunk of tokens needs to know.
struct Job {
  const Call& call;
  const RowKernels& kernels;
  const float* float_bias;  // of an int32 x, in fp32
  Slots slots;
  CacheWriter k, v;
  char* q;       // null where the node does not ask for it
  bool streams;  // queries are too many for the CPU's caches

  void Tokens(size_t begin, size_t end) const;
  const float* Head(size_t token, size_t head, float* scratch) const;
  void Queries(size_t token, const float* cos, const float* sin, float* scratch) const;
  void Keys(const float* cos, const float* sin, Place place, float* scratch) const;

  const char* Source(size_t token, size_t head) const {
    const size_t at = token * static_cast<size_t>(call.hidden) + head * width();
    return call.x.As<char>() + at * ElementSize(call.x.type);
  }
  FloatKind kind() const { return KindOf(call.cos.type); }
  size_t width() const { return static_cast<size_t>(call.width); }
  size_t heads() const { return static_cast<size_t>(call.heads); }
};

// A head of x in fp32: the caller's memory or the scratch.
const float* Job::Head(size_t token, size_t head, float* scratch) const {
  const char* x = Source(token, head);
  if (call.quantised()) {
    const size_t first = head * width();
    const float activation = call.activation_scale.given ? call.activation_scale.As<float>()[token] : 1.0f;
    const int32_t* int_bias = call.bias.type == kInt32 && call.bias.given ? call.bias.As<int32_t>() + first : nullptr;
    kernels.dequantise(reinterpret_cast<const int32_t*>(x), int_bias, call.weight_scale.As<float>() + first, activation,
                       float_bias == nullptr ? nullptr : float_bias + first, width(), scratch);
    return scratch;
  }
  if (call.x.type == kFloat32) return reinterpret_cast<const float*>(x);
  kernels.load[kind()](x, width(), scratch);
  return scratch;
}

void Job::Tokens(size_t begin, size_t end) const {
  const size_t n = width(), size = ElementSize(call.cos.type), length = static_cast<size_t>(call.length);
  Scratch memory(5 * n);
  float *cos_row = memory.data(), *sin_row = cos_row + n, *work = sin_row + n;
  for (size_t t = begin; t < end; ++t) {
    const float *cos = call.cos.As<float>() + t * n, *sin = call.sin.As<float>() + t * n;
    if (kind() != kKindFloat32) {
      kernels.load[kind()](call.cos.As<char>() + t * n * size, n, cos_row);
      kernels.load[kind()](call.sin.As<char>() + t * n * size, n, sin_row);
      cos = cos_row, sin = sin_row;
    }
    if (q != nullptr) Queries(t, cos, sin, work);
    Place place{false, 0, 0, 0, t};
    place.has_slot = slots.Find(t / length, t % length, &place.page, &place.row);
    if (k.Wants(place)) Keys(cos, sin, place, work);
    if (!v.Wants(place)) continue;
    const size_t first = static_cast<size_t>(call.q_heads) + heads();
    for (size_t head = 0; head < heads(); ++head) {
      v.Write(Head(t, first + head, work), {place.has_slot, place.page, place.row, head, t * heads() + head});
    }
  }
  kernels.finish();
}

// Rows of the result's own type are rotated where they are.
void Job::Queries(size_t token, const float* cos, const float* sin, float* scratch) const {
  const size_t n = width(), count = static_cast<size_t>(call.q_heads), bytes = n * ElementSize(call.cos.type);
  const bool half = kind() == kKindFloat16, dequantised = call.quantised();
  const auto of_floats = half ? kernels.rope_halves_float16 : kernels.rope_halves[kind()];
  char* out = q + token * count * bytes;
  for (size_t head = 0; head < count; ++head, out += bytes) {
    if (dequantised) {
      of_floats(Head(token, head, scratch), cos, sin, n, out);
    } else if (half) {
      kernels.rope_halves_float16_row(Source(token, head), cos, sin, n, out);
    } else {
      kernels.rope_halves_row[kind()](Source(token, head), cos, sin, n, out, streams);
    }
  }
}

void Job::Keys(const float* cos, const float* sin, Place place, float* scratch) const {
  const size_t n = width(), token = place.number, first = static_cast<size_t>(call.q_heads);
  float *rotated = scratch, *rounded = scratch + n, *kept = rounded + n;
  for (size_t head = 0; head < heads(); ++head) {
    const float* row = Head(token, first + head, kept);
    place.head = head, place.number = token * heads() + head;
    if (kind() == kKindFloat16) {
      kernels.rope_halves_float16(row, cos, sin, n, rounded);
      kernels.load[kKindFloat16](rounded, n, rotated);
    } else {
      kernels.rope_halves[kKindFloat32](row, cos, sin, n, rotated);
    }
    k.Write(rotated, place);
  }
}

// A quantisation parameter as [Nkv, D], whatever shape it came in.
Tensor ByHead(Tensor tensor, int64_t heads, int64_t width) {
  if (tensor.given) tensor.rank = 2, tensor.dims[0] = heads, tensor.dims[1] = width;
  return tensor;
}

void DequantRopeQuantKvcache::Run(KernelContext& context) const {
  const Call call(context, splits_, *mode_);
  std::vector<float> bias;
  const bool float_bias = call.quantised() && call.bias.given && call.bias.type != kInt32;
  if (float_bias) {
    bias.resize(static_cast<size_t>(call.hidden));
    kernels_.load[KindOf(call.bias.type)](call.bias.data, bias.size(), bias.data());
  }
  const auto writer = [&](const Tensor& cache, const Tensor& scale, const Tensor& offset) {
    return CacheWriter(call.layout, cache.type, ByHead(scale, call.heads, call.width),
                       ByHead(offset, call.heads, call.width), call.cos.type, 0, kernels_, Scaling::kDivides);
  };
  Job job{call,
          kernels_,
          float_bias ? bias.data() : nullptr,
          call.slots(),
          writer(call.k_cache, call.scale_k, call.offset_k),
          writer(call.v_cache, call.scale_v, call.offset_v),
          nullptr,
          false};

  // Nothing is refused from here on.
  const auto rows = [&](Output output, int64_t heads, bool wanted) -> void* {
    int64_t dims[] = {call.batch, call.length, heads, call.width};
    const int64_t none[] = {0};
    if (!wanted) return context.Output(output, none, 1), nullptr;
    if (call.x.rank == 2) dims[1] = heads, dims[2] = call.width;
    return context.Output(output, dims, call.x.rank + 1);
  };
  job.q = static_cast<char*>(rows(kOutQ, call.q_heads, true));
  const size_t q_bytes = call.tokens() * static_cast<size_t>(call.q_heads * call.width) * ElementSize(call.cos.type);
  job.streams = q_bytes >= kStreamedBytes;
  const auto cache = [&](Output output, const Tensor& input) {
    void* data = context.Output(output, input.dims, input.rank);
    if (data != nullptr) context.Copy(data, input.data, static_cast<size_t>(input.elements));
    return data;
  };
  job.k.SetMemory(cache(kOutKCache, call.k_cache), rows(kOutK, call.heads, kv_output_));
  job.v.SetMemory(cache(kOutVCache, call.v_cache), rows(kOutV, call.heads, kv_output_));
  constexpr size_t kHeadsOfOneCost = 4;
  const size_t cost = std::max<size_t>(1, static_cast<size_t>(call.q_heads + 2 * call.heads) / kHeadsOfOneCost);
  context.ForRows(call.tokens(), [&](size_t begin, size_t end) { job.Tokens(begin, end); }, cost);
}

void DequantRopeQuantKvcache::InferShapes(ShapeContext& context) {
  std::vector<int64_t> splits;
  std::vector<InferredDim> x, cache;
  const bool flat = context.Dims(kInX, 2, &x);
  if (!flat && !context.Dims(kInX, 3, &x)) return;
  if (!context.Dims(kInKCache, 4, &cache)) cache.resize(4);
  const bool known = context.Ints(kAttrSizeSplits, &splits) && splits.size() == 3 && cache[3].size > 0;
  x.pop_back();
  x.push_back({known ? splits[0] / cache[3].size : -1, ""});
  x.push_back(cache[3]);
  context.SetOutput(kOutQ, x);
  x[x.size() - 2] = cache[2];
  const bool delivered = context.Bool(kAttrKvOutput);
  for (const size_t output : {size_t{kOutK}, size_t{kOutV}}) {
    context.SetOutput(output, delivered ? x : std::vector<InferredDim>{{0, ""}});
  }
}

const Registered<kDeclaration, DequantRopeQuantKvcache> kRegistered;

}  // namespace
}  // namespace dequant_rope_quant_kvcache
}  // namespace kvfuse

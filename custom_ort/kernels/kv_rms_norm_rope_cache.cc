// KvRmsNormRopeCache on the CPU: RMSNorm, interleaved rotation, optional quantisation and cache write of one KV row.
//
// Without v (V1) a kv row is [Dv | R]: the left part is normalised and goes to ckv_cache, the right part is rotated and
// goes to k_cache. With v (V2) the whole row is normalised, its first R columns are rotated, and v goes to ckv_cache
// unchanged. The policy is `generic`: refused is what has no meaning, not what some product cannot do.

#include "generated/kv_rms_norm_rope_cache.h"

#include <algorithm>
#include <cmath>

#include "cache_checks.h"
#include "cache_writer.h"
#include "framework.h"
#include "kv_cache.h"
#include "rows.h"

namespace kvfuse {
namespace kv_rms_norm_rope_cache {
namespace {

constexpr ::kvfuse::CacheMode kModes[] = {
    {"Norm", CacheOrder::kBnsd, SlotMeaning::kRow},          {"PA", CacheOrder::kBsnd, SlotMeaning::kSlot},
    {"PA_BNSD", CacheOrder::kBsnd, SlotMeaning::kSlot},      {"PA_NZ", CacheOrder::kNz, SlotMeaning::kSlot},
    {"PA_BLK_BNSD", CacheOrder::kBsnd, SlotMeaning::kBlock}, {"PA_BLK_NZ", CacheOrder::kNz, SlotMeaning::kBlock},
};
static_assert(sizeof kModes / sizeof kModes[0] == sizeof kCacheModeValues / sizeof kCacheModeValues[0]);

static_assert(kFloat8Cast_saturate == 0 && kFloat8Cast_nonsaturate == 1 && kFloat8Cast_integer == 2);

// A cache with what belongs to it: quantisation parameters and the unquantised result.
struct Cache {
  Tensor input, scale, offset;
  Output output, raw_output;
  int64_t width = 0;
  CacheLayout layout{};
};

// The tensors of a call, checked in the order of the contract's rules.
struct Call {
  Call(const KernelContext& context, const ::kvfuse::CacheMode& mode_);

  void CheckKv() const;
  void CheckRope() const;
  void CheckCaches();
  void CheckIndex() const;
  void CheckQuantisation() const;

  const ::kvfuse::CacheMode& mode;
  Tensor kv, gamma, cos, sin, index, v;
  Cache k, ckv;
  int64_t batch = 0, heads = 0, tokens = 0;
  size_t norm_width = 0, rope_width = 0;

  Slots slots() const {
    return Slots(mode, index.As<int64_t>(), static_cast<size_t>(batch), static_cast<size_t>(tokens),
                 static_cast<size_t>(k.input.dims[0]), k.layout.rows);
  }
};

Call::Call(const KernelContext& context, const ::kvfuse::CacheMode& mode_)
    : mode(mode_),
      kv(context.Input(kInKv)),
      gamma(context.Input(kInGamma)),
      cos(context.Input(kInCos)),
      sin(context.Input(kInSin)),
      index(context.Input(kInIndex)),
      v(context.Input(kInV)),
      k{context.Input(kInKCache), context.Input(kInKRopeScale), context.Input(kInKRopeOffset), kOutKCache, kOutKRope},
      ckv{context.Input(kInCkvCache), context.Input(kInCKvScale), context.Input(kInCKvOffset), kOutCkvCache, kOutCKv} {
  CheckKv();
  CheckRope();
  CheckCaches();
  CheckIndex();
  CheckQuantisation();
}

void Call::CheckKv() const {
  if (kv.rank != 4) Refuse(kKv01, "kv " + kv.ShapeText(), "[B, N, S, D]");
  for (const Tensor* tensor :
       {&kv, &gamma, &cos, &sin, &index, &k.input, &ckv.input, &k.scale, &ckv.scale, &k.offset, &ckv.offset, &v}) {
    if (tensor->given && tensor->elements == 0) {
      Refuse(kKv02, tensor->name + (" " + tensor->ShapeText()), "every dim >= 1");
    }
  }
  if (!v.given && kv.dims[1] != 1) Refuse(kKv06, "N = " + Text(kv.dims[1]) + " without v", "N = 1");
  if (gamma.rank != 1) Refuse(kKv07, "gamma " + gamma.ShapeText(), "a 1-D gamma");
  if (!v.given && cos.rank > 0 && kv.dims[3] != gamma.dims[0] + cos.Back(0)) {
    Refuse(kKv07, "D = " + Text(kv.dims[3]),
           "len(gamma) + rope width = " + Text(gamma.dims[0]) + " + " + Text(cos.Back(0)));
  }
}

void Call::CheckRope() const {
  if (cos.rank > 0 && cos.Back(0) % 2 != 0) Refuse(kKv08, "rope width " + Text(cos.Back(0)), "an even width");
  if (v.given) {
    if (v.rank != 4 || !std::equal(v.dims, v.dims + 3, kv.dims)) {
      Refuse(kKv10, "v " + v.ShapeText(), "[B, N, S, Dv] with B, N, S of kv " + kv.ShapeText());
    }
    if (gamma.dims[0] != kv.dims[3]) Refuse(kKv10, "gamma " + gamma.ShapeText(), ShapeText(kv.dims + 3, 1));
    if (cos.rank > 0 && cos.Back(0) > kv.dims[3]) {
      Refuse(kKv10, "rope width " + Text(cos.Back(0)), "at most the key width " + Text(kv.dims[3]));
    }
  }
  if (sin.rank != cos.rank || !std::equal(sin.dims, sin.dims + sin.rank, cos.dims)) {
    Refuse(kKv11, "sin " + sin.ShapeText(), "the shape of cos " + cos.ShapeText());
  }
  const auto fits = [&](size_t axis) { return cos.dims[axis] == 1 || cos.dims[axis] == kv.dims[axis]; };
  if (cos.rank != 4 || cos.dims[0] != kv.dims[0] || !fits(1) || !fits(2)) {
    Refuse(kKv11, "cos " + cos.ShapeText(), "[B, N or 1, S or 1, R] for kv " + kv.ShapeText());
  }
}

void Call::CheckCaches() {
  batch = kv.dims[0], heads = kv.dims[1], tokens = kv.dims[2];
  norm_width = static_cast<size_t>(gamma.dims[0]);
  rope_width = static_cast<size_t>(cos.dims[3]);
  k.width = v.given ? gamma.dims[0] : cos.dims[3];
  ckv.width = v.given ? v.dims[3] : gamma.dims[0];
  for (Cache* cache : {&k, &ckv}) {
    const Tensor& tensor = cache->input;
    const bool shaped =
        tensor.rank == 4 && tensor.dims[mode.paged() ? 2 : 1] == heads && tensor.dims[3] == cache->width;
    if (!shaped) {
      const std::string wanted = mode.paged() ? "[?, ?, " + Text(heads) : "[?, " + Text(heads) + ", ?";
      Refuse(kKv13, tensor.name + (" " + tensor.ShapeText()),
             wanted + ", " + Text(cache->width) + "] in mode " + mode.name);
    }
  }
  for (const Cache* cache : {&k, &ckv}) {
    if (mode.paged()) break;
    const Tensor& tensor = cache->input;
    if (tensor.dims[0] != batch) {
      Refuse(kKv14, tensor.name + (" batch " + Text(tensor.dims[0])), "B = " + Text(batch));
    }
    if (tensor.dims[2] < tokens) {
      Refuse(kKv14, tensor.name + (" rows " + Text(tensor.dims[2])), "at least S = " + Text(tokens));
    }
  }
  const int64_t *k_dims = k.input.dims, *ckv_dims = ckv.input.dims;
  if (!mode.paged() && k_dims[2] != ckv_dims[2]) {
    Refuse(kKv14, "rows " + Text(k_dims[2]) + " and " + Text(ckv_dims[2]), "equal rows in both caches");
  }
  if (mode.paged() && (k_dims[0] != ckv_dims[0] || k_dims[1] != ckv_dims[1])) {
    Refuse(kKv15, "k_cache " + ShapeText(k_dims, 2) + ", ckv_cache " + ShapeText(ckv_dims, 2),
           "equal block_num and block_size");
  }
  for (Cache* cache : {&k, &ckv}) {
    const size_t d0 = NzBlock(cache->input.type);
    const size_t width = static_cast<size_t>(cache->width);
    if (mode.order == CacheOrder::kNz && width % d0 != 0) {
      Refuse(kKv17, cache->input.name + (" width " + Text(cache->width)), "a multiple of " + std::to_string(d0));
    }
    const size_t rows = static_cast<size_t>(k_dims[mode.paged() ? 1 : 2]);
    cache->layout = {mode.order, rows, static_cast<size_t>(heads), width, d0};
  }
}

void Call::CheckIndex() const {
  const int64_t count = static_cast<int64_t>(slots().Count());
  const bool shaped = mode.paged() ? index.elements == count : index.Is({batch, tokens});
  if (!shaped) {
    const std::string wanted = mode.paged() ? "[" + Text(count) : "[" + Text(batch) + ", " + Text(tokens);
    Refuse(kKv18, "index " + index.ShapeText(), wanted + "] in mode " + mode.name);
  }
  slots().Check(kKv19);
}

void Call::CheckQuantisation() const {
  for (const Cache* cache : {&k, &ckv}) CheckOffsetHasScale(kKv20, cache->scale, cache->offset);
  for (const Cache* cache : {&k, &ckv}) CheckScaleFitsCache(kKv21, cache->input, cache->scale, kv.type);
  for (const Cache* cache : {&k, &ckv}) {
    for (const Tensor* tensor : {&cache->scale, &cache->offset}) {
      const int64_t width = cache->width;
      const bool fits = tensor->Is({1}) || tensor->Is({width}) || tensor->Is({1, width}) || tensor->Is({heads, width});
      if (tensor->given && !fits) {
        const std::string w = Text(width);
        Refuse(kKv22, tensor->name + (" " + tensor->ShapeText()),
               "[1], [" + w + "], [1, " + w + "] or [" + Text(heads) + ", " + w + "]");
      }
    }
  }
}

class KvRmsNormRopeCache final : public Kernel {
 public:
  explicit KvRmsNormRopeCache(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const float* Gamma(const Tensor& gamma, std::vector<float>* scratch) const;

  const RowKernels& kernels_;
  const ::kvfuse::CacheMode* mode_ = nullptr;
  float epsilon_;
  bool is_output_kv_;
  int float8_cast_;
  std::vector<float> gamma_;  // fp32 copy of a constant gamma of another type
};

KvRmsNormRopeCache::KvRmsNormRopeCache(const KernelInfo& info)
    : kernels_(SelectRowKernels()), epsilon_(info.Float(kAttrEpsilon)), is_output_kv_(info.Bool(kAttrIsOutputKv)) {
  std::string found;
  const int mode = info.Choice(kAttrCacheMode, &found);
  float8_cast_ = info.Choice(kAttrFloat8Cast, &found);
  if (float8_cast_ < 0) {
    Refuse({"AT-04", "an attribute has an unknown value"}, "float8_cast='" + found + "'", Join(kFloat8CastValues));
  }
  if (mode < 0) {
    info.Choice(kAttrCacheMode, &found);
    Refuse(kKv12, "cache_mode '" + found + "'", Join(kCacheModeValues));
  }
  mode_ = &kModes[mode];
  if (!std::isfinite(epsilon_)) Refuse(kKv29, "epsilon " + std::to_string(epsilon_), "a finite number");
  const Tensor gamma = info.ConstantInput(kInGamma);
  if (gamma.given && gamma.type != kFloat32 && gamma.elements > 0) {
    gamma_.resize(static_cast<size_t>(gamma.elements));
    kernels_.load[KindOf(gamma.type)](gamma.data, gamma_.size(), gamma_.data());
  }
}

const float* KvRmsNormRopeCache::Gamma(const Tensor& gamma, std::vector<float>* scratch) const {
  if (gamma.type == kFloat32) return gamma.As<float>();
  if (!gamma_.empty()) return gamma_.data();
  scratch->resize(static_cast<size_t>(gamma.elements));
  kernels_.load[KindOf(gamma.type)](gamma.data, scratch->size(), scratch->data());
  return scratch->data();
}

// A row under way: where it comes from, where it goes, and the root mean square of its normalised part.
struct Row {
  const char *kv, *cos, *sin;
  Place place;
  float rms;
};

// What a chunk of rows needs to know.
struct Job {
  const Call& call;
  const RowKernels& kernels;
  const float* gamma;
  float epsilon;
  Slots slots;
  CacheWriter k, ckv;

  static constexpr size_t kGroup = 4;  // rows that hide each other's latency

  void Rows(size_t begin, size_t end) const;
  void Finish(Row* rows, size_t count, float* scratch) const;
  void Joined(const Row& row, const float* left, float* scratch) const;
  void Separate(const Row& row, const float* key, float* scratch) const;

  // The group's rows in fp32, then room for what becomes of one of them.
  size_t ScratchSize() const {
    const size_t joined = std::max(call.norm_width, 2 * call.rope_width);
    const size_t separate = std::max(2 * call.norm_width, static_cast<size_t>(call.ckv.width));
    return kGroup * call.norm_width + (call.v.given ? separate : joined);
  }
};

void Job::Rows(size_t begin, size_t end) const {
  const size_t heads = static_cast<size_t>(call.heads), tokens = static_cast<size_t>(call.tokens);
  const size_t size = ElementSize(call.kv.type), kv_row = static_cast<size_t>(call.kv.dims[3]) * size;
  const size_t cos_heads = static_cast<size_t>(call.cos.dims[1]), cos_tokens = static_cast<size_t>(call.cos.dims[2]);
  Scratch scratch(ScratchSize());
  Row rows[kGroup];
  size_t waiting = 0;
  size_t s = begin % tokens, n = begin / tokens % heads, b = begin / tokens / heads;
  for (size_t i = begin; i < end; ++i) {
    const size_t cos_head = b * cos_heads + (cos_heads == 1 ? 0 : n);
    const size_t cos_row = (cos_head * cos_tokens + (cos_tokens == 1 ? 0 : s)) * call.rope_width * size;
    Row& row = rows[waiting];
    row = {call.kv.As<char>() + i * kv_row,
           call.cos.As<char>() + cos_row,
           call.sin.As<char>() + cos_row,
           {false, 0, 0, n, i},
           0.0f};
    row.place.has_slot = slots.Find(b, s, &row.place.page, &row.place.row);
    if (k.Wants(row.place) || ckv.Wants(row.place)) ++waiting;
    if (waiting == kGroup || i + 1 == end) {
      Finish(rows, waiting, scratch.data());
      waiting = 0;
    }
    if (++s == tokens) {
      s = 0;
      if (++n == heads) n = 0, ++b;
    }
  }
  kernels.finish();
}

void Job::Finish(Row* rows, size_t count, float* scratch) const {
  const FloatKind kind = KindOf(call.kv.type);
  const size_t width = call.norm_width;
  const bool keep = call.v.given || !ckv.Direct();
  for (size_t i = 0; i < count; ++i) {
    rows[i].rms = kernels.rms[kind](rows[i].kv, width, epsilon, keep ? scratch + i * width : nullptr);
  }
  for (size_t i = 0; i < count; ++i) {
    const float* x = kind == kKindFloat32 ? reinterpret_cast<const float*>(rows[i].kv) : scratch + i * width;
    (this->*(call.v.given ? &Job::Separate : &Job::Joined))(rows[i], x, scratch + kGroup * width);
  }
}

void Job::Joined(const Row& row, const float* left, float* scratch) const {
  const FloatKind kind = KindOf(call.kv.type);
  const size_t rope = call.rope_width;
  const char* right = row.kv + call.norm_width * ElementSize(call.kv.type);
  if (ckv.Wants(row.place)) {
    if (ckv.Direct()) {
      ckv.WriteNormalised(row.kv, gamma, row.rms, row.place);
    } else {
      ckv.WriteNormalised(left, gamma, row.rms, scratch, row.place);
    }
  }
  if (!k.Wants(row.place)) return;
  if (k.RotatesDirectly()) return k.WriteRotated(right, row.cos, row.sin, row.place);
  float *raw = scratch, *rotated = raw + rope;
  kernels.load[kind](right, rope, raw);
  kernels.rope_interleaved[kind](raw, row.cos, row.sin, rope, rotated);
  k.Write(rotated, row.place);
}

void Job::Separate(const Row& row, const float* key, float* scratch) const {
  const FloatKind kind = KindOf(call.kv.type);
  const size_t width = call.norm_width, rope = call.rope_width;
  float *normed = scratch, *rotated = scratch + width;
  kernels.normalise[kKindFloat32](key, gamma, row.rms, width, {normed, width, width});
  kernels.rope_interleaved[kind](normed, row.cos, row.sin, rope, rotated);
  std::copy(normed + rope, normed + width, rotated + rope);
  k.Write(rotated, row.place);

  const size_t v_width = static_cast<size_t>(call.ckv.width);
  const char* v = call.v.As<char>() + row.place.number * v_width * ElementSize(call.v.type);
  if (ckv.KeepsType()) return ckv.WriteBits(v, row.place);
  kernels.load[kind](v, v_width, scratch);
  ckv.Write(scratch, row.place);
}

void KvRmsNormRopeCache::Run(KernelContext& context) const {
  const Call call(context, *mode_);
  std::vector<float> gamma_scratch;
  const auto writer = [&](const Cache& cache) {
    return CacheWriter(cache.layout, cache.input.type, cache.scale, cache.offset, call.kv.type, float8_cast_, kernels_);
  };
  Job job{call, kernels_, Gamma(call.gamma, &gamma_scratch), epsilon_, call.slots(), writer(call.k), writer(call.ckv)};

  // Nothing is refused and nothing is allocated from here on.
  for (const Cache* cache : {&call.k, &call.ckv}) {
    const Tensor& input = cache->input;
    const size_t size = ElementSize(call.kv.type),
                 row_count = static_cast<size_t>(call.batch * call.heads * call.tokens);
    const int64_t raw_dims[] = {call.batch, call.heads, call.tokens, cache->width};
    void* data = context.Output(cache->output, input.dims, input.rank);
    void* raw = context.Output(cache->raw_output, raw_dims, 4);
    if (data != nullptr) {
      context.Copy(data, input.data, static_cast<size_t>(input.elements) * ElementSize(input.type));
    }
    if (raw != nullptr && !is_output_kv_) {
      std::memset(raw, 0, row_count * static_cast<size_t>(cache->width) * size);
      raw = nullptr;
    }
    const size_t written = row_count * static_cast<size_t>(cache->width) * ElementSize(input.type);
    (cache == &call.k ? job.k : job.ckv).SetMemory(data, raw, written);
  }
  const size_t rows = static_cast<size_t>(call.batch * call.heads * call.tokens);
  context.ForRows(rows, [&](size_t begin, size_t end) { job.Rows(begin, end); });
}

void KvRmsNormRopeCache::InferShapes(ShapeContext& context) {
  std::vector<InferredDim> rows, gamma, last;
  if (!context.Dims(kInKv, 4, &rows)) return;
  const bool has_gamma = context.Dims(kInGamma, 1, &gamma);
  const bool separate = context.Given(kInV);
  const bool has_last = context.Dims(separate ? kInV : kInCos, 4, &last);
  const InferredDim unknown, normed = has_gamma ? gamma[0] : unknown, other = has_last ? last[3] : unknown;
  rows[3] = separate ? normed : other;
  context.SetOutput(kOutKRope, rows);
  rows[3] = separate ? other : normed;
  context.SetOutput(kOutCKv, rows);
}

const Registered<kDeclaration, KvRmsNormRopeCache> kRegistered;

}  // namespace
}  // namespace kv_rms_norm_rope_cache
}  // namespace kvfuse

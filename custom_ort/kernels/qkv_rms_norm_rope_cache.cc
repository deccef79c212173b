// QkvRmsNormRopeCache on the CPU: RMSNorm and rotation of query and key heads, optional quantisation and cache write of
// keys and values.
//
// A row of qkv is a token: Nq query heads, Nk key heads and Nv value heads of D columns. cos and sin become fp32 once a
// token and serve all its heads. The policy is `generic`: refused is what has no meaning, not what some product cannot
// do.

#include "generated/qkv_rms_norm_rope_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cache_checks.h"
#include "cache_writer.h"
#include "framework.h"
#include "kv_cache.h"
#include "rows.h"

namespace kvfuse {
namespace qkv_rms_norm_rope_cache {
namespace {

constexpr ::kvfuse::CacheMode kModes[] = {{"PA_NZ", CacheOrder::kNz, SlotMeaning::kSlot}};
static_assert(sizeof kModes / sizeof kModes[0] == sizeof kCacheModeValues / sizeof kCacheModeValues[0]);

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// Sums and products of sizes >= 1; what does not fit is the largest number, which no tensor has.
int64_t Sum(int64_t a, int64_t b) { return a > kHuge - b ? kHuge : a + b; }
int64_t Product(int64_t a, int64_t b) { return a > kHuge / b ? kHuge : a * b; }

std::string List(const std::vector<int64_t>& values) { return ShapeText(values.data(), values.size()); }

// The sizes that the attributes give; batch and length may be -1.
struct Sizes {
  Sizes(const std::vector<int64_t>& qkv_size, const std::vector<int64_t>& head_nums);

  int64_t batch, length, heads, width;
  int64_t q, k, v;  // heads

  std::string Text() const { return List({batch, length, heads, width}); }
};

Sizes::Sizes(const std::vector<int64_t>& size, const std::vector<int64_t>& nums) {
  const auto open = [&](size_t i) { return size[i] < 1 && size[i] != -1; };
  if (size.size() != 4 || size[2] < 1 || size[3] < 1 || open(0) || open(1)) {
    Refuse(kQkv01, "qkv_size " + List(size), "[B, S, Nqkv, D], each >= 1, B and S also -1 (read from qkv)");
  }
  if (nums.size() != 3 || *std::min_element(nums.begin(), nums.end()) < 1) {
    Refuse(kQkv01, "head_nums " + List(nums), "[Nq, Nk, Nv], each >= 1");
  }
  batch = size[0], length = size[1], heads = size[2], width = size[3];
  q = nums[0], k = nums[1], v = nums[2];
  if (Sum(Sum(q, k), v) != heads) {
    Refuse(kQkv03, "head_nums " + List(nums) + " with Nqkv = " + kvfuse::Text(heads), "Nq + Nk + Nv = Nqkv");
  }
  if (width % 2 != 0) Refuse(kQkv06, "D " + kvfuse::Text(width), "an even D");
}

// A cache with what belongs to it: quantisation parameters and the unquantised result.
struct Cache {
  Tensor input, scale, offset;
  Output output, raw_output;
  int64_t heads;
  CacheLayout layout{};
};

// The tensors of a call, checked in the order of the contract's rules.
struct Call {
  Call(const KernelContext& context, const Sizes& sizes_, const ::kvfuse::CacheMode& mode_);

  void CheckRows() const;
  void CheckCaches();
  void CheckQuantisation() const;

  const Sizes& sizes;
  const ::kvfuse::CacheMode& mode;
  Tensor qkv, q_gamma, k_gamma, cos, sin, index, q_out;
  Cache k, v;
  int64_t tokens = 0;

  Slots slots() const {
    return Slots(mode, index.As<int64_t>(), static_cast<size_t>(tokens), 1, static_cast<size_t>(k.input.dims[0]),
                 k.layout.rows);
  }
};

Call::Call(const KernelContext& context, const Sizes& sizes_, const ::kvfuse::CacheMode& mode_)
    : sizes(sizes_),
      mode(mode_),
      qkv(context.Input(kInQkv)),
      q_gamma(context.Input(kInQGamma)),
      k_gamma(context.Input(kInKGamma)),
      cos(context.Input(kInCos)),
      sin(context.Input(kInSin)),
      index(context.Input(kInIndex)),
      q_out(context.Input(kInQOut)),
      k{context.Input(kInKCache),  context.Input(kInKScale),
        context.Input(kInKOffset), kOutKCache,
        kOutKOutBeforeQuant,       sizes.k},
      v{context.Input(kInVCache),  context.Input(kInVScale),
        context.Input(kInVOffset), kOutVCache,
        kOutVOutBeforeQuant,       sizes.v} {
  for (const Tensor* tensor : {&qkv, &q_gamma, &k_gamma, &cos, &sin, &index, &q_out, &k.input, &v.input, &k.scale,
                               &v.scale, &k.offset, &v.offset}) {
    CheckNotEmpty(kQkv20, *tensor);
  }
  CheckRows();
  CheckCaches();
  CheckQuantisation();
  slots().Check(kQkv19);
}

void Call::CheckRows() const {
  const int64_t columns = Product(sizes.heads, sizes.width);
  bool fits = qkv.rank == 2 && qkv.dims[1] == columns;
  if (fits && sizes.batch > 0 && sizes.length > 0) {
    fits = qkv.dims[0] == Product(sizes.batch, sizes.length);
  } else if (fits) {
    fits = qkv.dims[0] % std::max({sizes.batch, sizes.length, int64_t{1}}) == 0;
  }
  if (!fits) Refuse(kQkv02, "qkv " + qkv.ShapeText(), "[B*S, " + Text(columns) + "] for qkv_size " + sizes.Text());
  const int64_t rows = qkv.dims[0], width = sizes.width;
  CheckShape(kQkv08, index, {rows});
  for (const Tensor* gamma : {&q_gamma, &k_gamma}) CheckShape(kQkv09, *gamma, {width});
  for (const Tensor* table : {&cos, &sin}) CheckShape(kQkv09B, *table, {rows, width});
  CheckShape(kQkv10, q_out, {rows, sizes.q * width});
}

void Call::CheckCaches() {
  tokens = qkv.dims[0];
  for (const Cache* cache : {&k, &v}) {
    const int64_t d0 = static_cast<int64_t>(NzBlock(cache->input.type));
    if (sizes.width % d0 != 0) {
      Refuse(kQkv11, cache->input.name + (" width " + Text(sizes.width)), "a multiple of " + Text(d0));
    }
  }
  for (Cache* cache : {&k, &v}) {
    const Tensor& tensor = cache->input;
    const size_t d0 = NzBlock(tensor.type), width = static_cast<size_t>(sizes.width);
    const int64_t fractals = cache->heads * sizes.width / static_cast<int64_t>(d0);
    if (tensor.rank != 4 || tensor.dims[1] != fractals || tensor.dims[3] != static_cast<int64_t>(d0)) {
      Refuse(kQkv11B, tensor.name + (" " + tensor.ShapeText()),
             "[?, " + Text(fractals) + ", ?, " + std::to_string(d0) + "]: [block_num, N*D/d0, block_size, d0]");
    }
    const size_t rows = static_cast<size_t>(tensor.dims[2]);
    cache->layout = {mode.order, rows, static_cast<size_t>(cache->heads), width, d0};
  }
  const int64_t k_pages[] = {k.input.dims[0], k.input.dims[2]}, v_pages[] = {v.input.dims[0], v.input.dims[2]};
  if (!std::equal(k_pages, k_pages + 2, v_pages)) {
    Refuse(kQkv11C, "k_cache " + ShapeText(k_pages, 2) + ", v_cache " + ShapeText(v_pages, 2),
           "equal block_num and block_size");
  }
}

void Call::CheckQuantisation() const {
  for (const Cache* cache : {&k, &v}) CheckScaleFitsCache(kQkv15, cache->input, cache->scale, qkv.type);
  for (const Cache* cache : {&k, &v}) CheckOffsetHasScale(kQkv16, cache->scale, cache->offset);
  for (const Tensor* tensor : {&k.scale, &k.offset}) CheckShape(kQkv17, *tensor, {k.heads, sizes.width});
  for (const Tensor* tensor : {&v.scale, &v.offset}) CheckShape(kQkv17B, *tensor, {v.heads, sizes.width});
  for (const Cache* cache : {&k, &v}) CheckDivides(kQkv18, cache->scale);
}

// A gamma in fp32: the caller's memory, a copy made at creation, or one made for this call.
class Gamma {
 public:
  Gamma(const KernelInfo& info, size_t input, const RowKernels& kernels) : kernels_(kernels) {
    const Tensor gamma = info.ConstantInput(input);
    if (gamma.given && gamma.type != kFloat32 && gamma.elements > 0) Convert(gamma, &constant_);
  }
  const float* Of(const Tensor& gamma, std::vector<float>* scratch) const {
    if (gamma.type == kFloat32) return gamma.As<float>();
    if (!constant_.empty()) return constant_.data();
    Convert(gamma, scratch);
    return scratch->data();
  }

 private:
  void Convert(const Tensor& gamma, std::vector<float>* to) const {
    to->resize(static_cast<size_t>(gamma.elements));
    kernels_.load[KindOf(gamma.type)](gamma.data, to->size(), to->data());
  }

  const RowKernels& kernels_;
  std::vector<float> constant_;
};

class QkvRmsNormRopeCache final : public Kernel {
 public:
  explicit QkvRmsNormRopeCache(const KernelInfo& info);
  void Run(KernelContext& context) const override;
  static void InferShapes(ShapeContext& context);

 private:
  const RowKernels& kernels_;
  Sizes sizes_;
  float epsilon_;
  bool is_output_qkv_;
  Gamma q_gamma_, k_gamma_;
};

QkvRmsNormRopeCache::QkvRmsNormRopeCache(const KernelInfo& info)
    : kernels_(SelectRowKernels()),
      sizes_(info.Ints(kAttrQkvSize), info.Ints(kAttrHeadNums)),
      epsilon_(info.Float(kAttrEpsilon)),
      is_output_qkv_(info.Bool(kAttrIsOutputQkv)),
      q_gamma_(info, kInQGamma, kernels_),
      k_gamma_(info, kInKGamma, kernels_) {
  std::string found;
  if (info.Choice(kAttrCacheMode, &found) < 0) Refuse(kQkv14, "cache_mode '" + found + "'", Join(kCacheModeValues));
  if (!std::isfinite(epsilon_)) Refuse(kQkv23, "epsilon " + std::to_string(epsilon_), "a finite number");
}

// What a chunk of tokens needs to know.
struct Job {
  const Call& call;
  const RowKernels& kernels;
  const float *q_gamma, *k_gamma;
  float epsilon;
  Slots slots;
  CacheWriter k, v;
  char *q_out, *q_raw;  // null where the node does not ask for them

  static constexpr size_t kGroup = 4;  // heads that hide each other's latency

  void Tokens(size_t begin, size_t end) const;
  template <typename Finish>
  void Heads(const char* rows, size_t heads, const Finish& finish) const;
  void Values(const char* rows, Place place, float* scratch) const;

  FloatKind kind() const { return KindOf(call.qkv.type); }
  size_t size() const { return ElementSize(call.qkv.type); }
  size_t width() const { return static_cast<size_t>(call.sizes.width); }
};

// Calls finish(head, x, rms) for each head of a row.
template <typename Finish>
void Job::Heads(const char* rows, size_t heads, const Finish& finish) const {
  const size_t n = width(), bytes = n * size();
  for (size_t start = 0; start < heads; start += kGroup) {
    const size_t count = std::min(kGroup, heads - start);
    float rms[kGroup];
    for (size_t i = 0; i < count; ++i) {
      rms[i] = kernels.rms[kind()](rows + (start + i) * bytes, n, epsilon, nullptr);
    }
    for (size_t i = 0; i < count; ++i) finish(start + i, rows + (start + i) * bytes, rms[i]);
  }
}

void Job::Tokens(size_t begin, size_t end) const {
  const size_t n = width(), bytes = n * size();
  const size_t q_heads = static_cast<size_t>(call.sizes.q), k_heads = static_cast<size_t>(call.sizes.k);
  const size_t row_bytes = static_cast<size_t>(call.sizes.heads) * bytes, q_bytes = q_heads * bytes;
  Scratch memory(3 * n);
  float *rotated = memory.data(), *cos_row = rotated + n, *sin_row = cos_row + n;
  for (size_t t = begin; t < end; ++t) {
    const char* row = call.qkv.As<char>() + t * row_bytes;
    const float *cos = call.cos.As<float>() + t * n, *sin = call.sin.As<float>() + t * n;
    if (kind() != kKindFloat32) {
      kernels.load[kind()](call.cos.As<char>() + t * bytes, n, cos_row);
      kernels.load[kind()](call.sin.As<char>() + t * bytes, n, sin_row);
      cos = cos_row, sin = sin_row;
    }
    if (char* q = q_out != nullptr ? q_out : q_raw) {
      char* out = q + t * q_bytes;
      Heads(row, q_heads, [&](size_t head, const char* x, float rms) {
        kernels.normalise_rope_halves_row[kind()](x, q_gamma, rms, cos, sin, n, out + head * bytes);
      });
      if (q_raw != nullptr && q != q_raw) std::memcpy(q_raw + t * q_bytes, out, q_bytes);
    }
    Place place{false, 0, 0, 0, t};
    place.has_slot = slots.Find(t, 0, &place.page, &place.row);
    if (k.Wants(place)) {
      Heads(row + q_bytes, k_heads, [&](size_t head, const char* x, float rms) {
        kernels.normalise_rope_halves[kind()](x, k_gamma, rms, cos, sin, n, rotated);
        k.Write(rotated, {place.has_slot, place.page, place.row, head, t * k_heads + head});
      });
    }
    if (v.Wants(place)) Values(row + q_bytes + k_heads * bytes, place, rotated);
  }
}

void Job::Values(const char* rows, Place place, float* scratch) const {
  const size_t n = width(), heads = static_cast<size_t>(call.sizes.v), token = place.number;
  for (size_t head = 0; head < heads; ++head, rows += n * size()) {
    place.head = head, place.number = token * heads + head;
    if (v.KeepsType()) {
      v.WriteBits(rows, place);
    } else {
      kernels.load[kind()](rows, n, scratch);
      v.Write(scratch, place);
    }
  }
}

void QkvRmsNormRopeCache::Run(KernelContext& context) const {
  const Call call(context, sizes_, kModes[0]);
  std::vector<float> q_scratch, k_scratch;
  const auto writer = [&](const Cache& cache) {
    return CacheWriter(cache.layout, cache.input.type, cache.scale, cache.offset, call.qkv.type, 0, kernels_,
                       Scaling::kDivides);
  };
  Job job{call,
          kernels_,
          q_gamma_.Of(call.q_gamma, &q_scratch),
          k_gamma_.Of(call.k_gamma, &k_scratch),
          epsilon_,
          call.slots(),
          writer(call.k),
          writer(call.v),
          nullptr,
          nullptr};

  // Nothing is refused and nothing is allocated from here on.
  const auto raw = [&](Output output, int64_t heads) {
    const int64_t full[] = {call.tokens, heads * sizes_.width}, none[] = {0};
    void* data = is_output_qkv_ ? context.Output(output, full, 2) : context.Output(output, none, 1);
    return is_output_qkv_ ? static_cast<char*>(data) : nullptr;
  };
  const int64_t q_dims[] = {call.tokens, sizes_.q * sizes_.width};
  job.q_out = static_cast<char*>(context.Output(kOutQOut, q_dims, 2));
  job.q_raw = raw(kOutQOutBeforeQuant, sizes_.q);
  for (const Cache* cache : {&call.k, &call.v}) {
    const Tensor& input = cache->input;
    void* data = context.Output(cache->output, input.dims, input.rank);
    if (data != nullptr) {
      context.Copy(data, input.data, static_cast<size_t>(input.elements) * ElementSize(input.type));
    }
    (cache == &call.k ? job.k : job.v).SetMemory(data, raw(cache->raw_output, cache->heads));
  }
  constexpr size_t kHeadsOfOneCost = 4;
  const size_t cost = std::max(size_t{1}, static_cast<size_t>(sizes_.heads) / kHeadsOfOneCost);
  const size_t tokens = static_cast<size_t>(call.tokens);
  context.ForRows(tokens, [&](size_t begin, size_t end) { job.Tokens(begin, end); }, cost);
}

void QkvRmsNormRopeCache::InferShapes(ShapeContext& context) {
  std::vector<int64_t> size, heads;
  std::vector<InferredDim> row;
  if (!context.Dims(kInQkv, 2, &row)) row.resize(2);
  const bool known =
      context.Ints(kAttrQkvSize, &size) && size.size() == 4 && context.Ints(kAttrHeadNums, &heads) && heads.size() == 3;
  const auto columns = [&](size_t place) {
    row[1] = {known && heads[place] > 0 && size[3] > 0 ? Product(heads[place], size[3]) : -1, ""};
    return row;
  };
  if (!context.Given(kInQOut)) context.SetOutput(kOutQOut, columns(0));
  const bool delivered = context.Bool(kAttrIsOutputQkv);
  for (size_t place = 0; place < 3; ++place) {
    const size_t output = kOutQOutBeforeQuant + place;
    context.SetOutput(output, delivered ? columns(place) : std::vector<InferredDim>{{0, ""}});
  }
}

const Registered<kDeclaration, QkvRmsNormRopeCache> kRegistered;

}  // namespace
}  // namespace qkv_rms_norm_rope_cache
}  // namespace kvfuse

#include "mla_call.h"

#include <algorithm>
#include <cmath>

#include "cache_checks.h"
#include "generated/mla_prolog_v3.h"

namespace kvfuse::mla {
namespace {

using namespace mla_prolog_v3;  // NOLINT: the declaration's names

constexpr Mode kModes[] = {
    {"PA_BSND", CacheOrder::kBsnd, Index::kSlot},     {"PA_NZ", CacheOrder::kNz, Index::kSlot},
    {"PA_BLK_BSND", CacheOrder::kBsnd, Index::kPage}, {"PA_BLK_NZ", CacheOrder::kNz, Index::kPage},
    {"BSND", CacheOrder::kBsnd, Index::kNone},        {"TND", CacheOrder::kBsnd, Index::kNone},
};
static_assert(sizeof kModes / sizeof kModes[0] == sizeof kCacheModeValues / sizeof kCacheModeValues[0]);

std::string Text(int64_t number) { return std::to_string(number); }

void RequireNumber(const Constraint& constraint, const char* name, int64_t value, int64_t count) {
  if (value < 0 || value >= count) Refuse(constraint, name + (" " + Text(value)), "0 to " + Text(count - 1));
}

void RequireFinite(const Constraint& constraint, const char* name, float value) {
  if (!std::isfinite(value)) Refuse(constraint, name + (" " + std::to_string(value)), "a finite number");
}

std::string ModesText(const Modes& modes) {
  return "weight_quant_mode " + Text(modes.weights) + ", kv_cache_quant_mode " + Text(modes.cache);
}

struct TypeRule {
  const char* name;
  int type;
  bool fits;
  std::string wanted;
};

void CheckTypes(const KernelInfo& info, const Modes& modes) {
  const std::string plain = ElementTypeName(modes.plain);
  const int weight = modes.weights == 2 ? int{kInt8} : modes.weights >= 3 ? int{kFloat8E4m3fn} : modes.plain;
  const int up = modes.weights == 1 ? int{kInt8} : weight;
  const int kv = info.InputType(kInKvCache), kr = info.InputType(kInKrCache), query = info.OutputType(kOutQuery);
  const int scales = info.InputType(kInDequantScaleX);
  const bool eight = kv == kInt8 || kv == kFloat8E4m3fn;
  const bool kv_fits = modes.cache == 0 ? Keeps(kv, modes.plain) : modes.cache == 2 ? kv == kInt8 : eight;
  const int kr_wanted = modes.cache == 0 ? kv : modes.cache == 2 ? int{kInt8} : modes.plain;
  const bool hif8 = modes.weights == 5;
  const TypeRule rules[] = {
      {"token_x", info.InputType(kInTokenX), !hif8 && info.InputType(kInTokenX) == weight,
       hif8 ? "hifloat8" : ElementTypeName(weight)},
      {"weight_uq_qr", info.InputType(kInWeightUqQr), info.InputType(kInWeightUqQr) == up, ElementTypeName(up)},
      {"kv_cache", kv, kv_fits,
       modes.cache == 0   ? KeptText(modes.plain)
       : modes.cache == 2 ? "int8"
                          : "int8 | float8_e4m3fn | hifloat8"},
      {"kr_cache", kr, kr == kr_wanted, ElementTypeName(kr_wanted)},
      {"dequant_scale_x", scales, scales == (modes.mx() ? int{kUint8} : int{kFloat32}),
       modes.mx() ? "float8_e8m0 | uint8" : "float32"},
      {"query", query, query == (modes.query ? kv : modes.plain), ElementTypeName(modes.query ? kv : modes.plain)},
  };
  for (const TypeRule& rule : rules) {
    if (!rule.fits) {
      Refuse(kMla15, rule.name + (" " + std::string(ElementTypeName(rule.type))),
             rule.wanted + " with " + ModesText(modes));
    }
  }
}

}  // namespace

Modes::Modes(const KernelInfo& info)
    : weights(info.Int(kAttrWeightQuantMode)),
      cache(info.Int(kAttrKvCacheQuantMode)),
      tile(info.Int(kAttrTileSize)),
      query(info.Int(kAttrQueryQuantMode) == 1),
      norm(info.Bool(kAttrQueryNormFlag)),
      epsilon_q(info.Float(kAttrRmsnormEpsilonCq)),
      epsilon_kv(info.Float(kAttrRmsnormEpsilonCkv)),
      scale_q(info.Float(kAttrQcQrScale)),
      scale_kv(info.Float(kAttrKcScale)),
      plain(info.InputType(kInWeightUk)) {
  std::string found;
  const int word = info.Choice(kAttrCacheMode, &found);
  if (word < 0) {
    std::string words;
    for (const char* value : kCacheModeValues) words += (words.empty() ? "" : " | ") + std::string(value);
    Refuse(kMla05, "cache_mode '" + found + "'", words);
  }
  mode = &kModes[word];
  RequireNumber(kMla10, "weight_quant_mode", weights, 6);
  RequireNumber(kMla10B, "kv_cache_quant_mode", cache, 4);
  RequireNumber(kMla11, "query_quant_mode", info.Int(kAttrQueryQuantMode), 2);
  if (query && cache != 1) {
    Refuse(kMla11B, "query_quant_mode 1 with kv_cache_quant_mode " + Text(cache), "kv_cache_quant_mode 1");
  }
  const int64_t packed = cache == 3 ? 1 : 0;
  for (const size_t attribute : {size_t{kAttrCkvkrRepoMode}, size_t{kAttrQuantScaleRepoMode}}) {
    const int64_t value = info.Int(attribute);
    if (value != packed) {
      Refuse(kMla12, kAttrs[attribute].name + (" " + Text(value)),
             Text(packed) + " with kv_cache_quant_mode " + Text(cache));
    }
  }
  if (packed != 0 && (mode->order == CacheOrder::kNz || mode->index == Index::kPage)) {
    Refuse(kMla13, "cache_mode " + std::string(mode->name), "PA_BSND, BSND or TND");
  }
  RequireFinite(kMla20, "rmsnorm_epsilon_cq", epsilon_q);
  RequireFinite(kMla20B, "rmsnorm_epsilon_ckv", epsilon_kv);
  CheckTypes(info, *this);
}

Call::Call(const KernelContext& context, const Modes& modes_)
    : modes(modes_),
      x(context.Input(kInTokenX)),
      weight_dq(context.Input(kInWeightDq)),
      weight_uq_qr(context.Input(kInWeightUqQr)),
      weight_uk(context.Input(kInWeightUk)),
      weight_dkv_kr(context.Input(kInWeightDkvKr)),
      gamma_q(context.Input(kInRmsnormGammaCq)),
      gamma_kv(context.Input(kInRmsnormGammaCkv)),
      sin(context.Input(kInRopeSin)),
      cos(context.Input(kInRopeCos)),
      kv(context.Input(kInKvCache)),
      kr(context.Input(kInKrCache)),
      index(context.Input(kInCacheIndex)),
      scale_x(context.Input(kInDequantScaleX)),
      scale_dq(context.Input(kInDequantScaleWDq)),
      scale_uq_qr(context.Input(kInDequantScaleWUqQr)),
      scale_dkv_kr(context.Input(kInDequantScaleWDkvKr)),
      quant_kv(context.Input(kInQuantScaleCkv)),
      quant_kr(context.Input(kInQuantScaleCkr)),
      smooth(context.Input(kInSmoothScalesCq)),
      lengths(context.Input(kInActualSeqLen)),
      clip(context.Input(kInKNopeClipAlpha)) {
  CheckSizes();
  CheckWeights();
  CheckOptional();
  CheckCaches();
  CheckLengths();
  CheckIndex();
  FindSlots();
}

void Call::ExpectShape(const Constraint& constraint, const Tensor& tensor, std::initializer_list<int64_t> shape) const {
  if (!tensor.Is(shape)) {
    Refuse(constraint, tensor.name + (" " + tensor.ShapeText()), ShapeText(shape.begin(), shape.size()));
  }
}

void Call::CheckSizes() {
  if (x.rank != 2 && x.rank != 3) Refuse(kMla01, "token_x " + x.ShapeText(), "[T, He] or [B, S, He]");
  const std::string name = modes.mode->name;
  if ((name == "BSND" && flat()) || (name == "TND" && !flat())) {
    Refuse(kMla06, "token_x " + x.ShapeText(), flat() ? "[B, S, He]" : "[T, He]");
  }
  const auto full = [](const Tensor& tensor, size_t axes) {
    const size_t first = tensor.rank > axes ? tensor.rank - axes : 0;
    if (!tensor.given || std::find(tensor.dims + first, tensor.dims + tensor.rank, 0) == tensor.dims + tensor.rank)
      return;
    Refuse(kMla21, tensor.name + (" " + tensor.ShapeText()), "only B, S, T and cache rows of 0");
  };
  full(x, 1);
  for (const Tensor* tensor : {&weight_dq, &weight_uq_qr, &weight_uk, &weight_dkv_kr, &gamma_q, &gamma_kv}) {
    full(*tensor, kMaxRank);
  }
  full(sin, 1);
  full(cos, 1);
  full(kv, 2);
  if (modes.cache != 3) full(kr, 2);
  full(scale_x, 1);
  for (const Tensor* tensor : {&scale_dq, &scale_uq_qr, &scale_dkv_kr, &quant_kv, &quant_kr, &smooth, &clip}) {
    full(*tensor, kMaxRank);
  }
  const int64_t count = flat() ? x.dims[0] : x.dims[0] == 0 || x.dims[1] == 0 ? 0 : x.dims[0] * x.dims[1];
  tokens = static_cast<size_t>(count);
}

void Call::CheckWeights() const {
  if (cos.rank > 0 && cos.Back(0) % 2 != 0) Refuse(kMla02, "Dr " + Text(cos.Back(0)), "an even Dr");
  if (weight_dq.rank != 2) Refuse(kMla03, "weight_dq " + weight_dq.ShapeText(), "[?, ?]");
  if (weight_uk.rank != 3) Refuse(kMla03, "weight_uk " + weight_uk.ShapeText(), "[?, ?, ?]");
  const int64_t he = x.Back(0), hcq = weight_dq.dims[1];
  if (weight_dq.dims[0] != he) Refuse(kMla03, "weight_dq " + weight_dq.ShapeText(), "[" + Text(he) + ", ?]");
  if (cos.rank > 0) {
    const int64_t dr = cos.Back(0), n = weight_uk.dims[0], d = weight_uk.dims[1], hckv = weight_uk.dims[2];
    // Written so that no size, however large, overflows.
    const bool up = weight_uq_qr.rank == 2 && weight_uq_qr.dims[0] == hcq && weight_uq_qr.dims[1] % n == 0 &&
                    weight_uq_qr.dims[1] / n - d == dr;
    if (!up) {
      Refuse(kMla03, "weight_uq_qr " + weight_uq_qr.ShapeText(),
             "[" + Text(hcq) + ", " + Text(n) + "*(" + Text(d) + "+" + Text(dr) + ")]");
    }
    if (weight_dkv_kr.rank != 2 || weight_dkv_kr.dims[0] != he || weight_dkv_kr.dims[1] - hckv != dr) {
      Refuse(kMla03, "weight_dkv_kr " + weight_dkv_kr.ShapeText(),
             "[" + Text(he) + ", " + Text(hckv) + "+" + Text(dr) + "]");
    }
  }
  if (modes.mx() && he % kMxBlock != 0) Refuse(kMla03B, "He " + Text(he), "a multiple of " + Text(kMxBlock));
  if (modes.mx() && hcq % kMxBlock != 0) Refuse(kMla03B, "Hcq " + Text(hcq), "a multiple of " + Text(kMxBlock));
  ExpectShape(kMla04, gamma_q, {hcq});
  ExpectShape(kMla04, gamma_kv, {weight_uk.dims[2]});
  for (const Tensor* tensor : {&sin, &cos}) {
    if (tensor->rank != x.rank || !std::equal(x.dims, x.dims + x.rank - 1, tensor->dims) || cos.rank == 0 ||
        tensor->Back(0) != cos.Back(0)) {
      Refuse(kMla04, tensor->name + (" " + tensor->ShapeText()),
             "token_x's " + ShapeText(x.dims, x.rank - 1) + " and Dr");
    }
  }
}

void Call::ExpectGiven(const Tensor& tensor, bool wanted) const {
  if (tensor.given == wanted) return;
  const std::string absent = std::string("no ") + tensor.name;
  Refuse(kMla16, wanted ? absent : tensor.name, (wanted ? tensor.name : absent) + " with " + ModesText(modes));
}

void Call::CheckOptional() const {
  const int64_t he = x.Back(0), hcq = weight_dq.dims[1], hckv = weight_uk.dims[2], dr = cos.Back(0);
  const int64_t up = weight_uq_qr.dims[1], count = static_cast<int64_t>(tokens);
  if (modes.cache == 3 && (modes.tile < 1 || hckv % modes.tile != 0)) {
    Refuse(kMla18, "tile_size " + Text(modes.tile), "a divisor of Hckv = " + Text(hckv));
  }
  const auto scale = [&](const Tensor& tensor, bool wanted, int64_t columns, int64_t rows) {
    ExpectGiven(tensor, wanted);
    if (!wanted) return;
    if (modes.mx()) {
      ExpectShape(kMla16, tensor, {columns, rows / kMxBlock});
    } else {
      ExpectShape(kMla16, tensor, {1, columns});
    }
  };
  ExpectGiven(scale_x, modes.weights >= 2);
  if (scale_x.given) ExpectShape(kMla16, scale_x, {count, modes.mx() ? he / kMxBlock : 1});
  scale(scale_dq, modes.weights >= 2, hcq, he);
  scale(scale_uq_qr, modes.weights >= 1, up, hcq);
  scale(scale_dkv_kr, modes.weights >= 2, hckv + dr, he);
  ExpectGiven(quant_kv, modes.cache == 1 || modes.cache == 2);
  if (quant_kv.given && !(modes.cache == 1 && quant_kv.Is({1}))) ExpectShape(kMla16, quant_kv, {1, hckv});
  ExpectGiven(quant_kr, modes.cache == 2);
  if (quant_kr.given) ExpectShape(kMla16, quant_kr, {1, dr});
  if (modes.weights == 0 || modes.weights == 3) ExpectGiven(smooth, false);
  if (smooth.given) ExpectShape(kMla16, smooth, {1, hcq});
  ExpectGiven(clip, modes.cache == 3 && (kv.type == kInt8 || modes.weights >= 4));
  if (clip.given) ExpectShape(kMla16, clip, {1});
  if (modes.cache == 1) {
    const float* values = quant_kv.As<float>();
    for (int64_t i = 1; i < quant_kv.elements; ++i) {
      if (values[i] != values[0]) {
        Refuse(kMla16B, "quant_scale_ckv with unequal entries", "one scale for the tensor");
      }
    }
  }
}

void Call::CheckCaches() {
  hidden = static_cast<size_t>(x.Back(0));
  q_rank = static_cast<size_t>(weight_dq.dims[1]);
  heads = static_cast<size_t>(weight_uk.dims[0]);
  nope = static_cast<size_t>(weight_uk.dims[1]);
  kv_rank = static_cast<size_t>(weight_uk.dims[2]);
  rope = static_cast<size_t>(cos.Back(0));
  kv_width = kv_rank;
  if (modes.cache == 3) {
    kv_width += rope * ElementSize(modes.plain) + kv_rank / static_cast<size_t>(modes.tile) * sizeof(float);
  }
  const int64_t width = static_cast<int64_t>(kv_width);
  const bool paged = modes.mode->index != Index::kNone;
  const size_t lead = paged ? 2 : x.rank - 1;
  const bool fits = kv.rank == lead + 2 && kv.Back(1) == 1 && kv.Back(0) == width &&
                    (paged || std::equal(x.dims, x.dims + lead, kv.dims));
  if (!fits) {
    const std::string rows = paged ? "?, ?" : flat() ? Text(x.dims[0]) : Text(x.dims[0]) + ", " + Text(x.dims[1]);
    Refuse(kMla08, "kv_cache " + kv.ShapeText(), "[" + rows + ", 1, " + Text(width) + "]");
  }
  if (modes.cache != 3 &&
      (kr.rank != kv.rank || !std::equal(kv.dims, kv.dims + kv.rank - 1, kr.dims) || kr.Back(0) != cos.Back(0))) {
    int64_t wanted[kMaxRank];
    std::copy(kv.dims, kv.dims + kv.rank, wanted);
    wanted[kv.rank - 1] = cos.Back(0);
    Refuse(kMla08, "kr_cache " + kr.ShapeText(), ShapeText(wanted, kv.rank));
  }
  const size_t rows = paged ? static_cast<size_t>(kv.dims[1]) : tokens;
  kv_layout = {modes.mode->order, rows, 1, kv_width, NzBlock(kv.type)};
  kr_layout = {modes.mode->order, rows, 1, rope, NzBlock(kr.type)};
  for (const auto& [tensor, layout] : {std::pair{&kv, &kv_layout}, std::pair{&kr, &kr_layout}}) {
    if (layout->order == CacheOrder::kNz && layout->columns % layout->d0 != 0) {
      Refuse(kMla08B, tensor->name + (" width " + std::to_string(layout->columns)),
             "a multiple of " + std::to_string(layout->d0));
    }
  }
  if (modes.cache == 3 && kr.elements != 0) Refuse(kMla14, "kr_cache " + kr.ShapeText(), "an empty tensor such as [0]");
}

void Call::CheckLengths() const {
  const bool wanted = modes.mode->index == Index::kPage && flat();
  if (lengths.given != wanted) {
    const std::string with = std::string("cache_mode ") + modes.mode->name + " and token_x " + x.ShapeText();
    Refuse(kMla17, wanted ? "no actual_seq_len" : "actual_seq_len", (wanted ? "it with " : "none with ") + with);
  }
  if (!wanted) return;
  if (lengths.rank != 1) Refuse(kMla17, "actual_seq_len " + lengths.ShapeText(), "[B]");
  int32_t last = 0;
  for (int64_t i = 0; i < lengths.dims[0]; ++i) {
    const int32_t end = lengths.As<int32_t>()[i];
    if (end < last) Refuse(kMla17, "actual_seq_len[" + Text(i) + "] = " + Text(end), "at least " + Text(last));
    last = end;
  }
  if (static_cast<size_t>(last) != tokens) {
    Refuse(kMla17, "the last element " + Text(last), "T = " + std::to_string(tokens));
  }
}

// Pages that the tokens take, each sequence beginning a new one.
int64_t Call::Pages() const {
  const int64_t rows = kv.dims[1];
  if (!flat()) return x.dims[0] * (x.dims[1] / rows + (x.dims[1] % rows != 0 ? 1 : 0));
  int64_t pages = 0, start = 0;
  for (int64_t i = 0; i < lengths.dims[0]; ++i) {
    const int64_t end = lengths.As<int32_t>()[i];
    pages += (end - start + rows - 1) / rows;
    start = end;
  }
  return pages;
}

void Call::CheckIndex() {
  const bool paged = modes.mode->index != Index::kNone, by_page = modes.mode->index == Index::kPage;
  if (index.given != paged) {
    Refuse(kMla07, index.given ? "cache_index" : "no cache_index",
           (paged ? "cache_index in mode " : "no cache_index in mode ") + std::string(modes.mode->name));
  }
  const bool no_slots = paged && (kv.dims[0] == 0 || kv.dims[1] == 0);
  if (!paged || (by_page && no_slots)) return;
  if (!by_page) {
    if (index.rank != x.rank - 1 || !std::equal(x.dims, x.dims + x.rank - 1, index.dims)) {
      Refuse(kMla07, "cache_index " + index.ShapeText(), ShapeText(x.dims, x.rank - 1));
    }
  } else {
    const int64_t pages = Pages(), batch = x.dims[0];
    const bool matrix = !flat() && index.rank == 2 && index.dims[0] == batch &&
                        index.dims[1] == x.dims[1] / kv.dims[1] + (x.dims[1] % kv.dims[1] != 0 ? 1 : 0);
    if (!matrix && !index.Is({pages})) {
      Refuse(kMla07, "cache_index " + index.ShapeText(),
             "[" + Text(pages) + "]" + (flat() ? "" : " or a row of pages for each batch"));
    }
  }
  if (no_slots) return;
  const int64_t limit = kv.dims[0] * (by_page ? 1 : kv.dims[1]);
  const int64_t* values = index.As<int64_t>();
  const size_t count = static_cast<size_t>(index.elements);
  for (size_t i = 0; i < count; ++i) {
    if (values[i] < -1 || values[i] >= limit) {
      Refuse(kMla19, "cache_index[" + std::to_string(i) + "] = " + Text(values[i]), "-1 (skip) to " + Text(limit - 1));
    }
  }
  const size_t repeat = FirstRepeat(values, count, 1);
  if (repeat != kNone) {
    Refuse(kMla19, "cache_index[" + std::to_string(repeat) + "] = " + Text(values[repeat]) + " again",
           by_page ? "distinct pages" : "distinct slots");
  }
}

void Call::FindSlots() {
  if (kv.elements == 0) return;
  slots.resize(tokens);
  const int64_t* values = index.As<int64_t>();
  if (modes.mode->index != Index::kPage) {
    for (size_t t = 0; t < tokens; ++t) slots[t] = index.given ? values[t] : static_cast<int64_t>(t);
    return;
  }
  const int64_t rows = kv.dims[1], sequences = flat() ? lengths.dims[0] : x.dims[0];
  size_t t = 0, page = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t end = flat() ? lengths.As<int32_t>()[i] : (i + 1) * x.dims[1];
    for (int64_t s = 0; static_cast<int64_t>(t) < end; ++s, ++t) {
      const int64_t number = values[page + static_cast<size_t>(s / rows)];
      slots[t] = number < 0 ? -1 : number * rows + s % rows;
      if (static_cast<int64_t>(t) + 1 == end) page += static_cast<size_t>(s / rows) + 1;
    }
  }
}

}  // namespace kvfuse::mla

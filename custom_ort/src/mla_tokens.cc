#include "mla_tokens.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace kvfuse::mla {
namespace {

constexpr size_t kBlockTokens = 256, kHeadTokens = 64, kPanelsTogether = 3;
constexpr float kSmallestTile = 1e-4f;  // of a float8 tile, as the contract has it

size_t RowFloats(const PackedWeight& weight) {
  return OddLines(weight.panels() * kPanelColumns * sizeof(float)) / sizeof(float);
}

RowTarget Plain(void* data, size_t n) { return {data, n, n}; }

}  // namespace

void Arena::Reset(size_t bytes) {
  constexpr size_t kAlignment = 64;
  if (bytes > size_) {
    memory_.reset();
    size_ = 0;
    memory_.reset(new char[bytes + kAlignment]);
    size_ = bytes;
  }
  char* start = memory_.get();
  next_ = start + (kAlignment - reinterpret_cast<uintptr_t>(start) % kAlignment);
}

// Scratch rows of a block of tokens.
struct Tokens::Block {
  size_t first, count;
  char* x;  // prepared token_x
  size_t x_bytes;
  float *a, *b;  // down-projections; int32 before they are dequantised
  size_t a_stride, b_stride;
  char* c;  // prepared normed query
  size_t c_bytes;
  float* scale_c;
};

Tokens::Tokens(const Call& call, const Weights& weights, const Outputs& outputs, const RowKernels& rows,
               const GemmKernels& products)
    : call_(call),
      modes_(call.modes),
      weights_(weights),
      outputs_(outputs),
      rows_(rows),
      products_(products),
      plain_(KindOf(call.modes.plain)),
      plain_size_(ElementSize(call.modes.plain)),
      gamma_q_(call.q_rank),
      gamma_kv_(call.kv_rank) {
  rows_.load[plain_](call.gamma_q.data, call.q_rank, gamma_q_.data());
  rows_.load[plain_](call.gamma_kv.data, call.kv_rank, gamma_kv_.data());
  if (call.kv.type == kFloat8E4m3fn) cache_kind_ = kQuantE4m3fnSaturate, cache_largest_ = 448.0f;
  if (modes_.cache == 1) quant_kv_.assign(call.kv_rank, *call.quant_kv.As<float>());
}

void Tokens::Run(KernelContext& context) const {
  static thread_local Arena arena;
  const size_t most = std::min(call_.tokens, kBlockTokens);
  Block block{};
  block.x_bytes = Kind(*weights_.dq).row_bytes(call_.hidden);
  block.c_bytes = Kind(*weights_.uq_qr).row_bytes(call_.q_rank);
  block.a_stride = RowFloats(*weights_.dq);
  block.b_stride = RowFloats(*weights_.dkv_kr);
  const size_t a_bytes = most * block.a_stride * sizeof(float), b_bytes = most * block.b_stride * sizeof(float);
  arena.Reset(Arena::Rounded(most * block.x_bytes) + Arena::Rounded(a_bytes) + Arena::Rounded(b_bytes) +
              Arena::Rounded(most * block.c_bytes) + Arena::Rounded(most * sizeof(float)));
  block.x = arena.Take<char>(most * block.x_bytes);
  block.a = arena.Take<float>(a_bytes);
  block.b = arena.Take<float>(b_bytes);
  block.c = arena.Take<char>(most * block.c_bytes);
  block.scale_c = arena.Take<float>(most * sizeof(float));
  const size_t width = std::max({call_.hidden, call_.q_rank, call_.kv_width + call_.rope});
  const size_t groups_q = (weights_.dq->panels() + kPanelsTogether - 1) / kPanelsTogether;
  const size_t groups_kv = (weights_.dkv_kr->panels() + kPanelsTogether - 1) / kPanelsTogether;
  for (; block.first < call_.tokens; block.first += block.count) {
    block.count = std::min(call_.tokens - block.first, kBlockTokens);
    context.ForRows(block.count, [&](size_t begin, size_t end) {
      const std::unique_ptr<char[]> scratch(new char[2 * width]);
      for (size_t i = begin; i < end; ++i) PrepareRow(block, i, scratch.get());
    });
    context.ForTasks(groups_q + groups_kv, [&](size_t begin, size_t end) {
      for (size_t task = begin; task < end; ++task) Down(block, task);
    });
    context.ForRows(block.count, [&](size_t begin, size_t end) {
      const std::unique_ptr<float[]> scratch(new float[2 * width + 2 * call_.rope]);
      for (size_t i = begin; i < end; ++i) NormRow(block, i, scratch.get());
    });
    const size_t parts = (block.count + kHeadTokens - 1) / kHeadTokens;
    context.ForTasks(call_.heads * parts, [&](size_t begin, size_t end) {
      for (size_t task = begin; task < end; ++task) {
        const size_t part = task % parts * kHeadTokens;
        Head(block, task / parts, part, std::min(part + kHeadTokens, block.count));
      }
    });
  }
}

void Tokens::PrepareRow(const Block& block, size_t i, char* scratch) const {
  const size_t token = block.first + i, he = call_.hidden;
  const char* x = call_.x.As<char>() + token * he * ElementSize(call_.x.type);
  if (call_.x.type == kFloat8E4m3fn) {  // exact in bf16, its MX scale included
    const uint8_t* values = reinterpret_cast<const uint8_t*>(x);
    const uint8_t* codes = modes_.mx() ? call_.scale_x.As<uint8_t>() + token * (he / kMxBlock) : nullptr;
    Bfloat* row = reinterpret_cast<Bfloat*>(scratch);
    for (size_t k = 0; k < he; ++k) {
      const float value = ToFloatE4m3fn(values[k]);
      row[k] = ToBfloat(codes == nullptr ? value : value * MxScale(codes[k / kMxBlock]));
    }
    x = scratch;
  }
  Kind(*weights_.dq).prepare(x, he, block.x + i * block.x_bytes);
}

void Tokens::Down(const Block& block, size_t task) const {
  const size_t groups_q = (weights_.dq->panels() + kPanelsTogether - 1) / kPanelsTogether;
  const bool query = task < groups_q;
  const PackedWeight& weight = query ? *weights_.dq : *weights_.dkv_kr;
  const size_t panel = (query ? task : task - groups_q) * kPanelsTogether;
  const size_t count = std::min(weight.panels() - panel, kPanelsTogether);
  Kind(weight).panels(block.x, block.x_bytes, block.count, weight.panel(0, panel), weight.panel_bytes(), count,
                      call_.hidden, (query ? block.a : block.b) + panel * kPanelColumns,
                      query ? block.a_stride : block.b_stride);
}

// A product as fp32: sums of integers are converted, scales of row and columns applied, or rounded to T.
void Tokens::Dequantise(const PackedWeight& weight, float* row, size_t columns, const float* scale, const float* scales,
                        bool rounds) const {
  if (weight.kind() == kWeightInt8) {
    const int32_t* sums = reinterpret_cast<const int32_t*>(row);
    for (size_t i = 0; i < columns; ++i) {
      int32_t sum;
      std::memcpy(&sum, sums + i, sizeof sum);
      row[i] = static_cast<float>(sum) * *scale * scales[i];
    }
  } else if (scales != nullptr) {
    for (size_t i = 0; i < columns; ++i) row[i] = row[i] * *scale * scales[i];
  } else if (rounds) {
    alignas(64) char part[1024];
    constexpr size_t kPart = 256;
    for (size_t i = 0; i < columns; i += kPart) Round(row + i, std::min(columns - i, kPart), part);
  }
}

void Tokens::Round(float* row, size_t n, void* scratch) const {
  if (plain_ == kKindFloat32) return;
  rows_.store[plain_](row, n, Plain(scratch, n));
  rows_.load[plain_](scratch, n, row);
}

void Tokens::NormRow(const Block& block, size_t i, float* scratch) const {
  const size_t token = block.first + i;
  const auto scales = [&](const Tensor& tensor) { return modes_.mx() ? nullptr : tensor.As<float>(); };
  const float* scale_x = call_.scale_x.given && !modes_.mx() ? call_.scale_x.As<float>() + token : nullptr;
  const bool rounds = !call_.scale_x.given;
  const auto norm = [&](float* row, size_t n, const float* gamma, float epsilon, float factor) {
    const float rms = rows_.rms[kKindFloat32](row, n, epsilon, nullptr);
    rows_.normalise[kKindFloat32](row, gamma, rms, n, Plain(row, n));
    for (size_t k = 0; k < n; ++k) row[k] *= factor;
  };
  float* a = block.a + i * block.a_stride;
  Dequantise(*weights_.dq, a, call_.q_rank, scale_x, scales(call_.scale_dq), rounds);
  norm(a, call_.q_rank, gamma_q_.data(), modes_.epsilon_q, modes_.scale_q);
  QuantiseNormed(block, i, a, scratch);

  float *b = block.b + i * block.b_stride, *k = scratch;
  Dequantise(*weights_.dkv_kr, b, call_.kv_rank + call_.rope, scale_x, scales(call_.scale_dkv_kr), rounds);
  if (call_.slots.empty() || call_.slots[token] < 0) return;
  norm(b, call_.kv_rank, gamma_kv_.data(), modes_.epsilon_kv, modes_.scale_kv);
  const size_t rope_row = token * call_.rope * plain_size_;
  rows_.rope_interleaved[plain_](b + call_.kv_rank, call_.cos.As<char>() + rope_row, call_.sin.As<char>() + rope_row,
                                 call_.rope, k);
  WriteKey(token, b, k, scratch + call_.rope);
}

// c as the operand of weight_uq_qr, prepared; and query_norm with its scale where they are asked for.
void Tokens::QuantiseNormed(const Block& block, size_t i, float* c, float* scratch) const {
  const size_t n = call_.q_rank, token = block.first + i;
  const PackedWeight& weight = *weights_.uq_qr;
  char* operand = reinterpret_cast<char*>(scratch);
  size_t size = 1;
  const void* delivered = operand;
  float& scale = block.scale_c[i];
  if (modes_.weights == 0) {
    size = plain_size_;
    rows_.store[plain_](c, n, Plain(operand, n));
    Kind(weight).prepare(operand, n, block.c + i * block.c_bytes);
  } else {
    uint8_t* values = reinterpret_cast<uint8_t*>(operand);
    uint8_t* codes = values + n;
    if (modes_.mx()) {
      Round(c, n, operand);
      MxRow(c, values, codes);
    } else {
      if (call_.smooth.given) {
        const float* smooth = call_.smooth.As<float>();
        for (size_t k = 0; k < n; ++k) c[k] *= smooth[k];
      }
      const bool is_int8 = weight.kind() == kWeightInt8;
      scale = rows_.abs_max(c, n) / (is_int8 ? 127.0f : 448.0f);
      rows_.quantise_by[is_int8 ? kQuantInt8 : kQuantE4m3fnSaturate](c, scale, n, values);
    }
    const void* row = values;
    if (weight.kind() == kWeightBfloat16) {  // float8, exact in bf16; c is not needed any more
      Bfloat* wide = reinterpret_cast<Bfloat*>(c);
      for (size_t k = 0; k < n; ++k) {
        const float value = ToFloatE4m3fn(values[k]);
        wide[k] = ToBfloat(modes_.mx() ? value * MxScale(codes[k / kMxBlock]) : value);
      }
      row = wide;
    }
    Kind(weight).prepare(row, n, block.c + i * block.c_bytes);
    if (outputs_.scale_q_norm != nullptr && modes_.mx()) {
      std::memcpy(outputs_.scale_q_norm + token * (n / kMxBlock), codes, n / kMxBlock);
    } else if (outputs_.scale_q_norm != nullptr) {
      std::memcpy(outputs_.scale_q_norm + token * sizeof scale, &scale, sizeof scale);
    }
  }
  if (outputs_.query_norm != nullptr) std::memcpy(outputs_.query_norm + token * n * size, delivered, n * size);
}

void Tokens::MxRow(const float* c, uint8_t* values, uint8_t* codes) const {
  constexpr size_t kBlock = kMxBlock;
  for (size_t start = 0; start < call_.q_rank; start += kBlock) {
    const float largest = rows_.abs_max(c + start, kBlock);
    int code = 0;
    if (std::isnan(largest)) {
      code = 255;
    } else if (std::isinf(largest)) {
      code = 254;
    } else if (largest > 0.0f) {
      code = std::clamp(std::ilogb(largest) - 8 + 127, 0, 254);
    }
    codes[start / kBlock] = static_cast<uint8_t>(code);
    const float ones_scale = MxScale(static_cast<uint8_t>(code));
    rows_.quantise_by[kQuantE4m3fnSaturate](c + start, ones_scale, kBlock, values + start);
  }
}

void Tokens::WriteKey(size_t token, const float* c, const float* k, float* scratch) const {
  const size_t slot = static_cast<size_t>(call_.slots[token]);
  const auto target = [&](char* data, const CacheLayout& layout, int type) -> RowTarget {
    const size_t at = layout.Offset(slot / layout.rows, slot % layout.rows, 0);
    return {data + at * ElementSize(type), layout.Block(), layout.Stride()};
  };
  if (outputs_.kv != nullptr) {
    const RowTarget kv = target(outputs_.kv, call_.kv_layout, call_.kv.type);
    switch (modes_.cache) {
      case 0:
        rows_.store[KindOf(call_.kv.type)](c, call_.kv_rank, kv);
        break;
      case 3:
        WritePacked(c, k, static_cast<char*>(kv.data), scratch);
        return;
      default:
        rows_.quantise[cache_kind_](c, modes_.cache == 1 ? quant_kv_.data() : call_.quant_kv.As<float>(), nullptr,
                                    call_.kv_rank, kv);
    }
  }
  if (outputs_.kr == nullptr || modes_.cache == 3) return;
  const RowTarget kr = target(outputs_.kr, call_.kr_layout, call_.kr.type);
  if (modes_.cache == 2) {
    rows_.quantise[kQuantInt8](k, call_.quant_kr.As<float>(), nullptr, call_.rope, kr);
  } else {
    rows_.store[KindOf(call_.kr.type)](k, call_.rope, kr);
  }
}

// 8-bit values, the rotated key in type T, a float32 scale for each tile; nothing of it is aligned.
void Tokens::WritePacked(const float* c, const float* k, char* row, float* scratch) const {
  const size_t tile = static_cast<size_t>(modes_.tile);
  char *rope = row + call_.kv_rank, *scales = rope + call_.rope * plain_size_;
  for (size_t start = 0; start < call_.kv_rank; start += tile, scales += sizeof(float)) {
    float largest = rows_.abs_max(c + start, tile);
    if (cache_kind_ != kQuantInt8 && largest < kSmallestTile) largest = kSmallestTile;
    if (call_.clip.given) largest *= *call_.clip.As<float>();
    const float scale = largest / cache_largest_;
    for (size_t i = 0; i < tile; ++i) {
      const float x = c[start + i];
      scratch[i] = x < -largest ? -largest : x > largest ? largest : x;
    }
    rows_.quantise_by[cache_kind_](scratch, scale, tile, row + start);
    std::memcpy(scales, &scale, sizeof scale);
  }
  rows_.store[plain_](k, call_.rope, Plain(scratch, call_.rope));
  std::memcpy(rope, scratch, call_.rope * plain_size_);
}

void Tokens::Head(const Block& block, size_t head, size_t begin, size_t end) const {
  if (outputs_.query == nullptr && outputs_.query_rope == nullptr && outputs_.scale_q_nope == nullptr) return;
  static thread_local Arena arena;
  const PackedWeight &up = *weights_.uq_qr, &absorb = *weights_.uk;
  const size_t count = end - begin, m_stride = RowFloats(up), q_stride = RowFloats(absorb);
  const size_t nope_bytes = Kind(absorb).row_bytes(call_.nope), rope = call_.rope;
  const size_t row_bytes = std::max(call_.kv_rank, call_.head_width()) * sizeof(float);
  arena.Reset(count * (m_stride + q_stride) * sizeof(float) + Arena::Rounded(count * nope_bytes) +
              Arena::Rounded(count * rope * sizeof(float)) + Arena::Rounded(row_bytes) + 256);
  float* m = arena.Take<float>(count * m_stride * sizeof(float));
  float* q = arena.Take<float>(count * q_stride * sizeof(float));
  char* nope = arena.Take<char>(count * nope_bytes);
  float* turned = arena.Take<float>(count * rope * sizeof(float));
  float* scratch = arena.Take<float>(row_bytes);
  Kind(up).panels(block.c + begin * block.c_bytes, block.c_bytes, count, up.panel(head, 0), up.panel_bytes(),
                  up.panels(), call_.q_rank, m, m_stride);
  const bool scaled = call_.scale_uq_qr.given && !modes_.mx();
  const float* scales = scaled ? call_.scale_uq_qr.As<float>() + head * call_.head_width() : nullptr;
  for (size_t i = 0; i < count; ++i) {
    float* row = m + i * m_stride;
    const size_t token = block.first + begin + i, rope_row = token * rope * plain_size_;
    Dequantise(up, row, call_.head_width(), &block.scale_c[begin + i], scales, modes_.weights == 0);
    rows_.rope_interleaved[plain_](row + call_.nope, call_.cos.As<char>() + rope_row, call_.sin.As<char>() + rope_row,
                                   rope, turned + i * rope);
    rows_.store[plain_](row, call_.nope, Plain(scratch, call_.nope));
    Kind(absorb).prepare(scratch, call_.nope, nope + i * nope_bytes);
  }
  Kind(absorb).panels(nope, nope_bytes, count, absorb.panel(head, 0), absorb.panel_bytes(), absorb.panels(), call_.nope,
                      q, q_stride);
  for (size_t i = 0; i < count; ++i) {
    const size_t row = (block.first + begin + i) * call_.heads + head;
    FinishQuery(row, q + i * q_stride, turned + i * rope, scratch);
  }
}

void Tokens::FinishQuery(size_t row, float* q, float* rope, float* scratch) const {
  char* query = outputs_.query;
  if (query != nullptr) query += row * call_.kv_rank * (modes_.query ? 1 : plain_size_);
  if (modes_.query) {
    Round(q, call_.kv_rank, scratch);
    const float scale = rows_.abs_max(q, call_.kv_rank) / cache_largest_;
    if (query != nullptr) rows_.quantise_by[cache_kind_](q, scale, call_.kv_rank, query);
    if (outputs_.scale_q_nope != nullptr) outputs_.scale_q_nope[row] = scale;
    // Scores are multiplied by the scales of query and cache: the rotated part is brought to the same unit.
    const float ratio = scale >= FLT_MIN ? *call_.quant_kv.As<float>() / scale : 0.0f;
    Round(rope, call_.rope, scratch);
    for (size_t i = 0; i < call_.rope; ++i) rope[i] *= ratio;
  } else if (query != nullptr) {
    rows_.store[plain_](q, call_.kv_rank, Plain(query, call_.kv_rank));
  }
  if (outputs_.query_rope != nullptr) {
    rows_.store[plain_](rope, call_.rope, Plain(outputs_.query_rope + row * call_.rope * plain_size_, call_.rope));
  }
}

}  // namespace kvfuse::mla

// The rules about int8 keys, values and queries, and about sinks.

#include <algorithm>

#include "attention_call.h"
#include "attention_checks.h"
#include "generated/fused_infer_attention_score.h"

namespace kvfuse {

using namespace fused_infer_attention_score;  // NOLINT: the names of the generated header

void AttentionCall::CheckQuantised() const {
  const bool narrow = key.tensor.type == kInt8;
  for (const AntiQuant* quant : {&key_quant, &value_quant}) {
    const char* name = kInputs[quant == &key_quant ? kInKeyAntiquantScale : kInValueAntiquantScale].name;
    if (narrow && !quant->scale.given) {
      Refuse(kFa18, std::string("int8 key without ") + name, "key_antiquant_scale and value_antiquant_scale");
    }
    if (!narrow && quant->scale.given) {
      Refuse(kFa18, name + std::string(" with a ") + ElementTypeName(key.tensor.type) + " key", "an int8 key");
    }
  }
  if (key_quant.offset.given != value_quant.offset.given) {
    const Tensor& only = key_quant.offset.given ? key_quant.offset : value_quant.offset;
    Refuse(kFa17, only.name + std::string(" alone"), "both or neither");
  }
  for (const AntiQuant* quant : {&key_quant, &value_quant}) {
    if (!quant->offset.given) continue;
    if (!quant->scale.given) Refuse(kFa17, quant->offset.name + std::string(" without a scale"), "the scale");
    if (!SameShape(quant->offset, quant->scale)) {
      Refuse(kFa17, Found(quant->offset), std::string("the shape of ") + quant->scale.name);
    }
  }
  if (!narrow) return;
  const int64_t one = key_quant.mode, other = value_quant.mode;
  if (std::min(one, other) < 0 || std::max(one, other) > 2 || (one != other && !(one == 0 && other == 1))) {
    Refuse(kFa17C, "key_antiquant_mode " + Text(one) + ", value_antiquant_mode " + Text(other),
           "0, 1 or 2, equal or 0 and 1");
  }
  if (whole_int8()) return;
  CheckScale(key_quant, static_cast<int64_t>(width));
  CheckScale(value_quant, static_cast<int64_t>(value_width));
}

void AttentionCall::CheckScale(const AntiQuant& quant, int64_t columns) const {
  const Tensor& scale = quant.scale;
  const int64_t count = static_cast<int64_t>(kv_heads()), entries = static_cast<int64_t>(batch);
  const int64_t keys = static_cast<int64_t>(room);
  bool fits;
  std::string wanted;
  if (quant.mode == 0) {
    fits = scale.Is({1}) || scale.Is({count * columns}) || scale.Is({1, count * columns}) ||
           scale.Is({count, columns}) || scale.Is({count, 1, columns}) || scale.Is({1, count, columns}) ||
           scale.Is({1, count, 1, columns});
    wanted = "[1] or " + Text(count * columns) + " elements by head and column";
  } else if (quant.mode == 1) {
    fits = (Fits(scale, {entries, -1}) || Fits(scale, {1, entries, -1})) && scale.Back(0) >= keys;
    wanted =
        "[" + Text(entries) + ", " + Text(keys) + " or more] or [1, " + Text(entries) + ", " + Text(keys) + " or more]";
  } else {
    fits = scale.Is({count});
    wanted = "[" + Text(count) + "]";
  }
  if (!fits) Refuse(kFa17D, Found(scale) + " in mode " + Text(quant.mode), wanted);
}

void AttentionCall::CheckWhole() const {
  const std::string mode = "query_quant_mode " + Text(node.query_mode);
  if (!whole_int8()) {
    const std::string with = std::string(" with a ") + ElementTypeName(query.type) + " query";
    if (node.query_mode != 0) Refuse(kFa19, mode + with, "0");
    if (query_scale.given) Refuse(kFa19, "dequant_scale_query" + with, "an int8 query");
    return;
  }
  if (node.query_mode != 3) Refuse(kFa19, mode + " with an int8 query", "3");
  for (const bool given : {query_rope.given, query_scale.given}) {
    if (!given) {
      Refuse(kFa19, std::string("int8 query without ") + (query_rope.given ? "dequant_scale_query" : "query_rope"),
             "query_rope and dequant_scale_query");
    }
  }
  for (const AntiQuant* quant : {&key_quant, &value_quant}) {
    const std::string name = quant->scale.name;
    if (quant->offset.given) Refuse(kFa19, std::string(quant->offset.name) + " with an int8 query", "no offsets");
    if (quant->mode != 0) Refuse(kFa19, name + " mode " + Text(quant->mode) + " with an int8 query", "0");
    if (!quant->scale.Is({1})) Refuse(kFa19, Found(quant->scale) + " with an int8 query", "[1]");
  }
  bool fits = query_scale.rank == query.rank - (Has('H') ? 0 : 1);
  for (size_t i = 0; fits && i + 1 < query.rank; ++i) fits = query_scale.dims[i] == query.dims[i];
  if (!fits || (Has('H') && query_scale.Back(0) != node.heads)) {
    Refuse(kFa19, Found(query_scale), "the dims of query " + query.ShapeText() + " without D");
  }
}

void AttentionCall::CheckSink() const {
  if (!sink.given) return;
  if (!sink.Is({node.heads})) Refuse(kFa20, Found(sink), "[" + Text(node.heads) + "]");
  if (key.tensor.type == kInt8) Refuse(kFa20, "learnable_sink with an int8 key", "a float key");
}

}  // namespace kvfuse

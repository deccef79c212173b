#include "attention_call.h"

#include <algorithm>

#include "attention_checks.h"
#include "generated/fused_infer_attention_score.h"
#include "kv_cache.h"

namespace kvfuse {

using namespace fused_infer_attention_score;  // NOLINT: the names of the generated header

namespace {

constexpr int64_t kTriangle = 2048;

void RefuseNotTaken(const KernelContext& context) {
  constexpr size_t kNotTaken[] = {
      kInPseShift,        kInDequantScale1,     kInQuantScale1,           kInDequantScale2,    kInQuantScale2,
      kInQuantOffset2,    kInAntiquantScale,    kInAntiquantOffset,       kInQueryPaddingSize, kInKvPaddingSize,
      kInKeySharedPrefix, kInValueSharedPrefix, kInActualSharedPrefixLen, kInQStartIdx,        kInKvStartIdx};
  for (const size_t input : kNotTaken) {
    if (!context.Input(input).given) continue;
    std::string names;
    for (const size_t other : kNotTaken) names += (names.empty() ? "" : ", ") + std::string(kInputs[other].name);
    Refuse(kFa22, std::string(kInputs[input].name) + " given", "none of " + names);
  }
}

}  // namespace

int64_t AttentionCall::Axis(char axis) const { return query.dims[node.axes.find(axis)]; }

AttentionCall::AttentionCall(const KernelContext& context, const AttentionNode& node_)
    : node(node_),
      query(context.Input(kInQuery)),
      mask(context.Input(kInAttenMask)),
      lengths(context.Input(kInActualSeqLengths)),
      kv_lengths(context.Input(kInActualSeqLengthsKv)),
      table(context.Input(kInBlockTable)),
      query_rope(context.Input(kInQueryRope)),
      query_scale(context.Input(kInDequantScaleQuery)),
      sink(context.Input(kInLearnableSink)) {
  key.tensor = context.Input(kInKey);
  value.tensor = context.Input(kInValue);
  key_rope.tensor = context.Input(kInKeyRope);
  key_quant = {context.Input(kInKeyAntiquantScale), context.Input(kInKeyAntiquantOffset), node.key_mode};
  value_quant = {context.Input(kInValueAntiquantScale), context.Input(kInValueAntiquantOffset), node.value_mode};
  RefuseNotTaken(context);

  packed = Has('T'), paged = table.given;
  bool fits = query.rank == node.axes.size();
  for (size_t i = 0; fits && i < query.rank; ++i) {
    const int64_t size = query.dims[i];
    if (node.axes[i] == 'N') fits = size == node.heads;
    if (node.axes[i] == 'B' || node.axes[i] == 'D' || node.axes[i] == 'H') fits = size >= 1;
    if (node.axes[i] == 'H') fits = fits && size % node.heads == 0;
  }
  if (!fits) Refuse(kFa01B, Found(query), "the dims " + node.axes + " with N = " + Text(node.heads));
  CheckTypes();
  if (paged != (node.block_size > 0) || node.block_size < 0) {
    Refuse(kFa08, (paged ? "block_table" : "no block_table") + (" with block_size " + Text(node.block_size)),
           "both, or no block_table and 0");
  }
  if (query_rope.given != key_rope.tensor.given) {
    Refuse(kFa05, query_rope.given ? "query_rope alone" : "key_rope alone", "both or neither");
  }
  CheckLengths();
  batch = static_cast<size_t>(packed ? lengths.dims[0] : Axis('B'));
  tokens = static_cast<size_t>(Axis(packed ? 'T' : 'S'));
  width = static_cast<size_t>(Has('H') ? Axis('H') / node.heads : Axis('D'));
  CheckCache(kFa03B, &key, static_cast<int64_t>(width), "D");
  CheckCache(kFa03C, &value, -1, "Dv");
  CheckSameRows(kFa03C, value);
  value_width = value.width;
  CheckRope();
  if (paged && !Fits(table, {static_cast<int64_t>(batch), -1})) {
    Refuse(kFa08B, Found(table), "[" + std::to_string(batch) + ", ?]");
  }
  kv_rows = paged ? 0 : static_cast<size_t>(key.tensor.dims[node.axes.find(packed ? 'T' : 'S')]);
  room = paged ? static_cast<size_t>(table.dims[1] * node.block_size) : kv_rows;
  CheckMask();
  CheckQuantised();
  CheckWhole();
  CheckSink();
  ReadLengths();
  CheckPages();
  for (CacheRows* rows : {&key, &value, &key_rope}) {
    if (rows->tensor.given) Place(rows);
  }
}

void AttentionCall::CheckTypes() const {
  // The rest is in the combinations that the runtime knows.
  if (value.tensor.type != key.tensor.type) {
    Refuse(kFa03, std::string("value ") + ElementTypeName(value.tensor.type), ElementTypeName(key.tensor.type));
  }
}

void AttentionCall::CheckLengths() const {
  if (packed && !lengths.given) Refuse(kFa11, "no actual_seq_lengths", "it, with " + node.axes);
  if ((packed || paged) && !kv_lengths.given) {
    Refuse(kFa11, "no actual_seq_lengths_kv", "it, with " + (paged ? "block_table" : node.axes));
  }
  for (const Tensor* tensor : {&lengths, &kv_lengths}) {
    if (!tensor->given) continue;
    bool fits = tensor->rank == 1;
    if (packed) {
      fits = fits && tensor->dims[0] >= 1 && tensor->dims[0] == lengths.dims[0];
      if (!fits) Refuse(kFa12, Found(*tensor), tensor == &lengths ? "[B]" : "[" + Text(lengths.dims[0]) + "]");
    } else {
      const int64_t entries = Axis('B');
      fits = fits && (tensor->dims[0] == 1 || tensor->dims[0] >= entries);
      if (!fits) Refuse(kFa12, Found(*tensor), "[1] or at least [" + Text(entries) + "]");
    }
  }
}

// `columns` -1: any.
void AttentionCall::CheckCache(const Constraint& constraint, CacheRows* rows, int64_t columns, const char* text) const {
  const Tensor& tensor = rows->tensor;
  const int64_t count = static_cast<int64_t>(kv_heads()), d0 = static_cast<int64_t>(NzBlock(tensor.type));
  const std::string wide = columns < 0 ? text : Text(columns);
  int64_t own = 0;
  bool fits = false;
  std::string wanted;
  if (paged) {
    const int64_t page = node.block_size;
    wanted = "[?, " + Text(page) + ", " + Text(count) + "*" + wide + "], [?, " + Text(count) + ", " + Text(page) +
             ", " + wide + "] or [?, " + Text(count) + ", " + wide + "/" + Text(d0) + ", " + Text(page) + ", " +
             Text(d0) + "]";
    if (tensor.rank == 3) {
      fits = Fits(tensor, {-1, page, -1}) && tensor.dims[2] % count == 0, own = tensor.dims[2] / count;
    } else if (tensor.rank == 4) {
      fits = Fits(tensor, {-1, count, page, -1}), own = tensor.dims[3];
    } else if (tensor.rank == 5) {
      fits = Fits(tensor, {-1, count, -1, page, d0}), own = tensor.dims[2] * tensor.dims[4];
    }
  } else {
    fits = tensor.rank == node.axes.size();
    for (size_t i = 0; i < node.axes.size(); ++i) {
      const char axis = node.axes[i];
      wanted += wanted.empty() ? "[" : ", ";
      wanted += axis == 'B'   ? Text(Axis('B'))
                : axis == 'N' ? Text(count)
                : axis == 'D' ? wide
                : axis == 'H' ? Text(count) + "*" + wide
                              : "?";
      if (!fits) continue;
      const int64_t size = tensor.dims[i];
      if (axis == 'B') fits = size == Axis('B');
      if (axis == 'N') fits = size == count;
      if (axis == 'D') own = size;
      if (axis == 'H') fits = size % count == 0, own = size / count;
    }
    wanted += "]";
  }
  if (!fits || own < 1 || (columns >= 0 && own != columns)) Refuse(constraint, Found(tensor), wanted);
  rows->width = static_cast<size_t>(own);
}

// The layout of key; only the columns may differ.
void AttentionCall::CheckSameRows(const Constraint& constraint, const CacheRows& rows) const {
  const Tensor &one = key.tensor, &other = rows.tensor;
  bool same = one.rank == other.rank;
  for (size_t i = 0; same && i + 1 < one.rank; ++i) {
    if (!(paged && one.rank == 5 && i == 2)) same = one.dims[i] == other.dims[i];
  }
  if (!same) Refuse(constraint, Found(other), "the dims of key " + one.ShapeText() + ", but for the columns");
}

void AttentionCall::CheckRope() {
  if (!query_rope.given) return;
  const int64_t parts = Has('H') ? node.heads : 1;
  bool fits = query_rope.rank == query.rank;
  for (size_t i = 0; fits && i + 1 < query.rank; ++i) fits = query_rope.dims[i] == query.dims[i];
  if (!fits || query_rope.Back(0) < 1 || query_rope.Back(0) % parts != 0) {
    Refuse(kFa05C, Found(query_rope), "the dims of query " + query.ShapeText() + ", the last R");
  }
  rope_width = static_cast<size_t>(query_rope.Back(0) / parts);
  CheckCache(kFa05C, &key_rope, static_cast<int64_t>(rope_width), "R");
  CheckSameRows(kFa05C, key_rope);
}

void AttentionCall::CheckMask() const {
  const int64_t mode = node.sparse_mode;
  const int64_t rows = static_cast<int64_t>(tokens), columns = static_cast<int64_t>(room);
  if (mode == 1 && !mask.given) Refuse(kFa13B, "sparse_mode 1 without atten_mask", "a full mask");
  if (mode >= 2 && mask.given) {
    bool triangle = mask.rank >= 2 && mask.rank <= 4 && mask.Back(0) == kTriangle && mask.Back(1) == kTriangle;
    for (size_t i = 0; triangle && i + 2 < mask.rank; ++i) triangle = mask.dims[i] == 1;
    if (!triangle) {
      Refuse(kFa13B, Found(mask) + " with sparse_mode " + Text(mode), "the triangle [2048, 2048]");
    }
  }
  const bool full = mask.given && mode < 2;
  if (full && packed) {
    Refuse(kFa14, "atten_mask with sparse_mode " + Text(mode), "no mask, or sparse_mode 2, 3 or 4");
  }
  if (!packed && rows == 1 && !query_rope.given && (mode == 2 || mode == 4)) {
    Refuse(kFa14B, "sparse_mode " + Text(mode), "0, 1 or 3, or a TND layout");
  }
  const int64_t most = std::max(rows, columns);
  if (full && mode == 0 && std::min(node.pre_tokens, node.next_tokens) < most) {
    Refuse(kFa15, "pre_tokens " + Text(node.pre_tokens) + ", next_tokens " + Text(node.next_tokens),
           Text(most) + " or more beside a full mask");
  }
  if (!full) return;
  const int64_t entries = static_cast<int64_t>(batch);
  bool fits = mask.rank >= 2 && mask.rank <= 4 && mask.Back(0) >= columns;
  if (fits && mask.rank == 2) {
    fits = rows == 1 ? mask.dims[0] == entries : mask.dims[0] >= rows;
  } else if (fits) {
    fits =
        (mask.dims[0] == 1 || mask.dims[0] == entries) && mask.Back(1) >= rows && (mask.rank == 3 || mask.dims[1] == 1);
  }
  if (!fits) {
    const std::string end = Text(rows) + ", " + Text(columns) + "]";
    Refuse(kFa16, Found(mask),
           "[" + Text(entries) + " or 1, " + end + ", [" + Text(entries) + " or 1, 1, " + end + " or [" +
               (rows == 1 ? Text(entries) + ", " + Text(columns) + "]" : end) + ", the last two dims at least");
  }
}

void AttentionCall::ReadLengths() {
  const bool sums = packed && !paged;
  const auto read = [&](const Tensor& tensor, size_t entry) {
    const size_t at = static_cast<size_t>(tensor.elements) >= batch ? entry : 0;
    return tensor.As<int64_t>()[at];
  };
  const auto ends = [&](const Tensor& tensor, size_t total, std::vector<size_t>* first, std::vector<size_t>* count) {
    int64_t before = 0;
    for (size_t entry = 0; entry < batch; ++entry) {
      const int64_t end = read(tensor, entry);
      if (end < before || end > static_cast<int64_t>(total)) {
        Refuse(kFa11B, tensor.name + ("[" + std::to_string(entry) + "] = " + Text(end)),
               "running sums up to " + std::to_string(total));
      }
      first->push_back(static_cast<size_t>(before)), count->push_back(static_cast<size_t>(end - before));
      before = end;
    }
  };
  const auto plain = [&](const Tensor& tensor, size_t most, bool looked_at, std::vector<size_t>* count) {
    for (size_t entry = 0; entry < batch; ++entry) {
      const int64_t length = tensor.given && looked_at ? read(tensor, entry) : static_cast<int64_t>(most);
      if (length < 0 || length > static_cast<int64_t>(most)) {
        const size_t at = static_cast<size_t>(tensor.elements) >= batch ? entry : 0;
        Refuse(kFa12B, tensor.name + ("[" + std::to_string(at) + "] = " + Text(length)),
               "0 to " + std::to_string(most));
      }
      count->push_back(static_cast<size_t>(length));
    }
  };
  if (packed) {
    ends(lengths, tokens, &starts, &counts);
  } else {
    starts.assign(batch, 0);
    plain(lengths, tokens, tokens != 1 || query_rope.given, &counts);
  }
  if (sums) {
    ends(kv_lengths, kv_rows, &kv_starts, &kv_counts);
  } else {
    kv_starts.assign(batch, 0);
    plain(kv_lengths, room, true, &kv_counts);
  }
}

void AttentionCall::CheckPages() const {
  if (!paged) return;
  const size_t page = static_cast<size_t>(node.block_size), columns = static_cast<size_t>(table.dims[1]);
  const int64_t blocks = key.tensor.dims[0];
  for (size_t entry = 0; entry < batch; ++entry) {
    const int32_t* row = table.As<int32_t>() + entry * columns;
    for (size_t column = 0; column * page < kv_counts[entry]; ++column) {
      if (row[column] >= 0 && row[column] < blocks) continue;
      Refuse(kFa09, "block_table[" + std::to_string(entry) + ", " + std::to_string(column) + "] = " + Text(row[column]),
             "0 to " + Text(blocks - 1));
    }
  }
}

void AttentionCall::Place(CacheRows* rows) const {
  const Tensor& tensor = rows->tensor;
  const size_t size = ElementSize(tensor.type), columns = rows->width, count = kv_heads();
  const size_t row = columns * size;
  size_t block = columns, block_step = 0;
  if (paged) {
    const size_t page = static_cast<size_t>(node.block_size);
    rows->place_step = page * count * row;
    if (tensor.rank == 3) {
      rows->token_step = count * row, rows->head_step = row;
    } else if (tensor.rank == 4) {
      rows->token_step = row, rows->head_step = page * row;
    } else {
      block = NzBlock(tensor.type), block_step = page * block * size;
      rows->token_step = block * size, rows->head_step = page * row;
    }
  } else {
    const bool heads_first = node.axes == "BNSD" || node.axes == "NTD";
    rows->token_step = heads_first ? row : count * row;
    rows->head_step = heads_first ? kv_rows * row : row;
    rows->place_step = packed ? 0 : kv_rows * count * row;
  }
  rows->block = block, rows->block_step = block_step;
  if (columns % kOffsetColumns != 0) return;
  rows->split = block < 16;
  for (size_t column = 0; column < columns; column += kOffsetColumns) {
    rows->groups.push_back(column / block * block_step + column % block * size);
  }
}

}  // namespace kvfuse

#include "kv_cache.h"

#include <vector>

#include "refusal.h"

namespace kvfuse {

size_t FirstRepeat(const int64_t* slots, size_t count, int64_t page_rows) {
  bool rising = true;  // the usual case: tokens of a sequence follow each other
  int64_t last = -1;
  for (size_t i = 0; i < count && rising; ++i) {
    if (slots[i] < 0) continue;
    const int64_t page = slots[i] / page_rows;
    rising = page > last;
    last = page;
  }
  if (rising) return kNone;

  size_t capacity = 16;
  while (capacity < 2 * count) capacity *= 2;
  std::vector<int64_t> seen(capacity, -1);
  for (size_t i = 0; i < count; ++i) {
    if (slots[i] < 0) continue;
    const int64_t page = slots[i] / page_rows;
    size_t at = static_cast<size_t>(static_cast<uint64_t>(page) * 0x9e3779b97f4a7c15u >> 32) & (capacity - 1);
    while (seen[at] >= 0 && seen[at] != page) at = (at + 1) & (capacity - 1);
    if (seen[at] == page) return i;
    seen[at] = page;
  }
  return kNone;
}

namespace {

std::string Element(const char* name, size_t place, int64_t value) {
  return std::string(name) + "[" + std::to_string(place) + "] = " + std::to_string(value);
}

}  // namespace

void Slots::Check(const Constraint& constraint, const char* name, int64_t lowest) const {
  const size_t count = Count();
  const bool own = meaning_ == SlotMeaning::kRow || meaning_ == SlotMeaning::kStart;
  int64_t limit = static_cast<int64_t>(own ? rows_ : pages_ * rows_);
  if (meaning_ == SlotMeaning::kStart) limit -= static_cast<int64_t>(tokens_) - 1;
  for (size_t i = 0; i < count; ++i) {
    if (index_[i] < lowest || index_[i] >= limit) {
      Refuse(constraint, Element(name, i, index_[i]), (lowest < 0 ? "-1 (skip) to " : "0 to ") + Text(limit - 1));
    }
  }
  if (meaning_ == SlotMeaning::kStart) return;  // rows of different batches are distinct
  const size_t group = meaning_ == SlotMeaning::kRow ? tokens_ : count;
  const int64_t page_rows = meaning_ == SlotMeaning::kBlock ? static_cast<int64_t>(rows_) : 1;
  for (size_t start = 0; start < count; start += group) {
    const size_t repeat = FirstRepeat(index_ + start, group, page_rows);
    if (repeat == kNone) continue;
    Refuse(constraint, Element(name, start + repeat, index_[start + repeat]) + " again",
           page_rows > 1 ? "distinct pages" : "distinct slots");
  }
}

}  // namespace kvfuse

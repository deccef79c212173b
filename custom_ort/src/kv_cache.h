// Where a token lives in a cache, and which slots a call may write: the C++ side of ir_ops/layout.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "declaration.h"
#include "rows.h"

namespace kvfuse {

// How a cache is ordered in memory: [pages, N, rows, D], [pages, rows, N, D], or [pages, N, D/d0, rows, d0].
enum class CacheOrder { kBnsd, kBsnd, kNz };

// What an index element means: a row in the token's own batch, a flat slot page * rows + row, or the first slot of a
// page that takes the next `rows` tokens; or, one for each batch, the row of the batch's first token in its own cache.
enum class SlotMeaning { kRow, kSlot, kBlock, kStart };

struct CacheMode {
  const char* name;
  CacheOrder order;
  SlotMeaning slot;

  bool paged() const { return slot == SlotMeaning::kSlot || slot == SlotMeaning::kBlock; }
};

struct CacheLayout {
  CacheOrder order;
  size_t rows, heads, columns;
  size_t d0;  // columns of an NZ fractal: 32 bytes

  // Element offset of a row's first column.
  size_t Offset(size_t page, size_t row, size_t head) const {
    switch (order) {
      case CacheOrder::kBnsd:
        return ((page * heads + head) * rows + row) * columns;
      case CacheOrder::kBsnd:
        return ((page * rows + row) * heads + head) * columns;
      default:
        return ((page * heads + head) * (columns / d0) * rows + row) * d0;
    }
  }
  size_t Block() const { return order == CacheOrder::kNz ? d0 : columns; }
  size_t Stride() const { return order == CacheOrder::kNz ? rows * d0 : columns; }
};

constexpr size_t kNone = static_cast<size_t>(-1);

// Place of the first element whose page (of page_rows slots) was named before, or kNone. Slots below 0 name nothing.
size_t FirstRepeat(const int64_t* slots, size_t count, int64_t page_rows);

constexpr size_t NzBlock(int element_type) { return 32 / ElementSize(element_type); }

// The slots of a call: token (batch, s) -> page and row, or nothing for a slot of -1.
class Slots {
 public:
  Slots(const CacheMode& mode, const int64_t* index, size_t batch, size_t tokens, size_t pages, size_t rows)
      : meaning_(mode.slot),
        flat_(mode.slot == SlotMeaning::kSlot && mode.order == CacheOrder::kBsnd),
        index_(index),
        batch_(batch),
        tokens_(tokens),
        pages_(pages),
        rows_(rows) {}

  // Elements that the index must have.
  size_t Count() const { return batch_ * PerBatch(); }

  // Refuses an element out of range, and two that name one row (of a batch) or one page. Reads every element.
  // `lowest` is -1 where a slot may be skipped, else 0.
  void Check(const Constraint& constraint, const char* name = "index", int64_t lowest = -1) const;

  bool Find(size_t batch, size_t s, size_t* page, size_t* row) const {
    const size_t place = meaning_ == SlotMeaning::kBlock ? batch * PerBatch() + s / rows_ : batch * tokens_ + s;
    const int64_t slot = index_[meaning_ == SlotMeaning::kStart ? batch : place];
    if (slot < 0) return false;
    const size_t value = static_cast<size_t>(slot);
    if (meaning_ == SlotMeaning::kStart) {
      *page = batch;
      *row = value + s;
      return true;
    }
    if (meaning_ == SlotMeaning::kRow || flat_) {
      *page = flat_ ? 0 : batch;
      *row = value;
    } else {
      *page = value / rows_;
      *row = meaning_ == SlotMeaning::kBlock ? s % rows_ : value - *page * rows_;
    }
    return true;
  }

 private:
  size_t PerBatch() const {
    if (meaning_ == SlotMeaning::kStart) return 1;
    return meaning_ == SlotMeaning::kBlock ? (tokens_ + rows_ - 1) / rows_ : tokens_;
  }

  SlotMeaning meaning_;
  bool flat_;  // pages follow each other without a gap: no need to divide
  const int64_t* index_;
  size_t batch_, tokens_, pages_, rows_;
};

}  // namespace kvfuse

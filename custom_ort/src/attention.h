// Attention kernels: what is done to a tile of up to 128 keys and the rows of one kv head. Chosen at run time for the
// CPU, like the products. Sums are fp32; instruction sets differ in their last bits.
//
// Two forms. Few rows: a vector holds columns, keys and values are read where they lie and widened in registers; one
// score is a sum over lanes. Many rows: a vector holds rows, queries are transposed, keys and values are fp32 rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "element.h"

namespace kvfuse {

constexpr size_t kTileKeys = 128;
constexpr size_t kFewRowsMost = 8;
constexpr size_t kOffsetColumns = 8;  // a row is made of groups of 8 columns, each with an offset of its own

enum CacheKind : int { kCacheFloat32, kCacheFloat16, kCacheBfloat16, kCacheInt8, kCacheKinds };

constexpr CacheKind CacheKindOf(int type) {
  return type == kFloat32   ? kCacheFloat32
         : type == kFloat16 ? kCacheFloat16
         : type == kInt8    ? kCacheInt8
                            : kCacheBfloat16;
}

// Rows of a tile that lie at equal distances: `groups` groups of 8 columns at byte offsets from the row's start.
struct KeyRows {
  const char* data;
  size_t count;          // rows
  size_t stride;         // bytes from row to row
  const size_t* groups;  // byte offsets
  size_t vectors;        // vectors of a row
  bool split;            // a vector spans two groups that are not neighbours
  const char* ahead;     // rows of the same form that are wanted next, or null
};

struct FewRowsKernels {
  // s[r][t] = q[r] * k[t], added to what is there with `add`. Up to kFewRowsMost rows.
  void (*scores)(const float* q, size_t q_stride, size_t rows, KeyRows keys, float* s, size_t s_stride, bool add);
  // y[r] += p[r][t] * v[t].
  void (*values)(const float* p, size_t p_stride, size_t rows, KeyRows values, float* y, size_t y_stride);
};

// Running maximum and sum of each row, and the factor for what was summed before this tile.
struct Softmax {
  float *maximum, *sum, *factor;
};

struct AttentionKernels {
  size_t lanes;
  FewRowsKernels few[kCacheKinds];
  // y[t] = rows[t] in fp32, exactly, with zeros up to y_stride. Rows without groups are contiguous.
  void (*widen[kCacheKinds])(const KeyRows& rows, size_t columns, float* y, size_t y_stride);
  // s[t][r] for `rows` rows, a multiple of the lanes; q[d][r]. Added to what is there with `add`.
  void (*scores)(const float* q, size_t rows, size_t depth, const float* k, size_t k_stride, size_t keys, float* s,
                 bool add);
  // y[r] += p[t][r] * v[t] over `width` columns, a multiple of the lanes.
  void (*values)(const float* p, size_t p_stride, size_t rows, const float* v, size_t v_stride, size_t width,
                 size_t keys, float* y, size_t y_stride);
  // Scores become weights exp(s - maximum). s[r][t] of one row, room for a multiple of the lanes.
  void (*softmax_row)(float* s, size_t keys, float* maximum, float* sum, float* factor);
  // The same for s[t][r].
  void (*softmax_rows)(float* s, size_t rows, size_t keys, const Softmax& state);
  // y *= factor.
  void (*scale)(float* y, size_t n, float factor);
};

// The set of the instruction set that SelectRowKernels() takes.
const AttentionKernels& SelectAttentionKernels();

const AttentionKernels* PortableAttentionKernels();
const AttentionKernels* Avx2AttentionKernels();
const AttentionKernels* Avx512AttentionKernels();

}  // namespace kvfuse

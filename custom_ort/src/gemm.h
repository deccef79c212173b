// Products of activation rows with packed weights: fp32 sums for fp32, fp16 and bf16 operands, exact int32 sums for
// int8.
//
// A weight [K, M] is packed once into panels of 32 columns, in its own element type; the layout is the same for every
// instruction set. An element of a product is one sum in the order of K, whatever the number of rows, tasks or threads.
// Instruction sets differ in the last bits of a float sum (fused or not, bf16 in pairs), never in an int8 one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "element.h"

namespace kvfuse {

enum WeightKind : int { kWeightFloat32, kWeightFloat16, kWeightBfloat16, kWeightInt8, kWeightKinds };

constexpr size_t kPanelColumns = 32;

// How one kind of operand is multiplied.
struct GemmKind {
  // Bytes of a prepared activation row of `depth` elements.
  size_t (*row_bytes)(size_t depth);
  // Prepares a row of the kind's element type for `panels`.
  void (*prepare)(const void* x, size_t depth, void* row);
  // c[r][0 .. 32*count) = row r * panels, for `rows` rows. c is float, for int8 int32; its rows are c_stride apart.
  void (*panels)(const void* a, size_t row_bytes, size_t rows, const void* panels, size_t panel_bytes, size_t count,
                 size_t depth, void* c, size_t c_stride);
};

struct GemmKernels {
  GemmKind kinds[kWeightKinds];
};

// The set of the instruction set that SelectRowKernels() takes.
const GemmKernels& SelectGemmKernels();

const GemmKernels* PortableGemmKernels();
const GemmKernels* Avx2GemmKernels();
const GemmKernels* Avx512GemmKernels();
const GemmKernels* Avx512Bf16GemmKernels();
const GemmKernels* AmxGemmKernels();

// Asks the system for AMX tiles, once for the process: whether they may be used.
bool AskForTiles();

// Where a weight lies: `groups` matrices [depth, columns] in one tensor, elements of a row contiguous.
struct WeightSource {
  const void* data = nullptr;
  int type = kUndefined;  // a float, int8, or float8_e4m3fn, which is packed as bf16 (exactly)
  size_t depth = 0, columns = 0, groups = 1;
  size_t row_stride = 0, group_stride = 0;  // elements from row to row, and from group to group
  const uint8_t* mx_scales = nullptr;       // e8m0 [groups * columns, depth / 32], multiplied in
};

// A weight in panels, read only.
class PackedWeight {
 public:
  // With `hand_back` the source's pages are given back to the system where they can be read again.
  explicit PackedWeight(const WeightSource& source, bool hand_back = false);

  WeightKind kind() const { return kind_; }
  size_t depth() const { return depth_; }
  size_t columns() const { return columns_; }
  size_t panels() const { return (columns_ + kPanelColumns - 1) / kPanelColumns; }  // of a group
  size_t panel_bytes() const { return panel_bytes_; }
  const void* panel(size_t group, size_t number) const {
    return data_.get() + (group * panels() + number) * panel_bytes_;
  }

 private:
  struct Free {
    Free() : bytes(0) {}
    explicit Free(size_t bytes_) : bytes(bytes_) {}
    size_t bytes;
    void operator()(char* memory) const;
  };

  WeightKind kind_;
  size_t depth_, columns_, panel_bytes_ = 0;
  std::unique_ptr<char[], Free> data_;
};

// The packed form of a constant weight; kernels that name the same tensor share one.
std::shared_ptr<const PackedWeight> PackConstant(const WeightSource& source);

constexpr WeightKind WeightKindOf(int element_type) {
  switch (element_type) {
    case kFloat32:
      return kWeightFloat32;
    case kFloat16:
      return kWeightFloat16;
    case kInt8:
      return kWeightInt8;
    default:
      return kWeightBfloat16;
  }
}

// Scale of an MX block; the code 255 is NaN.
inline float MxScale(uint8_t code) {
  return code == 0 ? BitsFloat(0x400000u) : code == 255 ? BitsFloat(0x7fc00000u) : BitsFloat(uint32_t{code} << 23);
}

inline float ToFloatE4m3fn(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return BitsFloat(sign | 0x7fc00000u);
  if (magnitude >= 8u) return BitsFloat(sign | ((magnitude << 20) + (120u << 23)));
  return BitsFloat(sign | FloatBits(static_cast<float>(magnitude) * 0x1p-9f));
}

// An odd number of cache lines: rows do not fall into one set of the cache.
constexpr size_t OddLines(size_t bytes) {
  const size_t lines = (bytes + 63) / 64;
  return (lines + (lines % 2 == 0 ? 1 : 0)) * 64;
}

}  // namespace kvfuse

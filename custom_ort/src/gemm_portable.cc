// Products in plain C++: a panel's columns are the inner loop, which compilers vectorise for what they are told of.

#include <cstring>

#include "gemm.h"

namespace kvfuse {
namespace {

constexpr size_t kRowsTogether = 4;

// One step of a panel as factors: [K of the step][column].
template <typename T, size_t kStep, typename Stored, typename Convert>
void Unpack(const Stored* w, T (&factors)[kStep][kPanelColumns], const Convert& convert) {
  for (size_t j = 0; j < kStep; ++j) {
    for (size_t c = 0; c < kPanelColumns; ++c) factors[j][c] = convert(w[c * kStep + j]);
  }
}

// T: type of factors and sums, Stored: of the panel's elements, kStep of which lie together for one column.
template <typename T, typename Stored, size_t kStep, typename Convert>
void PanelProduct(const T* a, size_t a_stride, size_t rows, const Stored* w, size_t depth, T* c, size_t c_stride,
                  const Convert& convert) {
  for (size_t first = 0; first < rows; first += kRowsTogether) {
    const size_t count = rows - first < kRowsTogether ? rows - first : kRowsTogether;
    T sums[kRowsTogether][kPanelColumns] = {};
    T factors[kStep][kPanelColumns];
    for (size_t k = 0; k < depth; k += kStep) {
      Unpack<T, kStep>(w + k * kPanelColumns, factors, convert);
      for (size_t r = 0; r < count; ++r) {
        const T* row = a + (first + r) * a_stride + k;
        for (size_t j = 0; j < kStep; ++j) {
          const T x = row[j];
          for (size_t col = 0; col < kPanelColumns; ++col) sums[r][col] += x * factors[j][col];
        }
      }
    }
    for (size_t r = 0; r < count; ++r) std::memcpy(c + (first + r) * c_stride, sums[r], sizeof sums[r]);
  }
}

template <typename T, typename Stored, size_t kStep>
void Panels(const void* a, size_t row_bytes, size_t rows, const void* panels, size_t panel_bytes, size_t count,
            size_t depth, void* c, size_t c_stride) {
  const auto convert = [](Stored value) {
    if constexpr (kStep == 4) {
      return static_cast<int32_t>(value);
    } else {
      return ToFloat(value);
    }
  };
  for (size_t p = 0; p < count; ++p) {
    const char* panel = static_cast<const char*>(panels) + p * panel_bytes;
    PanelProduct<T, Stored, kStep>(static_cast<const T*>(a), row_bytes / sizeof(T), rows,
                                   reinterpret_cast<const Stored*>(panel), depth,
                                   static_cast<T*>(c) + p * kPanelColumns, c_stride, convert);
  }
}

// Rows are widened, with zeros up to a whole step.
size_t RowBytes(size_t depth) { return OddLines((depth + 3) / 4 * 4 * sizeof(float)); }

template <typename T, typename Element>
void Prepare(const void* x, size_t depth, void* row) {
  const Element* from = static_cast<const Element*>(x);
  T* to = static_cast<T*>(row);
  for (size_t k = 0; k < depth; ++k) {
    if constexpr (sizeof(Element) == 1) {
      to[k] = from[k];
    } else {
      to[k] = ToFloat(from[k]);
    }
  }
  for (size_t k = depth; k % 4 != 0; ++k) to[k] = T{0};
}

constexpr GemmKernels kGemmKernels = {{
    {RowBytes, Prepare<float, float>, Panels<float, float, 1>},
    {RowBytes, Prepare<float, Half>, Panels<float, Half, 1>},
    {RowBytes, Prepare<float, Bfloat>, Panels<float, Bfloat, 2>},
    {RowBytes, Prepare<int32_t, int8_t>, Panels<int32_t, int8_t, 4>},
}};

}  // namespace

const GemmKernels* PortableGemmKernels() { return &kGemmKernels; }

}  // namespace kvfuse

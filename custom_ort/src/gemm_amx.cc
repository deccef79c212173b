// Products for AMX tiles: bf16 and int8. fp32 and fp16 are those of the avx512bf16 set. Without x86-64 Linux the set
// does not exist: the system must be asked for the tiles.

#include <algorithm>
#include <cstring>

#include "gemm.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#if !defined(__clang__)
// GCC's own AVX-512 header starts from undefined registers and warns about itself wherever it is inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvfuse {
namespace {

#define KVFUSE_TARGET __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512f")))

constexpr size_t kTileRows = 16, kTileBytes = 64;
constexpr size_t kPanelBytes = kPanelColumns * 4;  // a step: two bf16 or four int8 of each column

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums of two groups of rows by two of columns, 4 and 5 rows, 6 and 7 columns. `steps` is how many
// steps of K a tile takes: a row of it has `steps` lanes, a column tile has `steps` rows.
TileConfig Configure(size_t first, size_t second, size_t steps) {
  TileConfig config;
  const auto set = [&](size_t tile, size_t rows, size_t bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(bytes);
  };
  for (size_t tile = 0; tile < 4; ++tile) set(tile, std::max<size_t>(tile < 2 ? first : second, 1), kTileBytes);
  set(4, first, steps * 4);
  set(5, std::max<size_t>(second, 1), steps * 4);
  set(6, steps, kTileBytes);
  set(7, steps, kTileBytes);
  return config;
}

// Of full tiles of K, `steps` each; a shorter end is another call. c goes on where it is not the start.
template <bool kInt8>
KVFUSE_TARGET void TileProduct(const char* a, size_t a_stride, const char* w, size_t tiles, size_t steps, bool two,
                               bool start, char* c, size_t c_stride) {
  const char* second = a + kTileRows * a_stride;
  char* below = c + kTileRows * c_stride;
  if (start) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, c, c_stride);
    _tile_loadd(1, c + kTileBytes, c_stride);
    if (two) {
      _tile_loadd(2, below, c_stride);
      _tile_loadd(3, below + kTileBytes, c_stride);
    }
  }
  for (size_t tile = 0; tile < tiles; ++tile, a += steps * 4, second += steps * 4, w += steps * kPanelBytes) {
    _mm_prefetch(w + 16 * kPanelBytes, _MM_HINT_T1);
    _tile_loadd(4, a, a_stride);
    _tile_stream_loadd(6, w, kPanelBytes);
    _tile_stream_loadd(7, w + kTileBytes, kPanelBytes);
    if constexpr (kInt8) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (!two) continue;
    _tile_loadd(5, second, a_stride);
    if constexpr (kInt8) {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    } else {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_stride);
  _tile_stored(1, c + kTileBytes, c_stride);
  if (two) {
    _tile_stored(2, below, c_stride);
    _tile_stored(3, below + kTileBytes, c_stride);
  }
}

template <bool kInt8>
KVFUSE_TARGET void Panels(const void* a, size_t row_bytes, size_t rows, const void* panels, size_t panel_bytes,
                          size_t count, size_t depth, void* c, size_t c_stride) {
  constexpr size_t kStep = kInt8 ? 4 : 2, kSteps = 16;
  const size_t steps = (depth + kStep - 1) / kStep, full = steps / kSteps, rest = steps % kSteps;
  const size_t c_bytes = c_stride * 4;
  // The same tiles serve all panels: rows in the outer loop, as long as they fit.
  for (size_t r = 0; r < rows; r += 2 * kTileRows) {
    const size_t here = std::min(rows - r, 2 * kTileRows), first = std::min(here, kTileRows), second = here - first;
    const char* from = static_cast<const char*>(a) + r * row_bytes;
    for (const bool end : {false, true}) {
      const size_t tiles = end ? (rest != 0 ? 1 : 0) : full, length = end ? rest : kSteps;
      if (tiles == 0) continue;
      const TileConfig config = Configure(first, second, length);
      _tile_loadconfig(&config);
      for (size_t p = 0; p < count; ++p) {
        const char* panel = static_cast<const char*>(panels) + p * panel_bytes;
        const size_t skipped = end ? full * kSteps : 0;
        TileProduct<kInt8>(from + skipped * 4, row_bytes, panel + skipped * kPanelBytes, tiles, length, second != 0,
                           skipped == 0, static_cast<char*>(c) + r * c_bytes + p * kPanelBytes, c_bytes);
      }
    }
  }
  _tile_release();
}

template <size_t kSize>
size_t RowBytes(size_t depth) {
  return OddLines((depth * kSize + 3) / 4 * 4);
}

template <size_t kSize>
void Prepare(const void* x, size_t depth, void* row) {
  const size_t bytes = depth * kSize;
  std::memcpy(row, x, bytes);
  std::memset(static_cast<char*>(row) + bytes, 0, (4 - bytes % 4) % 4);
}

}  // namespace

bool AskForTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

const GemmKernels* AmxGemmKernels() {
  static const GemmKernels kernels = {{
      Avx512Bf16GemmKernels()->kinds[kWeightFloat32],
      Avx512Bf16GemmKernels()->kinds[kWeightFloat16],
      {RowBytes<2>, Prepare<2>, Panels<false>},
      {RowBytes<1>, Prepare<1>, Panels<true>},
  }};
  return &kernels;
}

}  // namespace kvfuse
#else
namespace kvfuse {
bool AskForTiles() { return false; }
const GemmKernels* AmxGemmKernels() { return nullptr; }
}  // namespace kvfuse
#endif

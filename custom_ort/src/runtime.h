// The runtime's C interface as the library holds it, and what becomes of a status.
#pragma once

#include <cstdint>

#include "ort_abi.h"
#include "refusal.h"

namespace kvfuse {

// The runtime's function table; set once by RegisterCustomOps, with the version it was asked for.
const ort::Api& Runtime();
void SetRuntime(const void* table, uint32_t version);

// Throws RuntimeFailure for a status that is not OK.
inline void Require(OrtStatus* status) {
  if (status != nullptr) throw RuntimeFailure{status};
}

inline void Discard(OrtStatus* status) {
  if (status != nullptr) Runtime().ReleaseStatus(status);
}

inline bool Succeeded(OrtStatus* status) {
  Discard(status);
  return status == nullptr;
}

// A shape that somebody has to release.
struct OwnedInfo {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ~OwnedInfo() {
    if (info != nullptr) Runtime().ReleaseTensorTypeAndShapeInfo(info);
  }
};

}  // namespace kvfuse

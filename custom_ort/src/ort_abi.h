// The part of ONNX Runtime's C ABI that kvfuse uses, declared by hand: no package registry has the header.
//
// OrtApi is a table of function pointers that only ever grows at its end, so a function is named by its slot number.
// Each slot below is proven against the installed runtime by tests/custom_ort/test_abi.py.
// Every function returning OrtStatus* returns null for success; a non-null status is owned by the caller.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtOpAttr;
struct OrtTensorTypeAndShapeInfo;
struct OrtValue;

struct OrtApiBase {
  // Null (and a line on stderr) when `version` is above the runtime's minor version.
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// Filled by the library, read by the runtime. A field is read only by runtimes whose version is at least the one in
// which it came, and only when `version` says that the library knows it.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const void* api, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const void* api, const OrtKernelInfo*, void** kernel);  // 16
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);                                                 // 16
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);                             // 17
  int (*GetStartVersion)(const OrtCustomOp*);                                                              // 17
  int (*GetEndVersion)(const OrtCustomOp*);                                                                // 17
  size_t (*GetMayInplace)(int** inputs, int** outputs);                                                    // 18
  void (*ReleaseMayInplace)(int* inputs, int* outputs);                                                    // 18
  size_t (*GetAliasMap)(int** inputs, int** outputs);                                                      // 18
  void (*ReleaseAliasMap)(int* inputs, int* outputs);                                                      // 18
};
}  // extern "C"

namespace kvfuse::ort {

inline constexpr uint32_t kOldestVersion = 17;  // shape inference and ParallelFor
// First runtime that infers shapes of a node whose optional input is absent without a crash (seen on 1.20 to 1.23).
constexpr uint32_t kShapesWithAbsentInputs = 24;
inline constexpr uint32_t kClaimedVersion = 18;  // GetMayInplace
// First runtime with GetTensorElementTypeAndShapeDataReference: one call for a tensor instead of five and an
// allocation.
inline constexpr uint32_t kShapeReferences = 24;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2, kRuntimeException = 6 };
enum Characteristic : int { kRequired = 0, kOptional = 1 };
enum OpAttrType : int { kAttrInt = 1, kAttrInts = 2, kAttrString = 5 };

// slot, name, result, parameters. clang-format would break the table.
// clang-format off
#define KVFUSE_ORT_SLOTS(X)                                                                                            \
  X(0, CreateStatus, OrtStatus*, (int code, const char* message))                                                      \
  X(1, GetErrorCode, int, (const OrtStatus*))                                                                          \
  X(2, GetErrorMessage, const char*, (const OrtStatus*))                                                               \
  X(26, CreateCustomOpDomain, OrtStatus*, (const char* name, OrtCustomOpDomain**))                                     \
  X(27, CustomOpDomain_Add, OrtStatus*, (OrtCustomOpDomain*, const OrtCustomOp*))                                      \
  X(28, AddCustomOpDomain, OrtStatus*, (OrtSessionOptions*, OrtCustomOpDomain*))                                       \
  X(51, GetTensorMutableData, OrtStatus*, (OrtValue*, void** data))                                                    \
  X(57, CreateTensorTypeAndShapeInfo, OrtStatus*, (OrtTensorTypeAndShapeInfo**))                                       \
  X(58, SetTensorElementType, OrtStatus*, (OrtTensorTypeAndShapeInfo*, int type))                                      \
  X(59, SetDimensions, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const int64_t* dims, size_t rank))                     \
  X(60, GetTensorElementType, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int* type))                               \
  X(61, GetDimensionsCount, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t* rank))                              \
  X(62, GetDimensions, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t rank))                     \
  X(63, GetSymbolicDimensions, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, const char** names, size_t rank))        \
  X(65, GetTensorTypeAndShape, OrtStatus*, (const OrtValue*, OrtTensorTypeAndShapeInfo**))                             \
  X(85, KernelInfoGetAttribute_float, OrtStatus*, (const OrtKernelInfo*, const char* name, float*))                    \
  X(86, KernelInfoGetAttribute_int64, OrtStatus*, (const OrtKernelInfo*, const char* name, int64_t*))                  \
  X(87, KernelInfoGetAttribute_string, OrtStatus*, (const OrtKernelInfo*, const char* name, char*, size_t* size))      \
  X(88, KernelContext_GetInputCount, OrtStatus*, (const OrtKernelContext*, size_t*))                                   \
  X(89, KernelContext_GetOutputCount, OrtStatus*, (const OrtKernelContext*, size_t*))                                  \
  X(90, KernelContext_GetInput, OrtStatus*, (const OrtKernelContext*, size_t, const OrtValue**))                       \
  X(91, KernelContext_GetOutput, OrtStatus*, (OrtKernelContext*, size_t, const int64_t* dims, size_t, OrtValue**))     \
  X(93, ReleaseStatus, void, (OrtStatus*))                                                                             \
  X(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo*))                                             \
  X(101, ReleaseCustomOpDomain, void, (OrtCustomOpDomain*))                                                            \
  X(163, KernelInfoGetAttributeArray_int64, OrtStatus*, (const OrtKernelInfo*, const char* name, int64_t*, size_t*))    \
  X(230, KernelInfo_GetInputCount, OrtStatus*, (const OrtKernelInfo*, size_t*))                                        \
  X(244, KernelInfo_GetNodeName, OrtStatus*, (const OrtKernelInfo*, char*, size_t* size))                              \
  X(249, KernelInfoGetConstantInput_tensor, OrtStatus*, (const OrtKernelInfo*, size_t, int*, const OrtValue**))        \
  X(267, ShapeInferContext_GetInputCount, OrtStatus*, (const OrtShapeInferContext*, size_t*))                          \
  /* the info belongs to the context: releasing it is a double free */                                                 \
  X(268, ShapeInferContext_GetInputTypeShape, OrtStatus*,                                                              \
    (const OrtShapeInferContext*, size_t, OrtTensorTypeAndShapeInfo**))                                                \
  X(269, ShapeInferContext_GetAttribute, OrtStatus*, (const OrtShapeInferContext*, const char*, const OrtOpAttr**))    \
  X(270, ShapeInferContext_SetOutputTypeShape, OrtStatus*,                                                             \
    (const OrtShapeInferContext*, size_t, const OrtTensorTypeAndShapeInfo*))                                           \
  X(271, SetSymbolicDimensions, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const char** names, size_t rank))             \
  X(272, ReadOpAttr, OrtStatus*, (const OrtOpAttr*, int type, void* data, size_t bytes, size_t* needed))               \
  X(274, KernelContext_ParallelFor, OrtStatus*,                                                                        \
    (const OrtKernelContext*, void (*body)(void*, size_t), size_t total, size_t batches, void* user))                  \
  /* from kShapeReferences on; the dims belong to the value */                                                         \
  X(414, GetTensorElementTypeAndShapeDataReference, OrtStatus*,                                                        \
    (const OrtValue*, int* type, const int64_t** dims, size_t* rank))
// clang-format on

// The function table with a typed function for each slot of the list above.
class Api {
 public:
  Api() = default;
  explicit Api(const void* table) : slots_(static_cast<const Slot*>(table)) {}
  explicit operator bool() const { return slots_ != nullptr; }

#define KVFUSE_ORT_ACCESSOR(slot, name, result, parameters)                    \
  template <typename... Arguments>                                             \
  result name(Arguments... arguments) const {                                  \
    return reinterpret_cast<result(*) parameters>(slots_[slot])(arguments...); \
  }
  KVFUSE_ORT_SLOTS(KVFUSE_ORT_ACCESSOR)
#undef KVFUSE_ORT_ACCESSOR

 private:
  using Slot = void (*)();
  const Slot* slots_ = nullptr;
};

}  // namespace kvfuse::ort

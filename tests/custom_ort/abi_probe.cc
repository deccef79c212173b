// A custom-op library whose one operator calls every slot that ort_abi.h declares, through its accessors, and keeps
// what it saw. tests/custom_ort/test_abi.py builds it, runs it in the installed runtime and compares.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "ort_abi.h"

namespace {

using kvfuse::ort::Api;

Api api;
unsigned minor = 0;
std::mutex mutex;
std::map<std::string, std::string> seen;

void See(const char* what, const std::string& value) {
  const std::lock_guard<std::mutex> lock(mutex);
  seen[what] = value;
}
void Called(const char* field) { See(field, "called"); }

std::string Text(const int64_t* values, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + std::to_string(values[i]);
  return text;
}
std::string Text(const float* values, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + std::to_string(static_cast<int>(values[i]));
  return text;
}
std::string Text(const char** values, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + ("'" + std::string(values[i]) + "'");
  return text;
}

void Require(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "probe: %s\n", api.GetErrorMessage(status));
  std::abort();
}

long ResidentPages() {
  long size = 0, resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident;
}

// Whether doing and undoing something very often keeps the memory: only the right release function frees it.
template <typename Action>
std::string Freed(int times, const Action& action) {
  for (int i = 0; i < times / 10; ++i) action();
  const long before = ResidentPages();
  for (int i = 0; i < times; ++i) action();
  return ResidentPages() - before < 2048 ? "freed" : "leaks";
}

void ProbeStatus() {
  OrtStatus* status = api.CreateStatus(2, "made by the probe");
  See("CreateStatus", status != nullptr ? "made" : "null");
  See("GetErrorCode", std::to_string(api.GetErrorCode(status)));
  See("GetErrorMessage", api.GetErrorMessage(status));
  api.ReleaseStatus(status);
  const std::string large(1 << 16, 'x');
  See("ReleaseStatus", Freed(2000, [&] { api.ReleaseStatus(api.CreateStatus(1, large.c_str())); }));
}

void ProbeInfo() {
  const int64_t dims[] = {2, -1, 5};
  const char* names[] = {"", "tokens", ""};
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Require(api.CreateTensorTypeAndShapeInfo(&info));
  See("CreateTensorTypeAndShapeInfo", info != nullptr ? "made" : "null");
  Require(api.SetTensorElementType(info, 16));
  Require(api.SetDimensions(info, dims, size_t{3}));
  Require(api.SetSymbolicDimensions(info, names, size_t{3}));
  int type = 0;
  size_t rank = 0;
  int64_t sizes[3] = {};
  const char* symbols[3] = {};
  Require(api.GetTensorElementType(info, &type));
  Require(api.GetDimensionsCount(info, &rank));
  Require(api.GetDimensions(info, sizes, size_t{3}));
  Require(api.GetSymbolicDimensions(info, symbols, size_t{3}));
  See("SetTensorElementType", std::to_string(type));
  See("GetTensorElementType", std::to_string(type));
  See("SetDimensions", Text(sizes, 3));
  See("GetDimensionsCount", std::to_string(rank));
  See("GetDimensions", Text(sizes, 3));
  See("SetSymbolicDimensions", Text(symbols, 3));
  See("GetSymbolicDimensions", Text(symbols, 3));
  api.ReleaseTensorTypeAndShapeInfo(info);
  See("ReleaseTensorTypeAndShapeInfo", Freed(400000, [&] {
        OrtTensorTypeAndShapeInfo* made = nullptr;
        Require(api.CreateTensorTypeAndShapeInfo(&made));
        Require(api.SetDimensions(made, dims, size_t{3}));
        api.ReleaseTensorTypeAndShapeInfo(made);
      }));
}

std::string Attribute(const OrtKernelInfo* info, const char* name) {
  size_t size = 0;
  Require(api.KernelInfoGetAttribute_string(info, name, nullptr, &size));
  std::string text(size, '\0');
  Require(api.KernelInfoGetAttribute_string(info, name, text.data(), &size));
  return text.c_str();
}

void ProbeKernelInfo(const OrtKernelInfo* info) {
  float number = 0;
  int64_t integer = 0;
  Require(api.KernelInfoGetAttribute_float(info, "number", &number));
  Require(api.KernelInfoGetAttribute_int64(info, "integer", &integer));
  See("KernelInfoGetAttribute_float", std::to_string(number));
  See("KernelInfoGetAttribute_int64", std::to_string(integer));
  See("KernelInfoGetAttribute_string", Attribute(info, "text"));

  int64_t integers[3] = {};
  size_t length = 0;
  Require(api.KernelInfoGetAttributeArray_int64(info, "integers", nullptr, &length));
  Require(api.KernelInfoGetAttributeArray_int64(info, "integers", integers, &length));
  See("KernelInfoGetAttributeArray_int64", std::to_string(length) + ": " + Text(integers, 3));

  size_t count = 0, size = 0;
  Require(api.KernelInfo_GetInputCount(info, &count));
  See("KernelInfo_GetInputCount", std::to_string(count));
  Require(api.KernelInfo_GetNodeName(info, nullptr, &size));
  std::string name(size, '\0');
  Require(api.KernelInfo_GetNodeName(info, name.data(), &size));
  See("KernelInfo_GetNodeName", name.c_str());

  std::string constants;
  for (size_t i = 0; i < count; ++i) {
    int constant = -1;
    const OrtValue* value = nullptr;
    Require(api.KernelInfoGetConstantInput_tensor(info, i, &constant, &value));
    void* data = nullptr;
    if (constant == 1) Require(api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    constants += constant == 1 ? "[" + Text(static_cast<float*>(data), 2) + "]" : "-";
  }
  See("KernelInfoGetConstantInput_tensor", constants);
}

struct Counter {
  std::mutex mutex;
  size_t calls = 0, sum = 0;
};

void ProbeContext(OrtKernelContext* context) {
  size_t inputs = 0, outputs = 0;
  Require(api.KernelContext_GetInputCount(context, &inputs));
  Require(api.KernelContext_GetOutputCount(context, &outputs));
  See("KernelContext_GetInputCount", std::to_string(inputs));
  See("KernelContext_GetOutputCount", std::to_string(outputs));
  const OrtValue* given[3] = {};
  std::string present;
  for (size_t i = 0; i < 3; ++i) {
    Require(api.KernelContext_GetInput(context, i, &given[i]));
    present += given[i] != nullptr ? "x" : "-";
  }
  See("KernelContext_GetInput", present);

  OrtTensorTypeAndShapeInfo* info = nullptr;
  Require(api.GetTensorTypeAndShape(given[0], &info));
  int64_t dims[2] = {};
  int type = 0;
  Require(api.GetDimensions(info, dims, size_t{2}));
  Require(api.GetTensorElementType(info, &type));
  See("GetTensorTypeAndShape", "type " + std::to_string(type) + " dims " + Text(dims, 2));
  api.ReleaseTensorTypeAndShapeInfo(info);
  if (minor >= kvfuse::ort::kShapeReferences) {
    const int64_t* reference = nullptr;
    size_t rank = 0;
    type = 0;
    Require(api.GetTensorElementTypeAndShapeDataReference(given[0], &type, &reference, &rank));
    See("GetTensorElementTypeAndShapeDataReference", "type " + std::to_string(type) + " dims " + Text(reference, rank));
  }

  OrtValue* made[2] = {};
  void *x = nullptr, *y = nullptr;
  Require(api.KernelContext_GetOutput(context, size_t{0}, dims, size_t{2}, &made[0]));
  Require(api.KernelContext_GetOutput(context, size_t{1}, dims, size_t{2}, &made[1]));
  See("KernelContext_GetOutput", std::string(made[0] != nullptr ? "x" : "-") + (made[1] != nullptr ? "x" : "-"));
  Require(api.GetTensorMutableData(const_cast<OrtValue*>(given[0]), &x));
  Require(api.GetTensorMutableData(made[0], &y));
  See("GetTensorMutableData", Text(static_cast<float*>(x), 6));
  for (int i = 0; i < 6; ++i) static_cast<float*>(y)[i] = static_cast<float*>(x)[i] * 3;

  Counter counter;
  void (*const body)(void*, size_t) = [](void* user, size_t i) {
    Counter& shared = *static_cast<Counter*>(user);
    const std::lock_guard<std::mutex> lock(shared.mutex);
    ++shared.calls;
    shared.sum += i;
  };
  Require(api.KernelContext_ParallelFor(context, body, size_t{100}, size_t{0}, &counter));
  See("KernelContext_ParallelFor", std::to_string(counter.calls) + " calls, sum " + std::to_string(counter.sum));
}

void ProbeAttributes(const OrtShapeInferContext* context) {
  const OrtOpAttr *integer = nullptr, *integers = nullptr, *none = nullptr;
  Require(api.ShapeInferContext_GetAttribute(context, "integer", &integer));
  Require(api.ShapeInferContext_GetAttribute(context, "integers", &integers));
  OrtStatus* status = api.ShapeInferContext_GetAttribute(context, "nonsense", &none);
  See("ShapeInferContext_GetAttribute", status != nullptr ? "found, and not another" : "finds anything");
  api.ReleaseStatus(status);
  int64_t number = 0, numbers[3] = {};
  size_t bytes = 0;
  Require(api.ReadOpAttr(integer, int{kvfuse::ort::kAttrInt}, static_cast<void*>(&number), sizeof number, &bytes));
  Require(api.ReadOpAttr(integers, int{kvfuse::ort::kAttrInts}, static_cast<void*>(numbers), sizeof numbers, &bytes));
  See("ReadOpAttr", std::to_string(number) + ", " + std::to_string(bytes) + " bytes: " + Text(numbers, 3));
}

OrtStatus* InferShapes(const OrtCustomOp*, OrtShapeInferContext* context) {
  ProbeAttributes(context);
  size_t count = 0;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Require(api.ShapeInferContext_GetInputCount(context, &count));
  See("ShapeInferContext_GetInputCount", std::to_string(count));
  Require(api.ShapeInferContext_GetInputTypeShape(context, size_t{0}, &info));
  const char* symbols[2] = {};
  int64_t dims[2] = {};
  Require(api.GetSymbolicDimensions(info, symbols, size_t{2}));
  Require(api.GetDimensions(info, dims, size_t{2}));
  See("ShapeInferContext_GetInputTypeShape", std::string(symbols[0]) + " " + std::to_string(dims[1]));
  OrtStatus* status = api.ShapeInferContext_SetOutputTypeShape(context, size_t{0}, info);
  See("ShapeInferContext_SetOutputTypeShape", status == nullptr ? "set" : "refused");
  return status;
}

OrtCustomOp MakeOperator() {
  OrtCustomOp op{};
  op.version = kvfuse::ort::kClaimedVersion;
  op.GetName = [](const OrtCustomOp*) { return Called("GetName"), "AbiProbe"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* {
    return Called("GetExecutionProviderType"), nullptr;
  };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return Called("GetInputTypeCount"), size_t{3}; };
  op.GetInputType = [](const OrtCustomOp*, size_t) { return Called("GetInputType"), 1; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return Called("GetOutputTypeCount"), size_t{2}; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) { return Called("GetOutputType"), 1; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t i) {
    return Called("GetInputCharacteristic"), i == 1 ? int{kvfuse::ort::kOptional} : int{kvfuse::ort::kRequired};
  };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) {
    return Called("GetOutputCharacteristic"), i == 1 ? int{kvfuse::ort::kOptional} : int{kvfuse::ort::kRequired};
  };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return Called("GetInputMemoryType"), 0; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = [](const OrtCustomOp*, const void*, const OrtKernelInfo* info, void** kernel) -> OrtStatus* {
    Called("CreateKernelV2");
    ProbeStatus();
    ProbeInfo();
    ProbeKernelInfo(info);
    *kernel = std::malloc(1);
    return nullptr;
  };
  op.KernelComputeV2 = [](void*, OrtKernelContext* context) -> OrtStatus* {
    Called("KernelComputeV2");
    ProbeContext(context);
    return nullptr;
  };
  op.KernelDestroy = [](void* kernel) {
    Called("KernelDestroy");
    std::free(kernel);
  };
  op.InferOutputShapeFn = InferShapes;
  op.GetMayInplace = [](int** inputs, int** outputs) {
    Called("GetMayInplace");
    *inputs = static_cast<int*>(std::calloc(1, sizeof(int)));
    *outputs = static_cast<int*>(std::calloc(1, sizeof(int)));
    return size_t{1};
  };
  op.ReleaseMayInplace = [](int* inputs, int* outputs) {
    Called("ReleaseMayInplace");
    std::free(inputs);
    std::free(outputs);
  };
  return op;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                    const OrtApiBase* base) {
  static const OrtCustomOp op = MakeOperator();
  std::sscanf(base->GetVersionString(), "1.%u", &minor);
  api = Api(base->GetApi(minor >= kvfuse::ort::kShapeReferences ? kvfuse::ort::kShapeReferences
                                                                : kvfuse::ort::kClaimedVersion));
  OrtCustomOpDomain* domain = nullptr;
  Require(api.CreateCustomOpDomain("kvfuse.abi_probe", &domain));
  See("CreateCustomOpDomain", domain != nullptr ? "made" : "null");
  Require(api.CustomOpDomain_Add(domain, &op));
  See("CustomOpDomain_Add", "added");
  See("ReleaseCustomOpDomain", Freed(200000, [] {
        OrtCustomOpDomain* made = nullptr;
        Require(
            api.CreateCustomOpDomain("kvfuse.abi_probe.with_a_name_too_long_to_be_stored_inside_the_object", &made));
        api.ReleaseCustomOpDomain(made);
      }));
  See("AddCustomOpDomain", "added");
  return api.AddCustomOpDomain(options, domain);
}

// "name<tab>what was seen" lines, valid until the next call.
__attribute__((visibility("default"))) const char* abi_probe_report() {
  static std::string report;
  const std::lock_guard<std::mutex> lock(mutex);
  report.clear();
  for (const auto& [name, value] : seen) report += name + "\t" + value + "\n";
  return report.c_str();
}
}

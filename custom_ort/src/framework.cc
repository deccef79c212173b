// The boundary to the runtime: typed operators, kernels' life, and the one exported function. Nothing is thrown past
// it.

#include "framework.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "rows.h"

#ifdef _WIN32
#define KVFUSE_EXPORT __declspec(dllexport)
#else
#define KVFUSE_EXPORT __attribute__((visibility("default")))
#endif

namespace kvfuse {
namespace {

constexpr char kDomain[] = "ai.ascend";

std::vector<Operator>& Operators() {
  static std::vector<Operator> operators;
  return operators;
}

OrtStatus* Status(int code, const char* operator_name, const char* node, const char* text) noexcept {
  try {
    std::string message = operator_name;
    if (*node != '\0') message = message + " node '" + node + "'";
    message = message.empty() ? text : message + ": " + text;
    return Runtime().CreateStatus(code, message.c_str());
  } catch (...) {
    return Runtime().CreateStatus(code, text);
  }
}

// Runs `action`; whatever it throws becomes a status.
template <typename Action>
OrtStatus* Guarded(const char* operator_name, const char* node, const Action& action) noexcept {
  try {
    action();
    return nullptr;
  } catch (const Refusal& refusal) {
    return Status(ort::kInvalidArgument, operator_name, node, refusal.what());
  } catch (const RuntimeFailure& failure) {
    return failure.status;
  } catch (const std::bad_alloc&) {
    return Status(ort::kRuntimeException, operator_name, node, "out of memory");
  } catch (const std::exception& error) {
    return Status(ort::kRuntimeException, operator_name, node, error.what());
  } catch (...) {
    return Status(ort::kRuntimeException, operator_name, node, "unknown failure");
  }
}

// An operator for one combination of element types.
struct TypedOperator : OrtCustomOp {
  const Operator* entry;
  const int8_t* types;

  TypedOperator(const Operator* entry_, const int8_t* types_, uint32_t minor);
};

struct Node {
  const TypedOperator* op;
  std::string name;
  Constants constants;
  std::unique_ptr<Kernel> kernel;
};

const TypedOperator& Self(const OrtCustomOp* op) { return *static_cast<const TypedOperator*>(op); }

OrtStatus* CreateNode(const OrtCustomOp* op, const void*, const OrtKernelInfo* info, void** kernel) noexcept {
  const Operator& entry = *Self(op).entry;
  std::string name;
  const char* operator_name = entry.declaration->name;
  OrtStatus* status = Guarded(operator_name, "", [&] { name = NodeName(info); });
  if (status != nullptr) return status;
  return Guarded(operator_name, name.c_str(), [&] {
    const KernelInfo typed(info, *entry.declaration, Self(op).types);
    *kernel = new Node{&Self(op), name, Constants(typed, entry.declaration->inputs.size), entry.create(typed)};
  });
}

OrtStatus* RunNode(void* kernel, OrtKernelContext* context) noexcept {
  const Node& node = *static_cast<const Node*>(kernel);
  const Declaration& declaration = *node.op->entry->declaration;
  return Guarded(declaration.name, node.name.c_str(), [&] {
    KernelContext wrapped(context, declaration, node.op->types, node.constants);
    node.kernel->Run(wrapped);
  });
}

OrtStatus* InferShapes(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const TypedOperator& self = Self(op);
  return Guarded(self.entry->declaration->name, "", [&] {
    ShapeContext wrapped(context, *self.entry->declaration);
    wrapped.CopyRefShapes();
    self.entry->infer(wrapped);
  });
}

bool HasOptionalInput(const Declaration& declaration) {
  for (size_t i = 0; i < declaration.inputs.size; ++i) {
    if (declaration.inputs[i].optional) return true;
  }
  return false;
}

TypedOperator::TypedOperator(const Operator* entry_, const int8_t* types_, uint32_t minor)
    : OrtCustomOp{}, entry(entry_), types(types_) {
  version = std::min(ort::kClaimedVersion, minor);
  GetName = [](const OrtCustomOp* op) { return Self(op).entry->declaration->name; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
  GetInputTypeCount = [](const OrtCustomOp* op) { return Self(op).entry->declaration->inputs.size; };
  GetInputType = [](const OrtCustomOp* op, size_t i) -> int { return Self(op).types[i]; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return Self(op).entry->declaration->outputs.size; };
  GetOutputType = [](const OrtCustomOp* op, size_t i) -> int {
    return Self(op).types[Self(op).entry->declaration->inputs.size + i];
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) -> int {
    return Self(op).entry->declaration->inputs[i].optional ? ort::kOptional : ort::kRequired;
  };
  // A result that shares no buffer may be left out by a node that has no use for it.
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) -> int {
    return Self(op).entry->declaration->outputs[i].ref_input < 0 ? ort::kOptional : ort::kRequired;
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  GetVariadicInputMinArity = GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicInputHomogeneity = GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  CreateKernelV2 = CreateNode;
  KernelComputeV2 = RunNode;
  KernelDestroy = [](void* kernel) { delete static_cast<Node*>(kernel); };
  // Older runtimes read the type of an absent optional input on the way to this callback and crash. Without it the
  // shapes of results are not known before the run; caches bound in place stay in place.
  const bool infers = minor >= ort::kShapesWithAbsentInputs || !HasOptionalInput(*entry->declaration);
  InferOutputShapeFn = infers ? InferShapes : nullptr;
  GetStartVersion = GetEndVersion = nullptr;  // any version
  GetMayInplace = entry->may_inplace;
  ReleaseMayInplace = [](int* inputs, int* outputs) {
    std::free(inputs);
    std::free(outputs);
  };
  // GetAliasMap stays null: the runtime would then share a buffer that others still read.
}

// Domain and operators live as long as the process: sessions keep pointers to them.
OrtCustomOpDomain* Domain(uint32_t minor) {
  static OrtCustomOpDomain* domain = nullptr;
  if (domain != nullptr) return domain;
  OrtCustomOpDomain* made = nullptr;
  Require(Runtime().CreateCustomOpDomain(kDomain, &made));
  for (const Operator& entry : Operators()) {
    const Declaration& declaration = *entry.declaration;
    for (size_t row = 0; row < declaration.combinations; ++row) {
      Require(Runtime().CustomOpDomain_Add(
          made, new TypedOperator(&entry, declaration.types + row * declaration.ports(), minor)));
    }
  }
  return domain = made;
}

// The minor version of "1.MINOR.PATCH", 0 for anything else.
uint32_t MinorVersion(const char* text) {
  unsigned major = 0, minor = 0;
  return std::sscanf(text, "%u.%u", &major, &minor) == 2 && major == 1 ? minor : 0;
}

}  // namespace

void RegisterOperator(const Operator& entry) { Operators().push_back(entry); }

}  // namespace kvfuse

extern "C" KVFUSE_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace kvfuse;
  static std::mutex mutex;
  const uint32_t minor = MinorVersion(base->GetVersionString());
  const uint32_t claimed = std::min(ort::kClaimedVersion, minor);
  // Even the oldest runtime has the first slots: enough to say why it is refused.
  const uint32_t version = minor >= ort::kShapeReferences ? ort::kShapeReferences : claimed > 0 ? claimed : 1;
  const void* table = base->GetApi(version);
  if (table == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  SetRuntime(table, version);
  return Guarded("", "", [&] {
    if (claimed < ort::kOldestVersion) {
      throw Refusal(std::string("kvfuse needs onnxruntime 1.") + std::to_string(ort::kOldestVersion) +
                    " or newer; found " + base->GetVersionString());
    }
    SelectRowKernels();  // a wrong KVFUSE_ISA is said here, once, instead of at every node
    Require(Runtime().AddCustomOpDomain(options, Domain(minor)));
  });
}

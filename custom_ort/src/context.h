// What a kernel sees of the runtime: attributes, tensors, threads. Every call into the runtime is made here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "declaration.h"
#include "element.h"
#include "refusal.h"
#include "runtime.h"

namespace kvfuse {

constexpr size_t kMaxRank = 8;

// A tensor: shape read once, data as it lies in the caller's memory.
struct Tensor {
  const char* name = "";
  bool given = false;
  int type = kUndefined;
  size_t rank = 0;
  int64_t dims[kMaxRank];  // only the first `rank` are set
  int64_t elements = 0;    // 0 when a dim is 0, INT64_MAX when the product does not fit
  void* data = nullptr;

  template <typename T>
  const T* As() const {
    return static_cast<const T*>(data);
  }
  // Axis counted from the end: Back(0) is the last dim. The rank must be large enough.
  int64_t Back(size_t axis) const { return dims[rank - 1 - axis]; }
  bool Is(std::initializer_list<int64_t> shape) const;
  std::string ShapeText() const;
};

std::string ShapeText(const int64_t* dims, size_t rank);

// At kernel creation.
class KernelInfo {
 public:
  KernelInfo(const OrtKernelInfo* info, const Declaration& declaration, const int8_t* types)
      : info_(info), declaration_(declaration), types_(types) {}

  float Float(size_t attribute) const;
  bool Bool(size_t attribute) const;
  int64_t Int(size_t attribute) const;
  // An Int attribute that must be there.
  int64_t RequiredInt(size_t attribute) const;
  // A ListInt attribute; without a default it must be there.
  std::vector<int64_t> Ints(size_t attribute, const std::vector<int64_t>* otherwise = nullptr) const;
  // Position of a String attribute's value among the allowed ones, or -1 with the value in `found`.
  int Choice(size_t attribute, std::string* found) const;
  // The same of an attribute that must be there.
  int RequiredChoice(size_t attribute, std::string* found) const;
  int InputType(size_t input) const { return types_[input]; }
  int OutputType(size_t output) const { return types_[declaration_.inputs.size + output]; }
  // The initializer behind an input; not `given` when the input is absent or computed.
  Tensor ConstantInput(size_t input) const;

 private:
  void RefuseOtherType(const AttrDecl& attribute) const;

  const OrtKernelInfo* info_;
  const Declaration& declaration_;
  const int8_t* types_;
};

std::string NodeName(const OrtKernelInfo* info);

// Copies of a node's small constant inputs. Asking the runtime for a tensor costs more than many kernels' work on it.
class Constants {
 public:
  explicit Constants(const KernelInfo& info, size_t inputs);
  // The constant behind an input, or null.
  const Tensor* Find(size_t input) const { return tensors_[input].given ? &tensors_[input] : nullptr; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

// During a run.
class KernelContext {
 public:
  KernelContext(OrtKernelContext* context, const Declaration& declaration, const int8_t* types,
                const Constants& constants);

  // Refuses an element type that is not the kernel's: old runtimes do not look at combinations.
  Tensor Input(size_t input) const;
  // Memory of an output, or null when the node does not ask for it.
  void* Output(size_t output, const int64_t* dims, size_t rank);

  // Calls body(begin, end) over all of 0..rows: inline when there are few, else in chunks on the session's threads.
  // What a body throws is thrown again here, after all chunks have ended. `cost` is what one row costs, in units of a
  // KV row (about 70 ns).
  template <typename Body>
  void ForRows(size_t rows, const Body& body, size_t cost = 1) {
    Chunks(rows, rows * cost < kInlineRows ? rows : ChunkRows(rows, cost), &Invoke<Body>, &body);
  }
  // Calls body(i, i + 1) for each of a few large tasks, on the session's threads.
  template <typename Body>
  void ForTasks(size_t tasks, const Body& body) {
    Chunks(tasks, 1, &Invoke<Body>, &body);
  }
  // A copy of many bytes; does nothing when source and target are one.
  void Copy(void* target, const void* source, size_t bytes);

 private:
  using ChunkBody = void (*)(const void* body, size_t begin, size_t end);
  static constexpr size_t kInlineRows = 64;

  template <typename Body>
  static void Invoke(const void* body, size_t begin, size_t end) {
    (*static_cast<const Body*>(body))(begin, end);
  }
  static size_t ChunkRows(size_t rows, size_t cost);
  void Chunks(size_t total, size_t chunk, ChunkBody body, const void* user);

  OrtKernelContext* context_;
  const Declaration& declaration_;
  const int8_t* types_;
  const Constants& constants_;
  size_t inputs_ = 0, outputs_ = 0;
};

// A dim of shape inference: a size, a name, or nothing known.
struct InferredDim {
  int64_t size = -1;
  std::string symbol;
};

// While the graph is loaded: shapes of outputs from shapes of inputs. Nothing can be refused here.
class ShapeContext {
 public:
  ShapeContext(OrtShapeInferContext* context, const Declaration& declaration)
      : context_(context), declaration_(declaration) {}

  // Whether the node has that input.
  bool Given(size_t input) const;
  // A ListInt attribute; false when it is not there, or longer than any operator's.
  bool Ints(size_t attribute, std::vector<int64_t>* values) const;
  // An Int or Bool attribute or its default.
  int64_t Int(size_t attribute) const;
  bool Bool(size_t attribute) const;
  // A String attribute or its default.
  std::string String(size_t attribute) const;
  // False when the rank is not known, the input is absent, or its rank is another.
  bool Dims(size_t input, size_t rank, std::vector<InferredDim>* dims) const;
  // False when the rank is not known (a scalar looks the same) or the input is absent.
  bool Dims(size_t input, std::vector<InferredDim>* dims) const;
  // `type` is needed for an output whose element type an attribute chooses.
  void SetOutput(size_t output, const std::vector<InferredDim>& dims, int type = kUndefined);
  int InputType(size_t input) const;
  // Gives every output that shares an input's buffer the input's shape: without it the runtime never works in place.
  void CopyRefShapes();

 private:
  OrtTensorTypeAndShapeInfo* Info(size_t input) const;
  const OrtOpAttr* Attribute(size_t attribute) const;

  OrtShapeInferContext* context_;
  const Declaration& declaration_;
};

}  // namespace kvfuse

// What the shape rule of an operator sees of the runtime.

#include <atomic>

#include "context.h"

namespace kvfuse {

OrtTensorTypeAndShapeInfo* ShapeContext::Info(size_t input) const {
  size_t count = 0;
  Require(Runtime().ShapeInferContext_GetInputCount(context_, &count));
  OrtTensorTypeAndShapeInfo* info = nullptr;  // belongs to the context
  if (input < count) Discard(Runtime().ShapeInferContext_GetInputTypeShape(context_, input, &info));
  return info;
}

int ShapeContext::InputType(size_t input) const {
  int type = kUndefined;
  const OrtTensorTypeAndShapeInfo* info = Info(input);
  return info != nullptr && Succeeded(Runtime().GetTensorElementType(info, &type)) ? type : int{kUndefined};
}

bool ShapeContext::Given(size_t input) const { return InputType(input) != kUndefined; }

const OrtOpAttr* ShapeContext::Attribute(size_t attribute) const {
  const OrtOpAttr* found = nullptr;  // belongs to the context
  const char* name = declaration_.attrs[attribute].name;
  return Succeeded(Runtime().ShapeInferContext_GetAttribute(context_, name, &found)) ? found : nullptr;
}

bool ShapeContext::Ints(size_t attribute, std::vector<int64_t>* values) const {
  constexpr size_t kLongest = 16;
  const OrtOpAttr* found = Attribute(attribute);
  if (found == nullptr) return false;
  values->resize(kLongest);
  size_t bytes = 0;
  const size_t room = kLongest * sizeof(int64_t);
  if (!Succeeded(Runtime().ReadOpAttr(found, int{ort::kAttrInts}, static_cast<void*>(values->data()), room, &bytes))) {
    return false;
  }
  values->resize(bytes / sizeof(int64_t));
  return true;
}

int64_t ShapeContext::Int(size_t attribute) const {
  int64_t value = static_cast<int64_t>(declaration_.attrs[attribute].number);
  size_t bytes = 0;
  if (const OrtOpAttr* found = Attribute(attribute)) {
    Discard(Runtime().ReadOpAttr(found, int{ort::kAttrInt}, static_cast<void*>(&value), sizeof value, &bytes));
  }
  return value;
}

bool ShapeContext::Bool(size_t attribute) const { return Int(attribute) != 0; }

std::string ShapeContext::String(size_t attribute) const {
  constexpr size_t kLongest = 64;
  char text[kLongest];
  size_t bytes = 0;
  const OrtOpAttr* found = Attribute(attribute);
  if (found != nullptr &&
      Succeeded(Runtime().ReadOpAttr(found, int{ort::kAttrString}, static_cast<void*>(text), kLongest, &bytes))) {
    return std::string(text, bytes);
  }
  return declaration_.attrs[attribute].text;
}

bool ShapeContext::Dims(size_t input, size_t rank, std::vector<InferredDim>* dims) const {
  const OrtTensorTypeAndShapeInfo* info = Info(input);
  size_t found = 0;
  if (info == nullptr || !Succeeded(Runtime().GetDimensionsCount(info, &found)) || found != rank) return false;
  std::vector<int64_t> sizes(rank);
  std::vector<const char*> symbols(rank, nullptr);
  Require(Runtime().GetDimensions(info, sizes.data(), rank));
  Require(Runtime().GetSymbolicDimensions(info, symbols.data(), rank));
  dims->clear();
  for (size_t i = 0; i < rank; ++i) dims->push_back({sizes[i], symbols[i] == nullptr ? "" : symbols[i]});
  return true;
}

bool ShapeContext::Dims(size_t input, std::vector<InferredDim>* dims) const {
  const OrtTensorTypeAndShapeInfo* info = Info(input);
  size_t rank = 0;
  return info != nullptr && Succeeded(Runtime().GetDimensionsCount(info, &rank)) && rank > 0 && Dims(input, rank, dims);
}

namespace {

// A name for a dim of which nothing is known: without one the runtime takes the size -1 for a fact.
std::string UnknownDim() {
  static std::atomic<unsigned> count{0};
  return "kvfuse_unknown_" + std::to_string(count.fetch_add(1));
}

}  // namespace

void ShapeContext::SetOutput(size_t output, const std::vector<InferredDim>& dims, int type) {
  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  for (const InferredDim& dim : dims) {
    sizes.push_back(dim.size);
    names.push_back(dim.size < 0 && dim.symbol.empty() ? UnknownDim() : dim.symbol);
  }
  std::vector<const char*> symbols;
  for (const std::string& name : names) symbols.push_back(name.c_str());
  // The runtime calls one operator of a name for all its type combinations: the type is in the graph, not in us.
  const int like = declaration_.outputs[output].type_input;
  if (type == kUndefined) type = like < 0 ? declaration_.outputs[output].type : InputType(static_cast<size_t>(like));
  if (type == kUndefined) return;
  OwnedInfo owned;
  Require(Runtime().CreateTensorTypeAndShapeInfo(&owned.info));
  Require(Runtime().SetTensorElementType(owned.info, type));
  Require(Runtime().SetDimensions(owned.info, sizes.data(), sizes.size()));
  Require(Runtime().SetSymbolicDimensions(owned.info, symbols.data(), symbols.size()));
  Require(Runtime().ShapeInferContext_SetOutputTypeShape(context_, output, owned.info));
}

void ShapeContext::CopyRefShapes() {
  for (size_t output = 0; output < declaration_.outputs.size; ++output) {
    const int input = declaration_.outputs[output].ref_input;
    if (input < 0) continue;
    std::vector<InferredDim> dims;
    if (Dims(static_cast<size_t>(input), &dims)) SetOutput(output, dims);
  }
}

}  // namespace kvfuse

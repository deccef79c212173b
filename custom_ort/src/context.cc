#include "context.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>

namespace kvfuse {
namespace {

ort::Api runtime;
bool shape_references = false;

int64_t Elements(const int64_t* dims, size_t rank) {
  int64_t count = 1;
  bool overflow = false;
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] == 0) return 0;
    if (count > std::numeric_limits<int64_t>::max() / dims[i]) overflow = true;
    if (!overflow) count *= dims[i];
  }
  return overflow ? std::numeric_limits<int64_t>::max() : count;
}

Tensor Read(const char* name, const OrtValue* value) {
  Tensor tensor;
  tensor.name = name;
  if (value == nullptr) return tensor;
  const auto refuse = [&](const int64_t* dims) {
    Refuse({"IN-04", "an input has too many dims"}, name + (" " + ShapeText(dims, tensor.rank)),
           "at most " + std::to_string(kMaxRank));
  };
  if (shape_references) {
    const int64_t* dims = nullptr;
    Require(Runtime().GetTensorElementTypeAndShapeDataReference(value, &tensor.type, &dims, &tensor.rank));
    if (tensor.rank > kMaxRank) refuse(dims);
    std::copy(dims, dims + tensor.rank, tensor.dims);
  } else {
    OwnedInfo owned;
    Require(Runtime().GetTensorTypeAndShape(value, &owned.info));
    Require(Runtime().GetTensorElementType(owned.info, &tensor.type));
    Require(Runtime().GetDimensionsCount(owned.info, &tensor.rank));
    std::vector<int64_t> many(tensor.rank > kMaxRank ? tensor.rank : 0);
    int64_t* dims = many.empty() ? tensor.dims : many.data();
    Require(Runtime().GetDimensions(owned.info, dims, tensor.rank));
    if (!many.empty()) refuse(dims);
  }
  Require(Runtime().GetTensorMutableData(const_cast<OrtValue*>(value), &tensor.data));
  tensor.elements = Elements(tensor.dims, tensor.rank);
  tensor.given = true;
  return tensor;
}

}  // namespace

const ort::Api& Runtime() { return runtime; }
void SetRuntime(const void* table, uint32_t version) {
  runtime = ort::Api(table);
  shape_references = version >= ort::kShapeReferences;
}

const char* ElementTypeName(int type) {
  switch (type) {
    case kFloat32:
      return "float32";
    case kUint8:
      return "uint8";
    case kInt8:
      return "int8";
    case kUint16:
      return "uint16";
    case kInt16:
      return "int16";
    case kInt32:
      return "int32";
    case kInt64:
      return "int64";
    case kBool:
      return "bool";
    case kFloat16:
      return "float16";
    case kFloat64:
      return "float64";
    case kUint32:
      return "uint32";
    case kUint64:
      return "uint64";
    case kBfloat16:
      return "bfloat16";
    case kFloat8E4m3fn:
      return "float8_e4m3fn";
    case kFloat8E5m2:
      return "float8_e5m2";
    case kInt4:
      return "int4";
    default:
      return "another type";
  }
}

std::string ShapeText(const int64_t* dims, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + "]";
}

std::string Tensor::ShapeText() const { return kvfuse::ShapeText(dims, rank); }

bool Tensor::Is(std::initializer_list<int64_t> shape) const {
  if (shape.size() != rank) return false;
  size_t axis = 0;
  for (const int64_t dim : shape) {
    if (dim != dims[axis++]) return false;
  }
  return true;
}

// ---- kernel creation

void KernelInfo::RefuseOtherType(const AttrDecl& attribute) const {
  float number;
  int64_t integer;
  size_t size = 0;
  const char* found = nullptr;
  const bool is_list = attribute.type == AttrType::kInts;
  const bool listed = Succeeded(Runtime().KernelInfoGetAttributeArray_int64(info_, attribute.name, nullptr, &size));
  if (listed && !is_list) found = "ints";
  if (Succeeded(Runtime().KernelInfoGetAttribute_float(info_, attribute.name, &number))) found = "a float";
  if (Succeeded(Runtime().KernelInfoGetAttribute_int64(info_, attribute.name, &integer))) found = "an int";
  if (Succeeded(Runtime().KernelInfoGetAttribute_string(info_, attribute.name, nullptr, &size))) found = "a string";
  if (found == nullptr) return;  // not there: the default holds
  constexpr const char* kNames[] = {"Float", "Int", "Bool", "String", "ListInt"};
  Refuse({"AT-02", "an attribute has another type"}, std::string(attribute.name) + " as " + found,
         kNames[static_cast<int>(attribute.type)]);
}

float KernelInfo::Float(size_t attribute) const {
  const AttrDecl& declared = declaration_.attrs[attribute];
  float value;
  if (Succeeded(Runtime().KernelInfoGetAttribute_float(info_, declared.name, &value))) return value;
  RefuseOtherType(declared);
  return static_cast<float>(declared.number);
}

int64_t KernelInfo::Int(size_t attribute) const {
  const AttrDecl& declared = declaration_.attrs[attribute];
  int64_t value;
  if (Succeeded(Runtime().KernelInfoGetAttribute_int64(info_, declared.name, &value))) return value;
  RefuseOtherType(declared);
  return static_cast<int64_t>(declared.number);
}

int64_t KernelInfo::RequiredInt(size_t attribute) const {
  const AttrDecl& declared = declaration_.attrs[attribute];
  int64_t value;
  if (Succeeded(Runtime().KernelInfoGetAttribute_int64(info_, declared.name, &value))) return value;
  RefuseOtherType(declared);
  Refuse({"AT-03", "a required attribute is missing"}, std::string("no ") + declared.name, "Int");
}

bool KernelInfo::Bool(size_t attribute) const {
  const int64_t value = Int(attribute);
  if (value == 0 || value == 1) return value == 1;
  Refuse({"AT-02", "an attribute has another type"},
         std::string(declaration_.attrs[attribute].name) + "=" + std::to_string(value), "Bool");
}

std::vector<int64_t> KernelInfo::Ints(size_t attribute, const std::vector<int64_t>* otherwise) const {
  const AttrDecl& declared = declaration_.attrs[attribute];
  size_t size = 0;
  if (!Succeeded(Runtime().KernelInfoGetAttributeArray_int64(info_, declared.name, nullptr, &size))) {
    RefuseOtherType(declared);
    if (otherwise != nullptr) return *otherwise;
    Refuse({"AT-03", "a required attribute is missing"}, std::string("no ") + declared.name, "ListInt");
  }
  if (size == 0) RefuseOtherType(declared);  // runtimes before 1.24 take another type for an empty list
  std::vector<int64_t> values(size);
  if (size > 0) {
    Require(Runtime().KernelInfoGetAttributeArray_int64(info_, declared.name, values.data(), &size));
  }
  return values;
}

int KernelInfo::Choice(size_t attribute, std::string* found) const {
  const AttrDecl& declared = declaration_.attrs[attribute];
  size_t size = 0;
  *found = declared.text;
  if (Succeeded(Runtime().KernelInfoGetAttribute_string(info_, declared.name, nullptr, &size)) && size > 0) {
    std::string value(size, '\0');
    Require(Runtime().KernelInfoGetAttribute_string(info_, declared.name, value.data(), &size));
    value.resize(size - 1);  // the count has the final NUL
    *found = value;
  } else {
    RefuseOtherType(declared);
  }
  for (size_t i = 0; i < declared.allowed.size; ++i) {
    if (*found == declared.allowed[i]) return static_cast<int>(i);
  }
  return -1;
}

Tensor KernelInfo::ConstantInput(size_t input) const {
  size_t count = 0;
  Require(Runtime().KernelInfo_GetInputCount(info_, &count));
  int constant = 0;
  const OrtValue* value = nullptr;
  if (input < count) Require(Runtime().KernelInfoGetConstantInput_tensor(info_, input, &constant, &value));
  return Read(declaration_.inputs[input].name, constant != 0 ? value : nullptr);
}

int KernelInfo::RequiredChoice(size_t attribute, std::string* found) const {
  const AttrDecl& declared = declaration_.attrs[attribute];
  size_t size = 0;
  if (!Succeeded(Runtime().KernelInfoGetAttribute_string(info_, declared.name, nullptr, &size))) {
    RefuseOtherType(declared);
    Refuse({"AT-03", "a required attribute is missing"}, std::string("no ") + declared.name, "String");
  }
  return Choice(attribute, found);
}

std::string NodeName(const OrtKernelInfo* info) {
  size_t size = 0;
  if (!Succeeded(Runtime().KernelInfo_GetNodeName(info, nullptr, &size)) || size == 0) return "";
  std::string name(size, '\0');
  if (!Succeeded(Runtime().KernelInfo_GetNodeName(info, name.data(), &size))) return "";
  name.resize(size - 1);
  return name;
}

Constants::Constants(const KernelInfo& info, size_t inputs) : tensors_(inputs) {
  constexpr int64_t kSmall = 16384;  // elements
  constexpr size_t kAlignment = 64;
  for (size_t input = 0; input < inputs; ++input) {
    Tensor tensor = info.ConstantInput(input);
    if (!tensor.given || tensor.elements > kSmall) continue;
    const size_t bytes = static_cast<size_t>(tensor.elements) * ElementSize(tensor.type);
    memory_.emplace_back(new char[bytes + kAlignment]);
    char* start = memory_.back().get();
    start += kAlignment - reinterpret_cast<uintptr_t>(start) % kAlignment;
    if (bytes > 0) std::memcpy(start, tensor.data, bytes);
    tensor.data = start;
    tensors_[input] = tensor;
  }
}

// ---- a run

KernelContext::KernelContext(OrtKernelContext* context, const Declaration& declaration, const int8_t* types,
                             const Constants& constants)
    : context_(context), declaration_(declaration), types_(types), constants_(constants) {
  Require(Runtime().KernelContext_GetInputCount(context_, &inputs_));
  Require(Runtime().KernelContext_GetOutputCount(context_, &outputs_));
}

Tensor KernelContext::Input(size_t input) const {
  if (const Tensor* constant = constants_.Find(input)) return *constant;
  const OrtValue* value = nullptr;
  // Trailing inputs that are left out do not count, inner ones are null.
  if (input < inputs_) Require(Runtime().KernelContext_GetInput(context_, input, &value));
  const Tensor tensor = Read(declaration_.inputs[input].name, value);
  if (tensor.given && tensor.type != types_[input]) {
    Refuse({"IN-03", "an input has an element type the operator does not take"},
           tensor.name + (" " + std::string(ElementTypeName(tensor.type))), ElementTypeName(types_[input]));
  }
  return tensor;
}

void* KernelContext::Output(size_t output, const int64_t* dims, size_t rank) {
  OrtValue* value = nullptr;
  if (output < outputs_) Require(Runtime().KernelContext_GetOutput(context_, output, dims, rank, &value));
  void* data = nullptr;
  if (value != nullptr) Require(Runtime().GetTensorMutableData(value, &data));
  return data;
}

size_t KernelContext::ChunkRows(size_t rows, size_t cost) {
  const size_t chunk = rows * cost / 16;
  return std::max(size_t{1}, std::clamp(chunk, size_t{16}, size_t{64}) / cost);
}

void KernelContext::Chunks(size_t total, size_t chunk, ChunkBody body, const void* user) {
  if (total <= chunk) return body(user, 0, total);
  struct Shared {
    ChunkBody body;
    const void* user;
    size_t total, chunk;
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  } shared{body, user, total, chunk, {}, {}};
  const auto run = [](void* opaque, size_t i) noexcept {
    Shared& job = *static_cast<Shared*>(opaque);
    const size_t begin = i * job.chunk;
    const size_t end = job.total - begin < job.chunk ? job.total : begin + job.chunk;
    try {
      job.body(job.user, begin, end);
    } catch (...) {
      if (!job.failed.exchange(true)) job.error = std::current_exception();
    }
  };
  void (*const plain)(void*, size_t) = run;
  Require(Runtime().KernelContext_ParallelFor(context_, plain, (total + chunk - 1) / chunk, size_t{0}, &shared));
  if (shared.error) std::rethrow_exception(shared.error);
}

void KernelContext::Copy(void* target, const void* source, size_t bytes) {
  if (target == source) return;
  constexpr size_t kChunk = size_t{1} << 20;
  const auto copy = [=](size_t begin, size_t end) {
    std::memcpy(static_cast<char*>(target) + begin, static_cast<const char*>(source) + begin, end - begin);
  };
  Chunks(bytes, kChunk, &Invoke<decltype(copy)>, &copy);
}

}  // namespace kvfuse
